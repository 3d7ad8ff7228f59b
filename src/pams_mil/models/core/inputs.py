"""The one place where bags are checked, before any compute: shape, width, kind of number, finite values.

Large bags: a reproducible cap on the instances of a training step, and out-of-memory errors in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pams_mil import seeding
from pams_mil.errors import ModelInputError, ParameterError, RunError, first_line
from pams_mil.models.core.batch import BagBatch


def as_batch(bags: BagBatch | Tensor, *, mask: Tensor | None, in_features: int) -> BagBatch:
    """Packed and checked bags from whatever a model accepts.

    >>> padded = torch.zeros(2, 3, 4)
    >>> as_batch(padded, mask=torch.tensor([[1, 1, 0], [1, 1, 1]]).bool(), in_features=4).sizes
    (2, 3)
    >>> as_batch(torch.zeros(0, 4), mask=None, in_features=4)
    Traceback (most recent call last):
    pams_mil.errors.ModelInputError: Bag 0 is empty: expected at least one instance [n, 4]. ...
    """
    if isinstance(bags, BagBatch):
        if bags.checked and mask is None and bags.features.shape[1] == in_features:
            return bags
        if mask is not None:
            raise ModelInputError("Packed bags carry their own sizes: pass a mask only with a padded tensor [b, n, d].")
        batch = bags
    elif isinstance(bags, Tensor):
        batch = _pack_tensor(bags, mask, in_features)
    else:
        raise ModelInputError(f"Expected a BagBatch or a tensor [n, {in_features}], found {type(bags).__name__}.")
    _check(batch, in_features)
    return replace(batch, checked=True)


def _pack_tensor(bags: Tensor, mask: Tensor | None, in_features: int) -> BagBatch:
    if bags.ndim == 2 and mask is None:
        return BagBatch(bags, (len(bags),))
    if bags.ndim != 3:
        expected = f"[n, {in_features}] for one bag or [b, n, {in_features}] for padded bags"
        raise ModelInputError(f"Expected a tensor {expected}, found shape {list(bags.shape)}.")
    if mask is None:
        _refuse_padding(bags)
        return BagBatch(bags.flatten(0, 1), (bags.shape[1],) * len(bags))
    if mask.shape != bags.shape[:2]:
        raise ModelInputError(f"Expected a mask of shape {list(bags.shape[:2])}, found {list(mask.shape)}.")
    keep = mask.to(device=bags.device, dtype=torch.bool)
    return BagBatch(bags[keep], tuple(keep.sum(1).tolist()))


def _refuse_padding(bags: Tensor) -> None:
    """Rows of zeros behind a bag are padding, and without a mask they would be taken for tiles."""
    if 0 in bags.shape:
        return
    padded = (~bags.detach()[:, -1].any(-1)).nonzero()
    if len(padded):
        raise ModelInputError(
            f"Bag {int(padded[0])} of {len(bags)} ends in rows of zeros, which look like padding: pass mask=[b, n], "
            "true where a row is an instance (all true if the zeros are meant), or packed bags, BagBatch.pack(bags)."
        )


def _check(batch: BagBatch, in_features: int) -> None:
    features = batch.features
    if features.ndim != 2:
        raise ModelInputError(f"Expected packed features [sum n_i, {in_features}], found shape {list(features.shape)}.")
    if not features.is_floating_point():
        kind = str(features.dtype).removeprefix("torch.")
        raise ModelInputError(f"Expected floating-point features, found {kind}. Convert them with features.float().")
    if features.shape[1] != in_features:
        raise ModelInputError(
            f"{_name(batch, 0)} has {features.shape[1]} features per instance, but the model takes {in_features}. "
            "Use bags of the encoder that the model was trained with, or create the model with that width."
        )
    for index, size in enumerate(batch.sizes):
        if size < 1:
            raise ModelInputError(
                f"{_name(batch, index)} is empty: expected at least one instance [n, {in_features}]. "
                "A slide without tissue has no bag; leave it out or extract it again."
            )
    _check_finite(batch)


def _check_finite(batch: BagBatch) -> None:
    # One read of the rows: a finite total has only finite summands. An infinite total may be an overflow
    # of large but finite numbers, so only then is every value looked at.
    features = batch.features.detach()
    wide = features.dtype if features.dtype == torch.float64 else torch.float32
    if math.isfinite(features.sum(dtype=wide).item()):
        return
    for index, bag in enumerate(replace(batch, features=features).bags()):
        bad = (~torch.isfinite(bag)).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise ModelInputError(
                f"{_name(batch, index)} holds {len(bad)} non-finite values, the first at row {row}, column {column} "
                f"({bag[row, column].item()}). Extract its features again; half precision overflows above 65504."
            )


def _name(batch: BagBatch, index: int) -> str:
    key = batch.key(index)
    return f"Bag {index} ({key!r})" if key else f"Bag {index}"


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
        raise RunError(
            f"Out of memory on slide {slide_id!r} with {n} instances. Set max_instances to fewer than {n} for "
            "training, process one bag at a time, or use a model or machine with more room. "
            f"The cause: {first_line(error)}"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: torch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
