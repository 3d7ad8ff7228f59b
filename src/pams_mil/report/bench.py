"""A benchmark as a table: every method's scores, averaged over its networks, and its contrasts with the reference.

Nothing is computed here: scores and comparisons are those of `pams_mil.evaluate`, with the seeds of a method as one
sample, so that intervals and tests take networks as chance where there are several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pams_mil.errors import PredictionsError, counted
from pams_mil.evaluate.compare import Comparison, compare_all
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.operating_points import OperatingPoints
from pams_mil.evaluate.orders import OrderAudit, audit_orders
from pams_mil.evaluate.predictions.join import join_seeds
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.scores import LevelScores, score
from pams_mil.evaluate.verdict import settles, verdict
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import FALSE_ALARMS, METRICS, missed_key, stated_rate
from pams_mil.report.audit_tables import metric_columns
from pams_mil.report.charts import Epochs
from pams_mil.report.first_screen import curve_series, notebook_html
from pams_mil.report.page import Column, Mark, ReportTable, format_value

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
    files: tuple[Path, ...] = ()
    """Where the predictions are."""


@dataclass(frozen=True, kw_only=True)
class Row(Entry):
    """One method on one model: its predictions and their scores."""

    levels: list[LevelScores]
    """Scores by level, the finest last."""
    comparison: Comparison | None
    """Against the reference method on the same model; None for the reference itself."""
    predictions: Predictions
    """Of all its networks."""
    calibrated_scores: LevelScores | None = None
    """The finest level with calibrated probabilities and the Bayes rule for AsCC."""

    def score(self, key: str, level: int = -1) -> Contrast:
        """A metric at a level; NaN where it is not known."""
        return self.levels[level].scores.get(key, Contrast(key, math.nan))

    def against(self, key: str, level: int = -1) -> Contrast | None:
        """A metric minus that of the reference; None for the reference itself, or where it was not compared."""
        return None if self.comparison is None else self.comparison.levels[self.levels[level].name].get(key)

    @property
    def points(self) -> OperatingPoints | None:
        """All operating points at the finest level; None without probabilities."""
        return self.levels[-1].points

    @property
    def name(self) -> str:
        """The method and the model it trained, as sentences name it."""
        return f"{self.method} on {self.model}"

    @property
    def networks(self) -> str:
        """How many networks the row is about, e.g. "3 seeds x 5 folds"."""
        seeds, points = len(self.runs), self.points
        if points is None or points.networks == seeds:
            averaged = len(self.predictions.weights)
            one = "one network" if averaged < 2 else f"the mean of {averaged} networks"
            return one if seeds == 1 else f"{seeds} seeds"
        return f"{counted(seeds, 'seed')}, {points.networks} networks"


@dataclass(frozen=True, repr=False)
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
    orders: dict[str, OrderAudit] = field(default_factory=dict)
    """By model, where the classes have several orders of urgency; everything else is under the first."""

    @property
    def models(self) -> list[str]:
        """Models in order of appearance."""
        return list(dict.fromkeys(row.model for row in self.rows))

    def of_model(self, model: str) -> list[Row]:
        """The rows of one model."""
        return [row for row in self.rows if row.model == model]

    def rate(self, level: int = -1) -> float:
        """The share of false alarms at which all rows are compared: of FALSE_ALARMS the nearest to the reference's."""
        own = [row.levels[level].values["false_alarm_rate"] for row in self.rows if row.method == self.reference]
        return stated_rate(sum(own) / len(own)) if own else FALSE_ALARMS[1]

    def missed_key(self, level: int = -1) -> str:
        """The metric of the misses at that rate."""
        return missed_key(self.rate(level))

    def mark(self, row: Row, level: int, metric: str) -> Mark:
        """Whether a mean is the best or second of its model's rows; nothing where it is undefined or the only one."""
        value, *others = (one.levels[level].values.get(metric, math.nan) for one in (row, *self.of_model(row.model)))
        if math.isnan(value) or len(others) < 2:
            return ""
        sign = 1 if METRICS[metric].higher_is_better else -1
        better = sum(sign * other > sign * value for other in others if not math.isnan(other))
        return "best" if better == 0 else "second" if better == 1 else ""

    @property
    def sentences(self) -> list[str]:
        """For every model: what its methods miss at equal false alarms, and which are safer than the reference."""
        return list(filter(None, map(self._sentence, self.models)))

    def _sentence(self, model: str) -> str:
        key = self.missed_key()
        missed = {row.method: format_value(row.score(key).estimate) for row in self.of_model(model)}
        if missed.get(self.reference, "–") == "–":
            return ""
        kinds: dict[str, list[str]] = {"Safer": [], "Less safe": [], "Not settled": []}
        for row in self.of_model(model):
            contrast = row.against(key)
            if row.comparison is not None and contrast is not None:
                side = "Safer" if contrast.difference < 0 else "Less safe"
                kind = side if settles(row.comparison, contrast) else "Not settled"
                kinds[kind].append(f"{row.method} ({missed[row.method]}{contrast.p_words})")
        lead = f"On {model}, at {100 * self.rate():.0f} % false alarms, {self.reference} misses urgency in"
        sentences = [f"{kind}: {', '.join(names)}." for kind, names in kinds.items() if names]
        return " ".join([lead, f"{missed[self.reference]} of the slides.", *sentences])

    @property
    def verdicts(self) -> list[str]:
        """One sentence per comparison with the reference, which names the model."""
        return [f"{row.model}: {verdict(row.comparison)}" for row in self.rows if row.comparison is not None]

    def table(self, level: int = -1) -> ReportTable:
        """Every row at a level: misses at equal false alarms, urgency AUC, and the rates as decided, with intervals."""
        keys = (self.missed_key(level), "urgency_auc", "missed_rate", "false_alarm_rate", "acc", "ascc")
        named = [Column("method", "name"), Column("networks", "networks")]
        return ReportTable.of(self.rows, [*named, *metric_columns(keys, level)])

    def __repr__(self) -> str:
        return "\n".join([*(self.sentences or self.verdicts), "", str(self.table())])

    def _repr_html_(self) -> str:
        """For notebooks: a sentence per model, the curves, and a table."""
        series = curve_series(
            [replace(row.predictions, name=row.name) for row in self.rows], [row.points for row in self.rows]
        )
        return notebook_html(self.sentences or self.verdicts, series, self.table())

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
                    "runs": list(row.runs),
                    "levels": {
                        scores.name: {
                            key: {**score.to_json(), "seeds": list(score.seeds)} for key, score in scores.scores.items()
                        }
                        for scores in row.levels
                    },
                    "compared_at_false_alarms": self.rate(),
                    "epochs": row.epochs,
                    "calibrated": None if row.calibrated_scores is None else row.calibrated_scores.to_json(),
                    "operating_points": None if row.points is None else row.points.to_json(),
                    "against_reference": None if row.comparison is None else row.comparison.to_json(),
                }
                for row in self.rows
            ],
            **({"orders": {model: one.to_json() for model, one in self.orders.items()}} if self.orders else {}),
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
    """Score every method over its networks and compare it with the reference on the same model."""
    if not entries:
        raise PredictionsError("No run of the benchmark is finished, so there is nothing to compare.")
    hierarchy = next(iter(entries[0].runs.values())).hierarchy
    rows: list[Row] = []
    orders: dict[str, OrderAudit] = {}
    for model in dict.fromkeys(entry.model for entry in entries):
        own = [entry for entry in entries if entry.model == model]
        samples = [join_seeds(entry.method, entry.runs) for entry in own]
        samples.sort(key=lambda sample: sample.name != reference)
        compared = samples[0].name == reference and len(samples) > 1
        comparisons = compare_all(samples, resamples=resamples) if compared else []
        by_name = {comparison.candidate: comparison for comparison in comparisons}
        joined = {sample.name: sample for sample in samples}
        for entry in own:
            decided = None if entry.calibrated is None else join_seeds(entry.method, entry.calibrated)
            rows.append(
                Row(
                    **vars(entry),
                    levels=score(joined[entry.method], resamples=resamples),
                    comparison=by_name.get(entry.method),
                    predictions=joined[entry.method],
                    calibrated_scores=None if decided is None else score(decided, resamples=resamples)[-1],
                )
            )
        if hierarchy.other_orders:
            orders[model] = audit_orders(samples, comparisons, resamples=resamples)
    return Bench(hierarchy, rows, reference, resamples, dict(missing or {}), split, orders)
