from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.tissue_share import tissue_share

from pams_mil.errors import SlideError
from pams_mil.wsi.tile_grid import Grid, plan_tiles, tissue_per_cell
from pams_mil.wsi.tissue import Tissue


@given(
    st.integers(1, 9), st.integers(1, 9), st.floats(0.6, 7.0), st.floats(0.3, 3.0), st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_shares_equal_the_area_counted_piece_by_piece(height, width, tile_px0, scale, seed):
    mask = np.random.default_rng(seed).random((height, width)) < 0.5
    size = (round(width * scale) or 1, round(height * scale) or 1)
    grid = Grid(64, 1.0, tile_px0, max(1, int(np.ceil(size[0] / tile_px0))), max(1, int(np.ceil(size[1] / tile_px0))))
    found = tissue_per_cell(grid, Tissue(mask, scale, 0.1))
    np.testing.assert_allclose(found, tissue_share(mask.tolist(), scale, tile_px0, grid.columns, grid.rows), atol=1e-9)


@given(st.integers(1, 5000), st.integers(1, 5000), st.floats(0.05, 1.2), st.floats(1.0, 4.0), st.integers(16, 512))
def test_the_grid_covers_the_slide_and_no_more(width, height, mpp_of_slide, mpp, tile_px):
    grid = Grid.over(width, height, mpp_of_slide=mpp_of_slide, mpp=mpp, tile_px=tile_px)
    assert grid.tile_px0 * mpp_of_slide == pytest.approx(tile_px * mpp)
    assert grid.columns * grid.tile_px0 >= width - 1e-6
    assert (grid.columns - 1) * grid.tile_px0 < width
    assert grid.rows * grid.tile_px0 >= height - 1e-6
    assert (grid.rows - 1) * grid.tile_px0 < height


def test_corners_never_drift():
    grid = Grid.over(100_000, 100_000, mpp_of_slide=0.2274, mpp=1.0, tile_px=256)
    last = np.array([[grid.columns - 1, 0]])
    assert abs(grid.corners(last)[0, 0] - (grid.columns - 1) * 256 / 0.2274) <= 0.5


def test_only_cells_with_enough_tissue_are_kept():
    mask = np.zeros((4, 4), bool)
    mask[:2, :2] = True
    mask[2, 2] = True
    grid = Grid(64, 1.0, 2.0, 2, 2)
    assert plan_tiles(grid, Tissue(mask, 1.0, 0.1), min_tissue=0.25).cells.tolist() == [[0, 0], [1, 1]]
    assert plan_tiles(grid, Tissue(mask, 1.0, 0.1), min_tissue=0.26).cells.tolist() == [[0, 0]]
    assert plan_tiles(grid, Tissue(~mask & False, 1.0, 0.1), min_tissue=0.01).cells.shape == (0, 2)


def test_detail_is_never_invented():
    Grid.over(1000, 1000, mpp_of_slide=0.55, mpp=0.5, tile_px=256)
    with pytest.raises(SlideError, match="invented"):
        Grid.over(1000, 1000, mpp_of_slide=1.0, mpp=0.5, tile_px=256)
