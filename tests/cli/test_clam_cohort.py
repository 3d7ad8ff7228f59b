"""A cohort as CLAM leaves it goes all the way: long class names, seven classes, ties, four patients, a rare class."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import Result
from tests.data import writers
from tests.engine.here import Here
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data.tables import read_table
from pams_mil.engine.grid import engines as local_processes
from pams_mil.engine.run import checkpoint

CLASSES = """\
name: long names
levels: [group, finding]
classes:
  Without pathological finding:
    - Normal squamous epithelium
    - Reactive changes, inflammation
  Low grade, follow up in a year:
    - [Low-grade dysplasia without atypia, Low-grade dysplasia with koilocytosis]
  High grade, treat soon:
    - High-grade dysplasia
    - [Carcinoma in situ <suspected>, Invasive carcinoma & metastasis]
"""
LABELS = [
    "Normal squamous epithelium", "Reactive changes, inflammation", "Low-grade dysplasia without atypia",
    "Low-grade dysplasia with koilocytosis", "High-grade dysplasia", "Carcinoma in situ <suspected>",
    "Invasive carcinoma & metastasis",
]  # fmt: skip
RARE = LABELS[-1]
PATIENTS = 4


def pams(*words: object) -> Result:
    done = CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """CLAM's dataset CSV and h5_files, one slide to look at, and a trained cross-validation."""
    pytest.importorskip("tifffile")
    from pams_mil.cohorts.synthetic_slides import Piece, Scene, write_slide

    root, random, rows = tmp_path_factory.mktemp("clam"), np.random.default_rng(0), ["case_id,slide_id,label"]
    (root / "h5_files").mkdir()
    for patient in range(PATIENTS):
        for target, label in enumerate(LABELS):
            if label == RARE and patient != 2:
                continue  # only one patient has it, so most test parts lack it
            slide, features = f"case{patient}_slide{target}", random.standard_normal((9, 12)).astype(np.float32)
            features[0, target] += 5.0
            corners = np.stack(np.divmod(np.arange(9), 3), axis=1).astype(np.int32) * 256
            writers.clam(root / "h5_files" / f"{slide}.h5", features, corners)
            rows.append(f'case{patient},{slide},"{label}"')
    (root / "dataset.csv").write_text("\n".join(rows) + "\n")
    (root / "classes.yaml").write_text(CLASSES)
    scene = Scene(800.0, 800.0, (Piece(400.0, 400.0, 300.0, 300.0),), (), seed=0)
    write_slide(root / "slides" / "case0_slide0.tiff", scene, mpp=1.0, levels=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_processes, "LocalEngine", Here)
        pams(
            "cv", root / "dataset.csv", "--classes", root / "classes.yaml", "--features", root / "h5_files",
            "--folds", 3, "--epochs", 1, "--lr", 1e-2, "--resamples", 50, "--out", root / "cv",
            "accelerator=cpu", "model.embedding_features=8", "model.attention_features=4",
        )  # fmt: skip
        yield root


def test_check_says_that_it_is_usable_and_what_is_odd(home: Path) -> None:
    words = ("--classes", home / "classes.yaml", "--features", home / "h5_files")
    found = json.loads(pams("check", home / "dataset.csv", *words, "--json").stdout)
    assert found["usable"]
    assert found["slides"] == 25
    assert found["bags"]["layouts"] == {"clam": 25}


def test_the_folds_lack_the_rare_class_and_say_so(home: Path) -> None:
    words = ("split", home / "dataset.csv", "--classes", home / "classes.yaml", "--folds", 3)
    shown = " ".join(pams(*words, "--out", home / "splits").output.split())
    assert f"'{RARE}' (1 patient) is not in" in shown
    assert "merge the class with one beside it" in shown


def test_every_slide_is_scored_once_and_the_page_names_every_class(home: Path) -> None:
    pooled = read_table(home / "cv/predictions.csv")
    assert len(pooled["slide_id"]) == len(set(pooled["slide_id"])) == 25
    assert set(pooled["target"]) == set(LABELS)
    page = (home / "cv/report/report.html").read_text()
    assert "Carcinoma in situ &lt;suspected&gt;" in page
    assert "<suspected>" not in page
    assert "Invasive carcinoma &amp; metastasis" in page


def test_predict_with_the_folds_and_evaluate(home: Path) -> None:
    (home / "new.csv").write_text("slide_id\ncase0_slide0\ncase3_slide5\n")
    shown = pams("predict", home / "cv", home / "new.csv", "--features", home / "h5_files", "--out", home / "predicted")
    assert "2 of 2 slides are of patients that the model has seen" in shown.stderr
    table = read_table(home / "predicted/predictions.csv")
    assert {f"p_{label}" for label in LABELS} <= set(table)
    sums = np.sum([[float(cell) for cell in table[f"p_{label}"]] for label in LABELS], axis=0)
    np.testing.assert_allclose(sums, 1, atol=1e-9)
    found = json.loads(pams("evaluate", home / "cv", "--json", "--resamples", 20, "--out", home / "all").stdout)
    assert found["files"][0]["slides"] == 25
    one = json.loads(pams("evaluate", home / "cv/fold0", "--json", "--resamples", 20).stdout)
    assert one["files"][0]["slides"] < 25


def test_heatmap_of_foreign_features_and_export(home: Path) -> None:
    pams(
        "heatmap", home / "cv/fold0", home / "slides/case0_slide0.tiff", "--features", home / "h5_files",
        "--mpp", 1.0, "--tile-px", 256, "--picture-px", 200, "--out", home / "heat",
    )  # fmt: skip
    assert list((home / "heat").rglob("slide.html"))
    assert len(list((home / "heat").rglob("evidence_*.png"))) == 7 + 3
    with h5py.File(home / "h5_files/case0_slide0.h5") as file:  # the same tiles as STAMP writes them, in microns
        (home / "stamp").mkdir()
        writers.stamp(home / "stamp/case0_slide0.h5", file["features"][()], file["coords"][()] * 1.0)
    pams(
        "heatmap", home / "cv/fold0", home / "slides/case0_slide0.tiff", "--features", home / "stamp",
        "--picture-px", 200, "--out", home / "heat-stamp",
    )  # fmt: skip
    drawn = {file.name: file.read_bytes() for file in (home / "heat").rglob("evidence_*.png")}
    assert {file.name: file.read_bytes() for file in (home / "heat-stamp").rglob("evidence_*.png")} == drawn
    pams("export", home / "cv/fold0", "--out", home / "exported")
    assert {"model.safetensors", "config.json", "README.md"} <= {file.name for file in (home / "exported").iterdir()}


def test_heatmap_loads_each_network_once_for_all_slides(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, load = [], checkpoint.load
    monkeypatch.setattr(checkpoint, "load", lambda path: loaded.append(path) or load(path))
    slides = home / "two-slides"
    slides.mkdir()
    for name in ("case0_slide0", "case1_slide0"):
        shutil.copy(home / "slides/case0_slide0.tiff", slides / f"{name}.tiff")
    pams(
        "heatmap", home / "cv", slides, "--features", home / "h5_files", "--mpp", 1.0, "--tile-px", 256,
        "--picture-px", 200, "--out", home / "heat-twice",
    )  # fmt: skip
    assert len(list((home / "heat-twice").rglob("slide.html"))) == 2
    assert sorted(path.parent.name for path in loaded) == ["fold0", "fold1", "fold2"]
