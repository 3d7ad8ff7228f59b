"""How features of other tools were made, where their files do not say: stated once, and held against the files.

CLAM's feature files name neither encoder nor resolution. Whoever made them knows, and says it in columns of the
cohort table (`encoder`, `mpp`, `tile_px`), in the settings of a run, or in a command.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pams_mil.data.bags.feature_origin import comparable, origin_differences
from pams_mil.data.manifest.manifest import SlideRecord
from pams_mil.errors import ConfigError, ManifestError

STATED = ("encoder", "mpp", "tile_px")
"""What it takes to make the features of a new slide."""


def stated_by_table(records: Iterable[SlideRecord]) -> dict[str, Any]:
    """What the columns `encoder`, `mpp` and `tile_px` say of all slides; slides that differ are refused.

    >>> made = {"encoder": "uni", "mpp": "0.5"}
    >>> stated_by_table([SlideRecord("s1", "p1", "N", extra=made), SlideRecord("s2", "p2", "N", extra=made)])
    {'encoder': 'uni', 'mpp': 0.5}
    """
    said: dict[str, tuple[str, Any]] = {}
    for record in records:
        for key in STATED:
            text = record.extra.get(key, "").strip()
            if not text:
                continue
            value = _parsed(key, text, record.slide_id)
            # The first slide that says something is what all others are held against.
            first, before = said.setdefault(key, (record.slide_id, value))
            if comparable(key, before) != comparable(key, value):
                raise ManifestError(
                    f"The column {key!r} says {before!r} of slide {first!r} and {value!r} of {record.slide_id!r}; "
                    "features made in different ways cannot be mixed."
                )
    return {key: said[key][1] for key in STATED if key in said}


def complete_origin(found: Mapping[str, Any], stated: Mapping[str, Any], *, where: str, whose: str) -> dict[str, Any]:
    """What is known already, completed by what was stated; a contradiction is refused.

    >>> complete_origin({"width": 4, "mpp": 0.5}, {"encoder": "uni", "mpp": 0.5}, where="data", whose="the files")
    {'width': 4, 'mpp': 0.5, 'encoder': 'uni'}

    Args:
        found: What the feature files or a run say.
        stated: What someone said besides; None counts as nothing said.
        where: Who stated it, for messages: "the settings", "the command".
        whose: Who says otherwise, for messages: "the feature files", "the run runs/a".
    """
    said = {key: value for key, value in stated.items() if value is not None}
    for key, before, now in origin_differences(found, said):
        raise ConfigError(
            f"{where} says {key} = {now!r}, which contradicts {whose}: {key} = {before!r}. Leave it out, or mend it."
        )
    return {**found, **{key: value for key, value in said.items() if key not in found}}


def _parsed(key: str, text: str, slide_id: str) -> Any:
    if key == "encoder":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0) or (key == "tile_px" and value != int(value)):
        expected = "a whole number of pixels" if key == "tile_px" else "microns per pixel"
        raise ManifestError(f"The column {key!r} says {text!r} of slide {slide_id!r}; expected {expected}.")
    return int(value) if key == "tile_px" else value
