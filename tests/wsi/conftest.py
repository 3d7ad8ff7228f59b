"""Everything here needs a slide reader and scikit-image; without the extra `wsi` the folder is skipped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

MISSING = [name for name in ("openslide", "skimage", "tifffile") if find_spec(name) is None]


@pytest.fixture(autouse=True)
def _needs_the_wsi_extra():
    if MISSING:
        pytest.skip(f"needs pip install 'pams-mil[wsi]': {', '.join(MISSING)} missing")


@pytest.fixture
def needs_tiffslide():
    pytest.importorskip("tiffslide", reason="compares OpenSlide with tiffslide")
