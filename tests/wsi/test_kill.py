"""Killed at random moments and started again, alone or in company: the same bags, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.wsi.scenes import write

RUN = """
import sys
from pathlib import Path
from pams_mil.wsi.extract import extract
from pams_mil.wsi.tile_settings import TileSettings, WorkSettings
from pams_mil.wsi.slide_sources import find_slides
from tests.wsi.plain_encoder import ColorEncoder
outcome = extract(find_slides([Path(sys.argv[1])]), Path(sys.argv[2]), ColorEncoder(),
                  TileSettings(mpp=4.0, tile_px=32), WorkSettings(workers=2, batch=8))
print(len(outcome.made), len(outcome.kept), len(outcome.failed))
"""


def start(slides: Path, out: Path, pause: float = 0.0) -> subprocess.Popen[str]:
    environment = {**os.environ, "PAMS_TEST_PAUSE": str(pause), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(slides), str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def bags(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "h5_files").glob("*.h5"))}


def make(folder: Path, count: int) -> Path:
    folder.mkdir()
    for seed in range(count):
        write(folder / f"s{seed:02d}.tiff", mpp=2.0, seed=seed, levels=1)
    return folder


def undisturbed(slides: Path, out: Path) -> dict[str, bytes]:
    process = start(slides, out)
    text, problem = process.communicate(timeout=600)
    assert process.returncode == 0, problem
    assert text.split()[0] == str(len(list(slides.iterdir())))
    return bags(out)


def kill_until_done(slides: Path, out: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    done = 0
    while done < kills:
        before = len(list(out.glob("h5_files/*.h5")))
        process = start(slides, out, pause=0.1)
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            if len(list(out.glob("h5_files/*.h5"))) > before:
                break
        time.sleep(chance.uniform(0.0, 0.3))  # some moment in the work on the next slide
        if process.poll() is not None:
            process.communicate()
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done += 1
        assert len(list(out.glob("h5_files/*.h5"))) > before, "it was killed before it did anything"
    assert done == kills, f"the extraction ended after {done} kills"


@pytest.mark.skipif(os.name == "nt", reason="kill -9 is not known there")
@pytest.mark.parametrize(
    ("count", "kills"), [(6, 3), pytest.param(30, 20, marks=pytest.mark.slow)], ids=["short", "twenty kills"]
)
def test_kills_at_random_moments_change_nothing(tmp_path, count, kills):
    slides = make(tmp_path / "slides", count)
    expected = undisturbed(slides, tmp_path / "calm")
    out = tmp_path / "stormy"
    kill_until_done(slides, out, kills, seed=count)
    for name, content in bags(out).items():
        assert content == expected[name], f"{name} was left half-made"
    assert undisturbed_rest(slides, out) == expected
    assert not list(out.rglob("*.part"))


def undisturbed_rest(slides: Path, out: Path) -> dict[str, bytes]:
    process = start(slides, out)
    text, problem = process.communicate(timeout=600)
    assert process.returncode == 0, problem
    made, kept, failed = map(int, text.split())
    assert (made + kept, failed) == (len(list(slides.iterdir())), 0)
    return bags(out)


def test_processes_on_one_folder_share_the_work(tmp_path):
    slides = make(tmp_path / "slides", 6)
    expected = undisturbed(slides, tmp_path / "alone")
    processes = [start(slides, tmp_path / "shared", pause=0.05) for _ in range(3)]
    results = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results
    counts = [tuple(map(int, text.split())) for text, _ in results]
    assert sum(made for made, _, _ in counts) == 6, "a slide was done twice or not at all"
    assert all(made + kept == 6 and failed == 0 for made, kept, failed in counts)
    assert bags(tmp_path / "shared") == expected
