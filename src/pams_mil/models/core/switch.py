"""One switch for all passes that are written by hand: on by default, off where only operations of torch will do.

Every kernel stands beside a reference implementation of a few lines, and a test checks that they are equal. The
reference is taken while the switch is off, while a graph is traced or a function transformed (neither can hold a pass
written by hand), and when a gradient is itself differentiated (`reference_gradients`).

Where precision matters: passes of autograd functions run as they were written, also under autocast.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor

# Of a context, not of the process: another thread may train with kernels meanwhile.
_ON: ContextVar[bool] = ContextVar("kernels", default=os.environ.get("PAMS_REFERENCE_KERNELS", "") in ("", "0"))


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Use the reference implementations; `PAMS_REFERENCE_KERNELS=1` in the environment does so everywhere.

    >>> with reference_kernels():
    ...     kernels_on()
    False
    """
    token = _ON.set(False)
    try:
        yield
    finally:
        _ON.reset(token)


def kernels_on() -> bool:
    """Whether kernels may be used: not switched off, and no tracer or function transform is active.

    >>> kernels_on()
    True
    """
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return _ON.get() and not traced and torch._C._functorch.maybe_current_level() is None


def by_hand(weight: Tensor) -> bool:
    """Whether kernels that are for a CPU in full precision may be used with this weight.

    >>> by_hand(torch.zeros(1)), by_hand(torch.zeros(1, dtype=torch.bfloat16))
    (True, False)
    """
    whole = weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return weight.device.type == "cpu" and whole and kernels_on()


def reference_gradients(
    reference: Callable[..., Any], inputs: Sequence[Any], grads: Sequence[Tensor]
) -> tuple[Any, ...]:
    """The gradients of a reference implementation with a graph of their own, to be differentiated.

    Args:
        reference: The implementation.
        inputs: Its arguments, as the kernel's forward pass was given them.
        grads: Of its outputs.
    """
    wanted = [value for value in inputs if isinstance(value, Tensor) and value.requires_grad]
    gradients = iter(torch.autograd.grad(reference(*inputs), wanted, grads, create_graph=True, allow_unused=True))
    return tuple(next(gradients) if isinstance(value, Tensor) and value.requires_grad else None for value in inputs)


_Result = TypeVar("_Result")


def without_autocast(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Run a pass of an autograd function in the precision of its tensors, wherever it is called from.

    A backward pass runs under the autocast state of whoever calls `backward`, not under that of its forward pass.
    """

    @functools.wraps(function)
    def run(ctx: Any, first: Tensor, *rest: Any) -> _Result:
        with torch.autocast(first.device.type, enabled=False):
            return function(ctx, first, *rest)

    return run
