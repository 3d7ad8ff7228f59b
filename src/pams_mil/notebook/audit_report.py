"""`pams_mil.audit`: one call on arrays; its result shows itself, plots, decides, certifies and writes the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pams_mil.errors import ParameterError, listing, nearest, needs_extra
from pams_mil.evaluate.audit import Audit
from pams_mil.evaluate.audit import audit as audit_predictions
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.make import certify, certify_subgroups
from pams_mil.evaluate.decisions.decide import redecide
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import as_hierarchy
from pams_mil.metrics.resampling import RESAMPLES
from pams_mil.notebook.array_inputs import predictions_from_arrays, tags
from pams_mil.report.audit_html import write_audit
from pams_mil.report.audit_tables import metric_columns, severe_table
from pams_mil.report.charts import CurveSeries
from pams_mil.report.first_screen import Counts, curve_series, notebook_html
from pams_mil.report.live import Links
from pams_mil.report.page import Column, ReportTable
from pams_mil.severity import PENALTY

if TYPE_CHECKING:
    from pams_mil.notebook.displays import OperatingCurveDisplay

SHOWN = ("missed_rate", "false_alarm_rate", "acc", "ascc", "asmc")


def audit(
    y_true: Any,
    models: Any = None,
    classes: Any = None,
    *,
    labels: Sequence[Any] | None = None,
    patients: Any = None,
    slides: Any = None,
    by: Any = None,
    hierarchies: Sequence[Any] = (),
    reference: str | None = None,
    penalty: float = PENALTY,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> AuditReport:
    """How grave are the mistakes of one or several models?

    Args:
        y_true: True classes, names or numbers (0: least urgent); a list, array or series. Or, alone, the `Predictions`
            of one or several models, e.g. from `pams_mil.read_predictions`. With several findings per slide: a list of
            lists of names (empty: nothing found), labels such as "DCIS; UDH", or a matrix or frame of 0 and 1 with a
            column per finding.
        models: {"name": probabilities [n, C] or calls [n]}, or one of them; arrays, lists, pandas or polars frames.
            With two classes a column of numbers is the probability of the more urgent one. With several findings per
            slide, [n, K] holds a probability per finding.
        classes: Least urgent first: a list (nested lists are equally urgent), a dict of groups, a preset, a class file
            or a `ClassHierarchy`.
        labels: The classes of the columns of arrays, e.g. `classifier.classes_` or those of a `MultiLabelBinarizer`;
            frames name theirs.
        patients: Whose slide each row is; intervals and tests then resample patients. None: every row is a patient.
        slides: Names of the rows; default "slide 0" and so on.
        by: Subgroups: {"site": [...], "scanner": [...]}, a frame, or one list; columns of the file for `Predictions`.
        hierarchies: Further orders of the same classes, each as `classes`; rates and verdicts are then also by order.
        reference: The model that the others are compared with; default the first.
        penalty: P, the extra weight of a missed urgency.
        resamples: Resamples of patients for intervals; 0: none.
        seed: Of the resampling.

    >>> y = ["benign", "malignant"] * 30
    >>> P = [[0.9, 0.1], [0.3, 0.7], [0.6, 0.4], [0.7, 0.3]] * 15
    >>> audit(y, {"mine": P}, ["benign", "malignant"], resamples=0)
    mine misses urgency in 15 of 60 slides (25.0 %) and raises 0 false alarms (0.0 %).
    <BLANKLINE>
    model  slides  Missed urgency ↓  False alarms ↓  Accuracy ↑  AsCC ↑  AsMC ↑
    mine       60            25.0 %           0.0 %      75.0 %  81.2 %  33.3 %
    """
    samples = [y_true] if isinstance(y_true, Predictions) else y_true
    if (
        models is None
        and isinstance(samples, Sequence)
        and samples
        and all(isinstance(one, Predictions) for one in samples)
    ):
        predictions = list(samples)
    elif models is None or classes is None or isinstance(y_true, Predictions):
        raise ParameterError(
            'Expected audit(y_true, {"name": probabilities}, classes): give the models, and the classes, least urgent '
            "first, as a list, a preset or a class file. Or give Predictions alone."
        )
    else:
        predictions = predictions_from_arrays(
            y_true, models, as_hierarchy(classes), labels=labels, patients=patients, slides=slides, by=by
        )
    if hierarchies:
        tree = predictions[0].hierarchy.with_orders(*map(as_hierarchy, hierarchies))
        predictions = [one.with_orders(tree) for one in predictions]
    names = [one.name for one in predictions]
    if reference is not None and reference not in names:
        raise ParameterError(
            f"reference must be one of {listing(names)}, found {reference!r}.{nearest(reference, names)}"
        )
    place = 0 if reference is None else names.index(reference)
    columns = [by] if isinstance(by, str) else list(tags(by, len(predictions[0])) if classes is not None else by or ())
    scores = audit_predictions(
        predictions, by=columns, reference=place, penalty=penalty, resamples=resamples, seed=seed,
    )  # fmt: skip
    return AuditReport(scores, reference=place)


class AuditReport:
    """The audit of some models: a short table as its repr, sentence, curve and table in a notebook.

    Attributes:
        scores: The `Audit` with every number; `scores.to_json()` is what `pams audit --json` prints.
        predictions: What was audited, one `Predictions` per model.
    """

    def __init__(self, scores: Audit, *, reference: int = 0) -> None:
        self.scores = scores
        self.predictions = [model.predictions for model in scores.models]
        self._reference = reference

    @property
    def sentences(self) -> list[str]:
        """What each model misses and raises, cautions, and the verdicts of the comparisons."""
        return [
            *(Counts.of(model).sentence for model in self.predictions),
            *self.scores.cautions,
            *self.scores.verdicts,
            *(self.scores.orders.sentences if self.scores.orders is not None else ()),
            *(sentence for groups in self.scores.subgroups for sentence in groups.sentences),
        ]

    def __repr__(self) -> str:
        return "\n".join([*self.sentences, "", str(self.table())])

    def _repr_html_(self) -> str:
        return notebook_html(self.sentences, self._curves(), self.table())

    @property
    def names(self) -> list[str]:
        """The models in the order given."""
        return [model.name for model in self.predictions]

    def table(self, level: int = -1) -> ReportTable:
        """The scores at a level with intervals."""
        named = [Column("model", "name"), Column("slides", lambda model: model.levels[level].n)]
        return ReportTable.of(self.scores.models, [*named, *metric_columns(SHOWN, level)])

    def to_frame(self) -> Any:
        """All scores as a pandas frame: one row per model, level and metric, with its interval."""
        with needs_extra("to_frame", package="pandas", extra="frames"):
            pandas = import_module("pandas")
        rows = (
            (model.name, scores.name, key, value, *scores.intervals.get(key, (float("nan"),) * 2))
            for model in self.scores.models
            for scores in model.levels
            for key, value in scores.values.items()
        )
        return pandas.DataFrame(rows, columns=["model", "level", "metric", "value", "low", "high"])

    def plot(self, ax: Any = None) -> OperatingCurveDisplay:
        """Missed urgency against false alarms of all models, on matplotlib axes."""
        from pams_mil.notebook.displays import OperatingCurveDisplay  # noqa: PLC0415  matplotlib is slow to import

        return OperatingCurveDisplay(self._curves()).plot(ax=ax)

    def save(self, folder: str | Path) -> Path:
        """Write the interactive page, the scores and the missed slides into a folder; returns the page's path."""
        out = Path(folder)
        write_audit(self.scores, out, dict.fromkeys(self.names, Links(python="report.decide({})")))
        return out / "report.html"

    def worst(self, count: int = 20, *, model: str | None = None) -> ReportTable:
        """The missed slides of a model, gravest first."""
        misses = severe_table(self.scores.models[self._number(model)], self.scores.hierarchy, {})
        return ReportTable(["slide"], []) if misses is None else replace(misses, rows=misses.rows[:count])

    def decide(self, rule: str = "kappa", *, kappa: float | None = None) -> AuditReport:
        """Re-apply a decision rule to the models' probabilities: `decide(kappa=3)`, or `decide("ascc")`."""
        wanted = rule if kappa is None else f"kappa={float(kappa)!r}"
        if wanted == "kappa":
            raise ParameterError("Give the cost of a missed urgency in false alarms, e.g. decide(kappa=3).")
        models = [
            model if model.probabilities is None else redecide(model, wanted, penalty=self.scores.penalty)
            for model in self.predictions
        ]
        scores = audit_predictions(
            models, by=list(dict.fromkeys(groups.by for groups in self.scores.subgroups)), reference=self._reference,
            penalty=self.scores.penalty, resamples=self.scores.resamples, seed=self.scores.seed,
        )  # fmt: skip
        return AuditReport(scores, reference=self._reference)

    def certify(
        self, alpha: float | None = None, *, model: str | None = None, by: str | None = None, **options: Any
    ) -> Certificate | dict[str, Certificate]:
        """A certificate of a model with these patients as calibration patients; `options` as in `pams_mil.certify`.

        Of several orders of urgency it is one certificate for all of them.

        With `by`, a subgroup that the audit knows, one certificate for each group. The patients must not have trained
        the model or chosen its epoch; nothing in arrays can show that.
        """
        chosen = self.predictions[self._number(model)]
        if by is None:
            return certify(chosen, alpha=alpha, **options)
        if by not in chosen.tags:
            raise ParameterError(f"by must be a subgroup of the audit, one of {listing(chosen.tags)}, found {by!r}.")
        return certify_subgroups(chosen, chosen.tags[by], alpha=alpha, **options)

    def _number(self, model: str | None) -> int:
        if model is None:
            return 0
        if model not in self.names:
            raise ParameterError(
                f"No model is called {model!r}; there are {listing(self.names)}.{nearest(model, self.names)}"
            )
        return self.names.index(model)

    def _curves(self) -> list[CurveSeries]:
        return curve_series(self.predictions, [model.points[-1] for model in self.scores.models])
