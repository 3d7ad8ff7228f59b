"""Remix: new training bags made of two, so that a model learns that the most urgent finding wins.

A strategy is one file, found by its name: `pams_mil.discover.load("remix", "sfr")`. It takes two bags and a
generator and returns rows with their origin (`Mixed`). Which bags meet is decided by `Pairing` alone.
Training only: no strategy is ever applied to validation or test bags.
"""

from __future__ import annotations

from pams_mil.lazy import lazy_names

_HOME = {
    "Mixed": "strategy",
    "Remix": "strategy",
    "create_remix": "strategy",
    "Pair": "pairing",
    "Pairing": "pairing",
    "EvidenceSettings": "selection.evidence",
    "prior_drift": "drift",
    "score_evidence": "selection.evidence",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
