"""Slides for a trained run are extracted as its training features were, or not at all."""

from __future__ import annotations

import pytest
from tests.wsi.scenes import write

from pams_mil.data import read_bag
from pams_mil.errors import ConfigError, SlideError
from pams_mil.wsi.extract import bags_for_run
from pams_mil.wsi.slide_sources import find_slides

ENCODER = "tests.wsi.plain_encoder:ColorEncoder"
MADE = {"encoder": "colors", "mpp": 2.0, "tile_px": 32}


def test_bags_are_made_as_the_run_says(tmp_path):
    sources = find_slides([write(tmp_path / "b.tiff"), write(tmp_path / "a.tiff", seed=1)])
    manifest, features = bags_for_run(sources, tmp_path / "out", MADE, encoder=ENCODER)
    assert manifest.read_text().split() == ["slide_id", "a", "b"]
    for name in ("a", "b"):
        info = read_bag(features / f"{name}.h5").info
        assert (info.encoder, info.mpp, info.tile_px) == ("colors", 2.0, 32)


@pytest.mark.parametrize("unknown", ["encoder", "mpp", "tile_px"])
def test_a_run_that_does_not_say_how_is_refused(tmp_path, unknown):
    made = {name: value for name, value in MADE.items() if name != unknown}
    with pytest.raises(ConfigError, match=rf"{unknown} unknown.*--{unknown.replace('_', '-')} here"):
        bags_for_run([], tmp_path / "out", made, encoder=None if unknown == "encoder" else ENCODER)


def test_a_run_that_names_no_encoder_takes_the_one_that_is_given(tmp_path):
    made = {"mpp": 2.0, "tile_px": 32}
    _, features = bags_for_run(find_slides([write(tmp_path / "a.tiff")]), tmp_path / "out", made, encoder=ENCODER)
    assert read_bag(features / "a.h5").info.encoder == "colors"


def test_another_encoder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="trained on features of lunit-vits16, not of colors"):
        bags_for_run([], tmp_path / "out", {**MADE, "encoder": "lunit-vits16"}, encoder=ENCODER)


def test_a_slide_that_fails_is_an_error_here(tmp_path):
    (tmp_path / "truncated.tiff").write_bytes(b"II*\0")
    with pytest.raises(SlideError, match=r"truncated\.tiff cannot be read"):
        bags_for_run(find_slides([tmp_path / "truncated.tiff"]), tmp_path / "out", MADE, encoder=ENCODER)


def test_one_slide_that_fails_does_not_stop_the_others(tmp_path):
    (tmp_path / "truncated.tiff").write_bytes(b"II*\0")
    said = []
    sources = find_slides([write(tmp_path / "a.tiff"), tmp_path / "truncated.tiff"])
    manifest, features = bags_for_run(sources, tmp_path / "out", MADE, encoder=ENCODER, announce=said.append)
    assert manifest.read_text().split() == ["slide_id", "a", "truncated"]
    assert [path.name for path in features.glob("*.h5")] == ["a.h5"]
    assert len(said) == 1
    assert "truncated.tiff cannot be read" in said[0]
