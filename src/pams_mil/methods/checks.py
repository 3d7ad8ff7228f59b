"""What methods and losses refuse, and how they say it: the name, the allowed range, what was found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pams_mil import ops
from pams_mil.errors import ParameterError, listing


def require_number(name: str, value: Any, *, above: float | None = None, at_least: float | None = None) -> None:
    """Refuse what is not a finite number in range.

    >>> require_number("beta", -1.0, above=0)
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: beta must be a finite number above 0, found -1.0.
    """
    limits = "" if above is None else f" above {above:g}"
    limits += "" if at_least is None else f" of at least {at_least:g}"
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if valid and (above is None or value > above) and (at_least is None or value >= at_least):
        return
    raise ParameterError(f"{name} must be a finite number{limits}, found {value!r}.")


def require_count(name: str, value: Any, *, at_least: int) -> None:
    """Refuse what is not a whole number of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ParameterError(f"{name} must be a whole number of at least {at_least}, found {value!r}.")


def require_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is not one of the choices.

    >>> require_choice("detach", "both", ["none", "fine", "coarse"])
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: detach must be one of 'none', 'fine', 'coarse', found 'both'.
    """
    if value not in choices:
        raise ParameterError(f"{name} must be one of {listing(choices)}, found {value!r}.")


def checked(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [b, c] in float32 or better and class indices [b], or an error that says what is wrong.

    >>> checked(torch.zeros(1, 3), torch.tensor([3]))
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: target must hold class indices from 0 to 2, found 3 to 3.
    """
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ParameterError(
            f"logits must be floating-point numbers [batch, classes], found {_shape(logits)} of {logits.dtype}."
        )
    if target.shape != logits.shape[:1] or target.dtype != torch.int64:
        raise ParameterError(
            f"target must be one int64 class index per row of logits, [{logits.shape[0]}], "
            f"found {_shape(target)} of {target.dtype}."
        )
    if target.numel() and not torch.compiler.is_compiling():
        low, high = (int(bound) for bound in target.aminmax())
        if low < 0 or high >= logits.shape[1]:
            raise ParameterError(
                f"target must hold class indices from 0 to {logits.shape[1] - 1}, found {low} to {high}."
            )
    return ops.at_least_float32(logits), target


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
