from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from tests.wsi.scenes import write

from pams_mil.errors import ConfigError, SlideError
from pams_mil.wsi import slide as slide_module
from pams_mil.wsi.readers.library_readers import ImageReader
from pams_mil.wsi.readers.slide_reader import PyramidLevel
from pams_mil.wsi.slide import Slide


class FragileReader:
    """Behaves like OpenSlide: after one failed read, every further read on the same handle fails."""

    is_shared = False
    opened = 0

    def __init__(self, path):
        type(self).opened += 1
        self.levels = (PyramidLevel(1.0, 100, 100),)
        self.stated_mpp = (0.5, 0.5)
        self.spoiled = False

    def read(self, level, x, y, width, height):
        if self.spoiled or x <= 50 < x + width:
            self.spoiled = True
            raise RuntimeError("decoder gave up")
        return np.full((height, width, 3), 7, np.uint8)

    def close(self):
        pass


def test_one_bad_region_does_not_spoil_the_others(tmp_path, monkeypatch):
    path = tmp_path / "a.svs"
    path.touch()
    monkeypatch.setattr(FragileReader, "opened", 0)
    monkeypatch.setattr(slide_module, "_opened", lambda name, path, cache: FragileReader(path))
    with Slide(path) as slide:
        for _ in range(3):
            with pytest.raises(SlideError, match=r"a\.svs.*\(48, 0\).*decoder gave up"):
                slide.read(0, 48, 0, 8, 8)
            assert (slide.read(0, 0, 0, 8, 8) == 7).all()
    assert FragileReader.opened == 4


def test_a_folder_named_like_a_slide_is_refused_in_words(tmp_path):
    (tmp_path / "a.svs").mkdir()
    with pytest.raises(SlideError, match="folder, not a slide"):
        Slide(tmp_path / "a.svs")
    with pytest.raises(SlideError, match="There is no slide"):
        Slide(tmp_path / "b.svs")


@pytest.mark.parametrize("content", [b"", b"II*\0", b"\0" * 5000, b"not a slide at all"])
@pytest.mark.parametrize("suffix", [".svs", ".tiff", ".png", ".ndpi"])
def test_files_that_are_no_slides_are_refused_in_words(tmp_path, content, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(SlideError, match="cannot be read as a slide"):
        Slide(path)


def test_an_unknown_reader_is_refused(tmp_path):
    path = tmp_path / "x.svs"
    path.write_bytes(b"x")
    with pytest.raises(ConfigError, match="Choose auto"):
        Slide(path, reader="bioformats")


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "CMYK"])
def test_plain_images_of_any_kind_become_rgb(tmp_path, mode):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new("RGB", (40, 30), (10, 200, 30)).convert(mode).save(path)
    with Slide(path, reader="image", mpp_of_slide=1.0) as slide:
        assert (slide.width, slide.height) == (40, 30)
        assert slide.read(0, 3, 4, 5, 6).shape == (6, 5, 3)


def test_transparent_pixels_are_white(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGBA", (8, 8), (10, 20, 30, 0)).save(path)
    with Slide(path, mpp_of_slide=1.0) as slide:
        assert (slide.read(0, 0, 0, 8, 8) == 255).all()


def test_a_huge_plain_image_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.new("RGB", (40, 30)).save(path)
    monkeypatch.setattr("pams_mil.wsi.readers.library_readers.MOST_PIXELS", 1000)
    with pytest.raises(SlideError, match="pyramidal TIFF"):
        ImageReader(path)


def test_a_plain_image_below_the_limit_is_read_whatever_pillow_would_allow(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.new("RGB", (40, 30), (10, 200, 30)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with Slide(path, mpp_of_slide=1.0) as slide:
        assert slide.read(0, 0, 0, 1, 1).tolist() == [[[10, 200, 30]]]
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_a_tiff_without_tiles_has_its_true_colors_whatever_reader_opens_it(tmp_path, mode):
    pytest.importorskip("tiffslide")
    path = tmp_path / "a.tif"
    pixels = np.random.default_rng(0).integers(0, 255, (40, 30, 4), dtype=np.uint8)
    image = Image.fromarray(pixels) if mode == "RGBA" else Image.fromarray(pixels[:, :, :3]).convert(mode)
    image.save(path)
    with Slide(path, mpp_of_slide=1.0) as slide, Slide(path, mpp_of_slide=1.0, reader="image") as plain:
        found, true = (np.asarray(one.read(0, 0, 0, 30, 40), np.int64) for one in (slide, plain))
    assert abs(found - true).max() <= 1


def test_a_damaged_color_profile_does_not_cost_the_slide(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    pixels = np.random.default_rng(0).integers(0, 255, (512, 512, 3), dtype=np.uint8)
    options = {"tile": (256, 256), "photometric": "rgb", "resolution": (20000, 20000), "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(path, pixels, iccprofile=b"no profile" * 50, **options)
    with Slide(path, reader="openslide") as slide:
        assert slide.icc_profile is None
        np.testing.assert_array_equal(slide.read(0, 0, 0, 512, 512), pixels)


DAMAGE = """
import sys, warnings, numpy as np
warnings.simplefilter("ignore")
from pathlib import Path
from pams_mil.errors import SlideError
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.physical_pixels import read_overview
sound = Path(sys.argv[1]).read_bytes()
target = Path(sys.argv[2])
random = np.random.default_rng(0)
refused = 0
for trial in range(int(sys.argv[4])):
    content = bytearray(sound)
    if trial % 2:
        content = content[: int(random.integers(1, len(content)))]
    else:
        for place in random.integers(0, len(content), 20):
            content[place] ^= 1 << int(random.integers(8))
    target.write_bytes(content)
    try:
        with Slide(target, reader=sys.argv[3], mpp_of_slide=None) as slide:
            read_overview(slide, mpp=4.0)
            slide.read(0, 100, 100, 300, 300)
    except SlideError:
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("reader", ["openslide", "tiffslide"])
def test_damaged_slides_are_refused_or_read_but_never_anything_else(tmp_path, reader):
    """Truncated and bit-flipped files, in a process of their own since readers are C code."""
    pytest.importorskip(reader)
    sound = write(tmp_path / "sound.tiff", mpp=2.0)
    arguments = [str(sound), str(tmp_path / "damaged.tiff"), reader, "40"]
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE, *arguments], capture_output=True, text=True, env=os.environ, timeout=600
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20


def write_ome(path, *, levels=2, unit="µm", size=0.25):
    """A pyramidal OME-TIFF as converters write it: coarser levels in SubIFDs, the resolution in XML."""
    tifffile = pytest.importorskip("tifffile")
    pixels = np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    stated = {"PhysicalSizeX": size, "PhysicalSizeXUnit": unit, "PhysicalSizeY": size, "PhysicalSizeYUnit": unit}
    options = {"tile": (64, 64), "photometric": "rgb", "compression": "zlib"}
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(pixels, subifds=levels - 1, metadata={"axes": "YXS", **stated}, **options)
        for level in range(1, levels):
            file.write(pixels[:: 2**level, :: 2**level], subfiletype=1, **options)
    return path, pixels


@pytest.mark.parametrize(("unit", "size"), [("µm", 0.25), ("nm", 250.0)])
def test_an_ome_tiff_states_its_scale_in_its_description(tmp_path, needs_tiffslide, unit, size):
    path, pixels = write_ome(tmp_path / "slide.ome.tif", unit=unit, size=size)
    for reader in ("auto", "openslide", "tiffslide"):
        with Slide(path, reader=reader) as slide:
            assert slide.mpp == pytest.approx(0.25)
            np.testing.assert_array_equal(slide.read(0, 64, 32, 50, 40), pixels[32:72, 64:114])


def test_the_levels_of_an_ome_tiff_are_found(tmp_path, needs_tiffslide, monkeypatch):
    path, pixels = write_ome(tmp_path / "slide.ome.tif", levels=3)
    with Slide(path) as slide:
        assert (slide.reader_name, [level.width for level in slide.levels]) == ("tiffslide", [256, 128, 64])
        np.testing.assert_array_equal(slide.read(2, 0, 0, 64, 64), pixels[::4, ::4])
    with Slide(write_ome(tmp_path / "flat.ome.tif", levels=1)[0]) as slide:
        assert slide.reader_name == "openslide"  # which has the only level, too
    monkeypatch.setitem(sys.modules, "tiffslide", None)
    with Slide(path) as slide:
        assert (slide.reader_name, len(slide.levels)) == ("openslide", 1)
