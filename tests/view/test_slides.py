"""Slides, tiles and heatmaps as the server gives them: in their place, bounded, and broken ones said in words."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.data import writers
from tests.view.leica import write_leica
from tests.view.sessions import OWN, SIDE, client_of, session_of, write_cohort, write_tiles
from tests.wsi import scenes

from pams_mil.data import Manifest, SlideRecord, write_pack
from pams_mil.errors import BagError
from pams_mil.view import shelf as shelf_module
from pams_mil.view.app import Viewer
from pams_mil.view.heat import Heat, HeatMaker
from pams_mil.view.shelf import TILE_PX, Pyramid, Shelf
from pams_mil.wsi.slide import Slide


def picture(answer):
    assert answer.status_code == 200, answer.text
    return np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB")).astype(int)


def unpacked(data):
    length = struct.unpack("<I", data[:4])[0]
    header = json.loads(data[4 : 4 + length])
    numbers = np.frombuffer(data[4 + length :], "<f4").reshape(2 + len(header["layers"]), header["n"])
    return header, numbers


@given(st.integers(1, 5000), st.integers(1, 5000), st.data())
def test_tiles_cover_every_level_once_with_one_pixel_of_overlap(width, height, data):
    pyramid = Pyramid(width, height)
    level = data.draw(st.integers(0, pyramid.top))
    across, down = pyramid.size(level)
    columns = -(-across // TILE_PX)
    for column in {0, columns // 2, columns - 1}:
        box = pyramid.tile(level, column, 0)
        assert box.x == max(0, column * TILE_PX - 1)
        assert box.x + box.width == min(across, (column + 1) * TILE_PX + 1)
    assert pyramid.tile(level, columns, 0) is None
    assert pyramid.tile(level, 0, -(-down // TILE_PX)) is None
    assert pyramid.size(0) == (1, 1)
    assert pyramid.size(pyramid.top) == (width, height)


@pytest.mark.parametrize(("level", "scale"), [(10, 1), (9, 2), (8, 4)])
def test_tiles_show_the_slide(client, session, cohort, level, scale):
    key = session.cases.keys[0]
    tile = picture(client.get(f"/tile/{key}/{level}/0/0"))
    with Slide(cohort / "slides" / "s-1.tiff") as slide:
        side = min(255, -(-800 // scale))
        full = slide.read(0, 0, 0, side * scale, side * scale).reshape(side, scale, side, scale, 3).mean((1, 3))
    assert tile.shape == (side, side, 3)
    assert np.abs(tile - full).mean() < 6  # JPEG twice, and one resampling


def test_a_slide_with_bounds_is_shown_where_its_tiles_lie(tmp_path):
    """Heatmap, tile and slide share the corner of level 0, although the scanner's picture starts at (1000, 600)."""
    folder = write_cohort(tmp_path / "cohort", ids=("far",), slides=False)
    pixels = np.full((512, 768, 3), 235, np.uint8)
    pixels[200:300, 300:400] = (90, 30, 120)  # the lesion fills the tile at column 13, row 8 of the whole slide
    write_leica(folder / "slides" / "far.scn", pixels, offset=(1000, 600), size=(4000, 3000))
    session = session_of(folder)
    client, _ = client_of(session)
    key = session.cases.keys[0]
    info = client.get(f"/api/slide/{key}").json()
    assert (info["width"], info["height"], info["mpp"]) == (4000, 3000, None)
    column, row = 1300 // TILE_PX, 800 // TILE_PX
    tile = picture(client.get(f"/tile/{key}/12/{column}/{row}"))
    left, top = column * TILE_PX - 1, row * TILE_PX - 1
    inside = tile[810 - top : 890 - top, 1310 - left : 1390 - left]
    assert np.abs(inside - [90, 30, 120]).max() < 25
    outside = tile[: 790 - top]
    assert outside.min() > 200


def test_the_macro_image_of_a_slide_is_not_to_be_had(tmp_path):
    folder = write_cohort(tmp_path / "cohort", ids=("far",), slides=False)
    pixels = np.full((512, 768, 3), 235, np.uint8)
    write_leica(folder / "slides" / "far.scn", pixels, offset=(10, 10), size=(800, 600))
    session = session_of(folder)
    client, _ = client_of(session)
    key = session.cases.keys[0]
    for path in (f"/thumbnail/{key}", f"/thumbnail/{key}?heat=0", *(f"/tile/{key}/{level}/0/0" for level in range(11))):
        shown = picture(client.get(path))
        assert (np.abs(shown - [0, 200, 0]).max(2) > 60).all(), path


def test_the_heatmap_says_where_its_tiles_lie(client, session):
    header, numbers = unpacked(client.get(f"/heat/{session.cases.keys[0]}").content)
    names = [layer["name"] for layer in header["layers"]]
    assert names == ["attention", "tissue"]
    assert header["grid"] == {"x": 0.0, "y": 0.0, "columns": 8, "rows": 8}
    hottest = int(numbers[2].argmax())
    assert numbers[:2, hottest].tolist() == [300.0, 200.0]


def test_tiles_off_a_grid_are_painted_one_by_one():
    on = Heat(np.array([[5, 7], [105, 7], [205, 107]]), 100.0, {})
    assert on.grid() == {"x": 5.0, "y": 7.0, "columns": 3, "rows": 2}
    assert Heat(np.array([[0, 0], [50, 0], [100, 0]]), 100.0, {}).grid() is None  # overlapping
    assert Heat(np.array([[0, 0], [130, 0]]), 100.0, {}).grid() is None
    rounded = np.rint(np.arange(50) * 512.4)[:, None] * [1, 1]
    assert Heat(rounded, 512.4, {}).grid()["columns"] == 50
    assert Heat(np.array([[0, 0], [500_000, 0]]), 100.0, {}).grid() is None  # too long for a canvas


def test_the_telling_tile_is_cut_where_it_lies(client, session, cohort):
    index = 2 * 8 + 3
    shown = picture(client.get(f"/patch/{session.cases.keys[0]}/{index}"))
    with Slide(cohort / "slides" / "s-1.tiff") as slide:
        there = slide.read(0, 300, 200, 100, 100)
    assert np.abs(shown.mean((0, 1)) - there.mean((0, 1))).max() < 4


def test_thumbnails_with_and_without_heat(client, session):
    key = session.cases.keys[0]
    plain, hot = (picture(client.get(f"/thumbnail/{key}?heat={heat}")) for heat in (0, 1))
    assert plain.shape == hot.shape == (320, 320, 3)
    difference = np.abs(plain - hot).sum(2)
    assert difference.mean() > 30


def test_what_is_broken_is_said_and_the_rest_works(tmp_path):
    ids = ("good", "broken", "vanished", "no-features", "no-coords", "no-scale", "nothing")
    folder = write_cohort(tmp_path / "cohort", ids=ids)
    slides, features = folder / "slides", folder / "features"
    (slides / "broken.tiff").write_bytes(b"no slide at all" * 60)
    (features / "no-features.h5").unlink()
    write_tiles(folder, "no-coords", coords=False)
    scenes.write(slides / "no-scale.tiff", state_mpp=False)
    (slides / "nothing.tiff").unlink()
    (features / "nothing.h5").unlink()
    session = session_of(folder)
    client, _ = client_of(session)
    (slides / "vanished.tiff").unlink()
    keys = dict(zip(ids, session.cases.keys, strict=True))
    info = {slide: client.get(f"/api/slide/{key}").json() for slide, key in keys.items()}
    assert info["good"]["problem"] is None
    assert "cannot be read" in info["broken"]["problem"]
    assert "vanished" in info["vanished"]["problem"]
    assert (info["no-scale"]["problem"], info["no-scale"]["mpp"]) == (None, None)
    assert "no file" in info["nothing"]["problem"]
    assert "width" not in info["nothing"]
    assert info["broken"]["width"] == 800  # from its tiles: the heatmap is shown on white
    assert (picture(client.get(f"/tile/{keys['broken']}/10/0/0")) > 250).all()
    assert "no feature file" in client.get(f"/heat/{keys['no-features']}").text
    assert "does not say where" in client.get(f"/heat/{keys['no-coords']}").text
    for slide in ("good", "no-scale", "no-features", "no-coords"):
        assert client.get(f"/tile/{keys[slide]}/10/0/0").status_code == 200
    assert str(tmp_path) not in json.dumps(info)  # no path of this machine reaches the browser
    assert not any(str(tmp_path) in client.get(f"/heat/{key}").text for key in keys.values())
    assert len(client.get("/api/worklist").json()["key"]) == len(ids)


def test_features_without_a_tile_size_use_the_spacing_and_say_so(tmp_path):
    folder = write_cohort(tmp_path / "cohort", ids=("one",))
    write_tiles(folder, "one", side=None)
    heat = session_of(folder).heat_of(0)
    assert heat.tile_px0 == SIDE
    assert "spacing" in heat.notes[0]


def test_a_pack_has_the_heatmaps_of_its_feature_files(tmp_path):
    folder = write_cohort(tmp_path / "cohort", ids=("one", "two"))
    records = tuple(SlideRecord(slide, slide, "none") for slide in ("one", "two"))
    write_pack(tmp_path / "pack", Manifest(records), folder / "features", allow_larger=True)
    plain, packed = session_of(folder), session_of(folder, features=tmp_path / "pack", reviews=tmp_path / "other")
    assert packed.heat_of(1).packed() == plain.heat_of(1).packed()


def test_places_in_microns_become_pixels_of_the_slide(tmp_path):
    folder = write_cohort(tmp_path / "cohort", ids=("one", "two"))
    session = session_of(folder)
    mpp = session.shelf.mpp(0)
    places = session.heat_of(0).coords_px0
    for slide in ("one", "two"):
        writers.stamp(folder / "features" / f"{slide}.h5", np.ones((64, 4), np.float32), places * mpp)
    (folder / "slides" / "two.tiff").unlink()
    session = session_of(folder)
    heat = session.heat_of(0)
    np.testing.assert_allclose(heat.coords_px0, places)
    assert heat.tile_px0 == pytest.approx(256.0 / mpp)
    with pytest.raises(BagError, match="in microns, and there is no slide that states its resolution"):
        session.heat_of(1)


def test_without_slides_there_are_tiles_on_white(tmp_path):
    folder = write_cohort(tmp_path / "cohort", slides=False)
    session = session_of(folder)
    client, _ = client_of(session)
    key = session.cases.keys[0]
    info = client.get(f"/api/slide/{key}").json()
    assert (info["width"], info["height"], info["has_picture"]) == (800, 800, False)
    assert client.get(f"/thumbnail/{key}?heat=1").status_code == 200
    assert any("--slides" in note for note in client.get("/api/overview").json()["notes"])


def test_a_hundred_slides_in_turn_leave_a_few_open(tmp_path, monkeypatch):
    folder = tmp_path / "slides"
    scenes.write(folder / "one.tiff")
    ids = [f"s{number}" for number in range(100)]
    for slide in ids:
        (folder / f"{slide}.tiff").hardlink_to(folder / "one.tiff")
    opened, closed = [], []
    before = Slide.close
    monkeypatch.setattr(Slide, "close", lambda self: closed.append(self) or before(self))
    shelf = Shelf.find(ids, folder)
    for row in range(100):
        shown = shelf.use(row)
        opened.append(shown.slide)
        assert shown.tile(shown.pyramid.tile(10, 0, 0)).startswith(b"\xff\xd8")
    assert len(opened) - len(closed) == shelf_module.MOST_OPEN
    shelf.close()
    assert opened[99] not in closed  # not under the hands of its reader
    del shown
    assert opened[99] in closed
    assert len(closed) == 100


def test_a_slide_without_small_levels_is_read_once_for_its_small_tiles(tmp_path, monkeypatch):
    from pams_mil.cohorts.synthetic_slides import Scene, write_slide

    folder = tmp_path / "slides"
    write_slide(folder / "flat.tiff", Scene(9000.0, 9000.0, ()), mpp=1.0, levels=1)
    shelf = Shelf.find(["flat"], folder)
    reads = []
    before = Slide.read
    monkeypatch.setattr(Slide, "read", lambda self, *box: reads.append(box) or before(self, *box))
    shown = shelf.use(0)
    for level in (8, 9):
        shown.tile(shown.pyramid.tile(level, 0, 0))
    most = max(width * height for _, _, _, width, height in reads)
    assert most < 20_000_000
    once = len(reads)
    shelf.use(0).tile(shown.pyramid.tile(7, 0, 0))
    assert len(reads) == once
    shelf.close()


def test_a_heatmap_is_computed_once_and_kept_for_more_rows_than_a_screen_has(monkeypatch):
    """Also when two ask at once: whoever waited looks again."""
    computed, begun = [], threading.Event()
    maker = HeatMaker()

    def slow(slide):
        computed.append(slide)
        begun.wait(0.2)
        return Heat(np.zeros((20_000, 2)), 100.0, {name: ("sign", np.zeros(20_000)) for name in "abcdefgh"})

    monkeypatch.setattr(maker, "_computed", slow)
    with ThreadPoolExecutor(4) as pool:
        assert len({id(heat) for heat in pool.map(maker.of, ["one"] * 4)}) == 1
    begun.set()
    for slide in [*map(str, range(60)), *map(str, range(60))]:
        maker.of(slide)
    assert len(computed) == 61
    monkeypatch.setattr("pams_mil.view.heat.MOST_BYTES", 1)
    maker.of("last")
    assert maker.ready("59") is None
    assert maker.ready("last") is not None


def test_thumbnails_that_wait_for_heat_keep_no_reader(session, monkeypatch):
    viewer, key = Viewer(session, readers=1), session.cases.keys[0]
    release = threading.Event()
    computed = session.heat_of(0)
    monkeypatch.setattr(session, "heat_of", lambda row: release.wait(600) and computed)

    class Asking:
        path_params = {"key": key, "level": "10", "column": "0", "row": "0"}  # noqa: RUF012
        query_params = {"heat": "1"}  # noqa: RUF012

        async def is_disconnected(self):
            return False

    async def both():
        waiting = [asyncio.create_task(viewer.thumbnail(Asking())) for _ in range(3)]
        await asyncio.sleep(0.05)
        tile = await viewer.tile(Asking())
        assert not any(task.done() for task in waiting)
        release.set()
        return [tile, *await asyncio.gather(*waiting)]

    try:
        assert [answer.status_code for answer in asyncio.run(both())] == [200] * 4
    finally:
        release.set()
        viewer.close()


def test_features_of_another_encoder_give_no_heatmap(cohort):
    run = SimpleNamespace(spec=SimpleNamespace(origin={"width": 4, "encoder": "other"}), path=cohort / "run")
    with pytest.raises(BagError, match="encoder = 'tiny', but the run run has 'other'"):
        HeatMaker(features=cohort / "features", runs=[run]).of("s-1")


def test_regions_are_exported_for_qupath(client, session):
    key = session.cases.keys[0]
    box = {"action": "region", "box": [10, 20, 100.04, 50], "class": "severe"}
    assert client.post(f"/api/region/{key}", json=box, headers=OWN).status_code == 200
    content = client.get(f"/export/{key}.geojson").json()
    region, tiles = content["features"][0], content["features"][1:]
    assert region["properties"]["objectType"] == "annotation"
    assert region["properties"]["classification"]["name"] == "severe"
    assert len(region["properties"]["classification"]["color"]) == 3
    assert region["geometry"]["coordinates"][0] == [[10, 20], [110, 20], [110, 70], [10, 70], [10, 20]]
    assert len(tiles) == 64
    assert set(tiles[0]["properties"]["measurements"]) == {"attention"}
    number = client.get(f"/api/slide/{key}").json()["regions"][0]["region"]
    assert client.post(f"/api/region/{key}", json={"action": "unmark", "region": number}, headers=OWN).json() == {
        "regions": []
    }
    for bad in ({"box": [0, 0, -1, 5]}, {"box": "x"}, {"box": [0, 0, 1, float("1e9")]}, {"class": "other"}):
        assert client.post(f"/api/region/{key}", json={**box, **bad}, headers=OWN).status_code == 400


def test_a_slide_is_found_under_the_names_that_pams_check_knows(tmp_path):
    for name in ("a.ome.tiff", "b.ome.tiff", "b.tiff"):
        scenes.write(tmp_path / name, seed=0)
    shelf = Shelf.find(["a", "a.ome", "a.ome.tiff", "b"], tmp_path)
    assert [shelf.has(row) for row in range(4)] == [True] * 4
    assert not shelf.problems


def test_reports_find_the_viewer_at_their_port_and_a_second_one_takes_another(session, monkeypatch):
    import socket

    from pams_mil.errors import ConfigError
    from pams_mil.view import serve
    from pams_mil.view.serve import open_server

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(serve, "VIEW_PORT", port)
    first, second = open_server(session), open_server(session)
    try:
        assert first.port == port
        assert second.port != port
        with pytest.raises(ConfigError, match=f"Port {port} on 127"):
            open_server(session, port=port)
    finally:
        first.close()
        second.close()
