"""What every method must do. Each check takes a method and raises AssertionError when it does not."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass

import numpy as np
import pytest
import torch
from tests.reference.objectives import OBJECTIVES
from torch import Tensor

from pams_mil import discover
from pams_mil.class_checks import Level
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.method import Method
from pams_mil.methods.objective import Objective


@dataclass
class Output:
    """What an objective sees of a model."""

    logits: Tensor
    embedding: Tensor | None = None
    weight: Tensor | None = None
    tier1_logits: Tensor | None = None
    tier1_bag: Tensor | None = None


DEEP = ClassHierarchy(
    name="deep",
    levels=(
        Level(("low", "high"), (0, 0), (0, 1)),
        Level(("a", "b", "c"), (0, 1, 1), (0, 1, 2)),
        Level(("a1", "a2", "b1", "c1", "c2"), (0, 0, 1, 2, 2), (0, 0, 1, 2, 3)),
    ),
)
TREES = {"flat": ClassHierarchy.flat(["x", "y", "z"]), "bracs": ClassHierarchy.load("bracs"), "deep": DEEP}


def parameters_for(method: Method, hierarchy: ClassHierarchy, batch: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Random (logits, head rows) with gradients, one pair per trained level."""
    generator = torch.Generator().manual_seed(seed)
    counts = [hierarchy.num_classes(level) for level in method.trained_levels(hierarchy)]
    return [
        (
            torch.randn(batch, count, generator=generator).requires_grad_(),
            torch.randn(count, 6, generator=generator).requires_grad_(),
        )
        for count in counts
    ]


def outputs_of(parameters) -> list[Output]:
    return [Output(logits=logits, embedding=torch.zeros(len(logits), 6), weight=rows) for logits, rows in parameters]


def targets_for(method: Method, hierarchy: ClassHierarchy, fine) -> list[Tensor]:
    return [torch.tensor(hierarchy.lift(np.asarray(fine), level)) for level in method.trained_levels(hierarchy)]


def all_targets(method: Method, hierarchy: ClassHierarchy) -> list[Tensor]:
    return targets_for(method, hierarchy, np.arange(hierarchy.num_classes()))


def gradients(value: Tensor, parameters) -> Tensor:
    flat = [tensor for pair in parameters for tensor in pair]
    found = torch.autograd.grad(value, flat, allow_unused=True, retain_graph=True)
    return torch.cat(
        [torch.zeros_like(t).flatten() if g is None else g.flatten() for t, g in zip(flat, found, strict=True)]
    )


def check_is_a_frozen_value(method: Method) -> None:
    assert is_dataclass(method)
    assert method.towers in method.allowed_towers
    assert method.heads in ("linear", "normalized", "split")
    assert method.heads != "split" or method.towers == "shared"
    assert method.remix is None or isinstance(method.remix, str)
    assert isinstance(method.remix_options, dict)
    assert type(method)(**{field.name: getattr(method, field.name) for field in fields(method)}) == method
    with pytest.raises(FrozenInstanceError):
        method.towers = "shared"


def check_terms(method: Method, hierarchy: ClassHierarchy) -> None:
    """Named finite scalars, each with a gradient, whose gradients add up to the total's."""
    parameters = parameters_for(method, hierarchy, hierarchy.num_classes())
    objective = method.objective(hierarchy)
    assert isinstance(objective, Objective)
    terms = objective(outputs_of(parameters), all_targets(method, hierarchy))
    assert terms
    assert all(isinstance(name, str) and name.isidentifier() for name in terms)
    assert all(value.ndim == 0 and bool(value.isfinite()) for value in terms.values())
    each = {name: gradients(value, parameters) for name, value in terms.items()}
    for name, gradient in each.items():
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0, f"the term {name} trains nothing"
    total = gradients(torch.stack(list(terms.values())).sum(), parameters)
    torch.testing.assert_close(total, torch.stack(list(each.values())).sum(0), rtol=1e-4, atol=1e-5)


def check_reads_targets(method: Method, hierarchy: ClassHierarchy) -> None:
    """Confidently right is cheaper than confidently wrong, for every true class."""
    count = hierarchy.num_classes()
    for true in range(count):
        right = _total(method, hierarchy, true, true)
        wrong = [_total(method, hierarchy, true, predicted) for predicted in range(count) if predicted != true]
        assert right < min(wrong)


def _total(method: Method, hierarchy: ClassHierarchy, true: int, predicted: int) -> float:
    outputs = []
    for level in method.trained_levels(hierarchy):
        count = hierarchy.num_classes(level)
        said = int(hierarchy.lift(predicted, level))
        outputs.append(Output(_confident(method, hierarchy, count, said), weight=torch.eye(count, 8)))
    terms = method.objective(hierarchy).eval()(outputs, targets_for(method, hierarchy, [true]))
    return float(sum(terms.values()))


def _confident(method: Method, hierarchy: ClassHierarchy, count: int, said: int) -> Tensor:
    """Logits by which the method itself takes one class for the most probable: one score per class, or the answers
    to "more urgent than k?" of an ordinal chain. Which of them a method reads is for its probabilities to say."""
    classes = torch.arange(count)
    readings = [torch.where(classes == said, 2.0, -2.0)[None], torch.where(classes < said, 2.0, -2.0)[None]]
    objective = method.objective(hierarchy)
    shares = [float(objective.probabilities([Output(logits)])[0][0, said]) for logits in readings]
    return readings[int(np.argmax(shares))]


def check_probabilities(method: Method, hierarchy: ClassHierarchy) -> None:
    parameters = parameters_for(method, hierarchy, 4)
    with torch.no_grad():
        for p, (logits, _) in zip(
            method.objective(hierarchy).probabilities(outputs_of(parameters)), parameters, strict=True
        ):
            assert p.shape == logits.shape
            assert (p >= 0).all()
            torch.testing.assert_close(p.sum(-1), torch.ones(4))


def check_weights(method: Method, hierarchy: ClassHierarchy) -> None:
    """Per-bag weights: ones change nothing, and two labels mix linearly."""
    fine = np.arange(hierarchy.num_classes())
    parameters = parameters_for(method, hierarchy, len(fine))
    outputs = outputs_of(parameters)
    first, second = targets_for(method, hierarchy, fine), targets_for(method, hierarchy, fine[::-1].copy())
    share = torch.linspace(0, 1, len(fine))

    def terms(targets, weights=None):
        return method.objective(hierarchy)(outputs, targets, weights)

    for name, value in terms(first).items():
        torch.testing.assert_close(terms(first, torch.ones(len(fine)))[name], value)
        torch.testing.assert_close(terms(first, share)[name] + terms(first, 1 - share)[name], value)
    halves = {name: value + terms(second, 1 - share)[name] for name, value in terms(first, share).items()}
    assert all(bool(value.isfinite()) for value in halves.values())


def check_extremes(method: Method, hierarchy: ClassHierarchy) -> None:
    for size in (1e4, 0.0):
        parameters = [
            ((size * rows.detach().sign()).requires_grad_(), weight)
            for rows, weight in parameters_for(method, hierarchy, hierarchy.num_classes())
        ]
        terms = method.objective(hierarchy)(outputs_of(parameters), all_targets(method, hierarchy))
        total = torch.stack(list(terms.values())).sum()
        assert total.isfinite()
        assert gradients(total, parameters).isfinite().all()


def check_tier1(method: Method, hierarchy: ClassHierarchy) -> None:
    """Pseudo-bags that all say what their bag says double the level losses (with HAF's heads also the alignment)."""
    parameters = parameters_for(method, hierarchy, 2)
    outputs, targets = outputs_of(parameters), targets_for(method, hierarchy, [0, hierarchy.num_classes() - 1])
    plain = method.objective(hierarchy).eval()(outputs, targets)
    bag = torch.tensor([0, 1, 1])
    for output in outputs:
        output.tier1_logits, output.tier1_bag = output.logits[bag], bag
    tiered = method.objective(hierarchy).eval()(outputs, targets)
    for name, value in plain.items():
        bags_only = ("geometry", "margin") if method.heads == "normalized" else ("alignment",)
        factor = 1.0 if name in bags_only else 2.0
        torch.testing.assert_close(tiered[name], factor * value)


def check_equals_loops(method: Method, hierarchy: ClassHierarchy, name: str = "") -> None:
    """Every term of the objective equals a loop over its equation; a method without one does not conform."""
    names = {discover.load("methods", known): known for known in discover.available("methods")}
    name = name or names.get(type(method), type(method).__name__)
    assert name in OBJECTIVES, f"{name} has no loop reference in tests/reference/objectives.py"
    fine = np.arange(hierarchy.num_classes())[::-1].copy()
    parameters = parameters_for(method, hierarchy, len(fine), seed=3)
    targets = targets_for(method, hierarchy, fine)
    with torch.no_grad():
        wide = [(3 * logits.double(), rows.double()) for logits, rows in parameters]
        terms = method.objective(hierarchy).double()(outputs_of(wide), targets)
    expected = OBJECTIVES[name](
        method, hierarchy, [logits.tolist() for logits, _ in wide], [rows.tolist() for _, rows in wide],
        [target.tolist() for target in targets],
    )  # fmt: skip
    assert terms.keys() == expected.keys()
    for term, value in terms.items():
        assert value.item() == pytest.approx(expected[term], rel=1e-6), term


CHECKS = [
    check_terms, check_reads_targets, check_probabilities, check_weights, check_extremes, check_tier1,
    check_equals_loops,
]  # fmt: skip
