"""The conformance checks over everything discovered, and over saboteurs that must fail them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from tests.methods.conformance import (
    CHECKS,
    TREES,
    check_equals_loops,
    check_extremes,
    check_is_a_frozen_value,
    check_probabilities,
    check_reads_targets,
    check_terms,
    check_tier1,
    check_weights,
)

from pams_mil import discover
from pams_mil.methods.cross_entropy import CrossEntropy, ce_loss
from pams_mil.methods.method import FinestMethod, Method
from pams_mil.methods.objective import LevelLoss, LevelTerm, Objective

NAMES = discover.available("methods")
EXPECTED = {
    "cdw_ce", "ce", "chang", "co2", "corn", "emd", "haf", "hong", "hxe", "oce", "pams", "soft_labels",
    "sord", "weighted_ce",
}  # fmt: skip


def test_all_methods_are_discovered():
    assert set(NAMES) >= EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_is_a_frozen_value(name):
    check_is_a_frozen_value(discover.load("methods", name)())


@pytest.mark.parametrize("hierarchy", TREES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(check, name, hierarchy):
    check(discover.load("methods", name)(), TREES[hierarchy])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("towers", ["finest", "shared", "per_level"])
def test_conforms_with_other_towers(name, towers):
    method = discover.load("methods", name)
    if towers in method.allowed_towers:
        check_terms(method(towers=towers), TREES["bracs"])


@dataclass(frozen=True, kw_only=True)
class _Sabotaged(FinestMethod):
    """Cross-entropy with a function of one's own."""

    term: ClassVar[str] = "loss"

    @staticmethod
    def function(logits, target):
        return ce_loss(logits, target)

    def level_loss(self, hierarchy, level=-1):
        return LevelLoss(type(self).function, num_classes=hierarchy.num_classes(level))


class _IgnoresTarget(_Sabotaged):
    @staticmethod
    def function(logits, target):
        return ce_loss(logits, torch.zeros_like(target))


class _Detached(_Sabotaged):
    @staticmethod
    def function(logits, target):
        return ce_loss(logits.detach(), target).requires_grad_()


class _Overflows(_Sabotaged):
    @staticmethod
    def function(logits, target):
        return -(logits.exp() / logits.exp().sum(-1, keepdim=True)).gather(1, target[:, None])[:, 0].log()


class _NotADistribution(_Sabotaged):
    def probabilities(self, logits):
        return logits.sigmoid()


class _ForgottenTerm(_Sabotaged):
    """A term is computed and added to the total's value, but not to its gradient."""

    def objective(self, hierarchy):
        class Forgetful(Objective):
            def forward(self, outputs, targets, weights=None):
                terms = super().forward(outputs, targets, weights)
                return {**terms, "extra": terms["loss"].detach().clone().requires_grad_()}

        plain = super().objective(hierarchy)
        return Forgetful({"loss": (1.0, plain.terms["loss"])}, num_outputs=plain.num_outputs)


class _IgnoresWeights(_Sabotaged):
    def objective(self, hierarchy):
        class Weightless(Objective):
            def forward(self, outputs, targets, weights=None):
                return super().forward(outputs, targets)

        plain = super().objective(hierarchy)
        return Weightless({"loss": (1.0, plain.terms["loss"])}, num_outputs=plain.num_outputs)


class _IgnoresPseudoBags(_Sabotaged):
    def objective(self, hierarchy):
        class OneTier(torch.nn.Module):
            def forward(self, outputs, targets, weights):
                return ce_loss(outputs[0].logits, targets[0])

        return Objective({"loss": (1.0, OneTier())}, num_outputs=1)


class _Doubled(CrossEntropy):
    def objective(self, hierarchy):
        plain = super().objective(hierarchy)
        return Objective({"ce": (2.0, plain.terms["ce"])}, num_outputs=plain.num_outputs)


class _SkipsALevel(CrossEntropy):
    def objective(self, hierarchy):
        finest = hierarchy.num_levels - 1
        only = LevelTerm({finest: self.level_loss(hierarchy, finest)})
        return Objective({"ce": (1.0, only)}, num_outputs=hierarchy.num_levels)


@pytest.mark.parametrize(
    ("saboteur", "check"),
    [
        (_IgnoresTarget, check_reads_targets),
        (_Detached, check_terms),
        (_Overflows, check_extremes),
        (_NotADistribution, check_probabilities),
        (_ForgottenTerm, check_terms),
        (_IgnoresWeights, check_weights),
        (_IgnoresPseudoBags, check_tier1),
    ],
)
def test_saboteurs_are_caught(saboteur, check):
    check(_Sabotaged(), TREES["bracs"])
    with pytest.raises(AssertionError):
        check(saboteur(), TREES["bracs"])


def test_a_method_without_a_loop_reference_is_refused():
    with pytest.raises(AssertionError, match=r"has no loop reference in tests/reference/objectives\.py"):
        check_equals_loops(_Sabotaged(), TREES["bracs"])


@pytest.mark.parametrize("saboteur", [_Doubled, _SkipsALevel])
def test_a_method_that_is_not_its_equation_is_refused(saboteur):
    with pytest.raises(AssertionError):
        check_equals_loops(saboteur(), TREES["bracs"], "ce")


def test_a_mutable_method_is_caught():
    @dataclass
    class Mutable:
        towers: str = "finest"
        remix: str | None = None
        remix_options: dict = field(default_factory=dict)
        allowed_towers: ClassVar = ("finest", "shared")
        heads: ClassVar = "linear"

    with pytest.raises(pytest.fail.Exception):
        check_is_a_frozen_value(Mutable())


def test_methods_are_abstract():
    with pytest.raises(TypeError):
        Method()
