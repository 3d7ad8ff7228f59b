from __future__ import annotations

import numpy as np
import pytest
from tests.wsi.scenes import small_scene, write

from pams_mil.wsi.physical_pixels import Overview, read_overview
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.tissue import HIGHEST_THRESHOLD, LOWEST_THRESHOLD, find_tissue

PINK, GLASS = (215, 120, 170), (243, 242, 244)


def picture(height=120, width=160, color=GLASS, noise=2, seed=0):
    random = np.random.default_rng(seed)
    return np.clip(np.array(color) + random.normal(0, noise, (height, width, 3)), 0, 255).astype(np.uint8)


def mask_of(pixels):
    return find_tissue(Overview(pixels, 8.0), 1.0).mask


def test_blank_glass_has_no_tissue_though_otsu_finds_two_groups():
    assert not mask_of(picture()).any()


def test_solid_tissue_is_tissue_throughout():
    pixels = picture(color=PINK, noise=12)
    assert mask_of(pixels).mean() > 0.99
    assert find_tissue(Overview(pixels, 8.0), 1.0).threshold == HIGHEST_THRESHOLD


def test_black_fill_is_not_tissue():
    pixels = picture(color=(3, 2, 4), noise=3)
    pixels[:, 80:] = picture(width=80)
    assert not mask_of(pixels).any()


def test_specks_go_and_small_holes_close_but_large_ones_stay():
    pixels = picture()
    pixels[20:100, 20:120] = picture(80, 100, PINK)
    pixels[50:58, 40:48] = GLASS  # 64 x 64 um
    pixels[40:80, 70:110] = GLASS  # 320 x 320 um
    pixels[5:10, 140:145] = PINK  # 40 x 40 um
    mask = mask_of(pixels)
    assert mask[50:58, 40:48].all()
    assert not mask[45:75, 75:105].any()
    assert not mask[:15, 130:].any()


@pytest.mark.parametrize("mpp", [0.5, 1.0])
def test_tissue_of_a_slide_is_the_tissue_of_its_scene(tmp_path, mpp):
    path = write(tmp_path / "a.tiff", mpp=mpp)
    with Slide(path) as slide:
        overview = read_overview(slide)
        tissue = find_tissue(overview, slide.mpp)
    step = overview.scale * mpp
    y, x = (np.indices(tissue.mask.shape) + 0.5) * step
    piece = small_scene().tissue[0]
    radius = np.hypot((x - piece.x) / piece.radius_x, (y - piece.y) / piece.radius_y)
    assert tissue.mask[radius < 0.85].all()
    assert not tissue.mask[radius > 1.2].any()
    assert LOWEST_THRESHOLD <= tissue.threshold <= HIGHEST_THRESHOLD
