"""Killed at random moments and started again, alone or beside others: the same bags, bit for bit."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.forked import PATIENCE_S, Forked
from tests.wsi.plain_encoder import ColorEncoder
from tests.wsi.scenes import write

from pams_mil.wsi.extract import extract
from pams_mil.wsi.slide_sources import find_slides
from pams_mil.wsi.tile_grid import TileSettings, WorkSettings


def run(slides: Path, out: Path, encoder: ColorEncoder) -> None:
    found = extract(
        find_slides([slides]), out, encoder, TileSettings(mpp=4.0, tile_px=32),
        WorkSettings(workers=2, batch=8),
    )  # fmt: skip
    print(len(found.extracted), len(found.reused), len(found.failed))  # noqa: T201


def start(slides: Path, out: Path, pause: float = 0.0) -> Forked:
    """An extraction in a process of its own, whose encoder takes its time."""

    def action() -> None:
        os.environ["PAMS_TEST_PAUSE"] = str(pause)
        run(slides, out, ColorEncoder())

    return Forked(action, out.with_name(f"{out.name}-{next(NUMBERS)}.txt"))


NUMBERS = itertools.count()


def bags(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "h5_files").glob("*.h5"))}


def make(folder: Path, count: int) -> Path:
    folder.mkdir()
    for seed in range(count):
        write(folder / f"s{seed:02d}.tiff", mpp=2.0, seed=seed, levels=1)
    return folder


def undisturbed(slides: Path, out: Path) -> dict[str, bytes]:
    process = start(slides, out)
    assert process.wait() == 0, process.said()
    assert process.said().split()[0] == str(len(list(slides.iterdir())))
    return bags(out)


def kill_in_the_middle(slides: Path, out: Path, chance: random.Random) -> None:
    """Start an extraction that kills itself at some moment after its first bag, and cannot end before."""
    before, batches, seconds = len(bags(out)), chance.randint(0, 3), chance.uniform(0.0, 0.1)

    class Doomed(ColorEncoder):
        left = batches

        def __call__(self, tiles):
            if len(bags(out)) > before:
                self.left -= 1
                time.sleep(PATIENCE_S if self.left < 0 else 0)
            return super().__call__(tiles)

    def killer():
        while len(bags(out)) == before:
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def victim():
        threading.Thread(target=killer, daemon=True).start()
        run(slides, out, Doomed())

    process = Forked(victim, out.with_name("killed.txt"))
    assert process.wait() == -signal.SIGKILL, process.said()
    assert len(bags(out)) > before, "it was killed before it did anything"


@pytest.mark.skipif(os.name == "nt", reason="kill -9 is not known there")
@pytest.mark.parametrize(
    ("count", "kills"), [(6, 3), pytest.param(30, 20, marks=pytest.mark.slow)], ids=["short", "twenty kills"]
)
def test_kills_at_random_moments_change_nothing(tmp_path, count, kills):
    slides = make(tmp_path / "slides", count)
    expected = undisturbed(slides, tmp_path / "calm")
    out = tmp_path / "stormy"
    chance = random.Random(count)
    for _ in range(kills):
        kill_in_the_middle(slides, out, chance)
    for name, content in bags(out).items():
        assert content == expected[name], f"{name} was left half-made"
    assert undisturbed_rest(slides, out) == expected
    assert not list(out.rglob("*.part"))


def undisturbed_rest(slides: Path, out: Path) -> dict[str, bytes]:
    process = start(slides, out)
    assert process.wait() == 0, process.said()
    made, kept, failed = map(int, process.said().split())
    assert (made + kept, failed) == (len(list(slides.iterdir())), 0)
    return bags(out)


def test_processes_on_one_folder_share_the_work(tmp_path):
    slides = make(tmp_path / "slides", 6)
    expected = undisturbed(slides, tmp_path / "alone")
    processes = [start(slides, tmp_path / "shared", pause=0.05) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0], [process.said() for process in processes]
    counts = [tuple(map(int, process.said().split())) for process in processes]
    assert sum(made for made, _, _ in counts) == 6, "a slide was done twice or not at all"
    assert all(made + kept == 6 and failed == 0 for made, kept, failed in counts)
    assert bags(tmp_path / "shared") == expected
