from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pams_mil.errors import ParameterError
from pams_mil.wsi.heatmap import Heatmap, overlay, paint, ranked, symmetric, write_geojson, write_png
from pams_mil.wsi.physical_pixels import Overview


@given(st.integers(1, 8), st.integers(1, 8), st.floats(3.0, 700.0), st.floats(0.5, 3.0))
def test_every_tile_is_painted_where_it_lies(columns, rows, tile_px0, shrink):
    """Centers of tiles have the tile's value, whatever the ratio of the two scales."""
    scale = tile_px0 / 4 / shrink
    cells = np.argwhere(np.ones((rows, columns)))[:, ::-1]
    tiles = Heatmap(np.rint(cells * tile_px0), tile_px0)
    values = np.arange(len(cells), dtype=float)
    height, width = int(rows * tile_px0 / scale) + 3, int(columns * tile_px0 / scale) + 3
    picture = paint(tiles, values, height, width, scale)
    for (x, y), value in zip(((tiles.coords_px0 + tile_px0 / 2) / scale).astype(int), values, strict=True):
        assert picture[y, x] == value
    assert np.isnan(picture[-1, -1])


def test_a_tile_smaller_than_a_pixel_still_shows():
    assert paint(Heatmap(np.array([[100, 100]]), 1.0), np.array([3.0]), 4, 4, 50.0)[2, 2] == 3.0


def test_only_tiles_are_colored():
    overview = Overview(np.full((10, 10, 3), 200, np.uint8), 1.0)
    tiles = Heatmap(np.array([[0, 0], [5, 5]]), 5.0)
    picture = overlay(overview, tiles, np.array([0.0, 1.0]), colors="inferno", opacity=1.0)
    assert (picture[0:5, 5:10] == 200).all()
    assert (picture[5:, :5] == 200).all()
    assert picture[2, 2].sum() < 30
    assert picture[7, 7].sum() > 500
    faint = overlay(overview, tiles, np.array([0.0, 1.0]), colors="inferno", opacity=0.0)
    np.testing.assert_array_equal(faint, overview.pixels)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_ranks_keep_order_and_signs_keep_zero(values):
    values = np.array(values)
    shares = ranked(values)
    assert ((shares >= 0) & (shares <= 1)).all()
    order = np.argsort(values, kind="stable")
    assert (np.diff(shares[order]) >= 0).all()
    signed = symmetric(values)
    assert ((signed > 0.5) == (values > 0))[np.abs(values) > 1e-3].all()


def test_qupath_reads_geojson_with_closed_squares_and_measurements(tmp_path):
    tiles = Heatmap(np.array([[0, 0], [512, 1024]]), 512.5)
    write_geojson(tmp_path / "a.geojson", tiles, {"attention": np.array([0.25, 0.75]), 'a "b"': np.array([1, 2])})
    content = json.loads((tmp_path / "a.geojson").read_text())
    assert content["type"] == "FeatureCollection"
    second = content["features"][1]
    ring = second["geometry"]["coordinates"][0]
    assert ring[0] == ring[-1] == [512, 1024]
    assert ring[2] == [1024.5, 1536.5]
    assert second["properties"]["measurements"] == {"attention": 0.75, 'a "b"': 2.0}
    assert len({feature["id"] for feature in content["features"]}) == 2


def test_values_that_do_not_fit_are_refused(tmp_path):
    tiles = Heatmap(np.array([[0, 0], [8, 0]]), 8.0)
    with pytest.raises(ParameterError, match="one value per tile"):
        paint(tiles, np.ones(3), 4, 4, 1.0)
    with pytest.raises(ParameterError, match="not finite"):
        write_geojson(tmp_path / "a.geojson", tiles, {"attention": np.array([np.nan, 1.0])})
    with pytest.raises(ParameterError, match="one per tile"):
        write_geojson(tmp_path / "a.geojson", tiles, {"attention": np.ones(3)})
    with pytest.raises(ParameterError, match=r"\[n, 2\]"):
        Heatmap(np.ones((3, 3)), 8.0)
    assert not list(tmp_path.iterdir())


def test_pictures_are_written(tmp_path):
    write_png(tmp_path / "a.png", np.zeros((4, 5, 3), np.uint8))
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (5, 4)


def test_tiles_beyond_the_left_or_upper_edge_are_cut_there():
    tiles = Heatmap(np.array([[-4, 0], [0, -12], [24, 24]]), 8.0)
    picture = paint(tiles, np.array([1.0, 2.0, 3.0]), 8, 8, scale=4.0)
    assert picture[:2, 0].tolist() == [1.0, 1.0]
    assert np.isfinite(picture).sum() == 2 + 4
