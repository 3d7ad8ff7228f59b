"""ONNX graphs: of every model, for bags of any size, equal to `pams predict` in onnxruntime; or refused beforehand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.engine.cohort import TINY_MODELS, run, settings
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.engine.prediction import graph as graph_module
from pams_mil.engine.prediction.export import export
from pams_mil.engine.prediction.graph import GraphError
from pams_mil.engine.prediction.predict import load, predict
from pams_mil.models.layers.pseudo_bags import fixed_groups

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

MODELS = {
    "abmil": TINY_MODELS["abmil"],
    "transmil": TINY_MODELS["transmil"],
    "dtfd": TINY_MODELS["dtfd"],
    "dtfd, three looks": {**TINY_MODELS["dtfd"], "splits": 3, "pseudo_bags": 5, "residual_blocks": 1},
    "clam_mb": {"name": "clam_mb", "embedding_features": 8, "attention_features": 4},
    "clam_sb": {"name": "clam_sb", "embedding_features": 8, "attention_features": 4},
    "priority": {"name": "priority", "embedding_features": 8, "attention_features": 4},
    "priority, smooth_max": {"name": "priority", "embedding_features": 8, "pooling": "smooth_max"},
    "priority, mean": {"name": "priority", "embedding_features": 8, "pooling": "mean"},
    "mean_pool": {"name": "mean_pool", "embedding_features": 8},
    "max_pool": {"name": "max_pool", "embedding_features": 8},
    "linear": {"name": "linear"},
}
SIZES = (1, 2, 3, 5, 16, 17, 90)


def sharpen(folder) -> None:
    """Heads as after long training rather than near zero, so that probabilities are not all alike."""
    from pams_mil.engine.run import checkpoint

    saved = checkpoint.load(folder / "best.safetensors")
    louder = {name: value * 20 if "head" in name else value for name, value in saved.tensors.items()}
    checkpoint.save(folder / "best.safetensors", checkpoint.Checkpoint(louder, saved.state))


@pytest.fixture
def slides(tmp_path):
    random = np.random.default_rng(0)
    for n in SIZES:
        features = random.standard_normal((n, 8)).astype(np.float32)
        write_bag(tmp_path / "bags" / f"slide {n}.h5", Bag(features, info=BagInfo(encoder="tiny", tile_px=8)))
    table = tmp_path / "slides.csv"
    table.write_text("slide_id\n" + "".join(f"slide {n}\n" for n in SIZES))
    return table


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_says_what_predict_says(cohort, slides, tmp_path, monkeypatch, capfd, name):
    import h5py

    monkeypatch.setattr(graph_module, "SIZES", (1, 9))
    method = {"name": "pams", "remix": None} if name == "linear" else "pams"  # slide vectors cannot be remixed
    folder = run(settings(cohort, model=MODELS[name], method=method, epochs=1), tmp_path / "run")
    sharpen(folder)
    capfd.readouterr()
    found = export(folder, tmp_path / "out", onnx=True)
    assert found["model.onnx"].startswith("equal to the model within")
    assert capfd.readouterr() == ("", "")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    assert [output.name for output in session.get_outputs()] == ["probabilities_group", "probabilities_class"]
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    assert [one.name for one in session.get_inputs()] == list(described["inputs"])
    assert [one["name"] for one in described["outputs"]] == [output.name for output in session.get_outputs()]
    expected = predict([folder], slides, features=slides.parent / "bags")
    for row, n in enumerate(SIZES):
        with h5py.File(slides.parent / "bags" / f"slide {n}.h5") as file:
            inputs = {"features": file["features"][:].astype(np.float32)}
        if "groups" in described["inputs"]:
            options = MODELS[name]
            groups = fixed_groups(n, options["pseudo_bags"], f"slide {n}", splits=options.get("splits", 1))
            inputs["groups"] = groups.numpy()
        for level, probabilities in enumerate(session.run(None, inputs)):
            assert np.abs(probabilities[0] - np.asarray(expected.probabilities[level][row])).max() < 1e-5
    assert max(float(row.max()) for row in expected.probabilities[-1]) > 0.3  # not all alike


def test_dtfd_that_ranks_instances_is_refused_before_any_export(cohort, tmp_path, monkeypatch):
    model = {**TINY_MODELS["dtfd"], "distillation": "maxmin"}
    folder = run(settings(cohort, model=model, epochs=1), tmp_path / "run")
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: pytest.fail("the exporter was called"))
    result = CliRunner().invoke(app, ["export", str(folder), "--out", str(tmp_path / "out"), "--onnx"])
    assert result.exit_code == 2
    assert "distillation 'maxmin' ranks instances" in result.stderr
    assert not (tmp_path / "out").exists()
    assert export(folder, tmp_path / "out")["model.onnx"].startswith("not written: DTFD's distillation")
    assert not (tmp_path / "out" / "model.onnx").exists()
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_graph_that_disagrees_is_not_kept(cohort, tmp_path, monkeypatch):
    folder = run(settings(cohort, epochs=1), tmp_path / "run")
    tower = type(load(folder).learner.model.towers[0])
    right = tower.trace

    def wrong(self, features, groups=None):
        embedded = right(self, features, groups)
        return type(embedded)(embedded.vectors * 1.01)

    monkeypatch.setattr(tower, "trace", wrong)
    with pytest.raises(GraphError, match=r"would differ by .* so it was not kept"):
        export(folder, tmp_path / "out", onnx=True)
    assert not (tmp_path / "out" / "model.onnx").exists()


def test_a_model_that_cannot_be_traced_says_so_in_one_quiet_sentence(cohort, tmp_path, monkeypatch, capfd):
    folder = run(settings(cohort, epochs=1), tmp_path / "run")
    tower = type(load(folder).learner.model.towers[0])

    def untraceable(self, features, groups=None):
        return self.embed(torch.linalg.eigh(features @ features.mT))

    monkeypatch.setattr(tower, "trace", untraceable)
    capfd.readouterr()
    found = export(folder, tmp_path / "out")
    assert found["model.onnx"].startswith("not written: This model cannot be written as an ONNX graph: ")
    assert "\n" not in found["model.onnx"]
    assert capfd.readouterr() == ("", "")
