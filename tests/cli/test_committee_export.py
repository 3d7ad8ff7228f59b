"""A committee to hand on: every network, one card, and a graph of their mean that says what `pams predict` says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_cv import FOLDS, committee_command, pams
from tests.engine.cohort import make_cohort
from tests.engine.here import Here

from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.engine.grid import engines as local_processes
from pams_mil.engine.prediction import graph

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
