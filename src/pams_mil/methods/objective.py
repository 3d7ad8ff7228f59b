"""Objectives: from the outputs of all trained levels to named, weighted terms.

A term is a module `(outputs, targets, weights) -> [b]`, one value per bag. An objective averages each term over the
bags, scales it by its factor, and returns it under its name. The total is the sum of exactly these, so none can be
computed and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pams_mil import ops
from pams_mil.arrays import Array
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.severity import check_cost

if TYPE_CHECKING:
    from pams_mil.models.core.mil_model import LevelOutput

LossFunction = Callable[..., Tensor]


class LevelLoss(nn.Module):
    """A pure loss function together with its matrices, which become buffers and follow the device and dtype.

    The matrices are not part of the state: they are rebuilt from the hierarchy.

    Shapes: logits [b, c], target [b] -> [b]
    """

    def __init__(
        self,
        function: LossFunction,
        *,
        num_classes: int,
        matrices: Mapping[str, npt.NDArray[Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.function = function
        self.num_classes = num_classes
        self.options = options
        self.matrix_names = tuple(matrices or ())
        for name, matrix in (matrices or {}).items():
            floating = np.issubdtype(matrix.dtype, np.floating)
            tensor = torch.as_tensor(matrix, dtype=torch.get_default_dtype() if floating else None)
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """One value per row of logits."""
        if logits.ndim == 2 and logits.shape[1] != self.num_classes:
            raise ParameterError(
                f"logits must have one column per class of the level, {self.num_classes}, found {logits.shape[1]}."
            )
        matrices = {name: getattr(self, name) for name in self.matrix_names}
        return self.function(logits, target, **matrices, **self.options)

    def extra_repr(self) -> str:
        """The function's name and options."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{self.function.__name__}, num_classes={self.num_classes}{options}"


class LevelTerm(nn.Module):
    """Sum of level losses; `losses` maps the position of a level's output to its loss.

    A two-tier model (DTFD) pays for its pseudo-bags too: loss(bag) + mean over its pseudo-bags of loss(pseudo-bag).
    """

    def __init__(self, losses: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.losses = nn.ModuleDict({str(position): loss for position, loss in losses.items()})

    def forward(
        self, outputs: Sequence[LevelOutput], targets: Sequence[Tensor], weights: Tensor | None = None
    ) -> Tensor:
        """[b], one value per bag, not yet weighted."""
        total: Tensor | None = None
        for position, loss in self.losses.items():
            output, target = outputs[int(position)], targets[int(position)]
            values: Tensor = loss(output.logits, target)
            if output.tier1_logits is not None and output.tier1_bag is not None:
                tier1 = loss(output.tier1_logits, target[output.tier1_bag])
                values = values + mean_per_bag(tier1, output.tier1_bag, len(target))
            total = values if total is None else total + values
        if total is None:
            raise ParameterError("A term over levels needs the loss of at least one level, found none.")
        return total


class Objective(nn.Module):
    """What is minimized: named terms, each with its factor; terms with factor 0 are left out.

    Args:
        terms: name -> (factor, term).
        num_outputs: how many level outputs the terms expect.
        probabilities: logits [b, c] -> class probabilities [b, c]; softmax unless the loss has its own link.
    """

    def __init__(
        self,
        terms: Mapping[str, tuple[float, nn.Module]],
        *,
        num_outputs: int,
        probabilities: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.factors = {name: factor for name, (factor, _) in terms.items() if factor}
        if not self.factors:
            raise ParameterError(
                f"All terms ({', '.join(terms)}) have weight 0 for this hierarchy, so there is nothing to minimize; "
                "give at least one a weight above 0."
            )
        self.terms = nn.ModuleDict({name: terms[name][1] for name in self.factors})
        self.num_outputs = num_outputs
        self._probabilities = probabilities or softmax_probabilities

    def forward(
        self, outputs: Sequence[LevelOutput], targets: Sequence[Tensor], weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Named scalars whose sum is the loss.

        Args:
            outputs: one per trained level, coarsest first.
            targets: per output the class indices [b].
            weights: [b], how much each bag counts; the sum is divided by b, not by their sum. A bag with two
                labels of weight v and 1 − v is two calls, one per label, whose terms are added.
        """
        if not len(outputs) == len(targets) == self.num_outputs:
            raise ParameterError(
                f"The objective needs outputs and targets of {self.num_outputs} level(s), "
                f"found {len(outputs)} and {len(targets)}."
            )
        values = {name: term(outputs, targets, weights) for name, term in self.terms.items()}
        if weights is not None:
            values = {name: value * weights.to(value) for name, value in values.items()}
        means = {name: value.mean() for name, value in values.items()}
        return {name: mean if self.factors[name] == 1 else self.factors[name] * mean for name, mean in means.items()}

    def probabilities(self, outputs: Sequence[LevelOutput]) -> list[Tensor]:
        """Class probabilities [b, c] per output."""
        return [self._probabilities(output.logits) for output in outputs]


def auxiliary_terms(
    outputs: Sequence[LevelOutput], targets: Sequence[Tensor], weights: Tensor | None = None
) -> dict[str, Tensor]:
    """What models add to their own training loss: summed over levels, averaged over bags as an objective's terms are.

    Whatever the method, a model that has such terms is trained with them (CLAM's instance loss).
    """
    total: dict[str, Tensor] = {}
    for output, target in zip(outputs, targets, strict=True):
        for name, values in (output.auxiliary(target) if output.auxiliary is not None else {}).items():
            value = values.mean() if weights is None else (values * weights.to(values)).mean()
            total[name] = total[name] + value if name in total else value
    return total


def softmax_probabilities(logits: Tensor) -> Tensor:
    """Softmax in float32 or better."""
    return ops.at_least_float32(logits).softmax(-1)


def mean_per_bag(values: Tensor, bag: Tensor, num_bags: int) -> Tensor:
    """Mean of the pseudo-bags' values [g] for every bag [num_bags].

    >>> mean_per_bag(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]), 2)
    tensor([2., 5.])
    """
    count = torch.bincount(bag, minlength=num_bags).clamp_min(1)
    return values.new_zeros(num_bags).index_add(0, bag, values) / count


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
