"""Small scenes and slide files shared by the tests of this folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pams_mil.cohorts.synthetic_slides import Lesion, Piece, Scene

SIDE_UM = 800.0


def small_scene(seed: int = 0, *, lesion: bool = True) -> Scene:
    lesions = (Lesion(330.0, 380.0, 110.0, 3),) if lesion else ()
    return Scene(SIDE_UM, SIDE_UM, (Piece(400.0, 400.0, 280.0, 240.0),), lesions, seed)


def write(path: Path, *, mpp: float = 1.0, seed: int = 0, lesion: bool = True, **options: object) -> Path:
    pytest.importorskip("tifffile", reason="writes synthetic slides with tifffile")
    from pams_mil.cohorts.synthetic_slides import write_slide

    write_slide(path, small_scene(seed, lesion=lesion), mpp=mpp, **{"levels": 2, **options})
    return path


def real_slides() -> Path:
    folder = Path(os.environ.get("PAMS_SLIDES", Path(__file__).parents[3] / "shared" / "data" / "slides"))
    if not folder.is_dir():
        pytest.skip("no real slides here; point PAMS_SLIDES at a folder with them")
    return folder
