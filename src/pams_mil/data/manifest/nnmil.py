"""nnMIL's tasks: `dataset.csv` with labels as numbers, and `dataset.json` beside it, which names them."""

from __future__ import annotations

import json
from pathlib import Path

from pams_mil import tables
from pams_mil.data.manifest.pathobench import Task
from pams_mil.errors import ManifestError

_MOST_BYTES = 1 << 20


def read_dataset(path: Path, table: tables.Columns) -> Task | None:
    """The names of the labels of an nnMIL task, or None for any other table and for labels that are names already."""
    described = path.with_suffix(".json")
    if path.stem != "dataset" or "label" not in table or not described.is_file():
        return None
    if described.stat().st_size > _MOST_BYTES:
        raise ManifestError(f"{described} is too large for the description of a task; is it the right file?")
    try:
        said = json.loads(described.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{described}, which names the labels of {path.name}, is not valid JSON: {error}."
        ) from error
    labels = said.get("labels") if isinstance(said, dict) else None
    if not isinstance(labels, dict) or not all(isinstance(name, str) for name in labels.values()):
        return None
    used = {cell for cell in table["label"] if cell}
    return Task("label", labels) if used and used <= set(labels) else None
