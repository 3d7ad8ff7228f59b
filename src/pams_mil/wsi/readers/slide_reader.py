"""What every reader offers: levels, the stated resolution, and pixels of a level.

The resolution of OME-TIFF files, which state it in their description rather than in TIFF's own fields.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pams_mil.arrays import Pixels


@dataclass(frozen=True)
class PyramidLevel:
    """One resolution of a slide; `downsample` is level-0 pixels per pixel of this level."""

    downsample: float
    width: int
    height: int


def pyramid(stated: Iterable[float], sizes: Iterable[tuple[int, int]]) -> tuple[PyramidLevel, ...]:
    """Levels with their true downsamples.

    Libraries divide rounded sizes: half of 1739 pixels is 869, and 1739 / 869 = 2.001. Scanners halve exactly and drop
    the rest, so a size that whole-number reduction explains means that whole number.

    >>> [level.downsample for level in pyramid([1.0, 2.0012, 3.4], [(1739, 1739), (869, 869), (511, 511)])]
    [1.0, 2.0, 3.4]
    """
    levels: list[PyramidLevel] = []
    for downsample, (width, height) in zip(stated, sizes, strict=True):
        full = levels[0] if levels else PyramidLevel(1.0, width, height)
        whole = max(1, round(downsample))
        # Rounded down or up, in both directions: whichever way the scanner's software halves.
        fits = all(
            -(-before // whole) >= now >= before // whole
            for before, now in ((full.width, width), (full.height, height))
        )
        levels.append(PyramidLevel(float(whole) if fits else float(downsample), int(width), int(height)))
    return tuple(levels)


class Reader(Protocol):
    """An open slide; unless `is_shared`, a reader belongs to one thread. It is dropped after an error."""

    is_shared: bool
    levels: tuple[PyramidLevel, ...]
    stated_mpp: tuple[float | None, float | None]

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """RGB [height, width, 3] of a region inside a level, in that level's own pixels."""
        ...

    def close(self) -> None:
        """Give the file back."""
        ...


def number(properties: Mapping[str, object], name: str) -> float | None:
    """A property as a number, or None where it is absent or not one.

    >>> number({"mpp": "0.25"}, "mpp"), number({"mpp": "n/a"}, "mpp"), number({}, "mpp")
    (0.25, None, None)
    """
    try:
        return float(str(properties[name]))
    except (KeyError, ValueError):
        return None


def first_stated(*stated: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    """The first resolution that is stated for both axes.

    >>> first_stated((None, None), (0.25, 0.25)), first_stated((0.5, 0.5), (0.25, 0.25)), first_stated((0.5, None))
    ((0.25, 0.25), (0.5, 0.5), (None, None))
    """
    return next((pair for pair in stated if None not in pair), (None, None))


_PIXELS = re.compile(r"<(?:\w+:)?Pixels\b[^>]*>")  # of the first image; a parser of XML would follow hostile ones
_MICRONS = {"µm": 1.0, "μm": 1.0, "um": 1.0, "nm": 1e-3, "mm": 1e3, "cm": 1e4, "m": 1e6}


def is_ome(description: str) -> bool:
    """Whether the description of a TIFF is OME's.

    >>> is_ome('<?xml version="1.0"?><OME xmlns="..."></OME>'), is_ome("Aperio Image Library"), is_ome("")
    (True, False, False)
    """
    return re.search(r"<(?:\w+:)?OME\b", description[:4096]) is not None


def ome_mpp(description: str) -> tuple[float | None, float | None]:
    """Microns per pixel across and down of the first image; None where they are not stated in a known unit.

    >>> ome_mpp('<OME><Image><Pixels SizeX="9" PhysicalSizeX="250" PhysicalSizeXUnit="nm" PhysicalSizeY="0.25"/>')
    (0.25, 0.25)
    >>> ome_mpp("Aperio Image Library")
    (None, None)
    """
    tag = _PIXELS.search(description)
    if tag is None or not is_ome(description):
        return None, None
    return _size(tag[0], "X"), _size(tag[0], "Y")


def _size(tag: str, axis: str) -> float | None:
    size = re.search(rf'\bPhysicalSize{axis}="([^"]*)"', tag)
    unit = re.search(rf'\bPhysicalSize{axis}Unit="([^"]*)"', tag)
    microns = _MICRONS.get(html.unescape(unit[1]) if unit else "µm")  # OME's unit where none is named
    try:
        return None if size is None or microns is None else float(size[1]) * microns
    except ValueError:
        return None
