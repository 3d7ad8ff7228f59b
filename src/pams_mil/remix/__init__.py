"""Remix: new training bags made of two, so that a model learns that the most urgent finding wins.

A strategy is one file, found by its name: `pams_mil.discover.load("remix", "sfr")`. It takes two bags and a
generator and returns rows with their origin (`Mixed`). Which bags meet is decided by `Pairing` alone.
Training only: no strategy is ever applied to validation or test bags.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Mixed": "strategy",
    "Remix": "strategy",
    "create_remix": "strategy",
    "Pair": "pairing",
    "Pairing": "pairing",
    "EvidenceSettings": "selection.evidence",
    "score_evidence": "selection.evidence",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
