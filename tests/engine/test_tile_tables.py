"""Attention and evidence for other tools: parquet, and LazySlide's stores, where everything else stays as it was."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.data.test_lazyslide import FIXTURE, ORDER
from tests.engine.cohort import run, settings
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data import Bag, Manifest, SlideRecord, read_bag, write_bag
from pams_mil.evaluate import read_predictions
from pams_mil.hierarchy import ClassHierarchy


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    """Features of width 4, one slide of them in a LazySlide store."""
    with zipfile.ZipFile(FIXTURE) as archive:
        archive.extractall(tmp_path / "bags")
    random, records = np.random.default_rng(0), []
    for number in range(12):
        write_bag(tmp_path / "bags" / f"s{number}.h5", Bag(random.standard_normal((5, 4)).astype(np.float32)))
        records.append(
            SlideRecord(f"s{number}", f"p{number}", "abcd"[number % 4], ("train", "train", "val")[number // 4])
        )
    Manifest(tuple(records)).write(tmp_path / "manifest.csv")
    (tmp_path / "new.csv").write_text("slide_id\ncase-1\n")
    (tmp_path / "classes.yaml").write_text("name: tiny\nclasses:\n  Low: [a, b]\n  High: [c, d]\n")
    run(settings(tmp_path, method="ce", epochs=1), tmp_path / "run")
    return tmp_path


def predicted(cohort: Path, *options: str):
    words = ["predict", cohort / "run", cohort / "new.csv", "--features", cohort / "bags", "--out", cohort / "out"]
    return CliRunner().invoke(app, [str(word) for word in (*words, *options)])


def test_tiles_as_parquet_and_into_the_store(cohort: Path):
    store = cohort / "bags/case-1.zarr"
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    table = pq.read_table(store / "shapes/tiles/shapes.parquet")
    assert predicted(cohort, "--tiles", "--into-stores", "--parquet").exit_code == 0
    tiles = pq.read_table(cohort / "out/tiles/case-1.parquet")
    bag = read_bag(store)
    assert np.array_equal(np.stack([tiles["x"], tiles["y"]], 1), bag.coords_px0)
    attention = tiles["pams_attention_class"].to_numpy()
    assert attention.sum() == pytest.approx(1)
    assert sum(name.startswith("pams_evidence_class_") for name in tiles.column_names) == 4
    written = pq.read_table(store / "shapes/tiles/shapes.parquet")
    by_id = dict(zip(written["tile_id"].to_pylist(), written["pams_attention_class"].to_pylist(), strict=True))
    assert [by_id[tile] for tile in ORDER] == attention.tolist()
    assert written.select(table.column_names).equals(table)
    assert written.schema.metadata == table.schema.metadata
    changed = [path for path, content in before.items() if path.read_bytes() != content]
    assert [path.name for path in changed] == ["shapes.parquet"]
    again = predicted(cohort, "--into-stores")
    assert again.exit_code == 0
    assert pq.read_table(store / "shapes/tiles/shapes.parquet").equals(written)
    assert np.array_equal(read_bag(store).features, bag.features)


def test_predictions_as_parquet_are_read_like_the_csv(cohort: Path):
    assert predicted(cohort, "--parquet").exit_code == 0
    table = pq.read_table(cohort / "out/predictions.parquet")
    assert table["slide_id"].to_pylist() == ["case-1"]
    assert sum(table[f"p_{label}"][0].as_py() for label in "abcd") == pytest.approx(1)
    words = ["predict", cohort / "run", cohort / "manifest.csv", "--features", cohort / "bags", "--out", cohort / "all"]
    assert CliRunner().invoke(app, [str(word) for word in (*words, "--parquet")]).exit_code == 0
    hierarchy = ClassHierarchy.load(str(cohort / "classes.yaml"))
    one, two = (read_predictions(cohort / f"all/predictions.{kind}", hierarchy) for kind in ("csv", "parquet"))
    assert np.array_equal(one.probabilities, two.probabilities)


def test_tiles_that_are_not_the_stores_are_refused(cohort: Path):
    file = cohort / "bags/case-1.zarr/shapes/tiles/shapes.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(1, "x", [table["x"].to_numpy() * 0]), file)
    content = file.read_bytes()
    (cohort / "new.csv").write_text("slide_id\ncase-1\ns0\n")
    found = predicted(cohort, "--into-stores", "--tiles")
    assert found.exit_code == 1
    assert "are not those of" in found.output.replace("\n", " ")
    assert "s0.h5 is not a LazySlide store" in found.output.replace("\n", "")
    assert file.read_bytes() == content
    assert (cohort / "out/tiles/s0.parquet").exists()
