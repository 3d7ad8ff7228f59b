"""Vectors of slide encoders: trained and predicted by the linear model, with any method, and never remixed."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from tests.engine.cohort import NAMES, run, settings

from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine import predict
from pams_mil.errors import ConfigError


@pytest.fixture
def vectors(tmp_path):
    """TRIDENT's slide features: one vector [d] per slide."""
    random, records = np.random.default_rng(0), []
    (tmp_path / "bags").mkdir()
    for number in range(36):
        vector = random.standard_normal(8).astype(np.float32)
        vector[number % 4] += 6
        with h5py.File(tmp_path / "bags" / f"s{number}.h5", "w") as file:
            file.create_dataset("features", data=vector).attrs.update({"encoder": "titan", "savetodir": "out"})
        part = ("train", "train", "val", "test")[number // 4 % 4]
        records.append(SlideRecord(f"s{number}", f"p{number}", NAMES[number % 4], part))
    Manifest(tuple(records)).write(tmp_path / "manifest.csv")
    (tmp_path / "classes.yaml").write_text("name: tiny\nclasses:\n  Low: [a, b]\n  High: [c, d]\n")
    return tmp_path


def test_trained_and_predicted(vectors, tmp_path):
    plain = {"name": "pams", "remix": None}
    made = run(settings(vectors, method=plain, model={"name": "linear"}, epochs=30, lr=1e-1), tmp_path / "run")
    found = predict([made], vectors / "manifest.csv", split="test", features=vectors / "bags")
    assert (found.calls() == found.sample.target).mean() > 0.8


@pytest.mark.parametrize(("model", "why"), [("linear", "reads one vector per slide"), ("abmil", "hold one row each")])
def test_a_remix_is_refused_in_words(vectors, tmp_path, model, why):
    chosen = {"name": "linear"} if model == "linear" else model
    with pytest.raises(ConfigError, match=rf"'sfr' exchanges tiles .* {why}.*method\.remix=null"):
        run(settings(vectors, model=chosen), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()
