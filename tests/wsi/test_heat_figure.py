"""Heatmaps to show: readable whatever the slide's size, with a true scale bar, a legend and the call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pams_mil.cohorts.synthetic_slides import Piece, Scene, write_slide
from pams_mil.wsi.heat_figure import (
    TILE_PX,
    Legend,
    bar_length_um,
    compose,
    readable_overview,
    top_tiles,
    with_scale_bar,
)
from pams_mil.wsi.heatmap import Heatmap, overlay
from pams_mil.wsi.slide import Slide


@given(st.floats(1e-2, 1e7))
def test_the_bar_is_round_and_fits(width_um):
    length = bar_length_um(width_um)
    assert width_um / 10.0001 <= length <= width_um / 4 * 1.0001
    leading = length / 10 ** np.floor(np.log10(length) + 1e-9)
    assert min(abs(leading - step) for step in (1, 2, 5)) < 1e-6


@pytest.mark.parametrize(("width", "height", "mpp"), [(1600, 1100, 0.5), (700, 1600, 7.25)])
def test_the_bar_is_as_long_as_it_says(width, height, mpp):
    drawn = with_scale_bar(np.full((height, width, 3), 200, np.uint8), mpp)
    dark = (drawn < 60).all(2)
    rows = dark.sum(1)
    assert rows.max() == round(bar_length_um(width * mpp) / mpp) + 1  # both ends are drawn
    assert dark[: height // 2].sum() == 0


@pytest.fixture(scope="module", params=[0.5, 4.0], ids=["large", "small"])
def slide(request, tmp_path_factory):
    pytest.importorskip("tifffile")
    path = tmp_path_factory.mktemp("slide") / "s.tiff"
    write_slide(path, Scene(1000.0, 600.0, (Piece(500.0, 300.0, 300.0, 200.0),), (), seed=0), mpp=request.param)
    with Slide(path) as opened:
        yield opened


def test_every_slide_is_shown_at_the_same_size_and_tiles_lie_where_they_are(slide):
    overview = readable_overview(slide, longest_px=800)
    assert max(overview.pixels.shape[:2]) == 800
    assert overview.pixels.shape[0] == pytest.approx(480, abs=1)
    side = 100.0 / slide.mpp  # one tile of 100 microns at (500, 300)
    tiles = Heatmap(np.array([[500.0 / slide.mpp, 300.0 / slide.mpp]]), side)
    colored = overlay(overview, tiles, np.ones(1), colors="inferno", opacity=1.0)
    changed = (colored != overview.pixels).any(2)
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    assert (columns[0], columns[-1] + 1) == pytest.approx((400, 480), abs=1)
    assert (rows[0], rows[-1] + 1) == pytest.approx((240, 320), abs=1)


def test_the_figure_holds_the_picture_the_legend_and_any_words():
    picture = np.full((300, 500, 3), 77, np.uint8)
    legend = Legend("Evidence for a class with a very long name in words", "coolwarm", "for: +1", "against: −1", "0")
    figure = compose(picture, legend, title="幻灯片 <1> " + "x" * 400, lines=["grade: HSIL, probability 0.82"] * 2)
    assert figure.shape[1] >= 900
    flat = (figure == 77).all(2)
    assert flat.sum() == 300 * 500
    top, left = np.argwhere(flat)[0]
    beside = figure[top:, left + 520 :]
    assert (beside[..., 0].astype(int) - beside[..., 2] > 120).any()  # the red end of the legend
    assert (beside[..., 2].astype(int) - beside[..., 0] > 120).any()  # and the blue one
    assert (figure[:top] < 60).any()  # text above


def test_the_top_tiles_are_the_slides_own_pixels(slide):
    side = 40.0 / slide.mpp
    corners = np.array([[0.0, 0.0], [480.0, 280.0], [300.0, 300.0]]) / slide.mpp
    found = top_tiles(slide, Heatmap(corners, side), np.array([0.1, 0.7, 0.2]), count=2)
    assert [one.value for one in found] == [0.7, 0.2]
    assert [(one.x, one.y) for one in found] == [tuple(np.rint(row).astype(int)) for row in corners[[1, 2]]]
    assert found[0].pixels.shape == (TILE_PX, TILE_PX, 3)
    assert found[0].pixels.mean() < 240  # tissue, not glass
