"""Features of other tools say little of themselves: stated once, slides can be predicted and shown with their runs."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.cohorts.synthetic_slides import Piece, Scene, write_slide
from pams_mil.data import read_bag
from pams_mil.data.bags.feature_origin import complete_origin, stated_by_table
from pams_mil.data.manifest.manifest import SlideRecord
from pams_mil.engine.prediction.predict import load
from pams_mil.errors import ConfigError, ManifestError

ENCODER = "tests.wsi.plain_encoder:ColorEncoder"
MADE = {"encoder": "colors", "mpp": 4.0, "tile_px": 16}
ROWS = [("a", "train"), ("b", "train"), ("a", "val"), ("b", "val")]


def pams(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Slides, and their features in CLAM's plain layout: features and coordinates, nothing else."""
    pytest.importorskip("tifffile")
    home = tmp_path_factory.mktemp("foreign")
    for number in range(len(ROWS)):
        scene = Scene(600.0, 600.0, (Piece(300.0, 300.0, 200.0, 180.0),), (), seed=number)
        write_slide(home / "slides" / f"s{number}.tiff", scene, mpp=2.0, levels=1)
    done = pams("extract", home / "slides", "--out", home / "own", "--encoder", ENCODER, "--mpp", 4, "--tile-px", 16)
    assert done.exit_code == 0, done.output
    (home / "clam").mkdir()
    for number in range(len(ROWS)):
        bag = read_bag(home / "own" / "h5_files" / f"s{number}.h5")
        with h5py.File(home / "clam" / f"s{number}.h5", "w") as file:
            file["features"], file["coords"] = bag.features, bag.coords_px0
    lines = [f"s{number},p{number},{label},{split}" for number, (label, split) in enumerate(ROWS)]
    (home / "plain.csv").write_text("slide_id,patient_id,label,split\n" + "\n".join(lines) + "\n")
    stated = [f"{line},colors,4.0,16" for line in lines]
    (home / "stated.csv").write_text("slide_id,patient_id,label,split,encoder,mpp,tile_px\n" + "\n".join(stated) + "\n")
    (home / "classes.yaml").write_text("name: two\nclasses: [a, b]\n")
    return home


def train(home, out, *more, manifest="plain.csv"):
    return pams(
        "train", "--manifest", home / manifest, "--features", home / "clam", "--classes", home / "classes.yaml",
        "--method", "ce", "--model", "abmil", "--epochs", 1, "--out", out, "compute.accelerator=cpu", *more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("manifest", "options"),
    [
        ("plain.csv", ("--encoder", "colors", "--mpp", 4, "--tile-px", 16)),
        ("plain.csv", ("data.encoder=colors", "data.mpp=4", "data.tile_px=16")),
        ("stated.csv", ()),
    ],
    ids=["options", "settings", "table"],
)
def test_what_was_stated_once_goes_with_the_run(home, tmp_path, manifest, options):
    done = train(home, tmp_path / "run", *options, manifest=manifest)
    assert done.exit_code == 0, done.output
    assert load(tmp_path / "run").spec.encoder == MADE


def test_slides_are_predicted_and_shown_with_a_run_on_plain_features(home, tmp_path):
    assert train(home, tmp_path / "run").exit_code == 0
    slide = home / "slides" / "s0.tiff"
    refused = pams("predict", tmp_path / "run", slide, "--out", tmp_path / "p")
    assert refused.exit_code == 2
    assert "--encoder --mpp --tile-px" in refused.stderr
    how = ("--encoder", ENCODER, "--mpp", 4, "--tile-px", 16)
    done = pams("predict", tmp_path / "run", slide, "--out", tmp_path / "p", *how)
    assert done.exit_code == 0, done.output
    table = pams("predict", tmp_path / "run", home / "plain.csv", "--features", home / "clam", "--out", tmp_path / "q")
    assert table.exit_code == 0, table.output

    def probabilities(folder):
        header, first = (tmp_path / folder / "predictions.csv").read_text().splitlines()[:2]
        cells = dict(zip(header.split(","), first.split(","), strict=True))
        return [float(cells[name]) for name in ("p_a", "p_b")]

    assert probabilities("p") == pytest.approx(probabilities("q"), abs=1e-6)
    nowhere = pams("heatmap", tmp_path / "run", slide, "--features", home / "clam", "--out", tmp_path / "h")
    assert nowhere.exit_code == 2
    assert "State it with --mpp and --tile-px" in nowhere.stderr
    shown = pams(
        "heatmap", tmp_path / "run", slide, "--features", home / "clam", "--out", tmp_path / "h", "--mpp", 4,
        "--tile-px", 16, "--picture-px", 300,
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "h" / "s0" / "slide.html").exists()
    with Image.open(tmp_path / "h" / "s0" / "thumbnail.jpg") as small:
        assert max(small.size) == 144


def test_heatmaps_of_several_slides_load_the_run_once(home, tmp_path, monkeypatch):
    from pams_mil.engine.prediction import predict as predict_module

    assert train(home, tmp_path / "run", "data.mpp=4", "data.tile_px=16").exit_code == 0
    loaded, load = [], predict_module.checkpoint.load
    monkeypatch.setattr(predict_module.checkpoint, "load", lambda path: loaded.append(path) or load(path))
    slides = (home / "slides/s0.tiff", home / "slides/s1.tiff")
    done = pams("heatmap", tmp_path / "run", *slides, "--features", home / "clam", "--out", tmp_path / "h",
                "--picture-px", 200)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "h").glob("*/slide.html"))) == 2
    assert len(loaded) == 1


def test_one_bad_slide_does_not_stop_the_others(home, tmp_path):
    assert train(home, tmp_path / "run", "data.mpp=4", "data.tile_px=16").exit_code == 0
    (tmp_path / "truncated.tiff").write_bytes(b"II*\0")
    done = pams(
        "heatmap", tmp_path / "run", tmp_path / "truncated.tiff", home / "slides" / "s1.tiff", "--encoder", ENCODER,
        "--out", tmp_path / "h", "--picture-px", 300, "--json",
    )  # fmt: skip
    assert done.exit_code == 1
    assert "truncated.tiff cannot be read" in done.stderr
    assert (tmp_path / "h" / "s1" / "slide.html").exists()


def test_one_bad_slide_does_not_stop_the_prediction_of_the_others(home, tmp_path):
    assert train(home, tmp_path / "run", "data.mpp=4", "data.tile_px=16").exit_code == 0
    (tmp_path / "truncated.tiff").write_bytes(b"II*\0")
    slides = (tmp_path / "truncated.tiff", home / "slides" / "s1.tiff")
    done = pams("predict", tmp_path / "run", *slides, "--encoder", ENCODER, "--out", tmp_path / "p")
    assert done.exit_code == 1, done.output
    assert "truncated.tiff cannot be read" in done.stderr
    rows = (tmp_path / "p" / "predictions.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["s1"]


def test_contradictions_are_refused(home, tmp_path):
    with pytest.raises(ConfigError, match=r"data says encoder = 'uni', which contradicts the files: encoder = 'conch'"):
        complete_origin({"encoder": "conch"}, {"encoder": "uni"}, where="data", whose="the files")
    assert complete_origin({"mpp": 0.5}, {"mpp": 0.4998, "tile_px": None}, where="", whose="") == {"mpp": 0.5}
    two = [SlideRecord("s1", "p", "a", extra={"mpp": "0.5"}), SlideRecord("s2", "q", "a", extra={"mpp": "1.0"})]
    with pytest.raises(ManifestError, match=r"0\.5 of slide 's1' and 1\.0 of 's2'"):
        stated_by_table(two)
    for column, cell in (("mpp", "fine"), ("mpp", "-1"), ("mpp", "nan"), ("tile_px", "25.5"), ("tile_px", "0")):
        with pytest.raises(ManifestError, match=f"The column '{column}' says"):
            stated_by_table([SlideRecord("s1", "p", "a", extra={column: cell})])
    done = train(home, tmp_path / "run", "--mpp", 2, manifest="stated.csv")
    assert done.exit_code == 2
    assert "data says mpp = 2" in done.stderr
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_the_runs_own_word_cannot_be_overruled(home, tmp_path):
    assert train(home, tmp_path / "run", manifest="stated.csv").exit_code == 0
    done = pams("predict", tmp_path / "run", home / "slides" / "s0.tiff", "--mpp", 2, "--out", tmp_path / "p")
    assert done.exit_code == 2
    assert "The command says mpp = 2.0, which contradicts the run" in done.stderr


def test_features_that_say_more_are_held_against_the_statement(home, tmp_path):
    """Bags of `pams extract` name their encoder; a statement that differs is refused."""
    done = pams(
        "train", "--manifest", home / "plain.csv", "--features", home / "own" / "h5_files", "--classes",
        home / "classes.yaml", "--method", "ce", "--epochs", 1, "--out", tmp_path / "run", "--encoder", "uni",
    )  # fmt: skip
    assert done.exit_code == 2
    assert "data says encoder = 'uni', which contradicts the feature files: encoder = 'colors'" in done.stderr
    assert np.isfinite(read_bag(home / "own" / "h5_files" / "s0.h5").features).all()
