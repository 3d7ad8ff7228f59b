from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image
from tests.wsi.scenes import write

from pams_mil.errors import ParameterError, SlideError, TableError
from pams_mil.wsi.resolution import ScaleError, check_mpp, resolve
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.slide_sources import find_slides, read_mpp_table


@pytest.mark.parametrize(
    ("stated", "option", "certain", "expected"),
    [
        ((0.25, 0.25), None, False, (0.25, "metadata")),
        ((0.25, 0.252), None, False, (0.251, "metadata")),
        ((0.25, 0.25), 0.252, False, (0.25, "metadata")),
        ((None, None), 0.5, False, (0.5, "option")),
        ((0.25, None), 0.5, False, (0.5, "option")),
        ((352.8, 352.8), 0.5, False, (0.5, "option")),
        ((0.25, 0.25), 0.5, True, (0.5, "table")),
        ((0.25, 0.5), 0.5, True, (0.5, "table")),
    ],
)
def test_the_scale_is_stated_by_the_file_or_its_owner(stated, option, certain, expected):
    found = resolve(stated, option, certain=certain)
    assert (pytest.approx(found.mpp), found.origin) == expected


@pytest.mark.parametrize(
    ("stated", "option", "words"),
    [
        ((None, None), None, "--mpp-of-slide"),
        ((0.25, None), None, "--mpp-of-slide"),
        ((0.0, 0.0), None, "expected 0.05 to 20"),
        ((1e9, 1e9), None, "--mpp-of-slide"),
        ((math.nan, math.nan), None, "--mpp-of-slide"),
        ((math.inf, 0.25), None, "--mpp-of-slide"),
        ((-0.25, -0.25), None, "expected 0.05 to 20"),
        ((0.25, 0.5), None, "square"),
        ((0.25, 0.25), 0.5, "--mpp-table"),
    ],
)
def test_a_scale_that_is_missing_implausible_or_disputed_is_refused(stated, option, words):
    with pytest.raises(ScaleError, match=words):
        resolve(stated, option)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e9, math.nan, math.inf])
def test_absurd_options_are_refused(value):
    with pytest.raises(ParameterError, match="microns per pixel"):
        check_mpp(value, "--mpp")


@pytest.mark.parametrize("reader", ["openslide", "tiffslide"])
def test_a_tiff_without_resolution_needs_the_option(tmp_path, reader):
    pytest.importorskip(reader)
    path = write(tmp_path / "silent.tiff", state_mpp=False)
    with pytest.raises(SlideError, match=r"silent\.tiff.*--mpp-of-slide"):
        Slide(path, reader=reader)
    with Slide(path, reader=reader, mpp_of_slide=1.0) as slide:
        assert (slide.mpp, slide.resolution.origin) == (1.0, "option")


def test_a_tiff_in_the_wrong_unit_is_refused(tmp_path):
    import tifffile

    pixels = np.full((300, 300, 3), 200, np.uint8)
    path = tmp_path / "print.tiff"
    tifffile.imwrite(path, pixels, tile=(128, 128), photometric="rgb", resolution=(72, 72), resolutionunit="INCH")
    with pytest.raises(SlideError, match="states 352"):
        Slide(path)


def test_dots_per_inch_of_a_plain_image_are_not_a_scale(tmp_path):
    path = tmp_path / "photo.png"
    Image.new("RGB", (64, 64)).save(path, dpi=(25400, 25400))
    with pytest.raises(SlideError, match="--mpp-of-slide"):
        Slide(path)
    with Slide(path, mpp_of_slide=1.0) as slide:
        assert slide.reader_name == "image"


def test_a_table_gives_scales_by_slide(tmp_path):
    table = tmp_path / "mpp.csv"
    table.write_text("wsi,mpp\na.svs,0.25\nb,0.5\n")
    assert read_mpp_table(table) == {"a.svs": 0.25, "b": 0.5}
    table.write_text("slide,mpp\na,fast\n")
    with pytest.raises(TableError, match="'fast'"):
        read_mpp_table(table)
    table.write_text("slide,mpp\na,0\n")
    with pytest.raises(ParameterError, match="'a'"):
        read_mpp_table(table)
    table.write_text("slide,size\na,0\n")
    with pytest.raises(TableError, match="expected 'slide' and 'mpp'"):
        read_mpp_table(table)


def test_a_table_that_gives_a_slide_two_resolutions_is_refused(tmp_path):
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\na,0.25\nb,0.5\na,0.5\n")
    with pytest.raises(TableError, match=r"'a' two resolutions, 0\.25 and 0\.5"):
        read_mpp_table(table)
    (tmp_path / "a.svs").touch()
    with pytest.raises(ParameterError, match=r"'a' as '0\.25', '0\.5'"):
        find_slides([tmp_path / "a.svs"], mpp_table={"a": 0.5, "a.svs": 0.25})


def test_a_table_without_rows_names_no_resolutions(tmp_path):
    (tmp_path / "mpp.csv").write_text("slide,mpp\n")
    assert read_mpp_table(tmp_path / "mpp.csv") == {}
