"""Several findings per slide, from a table with sets to weights that know them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.engine.cohort import TINY_MODELS, settings

from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.data.bags.dataset import BagDataset
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine.inference_loop import infer
from pams_mil.engine.prediction.predict import load_run
from pams_mil.engine.training.train import train
from pams_mil.errors import PamsError, ParameterError
from pams_mil.hierarchy import ClassHierarchy

NAMES = "abcd"
CLASSES = "name: tiny\nclasses:\n  Low: [a, b]\n  High: [c, d]\nfindings: several\nnothing: a\n"
MODELS = {
    **TINY_MODELS,
    "clam_mb": {"name": "clam_mb", "embedding_features": 8, "attention_features": 4},
    "priority": {"name": "priority", "embedding_features": 8, "attention_features": 4},
    "smooth_max": {"name": "priority", "pooling": "smooth_max", "embedding_features": 8},
    "mean_pool": {"name": "mean_pool", "embedding_features": 8},
}


def label_of(present: np.ndarray) -> str:
    return "; ".join(NAMES[k + 1] for k in np.flatnonzero(present)) or "a"


def make_cohort(folder: Path, *, seed: int = 0, count: int = 150) -> Path:
    """Bags whose features 1 to 3 are shifted in one instance for each finding that is present."""
    random = np.random.default_rng(seed)
    records = []
    for number in range(count):
        present = random.random(3) < 0.4
        features = random.standard_normal((int(random.integers(5, 10)), 8)).astype(np.float32)
        for k in np.flatnonzero(present):
            features[k, k + 1] += 6.0
        slide, split = f"s{number}", "train" if number % 3 else "val" if number % 2 else "test"
        write_bag(folder / "bags" / f"{slide}.h5", Bag(features, info=BagInfo(encoder="tiny", tile_px=8)))
        records.append(SlideRecord(slide, f"p{number}", label_of(present), split))
    Manifest(tuple(records)).write(folder / "manifest.csv")
    (folder / "classes.yaml").write_text(CLASSES)
    return folder


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cohort(tmp_path_factory.mktemp("several"))


@pytest.mark.parametrize("method", ["pams", "msce", "ce"])
def test_findings_are_learned_beside_the_most_urgent_one(cohort: Path, tmp_path: Path, method: str) -> None:
    run = train(settings(cohort, method=method, epochs=30, lr=5e-3), tmp_path / "run")
    loaded, manifest = load_run(run.path), Manifest.read(cohort / "manifest.csv").select("test")
    hierarchy = ClassHierarchy.load(cohort / "classes.yaml")
    bags = BagDataset(manifest, hierarchy, cohort / "bags")
    said = [answer.outcome[0].findings[0] for answer in infer([loaded.learner], bags, "cpu")]
    present = hierarchy.finding_matrix(record.label for record in manifest)
    p = torch.stack(said).numpy()
    assert np.mean([roc_auc_score(present[:, k], p[:, k]) for k in range(3)]) > 0.85


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_has_a_head_for_findings(cohort: Path, tmp_path: Path, model: str) -> None:
    run = train(settings(cohort, method="pams", model=MODELS[model], epochs=1), tmp_path / "run")
    log = (run.path / "metrics.csv").read_text().splitlines()[0]
    assert "findings" in log
    assert "findings_align" in log
    assert load_run(run.path).learner.model.findings is not None


def test_methods_without_a_form_for_sets_are_refused_before_training(cohort: Path, tmp_path: Path) -> None:
    with pytest.raises((ParameterError, PamsError), match="no form for several findings"):
        train(settings(cohort, method="hxe"), tmp_path / "run")


def test_labels_that_cannot_be_meant_are_refused(cohort: Path, tmp_path: Path) -> None:
    text = (cohort / "manifest.csv").read_text().replace(",b,", ",a; b,", 1)
    assert ",a; b," in text
    (tmp_path / "manifest.csv").write_text(text)
    (tmp_path / "classes.yaml").write_text(CLASSES)
    (tmp_path / "bags").symlink_to(cohort / "bags")
    with pytest.raises(PamsError, match="together with a finding"):
        train(settings(tmp_path, method="ce"), tmp_path / "run")
