"""Where the tissue is: Otsu's threshold on the saturation of an overview, holes closed and specks removed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from pams_mil.arrays import Bools, Pixels
from pams_mil.errors import needs_extra
from pams_mil.wsi.physical_pixels import Overview

LOWEST_THRESHOLD, HIGHEST_THRESHOLD = 0.05, 0.20
"""Otsu always finds two groups, even on blank glass or on solid tissue; outside this range they are not the two meant.

Glass is below a saturation of 0.05, and stained tissue above 0.20."""

_DARK = 0.10  # black fill and ink have an arbitrary saturation; stained tissue is never this dark
_SPECK_UM2 = 10_000.0
_HOLE_UM2 = 10_000.0
_SMOOTH_UM = 16.0


@dataclass(frozen=True)
class Tissue:
    """A mask [h, w] over the slide; `scale` is level-0 pixels per pixel of the mask."""

    mask: Bools
    scale: float
    threshold: float

    @property
    def fraction(self) -> float:
        """The share of the slide that is tissue."""
        return float(self.mask.mean())


def find_tissue(overview: Overview, mpp_of_slide: float) -> Tissue:
    """Tissue on an overview of a slide whose level 0 has `mpp_of_slide` microns per pixel."""
    with needs_extra("Finding tissue", package="scikit-image", extra="wsi"):
        filters: Any = importlib.import_module("skimage.filters")
        morphology: Any = importlib.import_module("skimage.morphology")
    saturation, value = saturation_and_value(overview.pixels)
    # Black fill would be a third group and pull Otsu's threshold to itself.
    bright = value > _DARK
    otsu = float(filters.threshold_otsu(saturation[bright])) if bright.any() else 1.0
    threshold = float(np.clip(otsu, LOWEST_THRESHOLD, HIGHEST_THRESHOLD))
    mask: Bools = (saturation > threshold) & bright
    # Sizes are physical: on a coarse overview of a large slide the same speck has fewer pixels.
    mpp = overview.scale * mpp_of_slide
    # Closed before specks go: thin tissue falls into pieces that are specks one by one.
    mask = morphology.closing(mask, morphology.disk(max(1, round(_SMOOTH_UM / mpp))))
    mask = without_small(mask, int(_SPECK_UM2 / mpp**2))
    # A hole is a small region of what is not tissue.
    mask = ~without_small(~mask, int(_HOLE_UM2 / mpp**2))
    return Tissue(mask, overview.scale, threshold)


def without_small(mask: Bools, most: int) -> Bools:
    """The mask without connected regions of `most` pixels or fewer.

    >>> without_small(np.array([[True, False, True, True]]), 1).tolist()
    [[False, False, True, True]]
    """
    regions, count = ndimage.label(mask)
    sizes = np.bincount(regions.ravel(), minlength=count + 1)
    # Label 0 is everything outside of all regions, however large.
    sizes[0] = 0
    large: Bools = sizes[regions] > most
    return large


def saturation_and_value(
    pixels: Pixels,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Saturation and value of HSV, both in [0, 1].

    S = (max - min) / max of the three channels,  V = max / 255

    >>> saturation_and_value(np.array([[[200, 100, 150]]], np.uint8))[0].tolist()
    [[0.5]]
    """
    # max(., 1) below: black pixels have no saturation, and 0 / 0 would be NaN.
    highest = pixels.max(axis=2).astype(np.float32)
    spread = highest - pixels.min(axis=2)
    return spread / np.maximum(highest, 1.0), highest / np.float32(255.0)
