"""Every metric as data, of labels and of probabilities alike: name, direction, bounds, weights [B, n] -> values [B].

A metric names the statistic that it is computed from (`Cells`, `Curve`, `Ranking` or a loss per slide) and a function
of that statistic's weighted sums. Adding a metric is adding one entry to METRICS: scores, intervals, comparisons,
tests and reports all read the table. By hand:

    slides = Slides(hierarchy, target, predicted, probabilities)
    METRICS["urgency_auc"](slides)(np.ones((1, len(slides))))       # as observed, [1]
    METRICS["urgency_auc"](slides)(weights)                         # [B] for weights [B, n]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import reduce
from pams_mil.metrics.proper import brier_losses, nll_losses, rps_losses
from pams_mil.metrics.slides import Cells, Curve, CurveView, Losses, Ranking, Slides, Statistic, cells_view
from pams_mil.severity import PENALTY

FALSE_ALARMS = (0.05, 0.1, 0.2, 0.3)
"""At these shares of false alarms the misses are reported; a table compares at the one nearest to its reference."""
MISSES = (0.05, 0.1)
"""At these shares of misses the false alarms are reported."""
PARTIAL = 0.3
"""The partial urgency AUC looks at the curve up to this share of false alarms."""
KAPPAS = (1.0, 2.0, 3.0, 5.0, 10.0)
"""Where expected cost and net benefit are reported."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        key: Its name in code and files.
        label: Its name in tables.
        higher_is_better: The direction that is good.
        meaning: What it says, in plain words.
        statistic: From slides, and `bins` (None: exact), to the sums that it needs; one object if shared.
        value: From the view of the weighted sums to values [B].
        percent: Whether it is shown in percent.
        bounds: The smallest and largest possible value.
        within_network: Whether slides are ranked, which only those of one network (one seed, one fold) can be.
        needs_probabilities: Whether calls alone do not do.
        points: Where it is read, as a second argument of `value`: as observed [1], and in every resample [B] (or [1]).
    """

    key: str
    label: str
    higher_is_better: bool
    meaning: str
    statistic: Callable[..., Statistic]
    value: Callable[..., Array]
    percent: bool = True
    bounds: tuple[float, float] = (0.0, 1.0)
    within_network: bool = False
    needs_probabilities: bool = False
    points: tuple[Array, Array] | None = None

    def read(self, view: Any, drawn: slice | None = None) -> Array:
        """Values of a view of weighted sums; `drawn` says of which resamples, None: as observed, or swapped."""
        if self.points is None:
            return self.value(view)
        place = self.points[drawn is not None]
        return self.value(view, place if drawn is None or len(place) == 1 else place[drawn])

    def __call__(self, slides: Slides) -> Callable[[npt.ArrayLike], Array]:
        """The metric of these slides as a function of weights [B, n]."""
        statistic = self.statistic(slides)
        table = statistic.sums.by_unit(np.arange(len(slides)), len(slides))
        return lambda weights: self.value(statistic.view(table(np.asarray(weights, dtype=np.float64))))


def _label(
    key: str, label: str, better: bool, meaning: str, value: Callable[[Any], Array], *, percent: bool = True,
    low: float = 0.0, high: float = 1.0,
) -> Metric:  # fmt: skip
    return Metric(key, label, better, meaning, Cells, value, percent, (low, high))


def _curve(
    key: str, label: str, better: bool, meaning: str, value: Callable[..., Array], *, low: float = 0.0,
    points: tuple[Array, Array] | None = None,
) -> Metric:  # fmt: skip
    return Metric(
        key, label, better, meaning, Curve, value, bounds=(low, 1.0), within_network=True, needs_probabilities=True,
        points=points,
    )  # fmt: skip


def mean_of(
    key: str, label: str, meaning: str, loss: Callable[[Slides], npt.NDArray[Any]], *, high: float = np.inf
) -> Metric:
    """The mean of a loss per slide."""
    statistic = partial(Losses, loss=loss)
    return Metric(key, label, False, meaning, statistic, np.asarray, False, (0.0, high), needs_probabilities=True)


def _cost_at(kappa: float, slides: Slides) -> Array:
    """O + κ U, slide by slide."""
    path = slides.path
    called, true = path.ranks[path.calls(kappa)], path.ranks[slides.target]
    return (called > true) + kappa * (called < true)


LABEL_METRICS = (
    _label("acc", "Accuracy", True, "share of cases that are right", reduce.accuracy),
    _label("balanced_acc", "Balanced accuracy", True, "mean recall over the classes", reduce.balanced_accuracy),
    _label(
        "ascc", "AsCC", True, "classification confidence, missed urgency weighs more", lambda v: reduce.ascc(v, v.W)
    ),
    _label(
        "asmc", "AsMC", True, "how mild the mistakes are, missed urgency weighs more",
        lambda v: reduce.asmc(v, v.W), high=np.inf,
    ),
    _label(
        "ecc", "ECC", True, "classification confidence, both directions alike",
        lambda v: reduce.ascc(v, v.symmetric),
    ),
    _label(
        "emc", "EMC", True, "how mild the mistakes are, both directions alike",
        lambda v: reduce.asmc(v, v.symmetric), high=np.inf,
    ),
    _label(
        "risk", "E(Risk)", False, "mean gravity of a mistake",
        lambda v: reduce.mean_risk(v, v.W, v.outranks), percent=False, high=np.inf,
    ),
    _label(
        "severe_errors", "Missed urgency, count", False, "cases called less urgent than they are",
        lambda v: v.sum(v.outranks), percent=False, high=np.inf,
    ),
    _label(
        "missed_rate", "Missed urgency", False, "share of cases called less urgent than they are",
        lambda v: reduce.divide(v.sum(v.outranks), v.total),
    ),
    _label(
        "false_alarm_rate", "False alarms", False, "share of cases called more urgent than they are",
        lambda v: reduce.divide(v.sum(v.outranks.T), v.total),
    ),
    _label(
        "least_urgent_recall", "Least urgent recognized", True,
        "share of the least urgent cases that are called no more urgent",
        lambda v: reduce.least_urgent_recall(v, v.outranks),
    ),
    _label(
        "cohen_kappa", "Quadratic kappa", True, "agreement beyond chance, by squared distance",
        reduce.quadratic_kappa, percent=False, low=-1.0,
    ),
)  # fmt: skip
"""Metrics of calls."""

PROBABILITY_METRICS = (
    Metric(
        "auc", "AUC", True, "one-vs-rest, averaged over the classes", Ranking, reduce.mean_of_defined,
        within_network=True, needs_probabilities=True,
    ),
    _curve(
        "urgency_auc", "Urgency AUC", True,
        "missed urgency against false alarms at all operating points; a miss counts 1, however grave",
        lambda v: v.auc(), low=-np.inf,
    ),
    _curve(
        "severity_auc", "Severity AUC", True,
        "missed urgency against false alarms at all operating points; a miss counts its distance",
        lambda v: v.weighed_auc(), low=-np.inf,
    ),
    _curve(
        "partial_urgency_auc", f"Urgency AUC up to {100 * PARTIAL:.0f} % false alarms", True,
        "the same where false alarms are few", lambda v: v.auc(PARTIAL), low=-np.inf,
    ),
    *(
        _curve(
            f"missed_at_{100 * share:.0f}", f"Missed at {100 * share:.0f} % false alarms", False,
            "missed urgency at an operating point with this share of false alarms",
            lambda v, share=share: v.missed_at(share),
        )
        for share in FALSE_ALARMS
    ),
    *(
        _curve(
            f"false_alarms_at_{100 * share:.0f}", f"False alarms at {100 * share:.0f} % missed", False,
            "false alarms at an operating point that misses so much", lambda v, share=share: v.false_alarms_at(share),
        )
        for share in MISSES
    ),
    *(
        mean_of(
            f"cost_at_{kappa:g}", f"Expected cost at κ = {kappa:g}", "false alarms + κ times misses, per case",
            partial(_cost_at, kappa), high=max(1.0, kappa),
        )
        for kappa in KAPPAS
    ),
    mean_of("nll", "NLL", "negative log-likelihood", lambda s: nll_losses(s.true, s.scores)),
    mean_of(
        "brier", "Brier score", "squared error of the probabilities", lambda s: brier_losses(s.true, s.scores), high=2.0
    ),
    mean_of(
        "rps", "RPS", "ranked probability score over the boundaries of urgency",
        lambda s: rps_losses(s.true, s.scores, s.hierarchy.ranks(s.level)), high=1.0,
    ),
)  # fmt: skip
"""Metrics of probabilities."""

METRICS = {metric.key: metric for metric in (*LABEL_METRICS, *PROBABILITY_METRICS)}
_OURS = frozenset(METRICS)


def add_metric(metric: Metric | Callable[[Slides], npt.ArrayLike]) -> None:
    """Add a metric of your own to the table that scores, intervals and comparisons read; the same key replaces one.

    A plain function of slides that returns one number per slide is the metric of its mean. It is called by the
    function's name and explained by the first line of its docstring; attributes of the function, `higher_is_better` and
    `percent`, say the rest.

    Raises:
        ParameterError: the key is one of ours.
    """
    metric = metric if isinstance(metric, Metric) else _of_function(metric)
    if metric.key in _OURS:
        raise ParameterError(f"There is a metric {metric.key!r} already; give yours another key.")
    METRICS[metric.key] = metric


def stated_rate(own: float) -> float:
    """Of FALSE_ALARMS the one nearest to a method's own rate: the rate at which all rows of a table are compared.

    >>> stated_rate(0.17)
    0.2
    """
    return min(FALSE_ALARMS, key=lambda rate: abs(rate - own))


def missed_key(rate: float) -> str:
    """The metric of misses at a rate of false alarms.

    >>> missed_key(0.2)
    'missed_at_20'
    """
    return f"missed_at_{100 * rate:.0f}"


def missed_there(points: tuple[Array, Array]) -> Metric:
    """Misses where there are so many false alarms: as observed, and in every resample."""
    return _curve("missed", "Missed", False, "missed urgency at given false alarms", CurveView.missed_at, points=points)


def false_alarms_there(points: tuple[Array, Array]) -> Metric:
    """False alarms where so much is missed: as observed, and in every resample."""
    return _curve(
        "false_alarms", "False alarms", False, "false alarms at given misses", CurveView.false_alarms_at, points=points
    )


def metrics_for(*, scored: bool) -> list[Metric]:
    """All metrics that can be computed, with probabilities or without."""
    return [metric for metric in METRICS.values() if scored or not metric.needs_probabilities]


def own_metrics() -> list[str]:
    """Keys of the metrics that were added."""
    return [key for key in METRICS if key not in _OURS]


def _of_function(function: Callable[[Slides], npt.ArrayLike]) -> Metric:
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        raise ParameterError(f"A metric must be a named function of slides or a Metric, found {function!r}.")

    def per_slide(slides: Slides) -> Array:
        values = np.asarray(function(slides), dtype=np.float64)
        if values.shape != (len(slides),) or not np.isfinite(values).all():
            what = f"shape {list(values.shape)}" if values.shape != (len(slides),) else "numbers that are not finite"
            raise ParameterError(
                f"The metric {name!r} must return one number per slide, [{len(slides)}], found {what}."
            )
        return values

    meaning = (function.__doc__ or f"mean of {name}").strip().splitlines()[0].rstrip(".")
    return Metric(
        name, name.replace("_", " ").capitalize(), bool(getattr(function, "higher_is_better", False)), meaning,
        partial(Losses, loss=per_slide), np.asarray, bool(getattr(function, "percent", False)), (-np.inf, np.inf),
    )  # fmt: skip


@dataclass(frozen=True)
class LabelMetrics:
    """All label metrics of one level, computed together from counts S of shape [..., C, C]."""

    hierarchy: ClassHierarchy
    level: int = -1
    penalty: float = PENALTY

    def __call__(self, S: npt.NDArray[np.generic]) -> dict[str, Array]:
        """Every metric's values over the leading axes of S."""
        view = cells_view(S, self.hierarchy, self.level, self.penalty)
        return {metric.key: metric.value(view) for metric in LABEL_METRICS}
