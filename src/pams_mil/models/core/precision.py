"""Where precision matters: passes of autograd functions run as they were written, also under autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

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
