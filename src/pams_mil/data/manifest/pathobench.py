"""Patho-Bench's task tables: `<source>/<task>/k=all.tsv` with one column of labels named like the task.

The label column is named by `config.yaml` beside the table, or else by the folder; labels written as numbers
get their names from the `label_dict` of that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from pams_mil import tables
from pams_mil.errors import ManifestError
from pams_mil.yaml_guard import check_events


@dataclass(frozen=True)
class Task:
    """The label column of a task and the names of labels written as numbers."""

    column: str
    names: Mapping[str, str] = field(default_factory=dict)


def read_task(path: Path, table: tables.Columns) -> Task | None:
    """The task that a fold table belongs to, or None for any other table."""
    if "label" in table or not any(name.startswith("fold_") for name in table):
        return None
    config = path.parent / "config.yaml"
    if config.is_file():
        try:
            text = config.read_text("utf-8")
            check_events(text, where=str(config), error=ManifestError)
            said = yaml.safe_load(text)
            column = str(said["task_col"])
            names = {str(key): str(name) for key, name in (said.get("label_dict") or {}).items()}
        except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"{config} does not name the label column under 'task_col': {error!r}.") from error
        return Task(column, names) if column in table else None
    return Task(path.parent.name) if path.parent.name in table else None
