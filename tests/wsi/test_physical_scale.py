"""Tiles have the same physical size and place whatever the scanner's resolution, and whatever library reads them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.wsi.scenes import small_scene, write

from pams_mil.cohorts.synthetic_slides import render
from pams_mil.wsi.physical_pixels import read_overview, read_scaled
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.tile_grid import Grid, plan_tiles
from pams_mil.wsi.tile_stream import blocks, read_block
from pams_mil.wsi.tissue import find_tissue

TILE_PX = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("tifffile")
    folder = tmp_path_factory.mktemp("scales")
    for mpp in (0.25, 0.46, 0.5):
        write(folder / f"{mpp}.tiff", mpp=mpp, compression="deflate", levels=3)
    return folder


def tiles_of(path, mpp, **options):
    with Slide(path, **options) as slide:
        tissue = find_tissue(read_overview(slide), slide.mpp)
        grid = Grid.over(slide.width, slide.height, mpp_of_slide=slide.mpp, mpp=mpp, tile_px=TILE_PX)
        plan = plan_tiles(grid, tissue, min_tissue=0.5)
        read = [read_block(slide, plan, rows) for rows in blocks(plan, slide)]
        tiles = np.concatenate([block.tiles for block in read])
        order = np.argsort(np.concatenate([block.rows for block in read]))
        return (
            {tuple(cell): tile for cell, tile in zip(plan.cells.tolist(), tiles[order], strict=True)},
            plan,
            slide.mpp,
        )


@pytest.mark.parametrize("mpp", [1.0, 0.5])
def test_three_scanners_give_the_same_tiles(folder, mpp):
    from skimage.registration import phase_cross_correlation

    found = {scan: tiles_of(folder / f"{scan}.tiff", mpp) for scan in (0.25, 0.46, 0.5)}
    reference, _, _ = found[0.5]
    for scan, (tiles, other, level0_mpp) in found.items():
        assert level0_mpp == pytest.approx(scan, rel=1e-4)
        assert other.grid.tile_px0 * level0_mpp == pytest.approx(TILE_PX * mpp, rel=1e-9)
        shared = [cell for cell in reference if cell in tiles]
        assert len(shared) >= 0.9 * len(reference)
        corners_um = other.grid.corners(np.array(shared)) * level0_mpp
        expected_um = np.array(shared) * TILE_PX * mpp
        assert np.abs(corners_um - expected_um).max() <= 0.5 * level0_mpp + 1e-6
        for cell in shared[:: max(1, len(shared) // 6)]:
            a, b = (t[cell].astype(float).mean(2) for t in (reference, tiles))
            shift, _, _ = phase_cross_correlation(a, b, upsample_factor=10)
            assert np.abs(shift).max() < 1.0
            assert np.abs(a - b).mean() < 10.0


def test_tiles_are_the_scene_itself(folder):
    """Not merely alike among themselves: equal to the scene drawn directly at the tile's place and scale."""
    scene = small_scene()
    for scan in (0.25, 0.46, 0.5):
        tiles, plan, level0_mpp = tiles_of(folder / f"{scan}.tiff", 1.0)
        for cell, tile in list(tiles.items())[::5]:
            x, y = (plan.grid.corners(np.array([cell]))[0] * level0_mpp).tolist()
            errors = {
                (right, down): np.abs(
                    tile - render(scene, x + right, y + down, 1.0, TILE_PX, TILE_PX).astype(float)
                ).mean()
                for right in (-1, 0, 1)
                for down in (-1, 0, 1)
            }
            here = errors.pop((0, 0))
            assert here < 0.8 * min(errors.values())


@pytest.mark.usefixtures("needs_tiffslide")
@pytest.mark.parametrize("scan", [0.46, 0.5])
def test_both_readers_give_the_same_pixels(folder, scan):
    path = folder / f"{scan}.tiff"
    with Slide(path, reader="openslide") as one, Slide(path, reader="tiffslide") as two:
        assert [level.width for level in one.levels] == [level.width for level in two.levels]
        assert one.mpp == pytest.approx(two.mpp)
        random = np.random.default_rng(0)
        for _ in range(20):
            left, top = random.uniform(-50, 700, 2)
            scale = random.uniform(0.9, 6.0)
            a = read_scaled(one, left, top, scale, 40, 30).astype(int)
            b = read_scaled(two, left, top, scale, 40, 30).astype(int)
            assert np.abs(a - b).mean() < 1.5


def test_a_level_that_fits_is_read_without_resampling(folder):
    with Slide(folder / "0.5.tiff") as slide:
        exact = read_scaled(slide, 400.0, 300.0, 2.0, 64, 64)
        np.testing.assert_array_equal(exact, slide.read(1, 200, 150, 64, 64))


def test_outside_the_slide_is_white(folder):
    with Slide(folder / "0.5.tiff") as slide:
        corner = slide.read(0, -10, -20, 30, 40)
        assert (corner[:20] == 255).all()
        assert (corner[:, :10] == 255).all()
        np.testing.assert_array_equal(corner[20:, 10:], slide.read(0, 0, 0, 20, 20))
        assert (slide.read(0, slide.width + 5, 0, 8, 8) == 255).all()


def test_an_overview_read_in_blocks_has_no_seams(folder, monkeypatch):
    with Slide(folder / "0.5.tiff") as slide:
        whole = read_overview(slide, mpp=4.0)
        monkeypatch.setattr("pams_mil.wsi.physical_pixels._BLOCK_PX", 130)
        pieces = read_overview(slide, mpp=4.0)
    assert whole.pixels.shape == pieces.pixels.shape == (200, 200, 3)
    assert np.abs(whole.pixels.astype(int) - pieces.pixels).max() <= 1
