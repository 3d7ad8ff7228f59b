from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from tests.engine.cohort import make_cohort, run, settings
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data import Bag, BagInfo, read_bag, write_bag
from pams_mil.data.tables import read_table
from pams_mil.engine import load, predict
from pams_mil.engine.prediction.export import export
from pams_mil.engine.prediction.prediction_table import read_for_prediction
from pams_mil.engine.prediction.tiles import csv_as_parquet
from pams_mil.errors import CheckpointError, ManifestError, OutputError, PredictionsError, RunError
from pams_mil.evaluate.decisions.decide import decide
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models.core.batch import BagBatch


@pytest.fixture(scope="module")
def runs(cohort, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    kinds = {
        "pams": {},
        "ce": {"method": "ce"},
        "other": {"seed": 1},
        "hxe": {"method": "hxe"},
        "dtfd": {"model": "dtfd"},
    }
    return {name: run(settings(cohort, epochs=1, **changes), folder / name) for name, changes in kinds.items()}


def predicted(cohort, *folders, **options):
    return predict(folders, cohort / "manifest.csv", features=cohort / "bags", **options)


def test_probabilities_of_every_level(cohort, runs):
    found = predicted(cohort, runs["pams"], split="test")
    assert found.names == [f"test-{number}" for number in range(8)]
    assert [level.shape for level in found.probabilities] == [(8, 2), (8, 4)]
    for level in found.probabilities:
        np.testing.assert_allclose(level.sum(1), 1.0, atol=1e-6)
    assert list(found.coarse) == [0]


def test_finest_method_sums_into_coarse_levels(cohort, runs):
    found = predicted(cohort, runs["hxe"], split="test")
    assert not found.coarse
    coarse, fine = found.probabilities
    np.testing.assert_allclose(coarse, np.stack([fine[:, :2].sum(1), fine[:, 2:].sum(1)], 1), atol=1e-12)


@pytest.mark.parametrize("name", ["pams", "dtfd"])
def test_prediction_is_deterministic_and_independent_of_batch_composition(cohort, runs, tmp_path, name):
    whole = predicted(cohort, runs[name])
    again = predicted(cohort, runs[name])
    assert all(np.array_equal(one, two) for one, two in zip(whole.probabilities, again.probabilities, strict=True))
    lines = (cohort / "manifest.csv").read_text().splitlines()
    (tmp_path / "shuffled.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    other = predict([runs[name]], tmp_path / "shuffled.csv", features=cohort / "bags")
    order = [other.names.index(slide) for slide in whole.names]
    np.testing.assert_array_equal(other.calls()[order], whole.calls())
    # Small bags are packed, and the order of a sum follows the length of the pack: float32 rounding, nothing more.
    np.testing.assert_allclose(other.probabilities[-1][order], whole.probabilities[-1], rtol=1e-6, atol=1e-7)


def test_dropout_has_no_effect_and_global_state_is_untouched(cohort, runs):
    state = torch.random.get_rng_state()
    predicted(cohort, runs["pams"], split="val")
    assert torch.equal(state, torch.random.get_rng_state())


def test_several_runs_are_averaged(cohort, runs):
    one, two = predicted(cohort, runs["pams"]), predicted(cohort, runs["other"])
    both = predicted(cohort, runs["pams"], runs["other"])
    for level in range(2):
        mean = (one.probabilities[level] + two.probabilities[level]) / 2
        np.testing.assert_allclose(both.probabilities[level], mean, atol=1e-12)


def test_no_labels_and_no_patients_are_needed(cohort, runs, tmp_path):
    (tmp_path / "new.csv").write_text("slide_id\ntest-1\ntest-0\n")
    found = predict([runs["pams"]], tmp_path / "new.csv", features=cohort / "bags")
    assert found.sample.target.tolist() == [-1, -1]
    files = found.write(tmp_path)
    assert [file.name for file in files][:2] == ["predictions.csv", "predictions_group.csv"]
    table = read_table(tmp_path / "predictions.csv")
    assert table["slide_id"] == ["test-1", "test-0"]
    assert "target" not in table
    with pytest.raises(PredictionsError, match="no label"):
        found.labeled("x")
    labeled = predicted(cohort, runs["pams"], split="test")
    # Other bags in the pass: the last bits may differ.
    np.testing.assert_allclose(found.probabilities[-1], labeled.probabilities[-1][[1, 0]], rtol=1e-6)


def test_slides_of_two_patients_are_never_one_bag(tmp_path):
    """As in training: numbers of cases that restart with every patient would mix patients."""
    table = tmp_path / "slides.csv"
    table.write_text("slide_id,patient_id,case_id\ns1,p1,1\ns2,p1,1\ns3,p2,2\n")
    hierarchy = ClassHierarchy.flat(["a", "b"])
    _, sources, _ = read_for_prediction(table, hierarchy, merge_cases=True)
    assert [(source.name, len(source.records)) for source in sources] == [("1", 2), ("2", 1)]
    table.write_text("slide_id,patient_id,case_id\ns1,p1,1\ns2,p1,1\ns3,p2,1\n")
    with pytest.raises(ManifestError, match=r"Case '1' has slides with different patient_id \['p1', 'p2'\]"):
        read_for_prediction(table, hierarchy, merge_cases=True)


def test_labels_of_another_scheme_can_be_ignored(cohort, runs, tmp_path):
    (tmp_path / "odd.csv").write_text("slide_id,patient_id,label\ntest-0,p,strange\n")
    with pytest.raises(ManifestError, match=r"'strange' is not a class.*--no-labels"):
        predict([runs["pams"]], tmp_path / "odd.csv", features=cohort / "bags")
    found = predict([runs["pams"]], tmp_path / "odd.csv", features=cohort / "bags", labels=False)
    assert len(found) == 1


@pytest.mark.parametrize("place", ["first", "last"])
def test_one_slide_of_another_width_is_listed_wherever_it_stands(cohort, runs, tmp_path, place):
    for slide in ("test-0", "test-1"):
        write_bag(tmp_path / f"{slide}.h5", read_bag(cohort / f"bags/{slide}.h5"))
    write_bag(tmp_path / "odd.h5", Bag(np.zeros((2, 9), np.float32), info=BagInfo(encoder="tiny", tile_px=8)))
    slides = ["odd", "test-0", "test-1"] if place == "first" else ["test-0", "test-1", "odd"]
    (tmp_path / "table.csv").write_text("\n".join(["slide_id", *slides]))
    found = predict([runs["pams"]], tmp_path / "table.csv", features=tmp_path)
    assert found.names == ["test-0", "test-1"]
    assert "9 features per tile" in found.failures["odd"]
    assert "Bags of another width cannot be mixed" in found.failures["odd"]


def test_mismatches_are_refused_in_words(cohort, runs, tmp_path):
    wide = tmp_path / "wide"
    write_bag(wide / "s.h5", Bag(np.zeros((2, 9), np.float32), info=BagInfo(encoder="tiny", tile_px=8)))
    (tmp_path / "wide.csv").write_text("slide_id\ns\n")
    with pytest.raises(CheckpointError, match=r"width 8, these have 9"):
        predict([runs["pams"]], tmp_path / "wide.csv", features=wide)
    write_bag(tmp_path / "uni/s.h5", Bag(np.zeros((2, 8), np.float32), info=BagInfo(encoder="uni", tile_px=8)))
    with pytest.raises(CheckpointError, match=r"encoder = 'tiny', these have 'uni'"):
        predict([runs["pams"]], tmp_path / "wide.csv", features=tmp_path / "uni")
    other = make_cohort(tmp_path / "cohort")
    (other / "classes.yaml").write_text("name: tiny\nclasses:\n  Low: [b, a]\n  High: [c, d]\n")
    swapped = run(settings(other, epochs=1), tmp_path / "swapped")
    with pytest.raises(CheckpointError, match=r"classes.order.class differ"):
        predicted(cohort, runs["pams"], swapped)
    with pytest.raises(RunError, match=r"not a run folder.*Did you mean 'pams'"):
        load(runs["pams"].parent / "pamss")


def test_export_is_the_same_model(cohort, runs, tmp_path):
    found = export(runs["pams"], tmp_path / "out")
    assert "equal to the model" in found["model.onnx"], found
    bag = BagBatch.single(torch.randn(6, 8), "s")
    one = load(runs["pams"]).learner.predict(bag).probabilities
    two = load(tmp_path / "out").learner.predict(bag).probabilities
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert [level["level"] for level in config["outputs"]] == ["group", "class"]
    card = (tmp_path / "out/README.md").read_text()
    assert "a ≺ b ≺ c ≺ d" in card
    with pytest.raises(OutputError, match="already holds"):
        export(runs["pams"], tmp_path / "out")


def test_the_card_says_who_chose_the_weights(cohort, runs, tmp_path):
    last = run(settings(cohort, epochs=1, select="last"), tmp_path / "last")
    cards = []
    for name, folder in (("best", runs["pams"]), ("kept", last)):
        export(folder, tmp_path / name, onnx=False)
        cards.append((tmp_path / name / "README.md").read_text())
    assert "Chosen by ascc in epoch 1." in cards[0]
    assert "because they chose the checkpoint" in cards[0]
    assert "Of the last epoch, 1, which is taken whatever its scores." in cards[1]
    assert "because they chose the checkpoint" not in cards[1]


@pytest.mark.parametrize("name", ["prediction", "target", "disagrees", "p_a", "p_Low", "p_stage"])
def test_columns_of_the_table_that_are_called_like_ours(cohort, runs, tmp_path, name):
    table = read_table(cohort / "manifest.csv")
    rows = [[*table, name], *([*row, "T2"] for row in zip(*table.values(), strict=True))]
    (tmp_path / "manifest.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    found = predict([runs["pams"]], tmp_path / "manifest.csv", features=cohort / "bags", split="test")
    hierarchy = found.hierarchy
    for path in found.write(tmp_path / "out"):
        csv_as_parquet(path)
    read = read_predictions(tmp_path / "out/predictions.csv", hierarchy)
    assert np.array_equal(read.probabilities, found.probabilities[-1])
    assert np.array_equal(read.predicted, found.calls())
    kept = read_table(tmp_path / "out/predictions.csv").get(name, [])
    assert ("T2" in kept) == (name in ("p_stage", "p_Low"))
    assert "T2" not in read_table(tmp_path / "out/predictions_group.csv").get("p_Low", [])


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_predict_verb_writes_attention_that_sums_to_one(cohort, runs, tmp_path):
    arguments = ["predict", runs["pams"], runs["other"], cohort / "manifest.csv", "--features", cohort / "bags"]
    done = invoke(*arguments, "--split", "val", "--attention", "--out", tmp_path, "--classes", cohort / "classes.yaml")
    assert done.exit_code == 0, done.output
    with h5py.File(tmp_path / "attention/val-3.h5") as file:
        for name in ("attention", "attention_level0"):
            assert file[name][()].sum() == pytest.approx(1.0, abs=1e-5)
    assert len(read_table(tmp_path / "predictions_group.csv")["p_Low"]) == 8
    other = invoke(*arguments, "--classes", "bracs", "--out", tmp_path / "other")
    assert other.exit_code == 2
    assert "trained with other classes" in other.output


def test_predict_verb_decides_by_a_rule_and_says_which(cohort, runs, tmp_path):
    arguments = ["predict", runs["pams"], cohort / "manifest.csv", "--features", cohort / "bags", "--split", "val"]
    hierarchy = ClassHierarchy.load(cohort / "classes.yaml")
    for rule, shown in (("argmax", "argmax"), ("kappa=3.0", "kappa=3"), ("kappa=inf", "kappa=inf")):
        out = tmp_path / shown
        done = invoke(*arguments, "--out", out, "--decide", rule)
        assert done.exit_code == 0, done.output
        for level, name, column in (
            (0, "predictions_group.csv", "own_prediction"), (1, "predictions.csv", "prediction")
        ):  # fmt: skip
            table = read_table(out / name)
            assert set(table["decided_by"]) == {shown}
            names = hierarchy.names(level)
            p = np.array([[float(value) for value in table[f"p_{label}"]] for label in names]).T
            expected = decide(p, hierarchy, level, rule=rule)
            assert [names.index(label) for label in table[column]] == expected.tolist()
        assert read_predictions(out / "predictions.csv", hierarchy).decided_by == shown
    bad = invoke(*arguments, "--out", tmp_path / "bad", "--decide", "kappa=-3")
    assert bad.exit_code == 2
    assert "A decision must be argmax" in bad.output
    assert not (tmp_path / "bad").exists()


def test_evaluate_verb_audits_the_test_split(cohort, runs, tmp_path):
    done = invoke("evaluate", runs["ce"], runs["pams"], "--resamples", 50, "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert [file["slides"] for file in scores["files"]] == [8, 8]
    assert scores["comparisons"][0]["candidate"] == "pams"
    assert (tmp_path / "report.html").exists()
    assert set(read_table(runs["ce"] / "predictions/manifest-test.csv")["split"]) == {"test"}


def test_bad_run_ends_with_exit_code_2(cohort, tmp_path):
    done = invoke("predict", tmp_path / "none", cohort / "manifest.csv")
    assert done.exit_code == 2
    assert "not a run folder" in done.output


def test_a_finished_run_without_its_best_checkpoint_is_not_to_be_resumed(cohort, runs, tmp_path):
    shutil.copytree(runs["ce"], tmp_path / "run")
    (tmp_path / "run/best.safetensors").unlink()
    with pytest.raises(RunError, match=r"is finished, but its best checkpoint best\.safetensors is gone\. Restore"):
        load(tmp_path / "run")
