"""Adding things costs what CONTRIBUTING.md says: each of them stands in one place of a package that is not ours."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pams_mil import discover
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods import LevelLoss, create_method
from pams_mil.metrics import add_metric
from pams_mil.metrics.metric import METRICS
from pams_mil.report import charts
from pams_mil.report.audit_html import audit_page

LABEL_METRIC = """
from pams_mil.metrics import Metric
from pams_mil.metrics.slides import Cells

def largest_class_share(view):
    return view.by_class.max(-1) / view.total

METRIC = Metric("largest_share", "Largest share", True, "share of the most common class", Cells, largest_class_share)
"""

PROBABILITY_METRIC = """
from functools import partial

from pams_mil.metrics import Metric
from pams_mil.metrics.slides import Losses

def surprise_of_true(slides):
    return 1 - slides.probabilities[range(len(slides)), slides.true]

METRIC = Metric(
    "surprise", "Surprise", False, "probability that is not of the true class", partial(Losses, loss=surprise_of_true),
    lambda values: values, needs_probabilities=True,
)
"""

CHART = """
from pams_mil.report import svg
from pams_mil.report.charts import ModelChart

def slides_by_class(scores, hierarchy):
    bars = [svg.bar(0, 10 * row, int(count), 8, "over") for row, count in enumerate(scores.confusion.sum(1))]
    return ModelChart("Slides by true class", svg.picture(100, 100, "slides by class", bars))
"""

LOSS = """
from dataclasses import dataclass
from typing import ClassVar

from pams_mil.errors import Positive
from pams_mil.methods import FinestMethod
from pams_mil.methods.method import HierarchyLoss

DISCOVER = {"squared": "Squared"}

def squared_loss(logits, target, *, scale=1.0):
    wanted = target[:, None] == __import__("torch").arange(logits.shape[1])
    return scale * (logits.softmax(-1) - wanted.float()).square().sum(-1)

@dataclass(frozen=True, kw_only=True)
class Squared(FinestMethod):
    scale: Positive = 1.0
    function: ClassVar = staticmethod(squared_loss)

SquaredLoss = HierarchyLoss.of(Squared, "SquaredLoss")
"""

TREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package of someone else's, whose modules leave no trace."""
    folder = tmp_path / "their_lab"
    folder.mkdir()
    texts = {
        "by_label": LABEL_METRIC,
        "by_probability": PROBABILITY_METRIC,
        "chart": CHART,
        "loss": LOSS,
        "__init__": "",
    }
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    known = dict(METRICS)
    yield "their_lab"
    METRICS.clear()
    METRICS.update(known)
    for name in [name for name in sys.modules if name.startswith("their_lab")]:
        del sys.modules[name]


def model(seed: int) -> Predictions:
    draws = np.random.default_rng(seed)
    target = np.arange(40) % 3
    p = draws.dirichlet([1, 1, 1], 40) + np.eye(3)[target]
    p /= p.sum(1, keepdims=True)
    return Predictions(f"m{seed}", TREE, [f"s{i}" for i in range(40)], target, p.argmax(1), probabilities=p)


def test_metrics_of_both_kinds_have_intervals_comparisons_and_a_column(package: str):
    for module in ("by_label", "by_probability"):
        add_metric(discover.load("metrics", f"{package}.{module}:METRIC"))
    result = audit([model(0), model(1)], resamples=100)
    scores = result.models[0].finest
    one = result.models[0].predictions
    assert scores.values["largest_share"] == pytest.approx(np.bincount(one.target).max() / 40)
    assert scores.values["surprise"] == pytest.approx(1 - one.probabilities[range(40), one.target].mean())
    for key, label in (("largest_share", "Largest share"), ("surprise", "Surprise")):
        low, high = scores.intervals[key]
        assert low <= scores.values[key] <= high
        assert key in result.comparisons[0].levels[TREE.level_names[-1]]
        assert label in audit_page(result)


def test_a_chart_is_drawn_for_every_model(package: str, monkeypatch: pytest.MonkeyPatch):
    result = audit([model(0), model(1)], resamples=0)
    assert "Slides by true class" not in audit_page(result)
    own = discover.load("report", f"{package}.chart:slides_by_class")
    monkeypatch.setattr(charts, "MODEL_CHARTS", [*charts.MODEL_CHARTS, own])
    assert audit_page(result).count("<h3>Slides by true class</h3>") == 2


def test_a_loss_is_a_method_and_a_module(package: str):
    logits, target = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]), torch.tensor([2, 0])
    method = create_method(f"{package}.loss:Squared", scale=2.0)
    assert isinstance(method.level_loss(TREE), LevelLoss)
    values = method.level_loss(TREE)(logits, target)
    alone = discover.load("methods", f"{package}.loss:SquaredLoss")(TREE, scale=2.0)
    assert alone(logits, target).item() == pytest.approx(values.mean().item())


def test_a_declared_loss_in_our_own_package_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The `DISCOVER` line alone makes the name known: nothing else is edited."""
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "squared_loss.py").write_text(LOSS)
    monkeypatch.setattr(discover, "__file__", str(tmp_path / "discover.py"))
    discover._declared.cache_clear()
    try:
        assert discover.available("methods") == ("squared",)
    finally:
        discover._declared.cache_clear()
