"""DICOM slides: a series is one slide, opened by OpenSlide; what it does not read is refused in words."""

from __future__ import annotations

import numpy as np
import pytest
from tests.wsi.dicom_files import HIGH_THROUGHPUT, TILE, write_instance, write_series
from tests.wsi.plain_encoder import ColorEncoder

from pams_mil.data import read_bag
from pams_mil.errors import SlideError
from pams_mil.view.shelf import Shelf
from pams_mil.wsi.extract import bag_path, extract, is_slide
from pams_mil.wsi.readers.dicom_series import dicom_slides, read_header
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.slide_sources import find_slides
from pams_mil.wsi.tile_grid import TileSettings, WorkSettings

pytest.importorskip("pydicom")


def test_a_series_is_one_slide_named_like_its_folder(tmp_path):
    files = write_series(tmp_path / "case-1")
    write_series(tmp_path / "case-2", series="1.2.3.5")
    found = find_slides([tmp_path])
    assert [source.slide_id for source in found] == ["case-1", "case-2"]
    assert found[0].path == files[0]  # full resolution
    assert find_slides(files) == find_slides([tmp_path / "case-1"]) == find_slides([files[2]]) == found[:1]


def test_several_series_in_one_folder_go_by_their_uid_and_single_files_by_their_name(tmp_path):
    for path in write_series(tmp_path / "all", series="1.2.3.5"):
        path.rename(path.with_name(f"b-{path.name}"))
    write_series(tmp_path / "all", series="1.2.3.4")
    write_series(tmp_path / "all" / "alone", series="1.2.3.6", levels=1)[0].rename(tmp_path / "all" / "case-6.dcm")
    assert [slide.slide_id for slide in dicom_slides(tmp_path / "all")] == ["1.2.3.4", "1.2.3.5", "case-6"]


def test_a_table_of_resolutions_may_name_the_series_or_its_file(tmp_path):
    write_series(tmp_path / "case-1")
    for name in ("case-1", "level-0.dcm", "level-0"):
        (source,) = find_slides([tmp_path], mpp_table={name: 0.5})
        assert (source.mpp, source.mpp_is_certain) == (0.5, True)


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_openslide_reads_the_series_through_any_of_its_files(tmp_path, opened):
    with Slide(write_series(tmp_path, mpp=0.5)[opened]) as slide:
        assert slide.reader_name == "openslide"
        assert [(level.width, level.downsample) for level in slide.levels] == [(256, 1.0), (128, 2.0), (64, 4.0)]
        assert slide.mpp == pytest.approx(0.5)
        np.testing.assert_allclose(slide.read(0, 100, 100, 4, 4)[0, 0], (150, 60, 130), atol=3)


def test_a_series_is_extracted_once_and_kept(tmp_path):
    write_series(tmp_path / "slides" / "case-1")
    sources, settings = find_slides([tmp_path / "slides"]), TileSettings(mpp=1.0, tile_px=32)
    done = extract(sources, tmp_path / "out", ColorEncoder(), settings, WorkSettings(workers=1))
    assert (done.extracted, done.failed) == (["case-1"], {})
    assert read_bag(bag_path(tmp_path / "out", "case-1")).num_instances == 16  # the tissue is 128 pixels wide
    assert extract(sources, tmp_path / "out", ColorEncoder(), settings).reused == ["case-1"]


def test_the_folder_of_a_series_is_a_slide_to_predict(tmp_path):
    write_series(tmp_path / "case-1")
    (tmp_path / "run").mkdir()
    assert is_slide(tmp_path / "case-1")
    assert not is_slide(tmp_path / "run")


def test_the_viewer_finds_a_series_by_folder_uid_or_file(tmp_path):
    write_series(tmp_path / "case-1")
    shelf = Shelf.find(["case-1", "level-0", "level-2.dcm", "case-2"], tmp_path)
    assert (shelf.num_files, set(shelf.problems)) == (3, {3})
    assert shelf.use(0).slide.width == 256
    shelf.close()


def test_a_transfer_syntax_that_openslide_refuses_is_named_with_a_way_out(tmp_path):
    files = write_series(tmp_path / "case-1", syntax=HIGH_THROUGHPUT)
    with pytest.raises(SlideError, match=r"High-Throughput JPEG 2000 .*4\.203\), which OpenSlide .*WsiDicom\.open"):
        Slide(files[0])


def test_other_dicom_files_and_files_that_are_none_are_told_apart(tmp_path):
    gray = np.zeros((TILE, TILE, 3), np.uint8)
    scan = write_instance(tmp_path / "ct.dcm", gray, mpp=1.0, sop_class="1.2.840.10008.5.1.4.1.1.2")
    with pytest.raises(SlideError, match=r"DICOM file of class 1\.2\.840\.10008\.5\.1\.4\.1\.1\.2, not a whole-slide"):
        Slide(scan)
    (tmp_path / "text.dcm").write_text("no DICOM")
    with pytest.raises(SlideError, match="not a DICOM file, although it is named like one"):
        Slide(tmp_path / "text.dcm")


def test_any_cut_or_flipped_header_is_a_header_or_none(tmp_path):
    whole = write_series(tmp_path / "case-1", levels=1)[0].read_bytes()
    broken, random = tmp_path / "broken.dcm", np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(whole[: random.integers(0, 1200)])
        for place in random.integers(0, max(1, len(data)), 3):
            data[place : place + 1] = bytes([random.integers(256)])
        broken.write_bytes(bytes(data))
        header = read_header(broken)
        assert header is None or isinstance(header.series, str)


def test_a_series_inside_a_sequence_is_not_the_series(tmp_path):
    header = read_header(write_series(tmp_path)[0])
    assert header is not None
    assert header.series == "1.2.3.4"


def test_a_deflated_header_is_not_inflated(tmp_path):
    """A few kilobytes could become gigabytes; what the series is stays unknown."""
    path = write_instance(tmp_path / "a.dcm", np.zeros((64, 64, 3), np.uint8), mpp=1.0, syntax="1.2.840.10008.1.2.1.99")
    header = read_header(path)
    assert (header.transfer_syntax, header.sop_class, header.series) == ("1.2.840.10008.1.2.1.99", "", "")
