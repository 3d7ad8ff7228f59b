"""One answer per slide: the finest level's call, lifted; a coarser level that says otherwise is shown, not believed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.cohort import run, settings
from tests.strategies import trees
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data.tables import read_table
from pams_mil.engine.prediction.slide_predictions import SlidePredictions
from pams_mil.evaluate.decisions.decide import DecisionRule
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy

TREE = ClassHierarchy.load("bracs")


def made(hierarchy, probabilities, *, own=None, targets=None, rule="argmax"):
    count, finest = len(probabilities[-1]), np.asarray(probabilities[-1], float)
    sample = Predictions(
        "made",
        hierarchy,
        [f"s{n}" for n in range(count)],
        np.full(count, -1) if targets is None else np.asarray(targets),
        finest.argmax(1),
        finest,
        [f"p{n}" for n in range(count)],
    )
    own = range(hierarchy.num_levels) if own is None else own
    coarse = {level: np.asarray(probabilities[level], float) for level in own if level < hierarchy.num_levels - 1}
    return SlidePredictions(sample, ["test"] * count, coarse).decided(DecisionRule.parse(rule))


def one_hot(count, index, most=0.9):
    row = np.full(count, (1 - most) / (count - 1))
    row[index] = most
    return row


THREE = made(  # the second slide's group says Malignant of an N, the third's Benign of an IC
    TREE,
    [
        [one_hot(3, 0), one_hot(3, 2, 0.6), one_hot(3, 0)],
        [one_hot(7, 1), one_hot(7, 0), one_hot(7, 6)],
    ],
)


@given(hierarchy=trees(), seed=st.integers(0, 99), rule=st.sampled_from(["argmax", "kappa=3", "risk"]))
def test_calls_of_all_levels_are_one_call_lifted(hierarchy, seed, rule):
    rng = np.random.default_rng(seed)
    levels = [rng.dirichlet(np.ones(hierarchy.num_classes(h)), 9) for h in range(hierarchy.num_levels)]
    found = made(hierarchy, levels, rule=rule)
    finest, unlike = found.calls(), found.disagreements()
    for row, slide in enumerate(found.names):
        said = []
        for level in range(hierarchy.num_levels - 1):
            node = int(finest[row])
            for above in range(hierarchy.num_levels - 1, level, -1):  # walk up, parent by parent
                node = hierarchy.levels[above].parents[node]
            assert found.calls(level)[row] == node
            own = int(found.own_calls(level)[row])
            if own != node:
                said.append(f"{hierarchy.level_names[level]}: {hierarchy.names(level)[own]}")
        assert unlike.get(slide, "") == "; ".join(said)


@pytest.mark.parametrize("targets", [None, [1, 0, 6]])
def test_files_never_contradict_each_other(tmp_path, targets):
    found = THREE if targets is None else made(TREE, THREE.probabilities, targets=targets)
    assert [path.name for path in found.write(tmp_path)] == [
        "predictions.csv", "predictions_group.csv", "predictions_review.csv"
    ]  # fmt: skip
    fine, coarse = read_table(tmp_path / "predictions.csv"), read_table(tmp_path / "predictions_group.csv")
    lifted = [TREE.names(0)[TREE.lift(TREE.index(label), 0)] for label in fine["prediction"]]
    assert coarse["prediction"] == lifted == ["Benign", "Benign", "Malignant"]
    assert coarse["own_prediction"] == ["Benign", "Malignant", "Benign"]
    assert fine["disagrees"] == ["", "group: Malignant", "group: Benign"]
    if targets is not None:
        assert read_predictions(tmp_path / "predictions.csv", TREE).predicted.tolist() == found.calls().tolist()


def test_disagreements_are_listed_for_review_most_urgent_first(tmp_path):
    rows = [  # group and class of every slide
        (1, 0), (0, 0), (2, 4), (2, 1),
    ]  # fmt: skip
    found = made(TREE, [[one_hot(3, g) for g, _ in rows], [one_hot(7, c) for _, c in rows]])
    found.write(tmp_path)
    table = read_table(tmp_path / "predictions_review.csv")
    assert table["slide_id"] == ["s2", "s3", "s0"]
    assert table["prediction"] == ["ADH", "PB", "N"]
    assert table["disagrees"] == ["group: Malignant", "group: Malignant", "group: Atypical"]
    made(TREE, [[one_hot(3, 0)], [one_hot(7, 0)]]).write(tmp_path)
    assert not (tmp_path / "predictions_review.csv").exists()


def test_reports_say_how_often_levels_disagree():
    (note,) = THREE.notes
    assert note.startswith(
        "On 2 of 3 slides a coarser level's own output contradicts the call; the finest level decides"
    )
    assert made(TREE, THREE.probabilities, own=(1,)).notes == ()


def test_the_command_shows_both_and_says_which_decides(cohort, tmp_path):
    """Levels trained for one epoch disagree somewhere."""
    out = run(settings(cohort, epochs=1, lr=0.05, method={"name": "ce"}), tmp_path / "run")
    words = ["predict", str(out), str(cohort / "manifest.csv"), "--features", str(cohort / "bags")]
    done = CliRunner(env={"COLUMNS": "500"}).invoke(app, [*words, "--out", str(tmp_path / "p")])
    assert done.exit_code == 0, done.output
    unlike = [said for said in read_table(tmp_path / "p/predictions.csv")["disagrees"] if said]
    assert unlike
    assert f"On {len(unlike)} of 28 slides a coarser level says otherwise" in done.output
    assert "The finest level decides; predictions_review.csv lists them." in done.output
    said = json.loads(CliRunner().invoke(app, [*words, "--out", str(tmp_path / "p"), "--json"]).stdout)
    assert sum(slide["disagrees"] is not None for slide in said["slides"]) == len(unlike)
