"""Code of one's own in a file: trained by its path, stored by its content, loaded only when it is trusted."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.docs.console_blocks import ROOT, files_of
from tests.docs.newcomer import make_slides
from tests.engine.cohort import settings, weights
from typer.testing import CliRunner

from pams_mil import discover
from pams_mil.cli.main import app
from pams_mil.data import read_bag
from pams_mil.engine import predict, train
from pams_mil.engine.inference_loop import infer_batch
from pams_mil.engine.prediction.export import export
from pams_mil.engine.prediction.predict import load
from pams_mil.errors import CheckpointError, ConfigError
from pams_mil.models import BagBatch
from pams_mil.view.heat import HeatMaker

PAGE = ROOT / "docs/bring-your-own.md"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page; the process has not seen them."""
    for name, text in files_of(PAGE).items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discover, "_FILES", {})
    return tmp_path


def test_a_model_in_a_file_trains_predicts_and_moves(place: Path, cohort: Path, monkeypatch: pytest.MonkeyPatch):
    config = settings(cohort, model="./my_model.py:MyNet", epochs=2, method="ce")
    train(config, place / "run")
    (place / "my_model.py").unlink()
    shutil.move(place / "run", place / "moved")
    monkeypatch.setattr(discover, "_FILES", {})
    with pytest.raises(CheckpointError, match=r"my_model\.py@\w{32}:MyNet.*--trust-code"):
        load(place / "moved")
    loaded = load(place / "moved", trusted=True)
    assert loaded.spec.settings["model"]["name"].startswith("my_model.py@")
    assert str(place) not in str(loaded.spec.to_json())
    predicted = predict([loaded], cohort / "manifest.csv", split="test", features=cohort / "bags")
    assert len(predicted.names) == 8
    export(place / "moved", place / "out", trusted=True)
    monkeypatch.setattr(discover, "_FILES", {})
    assert load(place / "out", trusted=True).weights == loaded.weights
    shutil.rmtree(place / "out/code")
    monkeypatch.setattr(discover, "_FILES", {})
    with pytest.raises(ConfigError, match=r"trained with code in my_model\.py \(digest .* Put the same file there"):
        load(place / "out", trusted=True)


def test_a_changed_file_does_not_continue_a_run(place: Path, cohort: Path):
    config = settings(cohort, model={"name": "./my_model.py:MyNet", "hidden": 4}, epochs=1, method="ce")
    train(config, place / "run")
    before = weights(place / "run/last.safetensors")
    changed = (place / "my_model.py").read_text().replace("Tanh", "ReLU")
    (place / "my_model.py").write_text(changed)
    with pytest.raises(CheckpointError, match=r"model\.name = 'my_model\.py@.* The file was changed: put back"):
        train(config, place / "run", resume=True)
    assert weights(place / "run/last.safetensors").keys() == before.keys()


def test_the_command_line_names_the_run_by_the_class(place: Path, cohort: Path):
    words = ["train", "--manifest", str(cohort / "manifest.csv"), "--features", str(cohort / "bags")]
    words += ["--classes", str(cohort / "classes.yaml"), "--model", "./my_model.py:MyNet", "--epochs", "1"]
    done = CliRunner().invoke(app, [*words, "accelerator=cpu", "model.hidden=4"])
    assert done.exit_code == 0, done.output
    assert (place / "runs/pams-MyNet-seed0/code").is_dir()
    refused = CliRunner().invoke(app, [*words[:-2], "--method", "haf", "--out", "other"])
    assert refused.exit_code != 0
    assert "does not fit the model" in refused.output.replace("\n", " ")
    missing = CliRunner().invoke(app, [*words[:-3], "./nowhere.py:Net", "--out", "other"])
    assert "There is no readable file" in missing.output.replace("\n", " ")


def test_torchmils_models_work_unchanged(place: Path, cohort: Path):
    pytest.importorskip("torchmil.models", exc_type=ImportError)
    words = ["train", "--manifest", str(cohort / "manifest.csv"), "--features", str(cohort / "bags"), "--epochs", "1"]
    words += ["--classes", str(cohort / "classes.yaml"), "--method", "ce", "accelerator=cpu"]
    for name in ("ABMIL", "CLAM_SB", "DSMIL", "TransMIL", "TransformerABMIL", "SmoothABMIL"):
        done = CliRunner().invoke(app, [*words, "--model", f"torchmil.models:{name}", "--out", name])
        assert done.exit_code == 0, done.output
        out = ["predict", name, str(cohort / "manifest.csv"), "--features", str(cohort / "bags"), "--attention"]
        done = CliRunner().invoke(app, [*out, "--trust-code", "--out", f"{name}.csv"])
        assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(app, [*words, "--model", "torchmil.models:CAMIL", "--out", "other"])
    assert "missing 1 required positional argument: 'adj'" in refused.output.replace("\n", " ")


def pams(*words: object) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done.output


def test_a_model_in_a_file_is_compared_like_ours(place: Path, cohort: Path):
    data = ["--classes", cohort / "classes.yaml", "--features", cohort / "bags"]
    table, quick = cohort / "manifest.csv", ["--workers", 1, "--resamples", 0]
    trained = pams("train", "--manifest", table, *data, "--model", "./my_model.py:MyNet", "--epochs", 1, "--out", "run")
    assert "pams evaluate run --trust-code" in trained
    own = ["--method", "./my_loss.py:focal", "--model", "./my_model.py:MyNet", "--epochs", 1]
    validated = pams("cv", table, *data, *quick, "--folds", 3, *own)
    assert "focal MyNet, 3 folds" in validated
    assert "pams predict cv/focal-MyNet-seed0 SLIDES.csv --features FEATURES --trust-code" in validated
    (place / "grid.yaml").write_text(
        f"data: {{manifest: {table}, features: {cohort}/bags}}\nclasses: {cohort}/classes.yaml\nmethods: [ce]\n"
        "models: [./my_model.py:MyNet, {name: abmil, embedding_features: 8}]\ntraining: {epochs: 1}\n"
    )
    assert "my_model.py" not in pams("bench", "grid.yaml", "--out", "bench", *quick).replace("grid.yaml", "")
    assert (place / "bench/cells/MyNet--ce--seed0/cell.json").is_file()
    (place / "space.yaml").write_text(
        "training: {epochs: 1, patience: null, select: last}\n"
        "try: [{pooling: ./my_model.py:MyNet, loss: ./my_loss.py:focal}]\n"
    )
    words = ["tune", table, *data, *quick, "--folds", 3, "--seeds", 1, "--space", "space.yaml", "--out", "tuned"]
    pams(*words, "--budget", 5, "accelerator=cpu")
    assert (place / "tuned/recipes/MyNet-focal").is_dir()


def test_its_attention_is_seen_on_slides(place: Path):
    make_slides(place)
    pams("extract", "slides", "--out", "tiles", "--encoder", "./my_encoder.py:colors", "--mpp", 1.0, "--tile-px", 64)
    data = ["--features", "tiles", "--classes", "bracs", "--method", "ce"]
    pams("train", "--manifest", "manifest.csv", *data, "--model", "./my_model.py:MyNet", "--epochs", 1, "--out", "run")
    shown = ["heatmap", "run", "slides/case-17.svs", "--features", "tiles", "--out", "heat"]
    assert "--trust-code" in CliRunner(env={"COLUMNS": "400"}).invoke(app, list(shown)).output
    pams(*shown, "--trust-code")
    assert (place / "heat/case-17/attention_class.png").is_file()
    run = load(place / "run", trusted=True)
    layers = HeatMaker(features=place / "tiles", runs=[run]).of("case-17").layers
    attention = [values for name, (_, values) in layers.items() if "attention" in name.lower()]
    bag = read_bag(next((place / "tiles").rglob("case-17.h5")))
    module = run.learner.model.towers[-1].module.eval()
    with torch.no_grad():
        expected = module(torch.as_tensor(bag.features).float())[1][:, 0]
    orders = [list(np.argsort(values)) for values in attention]
    assert list(np.argsort(expected.numpy())) in orders
    pams("export", "run", "--out", "out", "--trust-code")
    assert (place / "out/model.safetensors").is_file()


FIRST_ROWS = """
from torch import nn


class FirstRows(nn.Module):
    def __init__(self, in_features, num_classes):
        super().__init__()
        self.classify = nn.Linear(in_features, num_classes)

    def forward(self, bag):
        return self.classify(bag[: (len(bag) + 1) // 2].mean(0))  # a size that a traced graph takes for a constant
"""


def test_a_graph_of_it_is_kept_if_it_agrees_and_refused_in_a_sentence_if_not(place: Path, cohort: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    (place / "first_rows.py").write_text(FIRST_ROWS)
    data = ["--manifest", cohort / "manifest.csv", "--classes", cohort / "classes.yaml", "--features", cohort / "bags"]
    for name, model in (("run", "./my_model.py:MyNet"), ("half", "./first_rows.py:FirstRows")):
        pams("train", *data, "--model", model, "--epochs", 1, "--out", name)
    assert "--trust-code" in CliRunner(env={"COLUMNS": "400"}).invoke(app, ["export", "run", "--out", "o"]).output
    pams("export", "run", "--out", "out", "--onnx", "--trust-code")
    session, run = onnxruntime.InferenceSession(place / "out/model.onnx"), load(place / "run", trusted=True)
    for rows in (1, 3, 41):
        bag = torch.randn(rows, 8)
        [expected] = [one.probabilities for one in infer_batch([run.learner], BagBatch.single(bag))]
        for ours, theirs in zip(expected, session.run(None, {"features": bag.numpy()}), strict=True):
            np.testing.assert_allclose(theirs, ours.numpy(), atol=1e-5)
    asked = ["export", "half", "--out", "half-out", "--trust-code"]
    refused = CliRunner(env={"COLUMNS": "400"}).invoke(app, [*asked, "--onnx"])
    assert refused.exit_code == 2
    assert "The ONNX graph's probabilities would differ by" in refused.output
    assert "not written: The ONNX graph's probabilities would differ" in pams(*asked).replace("\n", " ")
