"""Tiles per second and latency of `pams view` beside OpenSlide's own Deep Zoom server, on one slide with 8 clients.

Then memory of the server while 100 slides (copies of one) are opened in turn: it must not grow with them.

The peer is what openslide-python's example `deepzoom_server.py` does for a tile (DeepZoomGenerator with 254 + 1 pixels,
JPEG of quality 75, one shared slide) behind Werkzeug's threaded server, which is what Flask runs; without Flask's own
routing, so it is a little faster than the example itself. Rounds alternate, so that both see the same machine.

    python benchmarks/viewer.py [SLIDE]
"""

from __future__ import annotations

import http.client
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from goals import Goals

CLIENTS, TILES, ROUNDS = 8, 400, 5
SLIDES, TILES_OF_EACH = 100, 40
MOST_GROWTH = 1.25
"""Of resident memory from the 20th slide, when shelf and cache are full, to the last."""

PEER = """
import io, sys
import openslide
from openslide.deepzoom import DeepZoomGenerator
from werkzeug.serving import make_server, WSGIRequestHandler
from werkzeug.wrappers import Request, Response
slide = openslide.OpenSlide(sys.argv[1])
tiles = DeepZoomGenerator(slide, tile_size=254, overlap=1, limit_bounds=False)
@Request.application
def app(request):
    _, level, column, row = request.path.strip("/").split("/")
    tile = tiles.get_tile(int(level), (int(column), int(row)))
    buffer = io.BytesIO()
    tile.save(buffer, "jpeg", quality=75, icc_profile=tile.info.get("icc_profile"))
    return Response(buffer.getvalue(), mimetype="image/jpeg")
WSGIRequestHandler.protocol_version = "HTTP/1.1"
WSGIRequestHandler.log = lambda *given: None
server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""

OURS = """
import sys
from pathlib import Path
from pams_mil.view.opening import Asked, open_session
from pams_mil.view.serve import open_server
folder, slides = map(Path, sys.argv[1:3])
session = open_session(Asked([folder / "p.csv"], slides=slides, classes=str(folder / "c.yaml"), reviewer="bench"))
server = open_server(session)
print(server.port, server.app.cookie + "=" + server.app.secret, *session.cases.keys, flush=True)
server.run()
"""


def main() -> int:
    """Run the comparison."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slide = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else made(folder)
        slower = compare(folder, slide)
        return max(slower, turn_over(folder, slide))


def made(folder: Path) -> Path:
    """A synthetic slide with four levels."""
    from pams_mil.cohorts.synthetic_slides import Scene, write_slide

    path = folder / "slides" / "made.tiff"
    write_slide(path, Scene.random(3, side_um=3000.0, lesion_kind=3), mpp=1.0, levels=4)
    return path


def compare(folder: Path, slide: Path) -> int:
    """Alternate rounds on both servers."""
    write_predictions(folder, [slide.stem])
    ours = start(OURS, folder, slide.parent)
    peer = start(PEER, slide)
    try:
        port, cookie, key = ours.stdout.readline().split()
        servers = {
            "ours": (ours, int(port), f"/tile/{key}/", {"Cookie": cookie}),
            "peer": (peer, int(peer.stdout.readline()), "/tile/", {}),
        }
        tiles = tile_list(slide)
        measured = {name: [] for name in servers}
        for number in range(-1, ROUNDS):  # the first round warms both up
            for name in sorted(servers, reverse=number % 2 == 0):
                found = round_of(*servers[name], tiles, number)
                if number >= 0:
                    measured[name].append(found)
        return report(slide, measured)
    finally:
        for process in (ours, peer):
            process.kill()
            process.wait()


def turn_over(folder: Path, slide: Path) -> int:
    """Open many slides one after the other and look at the server's memory; 1 when it grows with them."""
    shelf = folder / "many"
    shelf.mkdir()
    names = [f"slide{number:03}" for number in range(SLIDES)]
    for name in names:
        shutil.copyfile(slide, shelf / f"{name}{slide.suffix}")
    write_predictions(folder, names)
    server, tiles = start(OURS, folder, shelf), tile_list(slide)[:TILES_OF_EACH]
    try:
        port, cookie, *keys = server.stdout.readline().split()
        resident = []
        for key in keys:
            round_of(server, int(port), f"/tile/{key}/", {"Cookie": cookie}, tiles, 0)
            resident.append(psutil.Process(server.pid).memory_info().rss / 2**20)
    finally:
        server.kill()
        server.wait()
    told = ", ".join(f"{resident[count - 1]:.0f} after {count}" for count in (1, 20, SLIDES // 2, SLIDES))
    print(f"memory, MiB: {told} slides opened in turn, {TILES_OF_EACH} tiles of each")
    return int(resident[-1] > MOST_GROWTH * resident[19])


def write_predictions(folder: Path, names: list[str]) -> None:
    """A file of predictions and its classes."""
    rows = "".join(f"{name},{name},more,0.1,0.9\n" for name in names)
    (folder / "c.yaml").write_text("name: two\nclasses: [less, more]\n")
    (folder / "p.csv").write_text(f"slide_id,patient_id,prediction,p_less,p_more\n{rows}")


def start(code: str, *arguments: Path) -> subprocess.Popen[str]:
    """A server in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def tile_list(slide: Path) -> list[str]:
    """Tiles of the four finest levels, drawn at random."""
    import openslide
    from openslide.deepzoom import DeepZoomGenerator

    with openslide.OpenSlide(str(slide)) as opened:
        pyramid = DeepZoomGenerator(opened, tile_size=254, overlap=1)
        every = [
            f"{level}/{column}/{row}"
            for level in range(pyramid.level_count - 4, pyramid.level_count)
            for column in range(pyramid.level_tiles[level][0])
            for row in range(pyramid.level_tiles[level][1])
        ]
    return random.Random(0).choices(every, k=TILES)


def round_of(process, port, path, headers, tiles, number):
    """All tiles once, by eight clients: tiles per second, 95th percentile in ms, CPU ms per tile."""
    order = tiles[:]
    random.Random(number).shuffle(order)
    taken, guard, waits = iter(order), threading.Lock(), []

    def work():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while True:
            with guard:
                tile = next(taken, None)
            if tile is None:
                return connection.close()
            begin = time.perf_counter()
            connection.request("GET", path + tile, headers=headers)
            answer = connection.getresponse()
            data = answer.read()
            if answer.status != 200 or not data.startswith(b"\xff\xd8"):
                raise RuntimeError(f"{path}{tile}: {answer.status} {data[:80]!r}")
            waits.append(time.perf_counter() - begin)

    before, begin = cpu(process), time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(waits) != len(tiles):
        raise RuntimeError("a client failed")
    seconds = time.perf_counter() - begin
    return (
        len(tiles) / seconds,
        1000 * statistics.quantiles(waits, n=20)[-1],
        1000 * (cpu(process) - before) / len(tiles),
    )


def cpu(process) -> float:
    """Seconds of CPU that a process has used."""
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def report(slide: Path, measured: dict[str, list[tuple[float, float, float]]]) -> int:
    """Print medians and ratios; 1 when slower than the peer."""
    middle = {
        name: [statistics.median(column) for column in zip(*rounds, strict=True)] for name, rounds in measured.items()
    }
    print(f"{slide.name}: {TILES} tiles of four levels, {CLIENTS} clients, median of {ROUNDS} alternating rounds")
    for name, (rate, p95, cost) in middle.items():
        print(f"{name}: {rate:.0f} tiles/s, 95th percentile {p95:.0f} ms, {cost:.2f} ms of CPU per tile")
    ours, peer = middle["ours"], middle["peer"]
    rate, latency, cost = (one / other for one, other in zip(ours, peer, strict=True))
    print(f"ratios, ours / peer: rate {rate:.2f}, latency {latency:.2f}, CPU {cost:.2f}")
    goals = Goals()
    goals.at_least("tiles a second against the peer", rate, 1.0)
    return goals.end()


if __name__ == "__main__":
    sys.exit(main())
