"""From slide files to a heatmap that finds the planted lesion, through the command line alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from pams_mil.cohorts.synthetic_slides import Lesion, Piece, Scene, write_slide
from pams_mil.data import read_bag

CLASSES = """
name: lesions
levels: [group, grade]
classes:
  Harmless: [none, mild]
  Grave: [severe]
"""
LABELS = {"none": 0, "mild": 1, "severe": 3}
SPLITS = ("train", "train", "train", "val", "test")


def scene_of(label, number):
    random = np.random.default_rng([number, LABELS[label]])
    kind = LABELS[label]
    x, y = random.uniform(380, 620, 2)
    lesions = (Lesion(x, y, 150.0, kind),) if kind else ()
    return Scene(1000.0, 1000.0, (Piece(500.0, 500.0, 400.0, 380.0),), lesions, seed=number)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    pytest.importorskip("tifffile")
    folder = tmp_path_factory.mktemp("cohort")
    rows = ["slide_id,patient_id,label,split"]
    for label in LABELS:
        for number, split in enumerate(SPLITS):
            name = f"{label}-{number}"
            write_slide(folder / "slides" / f"{name}.tiff", scene_of(label, number), mpp=2.0, levels=1)
            rows.append(f"{name},p-{name},{label},{split}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")
    (folder / "classes.yaml").write_text(CLASSES)
    return folder


def pams(*arguments):
    from pams_mil.cli.main import app

    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_slides_to_features_to_training_to_heatmap(cohort, tmp_path):
    encoder = "tests.wsi.plain_encoder:ColorEncoder"
    tiles = ("--mpp", 4, "--tile-px", 16, "--workers", 1)
    pams("extract", cohort / "slides", "--out", tmp_path / "features", "--encoder", encoder, *tiles)
    pams(
        "train", "--manifest", cohort / "manifest.csv", "--features", tmp_path / "features" / "h5_files", "--classes",
        cohort / "classes.yaml", "--method", "pams", "--model", "abmil", "--out", tmp_path / "run", "--seed", 0,
        "training.epochs=12", "training.lr=1e-2",
    )  # fmt: skip
    slide = cohort / "slides" / "severe-4.tiff"
    shown = pams(
        "heatmap", tmp_path / "run", slide, "--out", tmp_path / "heat", "--encoder", encoder, "--picture-px", 300
    )
    check_prediction(cohort, tmp_path, shown)
    check_slide_file(tmp_path, slide, encoder)
    check_lesion(tmp_path)
    check_urgency(cohort, tmp_path, slide)
    assert len(list((tmp_path / "heat" / "severe-4").glob("*.png"))) == 2 + 2 + 3
    check_page((tmp_path / "heat" / "severe-4" / "slide.html").read_text(), shown)


def check_urgency(cohort, tmp_path, slide):
    """A model that judges instances says of every tile how likely it is at least so urgent."""
    features = tmp_path / "features" / "h5_files"
    pams(
        "train", "--manifest", cohort / "manifest.csv", "--features", features, "--classes", cohort / "classes.yaml",
        "--method", "ce", "--model", "priority", "--out", tmp_path / "judge", "--seed", 0, "model.pooling=smooth_max",
        "training.epochs=8", "training.lr=1e-2",
    )  # fmt: skip
    heat = tmp_path / "urgency"
    pams("heatmap", tmp_path / "judge", slide, "--features", features, "--out", heat, "--picture-px", 200)
    truth, measured = planted(tmp_path, heat)
    urgent = [values["urgency grade severe"] for values in measured]
    assert roc_auc_score(truth, urgent) > 0.9
    assert 0 <= min(urgent) < 0.5 < max(urgent) <= 1
    for values in measured:  # a boundary that two levels share is one question
        assert values["urgency group Grave"] == pytest.approx(values["urgency grade severe"])
        assert values["urgency grade mild"] >= values["urgency grade severe"]
    assert "The tiles likeliest at least severe" in (heat / "severe-4" / "slide.html").read_text()
    assert (heat / "severe-4" / "urgency_grade_severe.png").is_file()


def check_prediction(cohort, tmp_path, shown):
    """The heatmap's bag and probabilities are those of `pams extract` and `pams predict`."""
    ours = tmp_path / "heat" / "features" / "h5_files" / "severe-4.h5"
    assert ours.read_bytes() == (tmp_path / "features" / "h5_files" / "severe-4.h5").read_bytes()
    features = tmp_path / "features" / "h5_files"
    pams("predict", tmp_path / "run", cohort / "manifest.csv", "--features", features, "--out", tmp_path / "predicted")
    lines = (tmp_path / "predicted" / "predictions.csv").read_text().splitlines()
    header = lines[0].split(",")
    row = dict(zip(header, next(line for line in lines if line.startswith("severe-4,")).split(","), strict=True))
    expected = ", ".join(f"{label} {float(row[f'p_{label}']):.3f}" for label in LABELS)
    assert f"grade: {expected}" in shown


def check_slide_file(tmp_path, slide, encoder):
    """`pams predict RUN slide` gives the probabilities that `pams predict RUN manifest` gave."""
    there = tmp_path / "from-slide"
    shown = pams("predict", tmp_path / "run", slide, "--encoder", encoder, "--out", there)
    rows = {}
    for name in ("predicted", "from-slide"):
        lines = (tmp_path / name / "predictions.csv").read_text().splitlines()
        header = lines[0].split(",")
        cells = next(line for line in lines if line.startswith("severe-4,")).split(",")
        rows[name] = {key: value for key, value in zip(header, cells, strict=True) if key.startswith("p_")}
    assert rows["from-slide"].keys() == rows["predicted"].keys()
    for key, value in rows["predicted"].items():  # packed with other slides, its last bits may differ
        assert float(rows["from-slide"][key]) == pytest.approx(float(value), rel=1e-5)
    assert "severe-4, grade: " in shown


def planted(tmp_path, heat):
    """Per tile of the slide, whether it lies in the lesion, and what the heatmap says of it."""
    bag = read_bag(tmp_path / "features" / "h5_files" / "severe-4.h5")
    truth = scene_of("severe", 4).lesion_share(bag.coords_px0 * 2.0, 64.0) > 0.5
    content = json.loads((heat / "severe-4" / "heatmap.geojson").read_text())
    measured = [feature["properties"]["measurements"] for feature in content["features"]]
    assert 3 < truth.sum() < len(truth) / 2
    return truth, measured


def check_lesion(tmp_path):
    """Attention and the evidence for the true class are highest where the lesion was planted."""
    truth, measured = planted(tmp_path, tmp_path / "heat")
    for name in ("attention grade", "evidence grade severe"):
        assert roc_auc_score(truth, [values[name] for values in measured]) > 0.9, name


def check_page(page, shown):
    """The page needs nothing else and says what the command said."""
    assert "http://" not in page.split("<style>")[0]
    assert page.count("data:image/jpeg;base64,") == 1 + 2 + 2 + 3 + 2 * 8
    said = next(line for line in shown.splitlines() if line.startswith("grade: "))
    for label, probability in (pair.rsplit(" ", 1) for pair in said.removeprefix("grade: ").split(", ")):
        assert f">{label}</" in page
        # Printed with two digits, shown with one more: 0.18 may be 17.6 %.
        near = 100 * float(probability)
        assert any(f"{near + tenth / 10:.1f}" in page for tenth in range(-5, 6)), label
