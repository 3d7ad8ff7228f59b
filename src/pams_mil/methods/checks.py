"""What goes into every loss, checked: logits and class indices that fit each other."""

from __future__ import annotations

import torch
from torch import Tensor

from pams_mil import ops
from pams_mil.errors import ParameterError


def checked(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [b, c] in float32 or better and class indices [b], or an error that says what is wrong.

    >>> checked(torch.zeros(1, 3), torch.tensor([3]))
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: target must hold class indices from 0 to 2, found 3 to 3.
    """
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ParameterError(
            f"logits must be floating-point numbers [batch, classes], found {list(logits.shape)} of {logits.dtype}."
        )
    if target.shape != logits.shape[:1] or target.dtype != torch.int64:
        raise ParameterError(
            f"target must be one int64 class index per row of logits, [{logits.shape[0]}], "
            f"found {list(target.shape)} of {target.dtype}."
        )
    # Reading numbers breaks a compiled graph in two.
    if target.numel() and not torch.compiler.is_compiling():
        indices = target.tolist()
        low, high = min(indices), max(indices)
        if low < 0 or high >= logits.shape[1]:
            raise ParameterError(
                f"target must hold class indices from 0 to {logits.shape[1] - 1}, found {low} to {high}."
            )
    return ops.at_least_float32(logits), target
