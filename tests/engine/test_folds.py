"""A run of a fold stays a run of that fold: fold 0 is a fold like any other."""

from __future__ import annotations

import csv

import pytest
from tests.engine.cohort import SIZES, make_cohort, run, same_weights, settings

from pams_mil.engine import open_run
from pams_mil.engine.prediction.predict import load
from pams_mil.engine.prediction.scored_runs import predict_to_score
from pams_mil.engine.run.folder import RunFolder


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """A table with a `split` column and folds beside it, whose test slides are training slides of the former."""
    folder = make_cohort(tmp_path_factory.mktemp("folded"))
    with (folder / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    parts = {
        0: {"train": "test", "val": "train", "test": "val"},
        1: {"train": "val", "val": "test", "test": "train"},
    }
    for row in rows:
        row.update({f"fold_{fold}": names[row["split"]] for fold, names in parts.items()})
    with (folder / "manifest.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.mark.parametrize("fold", [0, 1])
def test_a_run_is_scored_on_the_test_slides_of_its_own_fold(folded, tmp_path, fold):
    out = run(settings(folded, data={"fold": fold}, epochs=1), tmp_path / "run")
    assert open_run(out).config().data.fold == fold
    found = predict_to_score([load(out)])
    part = "train" if fold == 0 else "val"
    assert len(found) == SIZES[part]
    assert {name.split("-")[0] for name in found.names} == {part}


def test_a_run_of_fold_0_resumes_on_its_own_slides(folded, tmp_path):
    config = settings(folded, data={"fold": 0}, epochs=2)
    whole = run(config, tmp_path / "whole")
    first = run(settings(folded, data={"fold": 0}, epochs=2), tmp_path / "cut")
    RunFolder(first).last.unlink()  # killed before its first checkpoint
    run(RunFolder(first).config(), first, resume=True)
    assert same_weights(whole / "last.safetensors", first / "last.safetensors")
