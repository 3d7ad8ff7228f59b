"""What is said before any score: collapsed models, calls without information, few patients."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import cautions as reference
from tests.strategies import predictions
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.cautions import FEW_PATIENTS, TopCall, cautions
from pams_mil.evaluate.compare import compare
from pams_mil.evaluate.decisions.decide import redecide
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions
from pams_mil.evaluate.verdict import verdict
from pams_mil.report.audit_html import audit_page

TREE = ClassHierarchy.load("bracs")
DISQUALIFYING = {"constant", "collapsed", "no skill"}


def model(target, predicted, *, name="model", **rest) -> Predictions:
    slides = [f"s{n}" for n in range(len(target))]
    return Predictions(name, TREE, slides, np.asarray(target), np.asarray(predicted), **rest)


def kinds(found: Predictions) -> list[str]:
    return [caution.kind for caution in cautions(found)]


EVEN = np.arange(45) % 7


@given(predictions(), st.integers(0, 3))
def test_calls_equal_the_loops(found: Predictions, dominance: int):
    """Calls are pulled toward one class, so that all outcomes occur."""
    pulled = np.where(np.arange(len(found)) % 4 < dominance, 0, found.predicted)
    found = Predictions("m", found.hierarchy, found.slide_ids, found.target, pulled, patient_ids=found.patient_ids)
    levels = [found.at(level) for level in range(found.hierarchy.num_levels - 1, -1, -1)]
    expected = reference.call_kinds([list(zip(t.tolist(), r.tolist(), strict=True)) for t, r, _ in levels])
    said = [kind for kind in kinds(found) if kind in DISQUALIFYING]
    assert said == ([expected] if expected else [])


def test_a_model_that_says_one_class_for_44_of_45_slides_has_collapsed():
    calls = np.zeros(45, np.int64)
    calls[10] = 3
    (caution,) = [c for c in cautions(model(EVEN, calls)) if c.disqualifies]
    assert caution.kind == "collapsed"
    assert caution.message.startswith("44 of 45 slides are called 'N' although 7 are")


def test_mostly_benign_is_no_collapse_where_most_are_benign():
    target = np.zeros(100, np.int64)
    target[:5] = 6
    calls = np.zeros(100, np.int64)
    calls[:4] = 6
    assert not DISQUALIFYING & set(kinds(model(target, calls)))
    calls[1:] = 0
    assert "collapsed" in kinds(model(target, calls))
    calls[:] = 0
    assert "constant" in kinds(model(target, calls))


def test_a_coarse_level_can_collapse_alone():
    """Every slide is called malignant, by turns DCIS and IC."""
    calls = 5 + np.arange(45) % 2
    (caution,) = [c for c in cautions(model(EVEN, calls)) if c.disqualifies]
    assert caution.kind == "constant"
    assert "'Malignant'" in caution.message


def test_calls_worse_than_chance_have_no_skill():
    """Recall 0 at the finest level is no skill only if the groups are not told apart either."""
    assert "no skill" not in kinds(model([0, 1, 5, 6] * 3, [1, 0, 6, 5] * 3))
    assert "no skill" in kinds(model([0, 6, 0, 6], [6, 0, 6, 0]))
    assert "no skill" in kinds(model([0, 1, 2] * 4, [1, 2, 0] * 4))  # all of one group, which is no merit
    assert "no skill" not in kinds(model([0, 0, 0, 0], [0, 1, 0, 1]))  # one class: nothing to tell apart
    assert "no skill" in kinds(model([0, 0, 6, 6], [0, 6, 0, 6]))  # chance
    assert "no skill" not in kinds(model([0, 0, 6, 6, 6], [0, 6, 0, 6, 6]))  # a little better


def test_a_right_model_on_one_class_is_no_collapse():
    assert not DISQUALIFYING & set(kinds(model([2, 2, 2], [2, 2, 2])))
    assert not DISQUALIFYING & set(kinds(model([2], [0])))


def test_few_patients():
    assert 0.9 ** (FEW_PATIENTS - 1) > 0.05 >= 0.9**FEW_PATIENTS
    for patients, said in ((4, True), (FEW_PATIENTS - 1, True), (FEW_PATIENTS, False)):
        ids = [f"p{n % patients}" for n in range(45)]
        assert ("few patients" in kinds(model(EVEN, EVEN, patient_ids=ids))) == said
    message = next(c.message for c in cautions(model(EVEN, EVEN, patient_ids=["p"] * 44 + ["q"])))
    assert message.startswith("Only 2 patients")
    assert "81 %" in message


def test_absent_classes_are_named():
    said = {c.kind: c.message for c in cautions(model([0, 1, 2] * 10, [0, 1, 2] * 10))}
    assert "'FEA', 'ADH', 'DCIS', 'IC'" in said["absent classes"]


def test_calls_that_contradict_their_probabilities_are_mentioned():
    p = np.full((45, 7), 0.05)
    p[np.arange(45), EVEN] = 0.7
    assert "contradictory calls" not in kinds(model(EVEN, EVEN, probabilities=p))
    calls = EVEN.copy()
    calls[[3, 8]] = 0
    said = {c.kind: c for c in cautions(model(EVEN, calls, probabilities=p))}
    assert said["contradictory calls"].message.startswith(
        "2 of 45 slides are not called their most probable class, the first is 's3': called 'N', most probable 'FEA'"
    )
    assert not said["contradictory calls"].disqualifies


def test_calls_of_a_chosen_operating_point_are_no_collapse():
    """Of calls by `--decide kappa=1000`; the model itself tells slides apart."""
    p = np.full((45, 7), 0.05)
    p[np.arange(45), EVEN] = 0.7
    calls = np.where(np.arange(45) == 10, 3, 6)
    assert "collapsed" in kinds(model(EVEN, calls))
    said = {c.kind: c for c in cautions(model(EVEN, calls, probabilities=p, decided_by="kappa=1000"))}
    assert not any(caution.disqualifies for caution in said.values())
    assert said["one-sided rule"].message.endswith("that is the operating point, not the model.")


def test_equal_probabilities_are_mentioned():
    p = np.full((45, 7), 0.05)
    p[np.arange(45), EVEN] = 0.7
    p[4] = 1 / 7
    calls = p.argmax(1)
    said = {c.kind: c.message for c in cautions(model(EVEN, calls, probabilities=p))}
    assert (
        "1 of 45 slides have several most probable classes, so their call is arbitrary: 's4'"
        in (said["equal probabilities"])
    )


@pytest.fixture
def collapsed(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    right = np.where(rng.random(45) < 0.7, EVEN, rng.integers(0, 7, 45))
    paths = []
    for name, calls in (("ce", right), ("dtfd", np.where(np.arange(45) == 3, 6, 5))):
        paths.append(tmp_path / f"{name}.csv")
        write_predictions(paths[-1], model(EVEN, calls, name=name, patient_ids=[f"p{n}" for n in range(45)]))
    return paths


def test_audit_says_it_first_and_gives_no_verdict(collapsed: list[Path], tmp_path: Path):
    arguments = ["audit", *map(str, collapsed), "--classes", "bracs", "--resamples", "20", "--out", str(tmp_path / "o")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    first, second = done.output.index("collapsed to one answer"), done.output.index("read as")
    assert done.output.lstrip().startswith("Caution")
    assert first < second
    assert "safer" not in done.output
    assert "not compared: the calls of dtfd carry no information" in done.output
    scores = json.loads((tmp_path / "o/scores.json").read_text())
    assert [c["kind"] for c in scores["files"][1]["cautions"]] == ["collapsed"]
    assert scores["files"][0]["cautions"] == []
    page = (tmp_path / "o/report.html").read_text()
    assert page.index("collapsed to one answer") < page.index("Scores")


def test_two_constant_models_are_not_equally_safe():
    result = audit([model(EVEN, EVEN * 0, name="a"), model(EVEN, EVEN * 0, name="b")], resamples=0)
    assert result.verdicts == ["a and b are not compared: the calls of a and b carry no information."]
    assert "Caution" in audit_page(result)


def test_top_call_takes_the_least_urgent_of_equally_frequent_ones():
    assert TopCall.of(np.array([[1, 1], [1, 1]])) == TopCall(0, 2, 2, 4)


def test_calls_of_a_chosen_operating_point_are_no_fault_of_the_model():
    """With κ = 50 all slides are called malignant; the model tells them apart all the same, and is compared."""
    tree = ClassHierarchy.flat(["benign", "malignant"])
    target = np.arange(60) % 2
    p = np.where(target == 1, 0.8, 0.3) + 0.1 * np.random.default_rng(0).random(60)
    ids = [f"s{k}" for k in range(60)]
    model = Predictions("m", tree, ids, target, (p > 0.5).astype(int), np.column_stack([1 - p, p]))
    urgent = redecide(model, "kappa=50")
    assert set(urgent.predicted.tolist()) == {1}
    found = cautions(urgent)
    assert [one.kind for one in found if one.disqualifies] == []
    assert "that is the operating point, not the model" in found[0].message
    assert "are not compared" not in verdict(compare(model, replace(urgent, name="urgent"), resamples=20))
    constant = replace(urgent, probabilities=np.full((60, 2), 0.5))
    assert any(one.disqualifies for one in cautions(constant))


def drawn(sharpness: float, *, patients: int = 200, seed: int = 0) -> Predictions:
    """Labels drawn from probabilities, which are then stated sharper or flatter than they are."""
    random = np.random.default_rng(seed)
    true = random.dirichlet(np.full(7, 0.2), patients)
    target = np.array([random.choice(7, p=row) for row in true])
    stated = true**sharpness / (true**sharpness).sum(1, keepdims=True)
    return model(target, stated.argmax(1), probabilities=stated)


def test_probabilities_that_are_no_cost_ratio_are_mentioned():
    messages = [
        [one.message for one in cautions(drawn(sharpness)) if one.kind == "miscalibrated"] for sharpness in (0.3, 1, 6)
    ]
    assert "underconfident, and a κ above 1 raises more false alarms" in messages[0][0]
    assert messages[1] == []
    assert "overconfident, and a κ above 1 raises fewer false alarms" in messages[2][0]


def test_chance_is_no_miscalibration():
    flagged = ["miscalibrated" in kinds(drawn(1, patients=30, seed=seed)) for seed in range(300)]
    assert np.mean(flagged) < 0.03
    off = drawn(0.3, patients=45)
    assert "miscalibrated" in kinds(off)
    # Slides of few patients say little about others.
    assert "miscalibrated" not in kinds(replace(off, patient_ids=[f"p{row % 15}" for row in range(45)]))
