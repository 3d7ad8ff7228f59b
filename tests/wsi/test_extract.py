"""A batch of slides: nothing is hidden, nothing done twice, nothing half-made."""

from __future__ import annotations

import csv
import shutil
import threading
from dataclasses import replace

import h5py
import numpy as np
import pytest
from PIL import Image
from tests.wsi.plain_encoder import ColorEncoder
from tests.wsi.scenes import small_scene, write

from pams_mil.data import read_bag
from pams_mil.errors import BagError, ConfigError, ParameterError, SlideError
from pams_mil.wsi.extract import bag_path, claim, extract
from pams_mil.wsi.slide_sources import find_slides
from pams_mil.wsi.slide_to_bag import read_record
from pams_mil.wsi.tile_grid import TileSettings, WorkSettings

SETTINGS = TileSettings(mpp=2.0, tile_px=32)
WORK = WorkSettings(workers=2, batch=16)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    pytest.importorskip("tifffile")
    folder = tmp_path_factory.mktemp("sound")
    for seed in range(3):
        write(folder / f"s{seed}.tiff", seed=seed)
    return folder


@pytest.fixture
def slides(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "slides")
    return tmp_path / "slides"


def run(paths, out, settings=SETTINGS, **options):
    return extract(find_slides(paths, **options), out, ColorEncoder(), settings, WORK)


def failures(out):
    with (out / "failures.csv").open(newline="", encoding="utf-8") as file:
        return {row["slide"]: row for row in csv.DictReader(file)}


def test_failures_are_listed_and_a_rerun_does_only_what_is_missing(slides, tmp_path):
    out = tmp_path / "out"
    (slides / "truncated.tiff").write_bytes((slides / "s0.tiff").read_bytes()[:300])
    paths = [slides, slides / "gone.tiff"]
    first = run(paths, out)
    assert (first.extracted, sorted(first.failed)) == (["s0", "s1", "s2"], ["gone", "truncated"])
    assert not first.is_complete
    assert "cannot be read as a slide" in failures(out)["truncated"]["message"]
    assert "There is no slide" in failures(out)["gone"]["message"]
    stamps = {slide: bag_path(out, slide).stat().st_mtime_ns for slide in first.extracted}
    shutil.copy(slides / "s1.tiff", slides / "truncated.tiff")
    second = run(paths, out)
    assert (second.extracted, sorted(second.reused), list(second.failed)) == (
        ["truncated"],
        ["s0", "s1", "s2"],
        ["gone"],
    )
    assert list(failures(out)) == ["gone"]
    assert stamps == {slide: bag_path(out, slide).stat().st_mtime_ns for slide in stamps}
    shutil.copy(slides / "s2.tiff", slides / "gone.tiff")
    assert run(paths, out).is_complete
    assert failures(out) == {}


def test_a_bag_says_how_it_was_made_and_what_became_of_every_cell(slides, tmp_path):
    run([slides / "s0.tiff"], tmp_path / "out")
    path = bag_path(tmp_path / "out", "s0")
    bag, record = read_bag(path), read_record(path)
    assert bag.info.encoder == "colors"
    assert (bag.info.mpp, bag.info.tile_px, bag.info.tile_px0, bag.info.level0_mpp) == (2.0, 32, 64.0, 1.0)
    counts = record.counts
    assert counts.cells == 13 * 13
    assert counts.cells == counts.kept + counts.background + counts.unreadable
    assert counts.kept == bag.num_instances > 30
    assert (record.mpp_origin, record.slide_file, record.encoder_digest) == ("metadata", "s0.tiff", "colors-1")
    assert (np.diff(bag.coords_px0[:, 1]) >= 0).all()
    with h5py.File(path) as file:
        assert file["features"].shape == (counts.kept, 9)
        assert file["coords"].dtype == np.int32


def test_features_are_those_of_the_tiles_at_their_coordinates(slides, tmp_path):
    from pams_mil.wsi.physical_pixels import read_scaled
    from pams_mil.wsi.slide import Slide

    run([slides / "s1.tiff"], tmp_path / "out")
    bag = read_bag(bag_path(tmp_path / "out", "s1"))
    with Slide(slides / "s1.tiff") as slide:
        tiles = np.stack([read_scaled(slide, x, y, 2.0, 32, 32) for x, y in bag.coords_px0.tolist()])
    np.testing.assert_allclose(bag.features, ColorEncoder()(tiles), rtol=1e-6)  # sums in float32 depend on the batch


def test_two_extractions_are_bit_identical(slides, tmp_path):
    run([slides], tmp_path / "a")
    extract(find_slides([slides]), tmp_path / "b", ColorEncoder(), SETTINGS, WorkSettings(workers=1, batch=16))
    for slide in ("s0", "s1", "s2"):
        assert bag_path(tmp_path / "a", slide).read_bytes() == bag_path(tmp_path / "b", slide).read_bytes()


def test_a_damaged_bag_is_made_again_and_a_strange_one_is_not_overwritten(slides, tmp_path):
    out = tmp_path / "out"
    run([slides], out)
    sound = bag_path(out, "s0").read_bytes()
    bag_path(out, "s0").write_bytes(sound[:2000])
    shutil.copy(slides / "s0.tiff", slides / "s1.tiff")
    again = run([slides], out)
    assert again.extracted == ["s0"]
    assert bag_path(out, "s0").read_bytes() == sound
    assert "was not made from" in again.failed["s1"][2]


def test_a_bag_of_another_stated_resolution_is_not_taken_for_the_slide(slides, tmp_path):
    """A wrong scale that is put right must not leave the tiles of the wrong one behind, without a word."""
    out, (stated,) = tmp_path / "out", find_slides([slides / "s0.tiff"])
    wrong, right = (replace(stated, mpp=mpp, mpp_is_certain=True) for mpp in (0.5, 0.25))
    assert extract([wrong], out, ColorEncoder(), SETTINGS).extracted == ["s0"]
    assert extract([wrong], out, ColorEncoder(), SETTINGS).reused == ["s0"]
    again = extract([right], out, ColorEncoder(), SETTINGS)
    assert "was made with 0.5 microns per pixel of the slide, now 0.25 are stated" in again.failed["s0"][2]


def test_a_damaged_record_is_refused(slides, tmp_path):
    run([slides / "s0.tiff"], tmp_path)
    path = bag_path(tmp_path, "s0")
    with h5py.File(path, "r+") as file:
        text = file.attrs["pams_extraction"]
        file.attrs["pams_extraction"] = text.replace("metadata", "metaphor")
    with pytest.raises(BagError, match="it was changed after it was written"):
        read_record(path)


@pytest.mark.parametrize("change", [{"mpp": 4.0}, {"tile_px": 64}, {"min_tissue": 0.5}, {"feature_dtype": "float16"}])
def test_bags_made_differently_do_not_share_a_folder(slides, tmp_path, change):
    run([slides / "s0.tiff"], tmp_path)
    with pytest.raises(ConfigError, match=next(iter(change))):
        run([slides / "s0.tiff"], tmp_path, TileSettings(**{"mpp": 2.0, "tile_px": 32, **change}))


def test_a_slide_without_tissue_has_a_named_outcome_and_no_bag(tmp_path):
    Image.new("RGB", (400, 400), (243, 242, 244)).save(tmp_path / "blank.png")
    outcome = run([tmp_path / "blank.png"], tmp_path / "out", mpp_of_slide=1.0)
    assert outcome.failed["blank"][1] == "no tissue"
    assert "--min-tissue" in outcome.failed["blank"][2]
    assert not bag_path(tmp_path / "out", "blank").exists()


def test_a_slide_too_coarse_for_the_tiles_is_refused(slides, tmp_path):
    outcome = run([slides / "s0.tiff"], tmp_path, TileSettings(mpp=0.5))
    assert "invented" in outcome.failed["s0"][2]


@pytest.mark.parametrize("name", ["a b", "größe 漢字", "x.y.z", "-dash", "a'b;c&d", "%41", "L" * 200])
def test_names_of_any_kind_survive(slides, tmp_path, name):
    (tmp_path / "odd").mkdir()
    shutil.copy(slides / "s0.tiff", tmp_path / "odd" / f"{name}.tiff")
    outcome = run([tmp_path / "odd" / ".." / "odd" / f"{name}.tiff"], tmp_path / "out")
    assert outcome.extracted == [name]
    assert [path.name for path in (tmp_path / "out" / "h5_files").iterdir()] == [f"{name}.h5"]


def test_a_slide_called_like_our_own_files_does_no_harm(slides, tmp_path):
    for name in ("failures.csv", ".claims"):
        shutil.copy(slides / "s0.tiff", slides / f"{name}.tiff")
    outcome = run([slides / "failures.csv.tiff", slides / ".claims.tiff"], tmp_path / "out")
    assert sorted(outcome.extracted) == [".claims", "failures.csv"]


@pytest.mark.parametrize(
    "colliding", [("a.tiff", "sub/a.tiff"), ("a.tiff", "a.svs"), ("a.tiff", "A.tiff"), ("é.tiff", "e\u0301.tiff")]
)
def test_slides_that_would_share_a_bag_are_refused_before_any_work(tmp_path, colliding):
    (tmp_path / "sub").mkdir()
    for name in colliding:
        (tmp_path / name).write_bytes(b"x")
    if len(list(tmp_path.rglob("*.*"))) < 2:
        pytest.skip("this file system takes the two names for one")
    with pytest.raises(SlideError, match="not unique"):
        find_slides([tmp_path])


def test_what_cannot_be_a_slide_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SlideError, match="no slides in"):
        find_slides([tmp_path / "empty"])
    (tmp_path / "dir.svs").mkdir()
    outcome = run([tmp_path / "dir.svs"], tmp_path / "out")
    assert "folder, not a slide" in outcome.failed["dir"][2]
    with pytest.raises(ParameterError, match="not given"):
        find_slides([tmp_path / "a.svs"], mpp_table={"b": 0.5})


def test_the_table_wins_over_the_file(slides, tmp_path):
    outcome = run([slides / "s0.tiff"], tmp_path, mpp_table={"s0.tiff": 2.0})
    assert outcome.is_complete
    record = read_record(bag_path(tmp_path, "s0"))
    assert (record.mpp_of_slide, record.mpp_origin, record.counts.cells) == (2.0, "table", 25 * 25)


def test_a_slide_in_work_elsewhere_is_left_alone_and_waited_for(slides, tmp_path):
    out = tmp_path / "out"
    held = claim(out, "s1")
    assert held is not None
    assert claim(out, "s1") is None
    done = []
    thread = threading.Thread(target=lambda: done.append(run([slides], out)))
    thread.start()
    while thread.is_alive() and not (bag_path(out, "s0").exists() and bag_path(out, "s2").exists()):
        thread.join(timeout=0.05)
    thread.join(timeout=0.3)
    assert thread.is_alive()
    assert not bag_path(out, "s1").exists()
    held.release()  # as the operating system does when the holder dies
    thread.join(timeout=600)
    assert done[0].extracted == ["s0", "s2", "s1"]


def test_previews_are_drawn(slides, tmp_path):
    extract(find_slides([slides / "s0.tiff"]), tmp_path, ColorEncoder(), SETTINGS, WorkSettings(preview=True))
    with Image.open(tmp_path / "previews" / "s0.png") as opened:
        picture = np.asarray(opened)
    assert max(picture.shape) == 1600
    assert ((picture == (30, 80, 220)).all(axis=2)).sum() > 1000


def test_absurd_settings_are_refused():
    for name, values in {
        "mpp": (0.0, float("nan"), 1e9), "tile_px": (4, 9000), "min_tissue": (0, -0.1, 1.1, float("nan")),
        "on_bad_tile": ("pray",), "reader": ("mine",), "feature_dtype": ("int8",),
    }.items():  # fmt: skip
        for value in values:
            with pytest.raises(ParameterError, match=name):
                TileSettings(**{name: value})


def test_the_scene_knows_where_its_lesion_is():
    scene = small_scene()
    share = scene.lesion_share(np.array([[300.0, 350.0], [600.0, 600.0]]), 20.0)
    assert share.tolist() == [1.0, 0.0]


def test_a_list_of_failures_that_someone_spoiled_is_written_anew(slides, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (slides / "truncated.tiff").write_bytes(b"II*\0")
    for spoiled in ("slide,comment\na,b\nc,d\n", "a,b\n1,2,3\n1,2\n"):
        (out / "failures.csv").write_text(spoiled)
        assert list(run([slides], out).failed) == ["truncated"]
        assert list(failures(out)) == ["truncated"]


def test_a_slide_with_the_longest_name_that_a_file_can_have_does_not_stop_the_others(slides, tmp_path):
    long = "x" * 251
    (slides / "s1.tiff").rename(slides / f"{long}.tif")
    done = run([slides], tmp_path / "out")
    assert (done.extracted, done.failed) == (["s0", "s2", long], {})
