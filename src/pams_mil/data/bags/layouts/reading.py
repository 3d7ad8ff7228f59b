"""How a feature file is to be read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """Whether to verify digests, and whether arrays may be the mapped pages of the file instead of copies."""

    verify: bool = True
    mapped: bool = False
