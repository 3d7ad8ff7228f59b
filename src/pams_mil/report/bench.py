"""A benchmark in numbers: every row's mean and spread over runs, intervals over patients, and paired tests.

Scores are computed run by run and then averaged. Intervals and tests pool the runs of a row and resample
patients, so a patient who appears in every run counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pams_mil.errors import PredictionsError
from pams_mil.evaluate.compare import Comparison, compare_all
from pams_mil.evaluate.operating_points import OperatingPoints, operating_points
from pams_mil.evaluate.predictions import Predictions, join_predictions
from pams_mil.evaluate.scores import LevelScores, score
from pams_mil.evaluate.verdict import verdict
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.operating import urgency_auc
from pams_mil.report.epochs import Epochs

TABLE = ("acc", "auc", "ascc", "asmc")
"""The columns of the paper's table."""
EXTRA = ("missed_rate", "false_alarm_rate", "risk")


@dataclass(frozen=True)
class Entry:
    """The predictions of one method on one model: `runs` by repetition, e.g. "seed 0"."""

    model: str
    method: str
    runs: dict[str, Predictions]
    epochs: Epochs | None = None
    """How its runs moved while they trained; None for rows that were not trained here."""
    calibrated: dict[str, Predictions] | None = None
    """The same runs with calibrated probabilities, decided by the Bayes rule for AsCC; None where nobody asked."""


@dataclass(frozen=True)
class SeedSpread:
    """Mean and population standard deviation over runs, as in the paper's tables.

    Runs without a finite value are left out and counted.
    """

    mean: float
    sd: float
    n: int
    missing: int = 0

    @classmethod
    def of(cls, values: Sequence[float]) -> SeedSpread:
        """Summarize one metric over runs.

        >>> SeedSpread.of([0.5, 0.7])
        SeedSpread(mean=0.6, sd=0.09999999999999998, n=2, missing=0)
        >>> SeedSpread.of([0.5, float("inf")]).missing
        1
        """
        finite = [value for value in values if math.isfinite(value)]
        mean = sum(finite) / len(finite) if finite else math.nan
        sd = math.sqrt(sum((v - mean) ** 2 for v in finite) / len(finite)) if len(finite) > 1 else math.nan
        return cls(mean, sd, len(finite), len(values) - len(finite))

    def to_json(self) -> dict[str, Any]:
        """Mean, deviation and the number of runs."""
        return {"mean": self.mean, "sd": self.sd, "n": self.n}


@dataclass(frozen=True)
class Row:
    """One method on one model."""

    model: str
    method: str
    repetitions: tuple[str, ...]
    spreads: dict[tuple[int, str], SeedSpread]
    """By level and metric."""
    pooled: list[LevelScores]
    comparison: Comparison | None
    """Against the reference method on the same model; None for the reference itself."""
    least_urgent_right: SeedSpread
    """Share of the least urgent slides that are called no more urgent: the price of a method that leans to urgency."""
    points: OperatingPoints | None = None
    """All operating points at the finest level, of the runs put together; None without probabilities."""
    urgency_auc: SeedSpread | None = None
    """Run by run, at the finest level; None without probabilities."""
    epochs: Epochs | None = None
    """Validation scores by epoch."""
    calibrated: LevelScores | None = None
    """The finest level with calibrated probabilities and the Bayes rule for AsCC, of the runs put together."""


@dataclass(frozen=True)
class Bench:
    """A whole benchmark."""

    hierarchy: ClassHierarchy
    rows: list[Row]
    reference: str
    resamples: int
    missing: dict[str, str]
    """Cells that failed, with the reason."""
    split: str = "test"
    """What was scored: test or val."""

    @property
    def models(self) -> list[str]:
        """Models in order of appearance."""
        return list(dict.fromkeys(row.model for row in self.rows))

    def of_model(self, model: str) -> list[Row]:
        """The rows of one model."""
        return [row for row in self.rows if row.model == model]

    def place(self, row: Row, level: int, metric: str) -> int:
        """1 for the best mean among the rows of the same model, 2 for the second, and so on; 0 when undefined."""
        value = row.spreads[level, metric].mean
        if math.isnan(value):
            return 0
        sign = 1 if METRICS[metric].higher_is_better else -1
        others = [other.spreads[level, metric].mean for other in self.of_model(row.model)]
        return 1 + sum(sign * other > sign * value for other in others if not math.isnan(other))

    @property
    def verdicts(self) -> list[str]:
        """One sentence per comparison with the reference."""
        return [verdict(row.comparison) for row in self.rows if row.comparison is not None]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "hierarchy": {"name": self.hierarchy.name, "digest": self.hierarchy.digest},
            "reference": self.reference,
            "resamples": self.resamples,
            "failed": self.missing,
            "rows": [
                {
                    "model": row.model,
                    "method": row.method,
                    "runs": list(row.repetitions),
                    "levels": {
                        self.hierarchy.level_names[level]: {
                            metric: {
                                **spread.to_json(),
                                "ci": list(row.pooled[level].intervals.get(metric, ())) or None,
                            }
                            for (of, metric), spread in row.spreads.items() if of == level
                        }
                        for level in range(self.hierarchy.num_levels)
                    },
                    "least_urgent_right": row.least_urgent_right.to_json(),
                    "urgency_auc": None if row.urgency_auc is None else row.urgency_auc.to_json(),
                    "epochs": None if row.epochs is None else row.epochs.scores,
                    "calibrated": None if row.calibrated is None else row.calibrated.to_json(),
                    "operating_points": None if row.points is None else row.points.to_json(),
                    "against_reference": None if row.comparison is None else row.comparison.to_json(),
                }
                for row in self.rows
            ],
            "verdicts": self.verdicts,
        }  # fmt: skip


def summarize(
    entries: Sequence[Entry],
    *,
    reference: str,
    resamples: int = 2000,
    missing: dict[str, str] | None = None,
    split: str = "test",
) -> Bench:
    """Score all runs, pool them, and compare every method with the reference on the same model."""
    if not entries:
        raise PredictionsError("No run of the benchmark is finished, so there is nothing to compare.")
    hierarchy = next(iter(entries[0].runs.values())).hierarchy
    rows: list[Row] = []
    for model in dict.fromkeys(entry.model for entry in entries):
        rows += _model_rows([entry for entry in entries if entry.model == model], hierarchy, reference, resamples)
    return Bench(hierarchy, rows, reference, resamples, dict(missing or {}), split)


def _model_rows(entries: Sequence[Entry], hierarchy: ClassHierarchy, reference: str, resamples: int) -> list[Row]:
    pooled = {entry.method: pool(entry.method, entry.runs) for entry in entries}
    comparisons: dict[str, Comparison] = {}
    if reference in pooled and len(pooled) > 1:
        ordered = [pooled[reference], *(p for method, p in pooled.items() if method != reference)]
        found = compare_all(ordered, resamples=resamples)
        comparisons = {comparison.candidate: comparison for comparison in found}
    return [
        Row(
            model=entry.model,
            method=entry.method,
            repetitions=tuple(entry.runs),
            spreads=_spreads(entry, hierarchy),
            pooled=score(pooled[entry.method], resamples=resamples),
            comparison=comparisons.get(entry.method),
            least_urgent_right=SeedSpread.of([_least_urgent_right(run) for run in entry.runs.values()]),
            urgency_auc=_urgency_aucs(entry),
            epochs=entry.epochs,
            points=operating_points(pooled[entry.method], resamples=resamples),
            calibrated=_calibrated(entry, resamples),
        )
        for entry in entries
    ]


def pool(name: str, runs: dict[str, Predictions]) -> Predictions:
    """All runs of a row as one: every slide once per run, patients as they are."""
    slides = [f"{slide} ({run})" for run, part in runs.items() for slide in part.slide_ids]
    patients = [p for part in runs.values() for p in (part.slide_ids if part.patient_ids is None else part.patient_ids)]
    all_runs = join_predictions(name, list(runs.values()))
    return Predictions(
        name, all_runs.hierarchy, slides, all_runs.target, all_runs.predicted, all_runs.probabilities, patients,
        layout="PAMS",
    )  # fmt: skip


def _spreads(entry: Entry, hierarchy: ClassHierarchy) -> dict[tuple[int, str], SeedSpread]:
    runs = [score(run, resamples=0) for run in entry.runs.values()]
    return {
        (level, metric): SeedSpread.of([levels[level].values[metric] for levels in runs])
        for level in range(hierarchy.num_levels)
        for metric in (*TABLE, *EXTRA)
    }


def _calibrated(entry: Entry, resamples: int) -> LevelScores | None:
    if entry.calibrated is None:
        return None
    return score(pool(entry.method, entry.calibrated), resamples=resamples)[-1]


def _urgency_aucs(entry: Entry) -> SeedSpread | None:
    found = [
        urgency_auc(run.target, run.probabilities, run.hierarchy)
        for run in entry.runs.values()
        if run.probabilities is not None
    ]
    return SeedSpread.of(found) if found else None


def _least_urgent_right(run: Predictions) -> float:
    ranks = run.hierarchy.ranks()
    least = ranks[run.target] == ranks.min()
    return float((ranks[run.predicted] == ranks.min())[least].mean()) if least.any() else math.nan
