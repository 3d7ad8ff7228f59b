"""The numbers that the paper prints, for orientation beside one's own; always marked as the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from pams_mil.tables import read_table


@dataclass(frozen=True)
class Printed:
    """One number of the paper: percent for metrics, seconds for times; `sd` is None where none is printed."""

    mean: float
    sd: float | None


def printed(table: str) -> dict[tuple[str, str, str, str], Printed]:
    """A table of the paper: (dataset, model, method, metric) -> number.

    >>> printed("main_table")["bracs", "transmil", "pams", "ascc"]
    Printed(mean=64.92, sd=0.14)
    """
    with resources.as_file(resources.files("pams_mil.experiments") / "printed" / f"{table}.csv") as path:
        columns = read_table(path)
    keys = zip(*(columns[name] for name in ("dataset", "model", "method", "metric")), strict=True)
    numbers = zip(columns["mean"], columns["sd"], strict=True)
    return {key: Printed(float(mean), float(sd) if sd else None) for key, (mean, sd) in zip(keys, numbers, strict=True)}
