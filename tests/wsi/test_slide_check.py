"""`pams check --slides`: what cannot be opened is said in words, before hours of extraction."""

from __future__ import annotations

import json

import pytest
from tests.wsi.dicom_files import HIGH_THROUGHPUT, write_series
from tests.wsi.scenes import write
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.errors import SlideError
from pams_mil.view.shelf import Shelf
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.slide_sources import check_slides, find_slides

OLD = {".zattrs": {"multiscales": [{"version": "0.4", "axes": [], "datasets": []}]}, ".zgroup": {"zarr_format": 2}}
NEW = {"zarr.json": {"zarr_format": 3, "attributes": {"ome": {"version": "0.5", "multiscales": [{}]}}}}
COLLECTION = {".zattrs": {"bioformats2raw.layout": 3}, ".zgroup": {"zarr_format": 2}}


def zarr(folder, files):
    (folder / "0" / "0").mkdir(parents=True)
    (folder / "0" / "0" / "chunk.tif").write_bytes(b"nobody's slide")
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(("files", "version"), [(OLD, " (version 0.4)"), (NEW, " (version 0.5)"), (COLLECTION, "")])
def test_ome_zarr_is_named_with_its_version_and_a_way_out(tmp_path, files, version):
    image = zarr(tmp_path / "slides" / "case.ome.zarr", files)
    with pytest.raises(SlideError, match=r"It is an OME-Zarr image") as said:
        Slide(image)
    assert f"OME-Zarr image{version}, which no reader here opens. Convert it to a pyramidal OME-TIFF" in str(said.value)
    assert [source.path for source in find_slides([tmp_path])] == [image]
    assert [source.path for source in find_slides([image])] == [image]


def test_the_table_may_leave_ome_out_of_the_name(tmp_path):
    zarr(tmp_path / "case.ome.zarr", OLD)
    for name in ("case", "case.ome", "case.ome.zarr"):
        assert [problem.kind for problem in check_slides([name], tmp_path).problems] == ["unreadable slide"]


def test_an_image_converted_beside_itself_is_one_slide(tmp_path):
    zarr(tmp_path / "case.ome.zarr", OLD)
    slide = write(tmp_path / "case.ome.tif")
    assert [source.path for source in find_slides([tmp_path])] == [slide]
    shelf = Shelf.find(["case.ome"], tmp_path)
    assert shelf.problems == {}
    assert shelf.use(0).slide.path == slide
    shelf.close()


def test_the_viewer_says_what_an_ome_zarr_image_is(tmp_path):
    zarr(tmp_path / "case.zarr", NEW)
    shelf = Shelf.find(["case"], tmp_path)
    with pytest.raises(SlideError, match="OME-Zarr image"):
        shelf.use(0)


def test_a_store_of_features_is_no_slide(tmp_path):
    store = zarr(tmp_path / "case.zarr", {".zattrs": {}, ".zgroup": {}})
    (store / "tables").mkdir()
    (store / "shapes").mkdir()
    slide = write(tmp_path / "case.tif")
    assert [source.path for source in find_slides([tmp_path])] == [slide]
    with pytest.raises(SlideError, match="LazySlide writes it: features, not a slide"):
        Slide(store)


@pytest.mark.parametrize("text", ["{", "[]", '{"attributes": 3}', '{"attributes": {"ome": []}}'])
def test_a_damaged_description_is_not_an_image(tmp_path, text):
    store = zarr(tmp_path / "case.zarr", {})
    (store / "zarr.json").write_text(text)
    with pytest.raises(SlideError, match="without OME-Zarr's description"):
        Slide(store)


def test_files_that_miss_their_other_half(tmp_path):
    (tmp_path / "case.mrxs").write_bytes(b"")
    with pytest.raises(SlideError, match="case/ is not beside it"):
        Slide(tmp_path / "case.mrxs")
    (tmp_path / "case.isyntax").write_bytes(b"")
    with pytest.raises(SlideError, match=r"iSyntax file, .* wsidicomizer"):
        Slide(tmp_path / "case.isyntax")


@pytest.fixture
def cohort(tmp_path):
    folder = tmp_path / "slides"
    write(folder / "sound.tif", mpp=0.5)
    write(folder / "scaleless.tif", state_mpp=False)
    write_series(folder / "series")
    write_series(folder / "refused", series="1.2.3.5", syntax=HIGH_THROUGHPUT)
    zarr(folder / "image.zarr", OLD)
    ids = ("sound", "scaleless.tif", "series", "refused", "image", "gone")
    rows = "".join(f"{slide_id},{number},N,train\n" for number, slide_id in enumerate(ids))
    (tmp_path / "labels.csv").write_text(f"slide_id,patient_id,label,split\n{rows}")
    return tmp_path


def test_every_slide_of_the_table_is_opened_or_said_why_not(cohort):
    found = check_slides(["sound", "scaleless.tif", "series", "refused", "image", "gone"], cohort / "slides")
    assert found.summary() == {"readable": 3, "readers": {"openslide": 3}, "mpp": {"0.5": 1, "1": 1}}
    kinds = {problem.kind: problem for problem in found.problems if problem.kind != "unreadable slide"}
    assert kinds["missing slide"].slides == ("gone",)
    assert kinds["slide without scale"].slides == ("scaleless.tif",)
    assert not kinds["slide without scale"].error
    unreadable = [problem.slides[0] for problem in found.problems if problem.kind == "unreadable slide"]
    assert unreadable == ["refused", "image"]


def test_the_verb_reports_and_exits_1(cohort):
    words = ["check", str(cohort / "labels.csv"), "--classes", "bracs", "--slides", str(cohort / "slides")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 1
    assert "3 slide files opened; reader: openslide (3); microns per pixel: 0.5 (1), 1 (1)." in shown.stdout
    assert "Slide 'image': image.zarr cannot be read as a slide. It is an OME-Zarr image" in shown.stdout
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert printed["slide_files"]["readable"] == 3
    assert not printed["features_read"]
    assert {problem["kind"] for problem in printed["problems"]} >= {"missing slide", "unreadable slide"}


def test_a_folder_that_cannot_be_searched_is_a_finding(tmp_path):
    found = check_slides(["a"], tmp_path)
    assert [problem.kind for problem in found.problems] == ["slides"]
    assert "There are no slides in" in found.problems[0].message


def test_extract_goes_on_after_slides_that_cannot_be_read(cohort):
    (cohort / "mpp.csv").write_text("slide,mpp\nscaleless,1\n")
    words = ["extract", str(cohort / "slides"), "--out", str(cohort / "out"), "--mpp-table", str(cohort / "mpp.csv")]
    words += ["--encoder", "tests.wsi.plain_encoder:ColorEncoder", "--tile-px", "32", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    printed = json.loads(done.stdout)  # nothing but the object, although slides failed
    assert printed["extracted"] == ["scaleless", "series", "sound"]
    assert set(printed["failed"]) == {"image", "refused"}
    failures = (cohort / "out" / "failures.csv").read_text()
    assert "OME-Zarr image" in failures
    assert "High-Throughput JPEG 2000" in failures
