"""Large bags: a reproducible cap on the instances of a training step, and out-of-memory errors in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from pams_mil import seeding
from pams_mil.errors import ParameterError, RunError, first_line


def instance_cap(n: int, cap: int | None, *, seed: int, epoch: int, slide_id: str) -> Tensor | None:
    """Rows of a bag that a training step may see: None for all, else `cap` rows in their order, [cap] int64.

    The choice is a pure function of (seed, epoch, slide id); other epochs see other rows.

    >>> instance_cap(5, None, seed=0, epoch=0, slide_id="s") is None
    True
    >>> len(instance_cap(5, 3, seed=0, epoch=0, slide_id="s"))
    3
    """
    if cap is None or n <= cap:
        return None
    if cap < 1:
        raise ParameterError(f"The instance cap must be at least 1, found {cap}.")
    rows = seeding.numpy_generator(seed, "instance_cap", epoch, slide_id).choice(n, cap, replace=False, shuffle=False)
    return torch.from_numpy(np.sort(rows))


@contextmanager
def explain_out_of_memory(slide_id: str, n: int) -> Iterator[None]:
    """Turn torch's out-of-memory errors into a RunError that names the slide(s), their size n and the way out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(error, slide_id, n) from error


def out_of_memory(error: BaseException, slide_id: str, n: int) -> RunError:
    """An out-of-memory error in words; arguments as for `explain_out_of_memory`."""
    return RunError(
        f"Out of memory on slide {slide_id!r} with {n} instances. Set max_instances to fewer than {n} for training, "
        "process one bag at a time, or use a model or machine with more room. "
        f"The cause: {first_line(error)}"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: torch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
