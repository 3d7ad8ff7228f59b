"""Real data, where it is found: PAMS_REAL_DATA names its folder; tests that need it are skipped elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _real(name: str) -> Path:
    given = os.environ.get("PAMS_REAL_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = (Path(given) if given else beside) / name
    if not folder.is_dir():
        pytest.skip(f"no {name} data here; set PAMS_REAL_DATA to the folder that has it")
    return folder


@pytest.fixture(scope="session")
def cric() -> Path:
    """Fields of Pap smears: labels.csv and h5_files/."""
    return _real("cric")


@pytest.fixture(scope="session")
def bracs() -> Path:
    """The official labels and splits of BRACS: labels.csv."""
    return _real("bracs")
