"""A committee to hand on, and one fold of it: every network, one card, a graph of their mean, and a guarantee."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_cv import FOLDS, committee_command, pams
from tests.engine.cohort import make_cohort
from tests.engine.here import Here

from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.data.exposure import Exposure
from pams_mil.data.tables import read_table
from pams_mil.engine.grid import engines as local_processes
from pams_mil.engine.prediction import graph
from pams_mil.engine.run.folder import RunFolder
from pams_mil.errors import CertificateError
from pams_mil.view.opening import Asked, open_session

SIZES = (1, 3, 17, 90)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cohort, a committee and what was exported of it."""
    folder = tmp_path_factory.mktemp("export")
    cohort = make_cohort(folder / "cohort")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_processes, "LocalEngine", Here)
        patch.setattr(graph, "SIZES", (1, 9))
        done = pams(*committee_command(cohort, folder / "committee"))
        assert done.exit_code == 0, done.output
        done = pams("export", folder / "committee", "--out", folder / "exported")
        assert done.exit_code == 0, done.output
    random = np.random.default_rng(0)
    for n in SIZES:
        features = random.standard_normal((n, 8)).astype(np.float32)
        write_bag(folder / "bags" / f"slide {n}.h5", Bag(features, info=BagInfo(encoder="tiny", tile_px=8)))
    (folder / "slides.csv").write_text("slide_id\n" + "".join(f"slide {n}\n" for n in SIZES))
    return folder


def probabilities(folder: Path, model: Path, out: Path) -> list[dict[str, float]]:
    done = pams("predict", model, folder / "slides.csv", "--features", folder / "bags", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    return [slide["probabilities"]["class"] for slide in json.loads(done.stdout)["slides"]]


def test_the_graph_of_the_mean_and_those_of_the_networks_say_what_predict_says(exported: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    import h5py

    names = json.loads((exported / "exported/config.json").read_text())["mean_of"]
    assert len(names) == 3 * FOLDS
    assert names[0] == "members/mean-hidden/fold0"
    expected = probabilities(exported, exported / "committee", tmp_path / "committee")
    mean = onnxruntime.InferenceSession(exported / "exported/model.onnx")
    assert [output.name for output in mean.get_outputs()] == ["probabilities_class"]
    each = [onnxruntime.InferenceSession(exported / "exported" / name / "model.onnx") for name in names]
    for n, answer in zip(SIZES, expected, strict=True):
        with h5py.File(exported / "bags" / f"slide {n}.h5") as file:
            features = file["features"][...]
        together = mean.run(None, {"features": features})[0][0]
        np.testing.assert_allclose(together, list(answer.values()), atol=1e-5)
        alone = [session.run(["probabilities_class"], {"features": features})[0][0] for session in each]
        np.testing.assert_allclose(np.mean(alone, axis=0), list(answer.values()), atol=1e-5)


def test_what_was_exported_predicts_as_the_committee_does(exported: Path, tmp_path: Path) -> None:
    answers = [
        probabilities(exported, exported / model, tmp_path / model) for model in ("committee", "exported")
    ]  # fmt: skip
    assert answers[0] == answers[1]
    description = exported / "exported/config.json"
    content = json.loads(description.read_text())
    description.write_text(json.dumps({**content, "mean_of": ["../committee/members/mean-hidden/fold0"]}))
    try:
        outside = pams("predict", exported / "exported", exported / "slides.csv", "--out", tmp_path / "outside")
    finally:
        description.write_text(json.dumps(content))
    assert outside.exit_code == 2
    assert "is not a folder below" in " ".join(outside.output.split())


def test_the_card_says_what_the_committee_is_and_how_it_scored(exported: Path) -> None:
    card = (exported / "exported/README.md").read_text()
    assert f"# Committee of 3: the mean of {3 * FOLDS} networks" in card
    assert "- class-attention-sfr: clam_mb, cross-entropy, SFR on 50 % of the bags" in card
    assert "Against AB-MIL with cross-entropy" in card
    assert "| class | Accuracy |" in card
    assert "equal to the model within" in card
    assert (exported / "exported/exposure.json").is_file()
    again = pams("export", exported / "committee", "--out", exported / "exported")
    assert again.exit_code == 2
    assert "already holds an exported model" in again.output
    pushed = pams("export", exported / "committee", "--out", exported / "other", "--push", "owner/name")
    assert pushed.exit_code == 2


def test_an_export_that_was_cut_short_is_completed(exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    first = pams("export", exported / "committee", "--out", out, "--no-onnx")
    assert first.exit_code == 0, first.output
    (out / "config.json").unlink()  # it is written last
    weights = out / "members/mean-hidden/fold0/model.safetensors"
    before = weights.stat().st_mtime_ns
    assert pams("export", exported / "committee", "--out", out, "--no-onnx").exit_code == 0
    assert weights.stat().st_mtime_ns == before
    assert not (out / "model.onnx").exists()


def test_the_validation_patients_of_a_fold_certify_its_networks_and_no_others(exported: Path, tmp_path: Path) -> None:
    committee, cohort = exported / "committee", exported / "cohort"
    fold, unread = committee / "fold0", ("--features", cohort / "bags", "--patients-are-slides")
    done = pams("certify", fold, "--alpha", 0.3, "--json")
    assert done.exit_code == 0, done.output
    certificate = json.loads(done.stdout)
    table = read_table(committee / "manifest.csv")
    assert certificate["n"] == table["fold_0"].count("val") > 0
    assert not certificate["reservations"]  # a guarantee
    assert "the 3 networks of fold 0 of committee, and for no other model" in certificate["notes"][0]
    slides = tmp_path / "new.csv"
    slides.write_text("slide_id\n" + "\n".join(table["slide_id"][:3]) + "\n")
    options = (slides, *unread, "--certificate", fold / "certificate.json", "--out", tmp_path / "out")
    assert pams("predict", fold, *options).exit_code == 0
    assert "certified" in read_table(tmp_path / "out/predictions.csv")
    for other in (committee, committee / "fold1", committee / "members/mean-hidden/fold0"):
        refused = pams("predict", other, *options)
        assert refused.exit_code == 2
        assert "The certificate holds for the weights" in " ".join(refused.output.split())
    # Its training patients are refused, its test patients are free, and the mean of all folds has no guarantee.
    assert "trained the model" in pams("certify", fold, "--alpha", 0.3, "--calibration", "train").output
    assert pams("certify", fold, "--alpha", 0.3, "--calibration", "test", "--out", tmp_path / "t").exit_code == 0
    mean = json.loads(pams("certify", committee, "--alpha", 0.3, "--json", "--out", tmp_path / "mean").stdout)
    assert "'pams certify CV/fold0'" in mean["reservations"][0]
    nothing = pams("certify", committee / "fold7", "--alpha", 0.3)
    assert "fold7 is not a run folder" in " ".join(nothing.output.split())


def test_a_fold_of_a_committee_is_a_model_of_its_own(exported: Path, tmp_path: Path) -> None:
    committee = exported / "committee"
    fold = committee / "fold1"
    assert pams("evaluate", fold, "--resamples", 20).exit_code == 0
    tested = read_table(fold / "predictions/manifest-test.csv")
    pooled = read_table(committee / "predictions.csv")
    rows = zip(pooled["slide_id"], pooled["p_a"], pooled["fold"], strict=True)
    out_of_fold = {slide: float(p) for slide, p, k in rows if k == "1"}
    alone = dict(zip(tested["slide_id"], map(float, tested["p_a"]), strict=True))
    assert alone == pytest.approx(out_of_fold, abs=1e-6)
    assert pams("certify", fold, "--alpha", 0.3).exit_code == 0
    asked = Asked([fold], reviews=tmp_path / "reviews", certificate=fold / "certificate.json")
    assert set(open_session(asked)._cases.slide_ids) == alone.keys()
    with pytest.raises(CertificateError, match="holds for the weights"):
        open_session(replace(asked, paths=[committee / "fold2"]))
    assert pams("export", fold, "--out", tmp_path / "exported", "--no-onnx").exit_code == 0
    card = (tmp_path / "exported/README.md").read_text()
    assert "# Committee of 3, fold 1: the mean of 3 networks" in card
    assert "## Certificate: a guarantee" in card
    assert "## Test scores, with 95 % intervals" in card
    assert (tmp_path / "exported/members/mean-hidden/fold1/model.safetensors").is_file()


def test_a_fold_whose_validation_patients_chose_something_is_not_certified(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch, or the recipe in a tuning: the roles refuse, whatever the folder is called."""
    monkeypatch.setattr(local_processes, "LocalEngine", Here)
    committee, cohort = exported / "committee", exported / "cohort"
    done = pams(*committee_command(cohort, tmp_path / "chose", "select=acc"))
    assert done.exit_code == 0, done.output
    by_default = pams("certify", tmp_path / "chose/fold0", "--alpha", 0.3)
    assert by_default.exit_code == 2
    assert "the split 'val' chose the epoch" in " ".join(by_default.output.split())
    asked = pams("certify", tmp_path / "chose/fold0", "--alpha", 0.3, "--calibration", "val")
    assert asked.exit_code == 2
    assert "chose its epoch" in " ".join(asked.output.split())
    run = RunFolder(committee / "members/mean-hidden/fold2")
    before = run.exposure()
    assert before is not None
    patients = read_table(run.path / "cohort.csv")
    chosen = zip(*(patients[key] for key in ("slide_id", "patient_id", "split")), strict=True)
    run.expose(Exposure.of((slide, patient, "tune") for slide, patient, split in chosen if split == "val"))
    try:
        tuned = pams("certify", committee / "fold2", "--alpha", 0.3)
    finally:
        before.write(run.path)
    assert tuned.exit_code == 2
    assert "chose its recipe" in " ".join(tuned.output.split())
