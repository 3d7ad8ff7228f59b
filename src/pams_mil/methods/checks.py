"""What goes into every loss, checked: logits and class indices that fit each other, costs that fit the classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pams_mil import ops
from pams_mil.arrays import Array
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.severity import check_cost

CostMatrix = Sequence[Sequence[float]]


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


def check_costs(costs: Sequence[CostMatrix | None] | None) -> None:
    """Refuse anything but a list with a square matrix of costs, or none, per level."""
    if costs is not None and not isinstance(costs, (list, tuple)):
        raise ParameterError(f"costs must be a list with one matrix or none per level, found {costs!r}.")
    for cost in costs or ():
        if cost is not None:
            check_cost(cost, len(cost) if hasattr(cost, "__len__") else 0, zero_diagonal=False)


def level_cost(costs: Sequence[CostMatrix | None] | None, hierarchy: ClassHierarchy, level: int) -> Array | None:
    """The matrix `[true, predicted]` that is given for a level, if one is."""
    costs = costs if costs is not None else [None] * hierarchy.num_levels
    if len(costs) != hierarchy.num_levels:
        raise ParameterError(f"costs must hold one entry per level, {hierarchy.num_levels}, found {len(costs)}.")
    cost = costs[hierarchy.level(level)]
    return None if cost is None else check_cost(cost, hierarchy.num_classes(level), zero_diagonal=False)
