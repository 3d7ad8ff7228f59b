"""Killed at every stage of packing, or on a full disk: never a pack that only looks finished; a rerun completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data import writers
from tests.faults import pack_scenarios

from pams_mil.data import Bag, Pack, write_bag
from pams_mil.data.bags.pack_reader import is_pack

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
SLIDES = 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(SLIDES):
        write_bag(tmp_path / "in" / f"s{number}.h5", Bag(*writers.numbers(60, 16, seed=number)))
    return tmp_path


def _run(root: Path, what: str) -> list[dict[str, Any]]:
    top = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(top / "src"), str(top)])}
    command = [sys.executable, str(Path(pack_scenarios.__file__)), str(root), what]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _check_pack(folder: Path) -> None:
    pack = Pack(folder)
    assert list(pack) == [f"s{number}" for number in range(SLIDES)]
    for number in range(SLIDES):
        features, coords = writers.numbers(60, 16, seed=number)
        np.testing.assert_array_equal(pack.read(f"s{number}").features, features)
        np.testing.assert_array_equal(pack.read(f"s{number}").coords_px0, coords)


def test_killed_at_every_stage(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios = _run(root, "kill")
    killed = [scenario for scenario in scenarios if scenario["killed"]]
    assert len(killed) >= 30
    assert {scenario["name"].split("-")[0] for scenario in killed} == {name for _, name in pack_scenarios.STAGES}
    assert all(scenario["status"] == 0 for scenario in scenarios if not scenario["killed"])
    monkeypatch.setattr(pack_scenarios.pack_writer, "SHARD_BYTES", 0)
    unfinished = 0
    for scenario in killed:
        folder = root / scenario["name"]
        if is_pack(folder):
            _check_pack(folder)
        else:
            unfinished += 1
        pack_scenarios.pack(root, scenario["name"])
        _check_pack(folder)
        assert sorted(path.name for path in folder.iterdir()) == [
            "pack.json",
            "shard-00000.safetensors",
            "shard-00001.safetensors",
        ]
    assert unfinished >= 25


def test_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_scenarios.pack_writer, "SHARD_BYTES", 0)
    codes = {scenario["name"]: scenario["code"] for scenario in _run(root, "disk")}
    assert codes.pop("limit-20000") == 0
    assert set(codes.values()) == {42}  # an OutputError that says there is no room
    for name in codes:
        folder = root / name
        assert not is_pack(folder)
        assert not [path for path in folder.iterdir() if path.name.endswith(".part")]
        pack_scenarios.pack(root, name)
        _check_pack(folder)
