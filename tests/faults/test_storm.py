"""The fault suite: kills at random moments, flipped bits, full disks and hostile files, by the hundred.

`make test-slow` runs it and prints the counts that docs/guarantees.md states, with their limits.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import resource
import shutil
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data import writers
from tests.engine.cohort import make_cohort, run, same_weights, settings
from tests.faults.survey import TABLE, survey

from pams_mil.data import Bag, BagInfo, Manifest, Pack, read_bag, write_bag, write_pack
from pams_mil.data.tables import read_table
from pams_mil.engine import open_run, predict
from pams_mil.engine.run import checkpoint
from pams_mil.engine.training import train as training
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.audit_html import audit_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform == "win32", reason="fork, limits and signals of POSIX"),
]

MODELS = ("abmil", "dtfd", "transmil")
KILLS, FLIPS, HOSTILE = 25, 300, 300


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A cohort, finished runs on it, a pack, predictions and tables, whole and sound."""
    folder = tmp_path_factory.mktemp("storm")
    cohort = make_cohort(folder / "cohort")
    for model in MODELS:
        run(settings(cohort, model=model), folder / "whole" / model)
    write_pack(folder / "pack", Manifest.read(cohort / "manifest.csv"), cohort / "bags")
    found = predict([folder / "whole/abmil"], cohort / "manifest.csv", features=cohort / "bags", split="test")
    found.write(folder / "predicted")
    features, coords = writers.numbers(40)
    (folder / "foreign").mkdir()
    writers.clam(folder / "foreign/clam.h5", features, coords)
    writers.trident(folder / "foreign/trident.h5", features, coords)
    writers.torch_tensor(folder / "foreign/slide.pt", features)
    np.save(folder / "foreign/slide.npy", features)
    return folder


# --- kills -----------------------------------------------------------------------------------------------------------


def killed_after(action: Callable[[], Any], seconds: float) -> bool:
    """Start an action in a child and kill it from outside, wherever it is by then; whether it was still at work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(3)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the action failed by itself"
    return os.WIFSIGNALED(status)


def seconds_of(action: Callable[[], Any]) -> float:
    start = time.monotonic()
    action()
    return time.monotonic() - start


@pytest.mark.parametrize("model", MODELS)
def test_training_killed_at_random_moments(place, tmp_path, model):
    """Every file under its final name is whole after each kill; the run ends with the weights of an unbroken one."""
    config = settings(place / "cohort", model=model)
    length = seconds_of(lambda: run(config, tmp_path / "timed"))
    moments, kills = random.Random(model), 0
    for number in itertools.count():
        out = tmp_path / f"run-{number}"
        for _ in range(4):
            kills += killed_after(lambda out=out: run(config, out, resume=True), moments.uniform(0, length))
            for file in (out / "last.safetensors", out / "best.safetensors"):
                assert not file.exists() or checkpoint.load(file).tensors
            assert not (out / "metrics.csv").exists() or read_table(out / "metrics.csv")
        run(config, out, resume=True)
        assert open_run(out).status()["state"] == "finished"
        for file in ("last.safetensors", "best.safetensors"):
            assert same_weights(out / file, place / "whole" / model / file)
        shutil.rmtree(out)
        if kills >= KILLS:
            break
    TABLE.append(("kill", f"pams train, {model}", kills, Counter({"bit-identical after resume": kills})))


def test_writers_killed_at_random_moments(place, tmp_path):
    """A pack and a report: absent, old or new, never parts of either."""
    manifest = Manifest.read(place / "cohort/manifest.csv")
    hierarchy = ClassHierarchy.load(place / "cohort/classes.yaml")
    scored = read_predictions(place / "predicted/predictions.csv", hierarchy)

    def pack() -> None:
        write_pack(tmp_path / "pack", manifest, place / "cohort/bags")

    def predicted() -> None:
        predict([place / "whole/abmil"], manifest.source, features=place / "cohort/bags").write(tmp_path / "predicted")

    moments = random.Random(0)
    counts: dict[str, int] = {}
    for name, action in (("pack", pack), ("predicted", predicted)):
        length = seconds_of(action)
        for _ in range(30):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            counts[name] = counts.get(name, 0) + killed_after(action, moments.uniform(0, length))
            if (tmp_path / "pack/pack.json").exists():
                assert all(Pack(tmp_path / "pack").read(slide).num_instances for slide in Pack(tmp_path / "pack"))
            if (tmp_path / "predicted/predictions.csv").exists():
                assert len(read_table(tmp_path / "predicted/predictions.csv")["slide_id"]) == len(manifest)
        action()
        TABLE.append(("kill", f"pams {name}", counts[name], Counter({"old, new or nothing": counts[name]})))
    assert len(Pack(tmp_path / "pack")) == len(manifest)
    assert audit_page(audit([scored], resamples=0))


# --- flipped bits ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A file to damage and what reading it gives, as a digest."""

    name: str
    file: Path
    read: Callable[[], Any]
    checked: bool
    """Whether the file carries checksums over all of its content."""


def digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogatepass")).hexdigest()


def bag_value(path: Path) -> Any:
    bag = read_bag(path)
    placed = None if bag.coords_px0 is None else bag.coords_px0.tobytes()
    return bag.features.tobytes(), bag.features.shape, placed, bag.info.to_json()


def targets(place: Path, work: Path) -> list[Target]:
    """Copies of every kind of file PAMS reads, and how it reads them."""
    shutil.copytree(place / "cohort", work / "cohort")
    shutil.copytree(place / "pack", work / "pack")
    shutil.copytree(place / "whole/abmil", work / "run")
    shutil.copytree(place / "foreign", work / "foreign")
    shutil.copytree(place / "predicted", work / "predicted")
    hierarchy = ClassHierarchy.load(work / "cohort/classes.yaml")

    def pack() -> Any:
        opened = Pack(work / "pack")
        return [(slide, bag_of(opened, slide)) for slide in opened]

    def bag_of(opened: Pack, slide: str) -> Any:
        bag = opened.read(slide)
        return bag.features.tobytes(), bag.info.to_json()

    def weights(name: str) -> Callable[[], Any]:
        def read() -> Any:
            found = checkpoint.load(work / "run" / name)
            return [(key, found.tensors[key].numpy().tobytes()) for key in sorted(found.tensors)], found.state

        return read

    def predictions() -> Any:
        found = read_predictions(work / "predicted/predictions.csv", hierarchy)
        return found.slide_ids, found.target.tolist(), found.predicted.tolist(), found.probabilities.tolist()

    ours = work / "slide.h5"
    write_bag(ours, Bag(*writers.numbers(300, 16), BagInfo(encoder="tiny", tile_px=256)))
    shard = next((work / "pack").glob("shard-*"))
    foreign = work / "foreign"
    return [
        Target("bag file", ours, lambda: bag_value(ours), True),
        Target("pack, data", shard, pack, True),
        Target("pack, index", work / "pack/pack.json", pack, True),
        Target("checkpoint, last", work / "run/last.safetensors", weights("last.safetensors"), True),
        Target("checkpoint, best", work / "run/best.safetensors", weights("best.safetensors"), True),
        Target("CLAM .h5", foreign / "clam.h5", lambda: bag_value(foreign / "clam.h5"), False),
        Target("TRIDENT .h5", foreign / "trident.h5", lambda: bag_value(foreign / "trident.h5"), False),
        Target(".pt", foreign / "slide.pt", lambda: bag_value(foreign / "slide.pt"), False),
        Target(".npy", foreign / "slide.npy", lambda: bag_value(foreign / "slide.npy"), False),
        Target("manifest", work / "cohort/manifest.csv",
               lambda: [repr(r) for r in Manifest.read(work / "cohort/manifest.csv")], False),
        Target("class file", work / "cohort/classes.yaml",
               lambda: ClassHierarchy.load(work / "cohort/classes.yaml").digest, False),
        Target("predictions", work / "predicted/predictions.csv", predictions, False),
        Target("config.yaml", work / "run/config.yaml", lambda: open_run(work / "run").config().to_json(), False),
    ]  # fmt: skip


def trial(target: Target, content: bytes, expected: str) -> Callable[[], bool]:
    def once() -> bool:
        target.file.write_bytes(content)
        return digest(target.read()) == expected

    return once


def flipped(content: bytes, generator: random.Random) -> bytes:
    place = generator.randrange(8 * len(content))
    copy = bytearray(content)
    copy[place // 8] ^= 1 << (place % 8)
    return bytes(copy)


def test_flipped_bits(place, tmp_path):
    """With checksums: refused or harmless, always. Without: never a traceback, but other data can pass for sound."""
    for target in targets(place, tmp_path):
        content, expected = target.file.read_bytes(), digest(target.read())
        generator = random.Random(target.name)
        trials = [trial(target, flipped(content, generator), expected) for _ in range(FLIPS)]
        found = survey(trials, fault="flipped bit", target=target.name)
        target.file.write_bytes(content)
        assert digest(target.read()) == expected
        assert not found["bug"], (target.name, found)
        assert not found["crashed"] + found["hung"], (target.name, found)
        if target.checked:
            assert not found["other data"], (target.name, found)
            assert found["refused"] > FLIPS // 3, (target.name, found)


# --- full disk -------------------------------------------------------------------------------------------------------


def limited(size: int, action: Callable[[], Any]) -> Callable[[], bool]:
    """The action where no file may become larger than `size`, as on a disk that fills up."""

    def once() -> bool:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            action()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return True

    return once


def test_full_disk(place, tmp_path):
    """An error in words, and what lay there before is still there."""
    manifest = Manifest.read(place / "cohort/manifest.csv")
    bag = Bag(writers.numbers(900, 16)[0], info=BagInfo(encoder="tiny"))
    found = predict([place / "whole/abmil"], manifest.source, features=place / "cohort/bags", split="test")
    saved = checkpoint.load(place / "whole/abmil/last.safetensors")
    actions = {
        "bag file": lambda: write_bag(tmp_path / "bag/s.h5", bag),
        "pack": lambda: write_pack(tmp_path / "pack", manifest, place / "cohort/bags"),
        "checkpoint": lambda: checkpoint.save(tmp_path / "checkpoint/last.safetensors", saved),
        "predictions": lambda: found.write(tmp_path / "predictions"),
    }
    generator = random.Random(0)
    for name, action in actions.items():
        action()
        folder = tmp_path / {"bag file": "bag"}.get(name, name)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        largest = max(map(len, before.values()))
        if name == "pack":  # an unchanged pack is not written again
            shutil.rmtree(folder)
            before = {}
        trials = [limited(generator.randrange(largest), action) for _ in range(40)]
        outcome = survey(trials, fault="full disk", target=name)
        assert set(outcome) <= {"refused", "same"}, (name, outcome)
        assert outcome["refused"] >= 20, (name, outcome)
        for file, content in before.items():
            assert (folder / file).read_bytes() == content
        left = {path.name for path in folder.iterdir()} if folder.exists() else set()
        assert name == "pack" or left == set(before)
        if name == "pack":
            assert not (folder / "pack.json").exists() or len(Pack(folder)) == len(manifest)


def test_disk_that_fills_up_in_training(place, tmp_path, monkeypatch):
    """The run stops in words and, with room again, ends as if nothing had happened."""
    config = settings(place / "cohort")
    generator, original = random.Random(1), training.fit
    largest = (place / "whole/abmil/last.safetensors").stat().st_size
    trials = []
    for number, _ in itertools.product(range(6), range(3)):
        size, out = generator.randrange(largest), tmp_path / f"run-{number}"

        def attempt(size=size, out=out) -> bool:
            def fit(*args: Any) -> Any:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
                return original(*args)

            training.fit = fit
            try:
                run(config, out, resume=True)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return True

        trials.append(attempt)
    outcome = survey(trials, fault="full disk", target="pams train")
    assert not outcome["bug"] + outcome["crashed"] + outcome["hung"] + outcome["other data"], outcome
    for number in range(6):
        out = run(config, tmp_path / f"run-{number}", resume=True)
        assert same_weights(out / "last.safetensors", place / "whole/abmil/last.safetensors")


# --- hostile files ---------------------------------------------------------------------------------------------------


def hostile(content: bytes, generator: random.Random) -> bytes:
    """Noise, cuts, repeats, huge numbers and foreign headers."""
    kind = generator.randrange(6)
    at = generator.randrange(len(content))
    if kind == 0:
        return generator.randbytes(generator.randrange(1, 4000))
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + generator.randbytes(generator.randrange(1, 64)) + content[at:]
    if kind == 3:
        number = generator.choice([0, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1])
        return content[:at] + struct.pack("<Q", number) + content[at + 8 :]
    if kind == 4:
        return (
            generator.choice([b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"\x1f\x8b", b"\x80\x04", b"\xff\xfe", b"{"])
            + content
        )
    many = bytearray(content)
    for _ in range(generator.randrange(2, 40)):
        many[generator.randrange(len(many))] = generator.randrange(256)
    return bytes(many)


def test_hostile_files(place, tmp_path):
    """Whatever the bytes: an error in words, or data; no traceback, no hanging.

    HDF5 is a library in C that a file made by someone else can crash; that is counted and stated as a limit.
    """
    for target in targets(place, tmp_path):
        content, expected = target.file.read_bytes(), digest(target.read())
        generator = random.Random(f"hostile {target.name}")
        trials = [trial(target, hostile(content, generator), expected) for _ in range(HOSTILE)]
        found = survey(trials, fault="hostile", target=target.name)
        target.file.write_bytes(content)
        assert not found["bug"] + found["hung"], (target.name, found)
        assert found["crashed"] <= (HOSTILE // 100 if target.name.endswith(".h5") else 0), (target.name, found)
        if target.checked:
            assert not found["other data"], (target.name, found)


def test_hostile_yaml_never_runs_code(tmp_path):
    text = "name: x\nclasses: !!python/object/apply:os.system ['touch x']\n"
    (tmp_path / "c.yaml").write_text(text)
    found = survey([lambda: bool(ClassHierarchy.load(tmp_path / "c.yaml"))], fault="hostile", target="YAML with a tag")
    assert found == {"refused": 1}
    assert not Path("x").exists()
