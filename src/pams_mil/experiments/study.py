"""What every experiment shares: its setting, the runs it needs, and the section it ends in.

An experiment is one file with `DISCOVER = "run"`, a function from a `Setting` to a `Section`. Experiments of one output
folder share their runs, so the PAMS of the main table is the PAMS of the ablation, trained once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pams_mil.engine.config.grid_config import GridConfig
from pams_mil.engine.config.run_config import build
from pams_mil.engine.grid.grid import Engine, GridRun, run_grid
from pams_mil.errors import ConfigError
from pams_mil.experiments.arms import Arm
from pams_mil.experiments.entries import read_entries
from pams_mil.experiments.untrained_arms import with_untrained
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.bench import Bench, summarize

Tell = Callable[[float, str], None]


@dataclass(frozen=True)
class Setting:
    """On what, how large and where an experiment runs; every arm gets the same."""

    out: Path
    classes: str
    engine: Engine
    manifest: Path | None = None
    features: Path | None = None
    models: tuple[dict[str, Any], ...] = ({"name": "abmil"},)
    seeds: tuple[int, ...] = (0, 1, 2)
    folds: tuple[int, ...] | None = None
    training: dict[str, Any] = field(default_factory=dict)
    pairing: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    resamples: int = 2000
    quick: bool = False
    tag: tuple[str, str] | None = None
    tell: Tell = lambda share, text: None

    @property
    def hierarchy(self) -> ClassHierarchy:
        """The class hierarchy."""
        return ClassHierarchy.load(self.classes)

    def folder(self, name: str) -> Path:
        """Where an experiment writes its tables and figures."""
        return self.out / name


@dataclass(frozen=True)
class Section:
    """What an experiment found: text, tables as (head, rows), and its figure's files without their ending."""

    name: str
    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    """Name and what it shows; `<name>.svg` lies in the experiment's folder, of most with `<name>.png` beside it."""
    files: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Title, lines and tables as plain values; cells are the text that people read."""
        tables = [
            {"caption": table.caption, "head": list(table.head), "rows": [list(row) for row in table.rows]}
            for table in self.tables
        ]
        return {"name": self.name, "title": self.title, "lines": list(self.lines), "tables": tables}


@dataclass(frozen=True)
class Table:
    """A table for people: cells are text, the best of a column may be marked in bold."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[tuple[int, int]] = frozenset()
    underlined: frozenset[tuple[int, int]] = frozenset()


def run_arms(setting: Setting, arms: Sequence[Arm], *, seeds: Sequence[int] | None = None) -> GridRun:
    """Train every arm on every model, seed and fold; what is done already is not run again."""
    if setting.manifest is None:
        raise ConfigError(
            "This experiment trains on a cohort: name it with --manifest, e.g. --manifest digits/labels.csv."
        )
    data: dict[str, Any] = {"manifest": setting.manifest, **setting.data}
    if setting.features is not None:
        data["features"] = setting.features
    grid = build(
        GridConfig,
        {
            "data": data,
            "classes": setting.classes,
            "methods": [{"label": arm.label, **arm.method} for arm in arms],
            "models": list(setting.models),
            "seeds": list(setting.seeds if seeds is None else seeds),
            "folds": None if setting.folds is None else list(setting.folds),
            "training": setting.training,
            "pairing": setting.pairing,
        },
        where="the experiment",
    )
    return run_grid(grid, setting.out, setting.engine, progress=setting.tell)


def compare_arms(setting: Setting, arms: Sequence[Arm], *, reference: str) -> Bench:
    """Train the arms and compare all with the reference, test split only."""
    done = run_arms(setting, arms)
    entries = with_untrained(done, read_entries(done))
    return summarize(entries, reference=reference, resamples=setting.resamples, missing=done.failures)
