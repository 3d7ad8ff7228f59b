"""`<name>.json` beside a predictions file: its weights, its table, and which patients these weights have seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pams_mil import __version__, atomic
from pams_mil.data.exposure import Exposure
from pams_mil.digests import file_digest

OUT_OF_FOLD = "out of fold"
"""In place of a split: every slide is called by the networks of the folds that tested it, not by the mean of all."""


def sidecar(path: Path | str) -> dict[str, Any]:
    """What `<name>.json` beside a predictions file says: weights, table and exposure; empty if it does not fit.

    >>> sidecar("no/such/predictions.csv")
    {}
    """
    path = Path(path)
    try:
        content = json.loads(path.with_suffix(".json").read_text("utf-8"))
        if content["files"][path.name] != file_digest(path):
            return {}
        seen = content.get("exposure")
        return {
            "weights": tuple(content["weights"]),
            "made_by": tuple(content["made_by"]),
            "table": content["table"],
            "exposure": None if seen is None else Exposure.from_json(seen, str(path.with_suffix(".json"))),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_sidecar(
    path: Path,
    files: Sequence[Path],
    *,
    made_by: Sequence[Mapping[str, Any]],
    weights: Sequence[str],
    table: Mapping[str, Any],
    slides: int,
    exposure: Exposure | None,
) -> None:
    """Write `<name>.json` of predictions, after all their files.

    It holds digests of the files, so that old and new ones that a kill leaves together do not match it.
    """
    content = {
        "pams_mil": __version__,
        "made_by": list(made_by),
        "weights": list(weights),
        "table": dict(table),
        "slides": slides,
        "files": {file.name: file_digest(file) for file in files},
        "exposure": None if exposure is None else exposure.to_json(),
    }
    atomic.write_json(path, content)
