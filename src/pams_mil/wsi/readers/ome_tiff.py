"""The resolution of OME-TIFF files, which state it in their description rather than in TIFF's own fields."""

from __future__ import annotations

import html
import re

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
