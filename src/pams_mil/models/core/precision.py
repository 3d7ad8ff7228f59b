"""Where precision matters: softmaxes, pseudo-inverses and running sums are at least float32, also under autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

_Result = TypeVar("_Result")


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor itself, or as float32 when it is half precision.

    >>> at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def without_autocast(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Run a pass of an autograd function in the precision of its tensors, wherever it is called from.

    A backward pass runs under the autocast state of whoever calls `backward`, not under that of its forward pass.
    """

    @functools.wraps(function)
    def run(ctx: Any, first: Tensor, *rest: Any) -> _Result:
        with torch.autocast(first.device.type, enabled=False):
            return function(ctx, first, *rest)

    return run
