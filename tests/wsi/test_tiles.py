"""Every cell of the grid is accounted for, also when some cannot be read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wsi.plain_encoder import ColorEncoder

from pams_mil.errors import BagError, SlideError
from pams_mil.wsi.readers.slide_reader import PyramidLevel
from pams_mil.wsi.tile_grid import Grid, plan_tiles
from pams_mil.wsi.tile_stream import TileStream, blocks, encode, read_block
from pams_mil.wsi.tissue import Tissue


class FakeSlide:
    """Level-0 pixels whose color tells where they lie; chosen cells cannot be read."""

    def __init__(self, columns, rows, bad=(), side=64):
        self.levels = (PyramidLevel(1.0, columns * side, rows * side),)
        self.path = type("Name", (), {"name": "fake.svs"})()
        self.bad, self.side = set(bad), side

    def read(self, level, x, y, width, height):
        for column, row in self.bad:
            left, top = column * self.side, row * self.side
            if x < left + self.side and left < x + width and y < top + self.side and top < y + height:
                raise SlideError(f"fake.svs: the region at ({x}, {y}) cannot be read")
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[..., 0] = ((np.arange(x, x + width) // self.side) % 256)[None, :]
        pixels[..., 1] = ((np.arange(y, y + height) // self.side) % 256)[:, None]
        return pixels


def plan_over(columns, rows, keep=None):
    mask = np.ones((rows, columns), bool) if keep is None else keep
    return plan_tiles(Grid(64, 1.0, 64.0, columns, rows), Tissue(mask, 64.0, 0.1), min_tissue=0.5)


def run(slide, plan, *, skip=False, workers=2, batch=7):
    heard = []
    with ThreadPoolExecutor(workers) as pool:
        stream = TileStream(slide, plan, pool, ahead=3, skip_unreadable=skip)
        try:
            return encode(stream, ColorEncoder(), batch=batch, advance=heard.append), heard
        finally:
            stream.stop()


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**32 - 1), st.floats(0.05, 1.0))
def test_blocks_partition_the_plan_and_stay_small(columns, rows, seed, density):
    keep = np.random.default_rng(seed).random((rows, columns)) < density
    plan = plan_over(columns, rows, keep)
    groups = blocks(plan, FakeSlide(columns, rows))
    assert sorted(int(row) for group in groups for row in group) == list(range(len(plan.cells)))
    for group in groups:
        extent = np.ptp(plan.cells[group], axis=0) + 1
        assert (extent * 64 <= 1536).all()


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_every_cell_is_kept_background_or_unreadable(columns, rows, seed):
    random = np.random.default_rng(seed)
    keep = random.random((rows, columns)) < 0.7
    bad = {(int(c), int(r)) for r, c in np.argwhere(random.random((rows, columns)) < 0.2)}
    plan = plan_over(columns, rows, keep)
    expected = [cell for cell in map(tuple, plan.cells.tolist()) if cell not in bad]
    slide = FakeSlide(columns, rows, bad)
    if not expected:
        if len(plan.cells):
            with pytest.raises(SlideError, match=r"fake\.svs: none of its"):
                run(slide, plan, skip=True)
        return
    encoded, heard = run(slide, plan, skip=True)
    background = plan.grid.num_cells - len(plan.cells)
    assert len(encoded.rows) + encoded.unreadable + background == columns * rows
    assert list(map(tuple, plan.cells[encoded.rows].tolist())) == expected
    assert sum(heard) == len(expected)
    np.testing.assert_allclose(encoded.features[:, :2] * 255, expected, atol=1e-4)


def test_by_default_an_unreadable_tile_fails_the_slide():
    with pytest.raises(SlideError, match="cannot be read"):
        run(FakeSlide(6, 6, {(3, 3)}), plan_over(6, 6))


def test_only_the_bad_tile_of_a_block_is_lost():
    slide, plan = FakeSlide(6, 6, {(3, 3)}), plan_over(6, 6)
    (rows,) = blocks(plan, slide)
    block = read_block(slide, plan, rows, skip_unreadable=True)
    assert block.unreadable == (3 * 6 + 3,)
    assert len(block.tiles) == len(block.rows) == 35


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch", [1, 5, 1000])
def test_workers_and_batches_change_nothing(workers, batch):
    slide, plan = FakeSlide(50, 4), plan_over(50, 4)
    reference, _ = run(slide, plan)
    found, heard = run(slide, plan, workers=workers, batch=batch)
    np.testing.assert_array_equal(found.features, reference.features)
    assert sum(heard) == 200


@pytest.mark.parametrize(
    "wrong", [lambda t: np.ones((len(t) - 1, 4)), lambda t: np.ones(len(t)), lambda t: np.ones((len(t), 2), int)]
)
def test_an_encoder_that_breaks_its_word_is_refused(wrong):
    encoder = type("Wrong", (), {"name": "wrong", "__call__": lambda self, tiles: wrong(tiles)})()
    with ThreadPoolExecutor(1) as pool, pytest.raises(BagError, match="The encoder wrong gave"):
        encode(TileStream(FakeSlide(3, 3), plan_over(3, 3), pool, ahead=2), encoder, batch=4, advance=lambda n: None)
