"""Several orders of urgency over the same classes: what is missed under all of them, and what under some only.

Two pathologists order classes differently. With orders ≻_1, ..., ≻_J, a call r of true class t is missed urgency under
order j where t ≻_j r:

    undisputed miss    t ≻_j r for every j          disputed miss    t ≻_j r for some j

so a miss rate is an interval from the undisputed share to the share with the disputed ones. A guarantee must hold for
every order at once. Costs are not averaged for that: the expected miss of one order may rise along κ when the call
follows the mean cost, and then no κ bounds it. Instead every order j has its own path of calls d_j(κ), which never
becomes less urgent in that order, and the answer is the set

    C(κ) = {d_1(κ), ..., d_J(κ)},    missed under j where no r in C(κ) is at least as urgent as t in order j

At κ = max_j κ_j, the largest of the orders' certified κ, d_j(κ) alone keeps order j's bound, so C(κ) keeps all of them.

An audit shows each model's misses as an interval, and each comparison order by order. A model is safer under every
order only if each order's own comparison calls it safer. That needs no correction for the number of orders: all tests
must reject together, so the chance of a wrong "every" is at most that of any one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from pams_mil.arrays import Bools, Ints
from pams_mil.atomic import plain
from pams_mil.errors import HierarchyError
from pams_mil.evaluate.compare import Comparison, compare_all
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.inference import estimate
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.verdict import safer_model, verdict
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS, mean_of
from pams_mil.metrics.resampling import RESAMPLES
from pams_mil.metrics.slides import Slides
from pams_mil.severity import orders_at, ranks_by_order


@dataclass(frozen=True)
class DisputedPair:
    """Two classes that the orders rank differently, and which of them is the more urgent by each; "" is a tie."""

    first: str
    second: str
    more_urgent: Mapping[str, str]


@dataclass(frozen=True)
class DisputedRate:
    """A share of cases under several orders: by each of them, under all, and under at least one."""

    by_order: Mapping[str, Contrast]
    undisputed: Contrast
    with_disputed: Contrast


@dataclass(frozen=True)
class Orders:
    """Hierarchies of the same classes in other orders; class indices are those of the first.

    >>> a, b = ClassHierarchy.flat(["N", "FEA", "ADH"], name="A"), ClassHierarchy.flat(["N", "ADH", "FEA"], name="B")
    >>> orders = Orders(a.with_orders(b))
    >>> [(pair.first, pair.second, dict(pair.more_urgent)) for pair in orders.disputed_pairs]
    [('FEA', 'ADH', {'A': 'ADH', 'B': 'FEA'})]
    """

    first: ClassHierarchy
    """The order whose class indices are used, with the others."""

    def __post_init__(self) -> None:
        if not self.first.other_orders:
            raise HierarchyError("Expected at least two orders of the same classes, found one.")

    @cached_property
    def hierarchies(self) -> tuple[ClassHierarchy, ...]:
        """Every order by itself."""
        return self.first.orders

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A name for every order, numbered where two have the same."""
        own = [order.name for order in self.hierarchies]
        numbered = (f"{name} ({number})" for number, name in enumerate(own, 1))
        return tuple(own if len(set(own)) == len(own) else numbered)

    @cached_property
    def places(self) -> tuple[Ints, ...]:
        """For every order, where each class of the first one stands in it, [C]."""
        return tuple(place for _, _, place in orders_at(self.first))

    @cached_property
    def ranks(self) -> Ints:
        """Urgency of the first order's classes in every order, [J, C]."""
        return ranks_by_order(self.first)

    @cached_property
    def disputed_pairs(self) -> list[DisputedPair]:
        """Pairs of classes whose order differs between any two orders; tied in one and not in another counts."""
        pairs, names = [], self.first.classes
        for a in range(len(names)):
            signs = np.sign(self.ranks[:, a + 1 :] - self.ranks[:, [a]])
            for column in np.flatnonzero((signs != signs[0]).any(axis=0)):
                of = {-1: names[a], 0: "", 1: names[a + 1 + column]}
                urgent = {name: of[int(sign)] for name, sign in zip(self.names, signs[:, column], strict=True)}
                pairs.append(DisputedPair(names[a], of[1], urgent))
        return pairs

    def misses(self, target: Ints, predicted: Ints) -> Bools:
        """Whether each case is missed urgency, by order, [J, n]; indices of the first order."""
        missed: Bools = self.ranks[:, target] > self.ranks[:, predicted]
        return missed

    def false_alarms(self, target: Ints, predicted: Ints) -> Bools:
        """Whether each case is a false alarm, by order, [J, n]."""
        return self.misses(predicted, target)

    def under(self, number: int, predictions: Predictions) -> Predictions:
        """Predictions that were read with the first order, as those of another."""
        return _reordered(predictions, self.hierarchies[number], self.places[number])


def with_joint_orders(models: Sequence[Predictions]) -> list[Predictions]:
    """Models of the same classes under the orders of all of them; the first model's first order stays the first.

    Runs know the orders that they were trained with, and those of two runs may differ. Models of other classes are left
    as they are: a comparison refuses them.
    """
    orders = {order.digest: order for model in models for order in model.hierarchy.orders}
    classes = {frozenset(order.classes) for order in orders.values()}
    if len(orders) == 1 or len(classes) > 1:
        return list(models)
    first, *others = orders.values()
    joint = first.with_orders(*others)
    places = [np.array([joint.index(name) for name in model.hierarchy.classes]) for model in models]
    return [_reordered(model, joint, place) for model, place in zip(models, places, strict=True)]


def _reordered(model: Predictions, hierarchy: ClassHierarchy, place: Ints) -> Predictions:
    """Predictions of the same classes in another order: `place` [C] is where each class stands in it."""
    p = model.probabilities
    return replace(
        model,
        hierarchy=hierarchy,
        target=place[model.target],
        predicted=place[model.predicted],
        probabilities=None if p is None else p[:, np.argsort(place)],
    )


def disputed_rates(
    predictions: Predictions, orders: Orders, *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, DisputedRate]:
    """Missed urgency and false alarms of one method under several orders, over patients and networks."""
    ways: dict[str, Callable[..., Any]] = {"undisputed": np.all, "with_disputed": np.any}
    ways |= {f"by {name}": partial(np.take, indices=number) for number, name in enumerate(orders.names)}
    rates = {}
    for key, events in (("missed_rate", orders.misses), ("false_alarm_rate", orders.false_alarms)):
        label, meaning = METRICS[key].label, METRICS[key].meaning
        metrics = [mean_of(name, label, meaning, partial(_share, events, way), high=1.0) for name, way in ways.items()]
        scores = estimate(predictions, metrics, seed=seed, resamples=resamples)
        by_order = {name: scores[f"by {name}"] for name in orders.names}
        rates[key] = DisputedRate(by_order, scores["undisputed"], scores["with_disputed"])
    return rates


def _share(events: Callable[[Ints, Ints], Bools], way: Callable[..., Any], slides: Slides) -> Bools:
    """Slides with an event by all orders, any, or one."""
    return np.asarray(way(events(slides.target, slides.predicted), axis=0))


@dataclass(frozen=True)
class OrderedComparison:
    """Two models compared under every order."""

    reference: str
    candidate: str
    by_order: Mapping[str, Comparison]

    @property
    def safer(self) -> dict[str, str | None]:
        """The model that is safer by each order; None where neither can be called so."""
        return {order: safer_model(comparison) for order, comparison in self.by_order.items()}

    @property
    def sentence(self) -> str:
        """Whether the answer depends on the order."""
        safer = self.safer
        settled = list(dict.fromkeys(name for name in safer.values() if name is not None))
        open_under = [order for order, name in safer.items() if name is None]
        if not settled:
            return f"Neither {self.reference} nor {self.candidate} can be called safer under any of the orders."
        if len(settled) == 1 and not open_under:
            other = self.reference if settled[0] == self.candidate else self.candidate
            return f"{settled[0]} is safer than {other} under every order ({', '.join(safer)})."
        claims = [
            f"{name} is safer under {', '.join(order for order, one in safer.items() if one == name)}"
            for name in settled
        ]
        if open_under:
            claims.append(f"under {', '.join(open_under)} neither can be called safer")
        return f"Which model is safer depends on the order: {'; '.join(claims)}."

    def to_json(self) -> dict[str, Any]:
        """Plain values, with each order's sentence."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "sentence": self.sentence,
            "by_order": {
                order: {"safer": self.safer[order], "verdict": verdict(comparison), **comparison.to_json()}
                for order, comparison in self.by_order.items()
            },
        }


@dataclass(frozen=True)
class OrderAudit:
    """What several orders make of the same calls."""

    orders: Orders
    rates: Mapping[str, Mapping[str, DisputedRate]]
    """By model: `missed_rate` and `false_alarm_rate`."""
    comparisons: Sequence[OrderedComparison]

    @property
    def sentences(self) -> list[str]:
        """What every model misses, undisputed to disputed, and which is safer by which order."""
        pairs, size = self.orders.disputed_pairs, len(self.orders.first)
        opening = (
            f"The orders {', '.join(self.orders.names)} differ on {len(pairs)} of {size * (size - 1) // 2} pairs of "
            "classes."
        )
        return [opening, *map(self._rate_sentence, self.rates), *(one.sentence for one in self.comparisons)]

    def _rate_sentence(self, model: str) -> str:
        missed, alarms = (self.rates[model][key] for key in ("missed_rate", "false_alarm_rate"))
        return (
            f"{model} misses urgency in {_range(missed)} of the slides, by every order and by at least one, and raises "
            f"{_range(alarms)} false alarms."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "names": list(self.orders.names),
            "digests": [hierarchy.digest for hierarchy in self.orders.hierarchies],
            "order": [hierarchy.order() for hierarchy in self.orders.hierarchies],
            "disputed": plain(self.orders.disputed_pairs),
            "models": plain(self.rates),
            "comparisons": plain(self.comparisons),
            "sentences": self.sentences,
        }


def _range(rate: DisputedRate) -> str:
    low, high = f"{100 * rate.undisputed.estimate:.1f}", f"{100 * rate.with_disputed.estimate:.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def audit_orders(
    models: Sequence[Predictions],
    comparisons: Sequence[Comparison],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    **options: Any,
) -> OrderAudit:
    """The audit under all orders of the models' hierarchy; `comparisons`, by `compare_all`, are under the first."""
    orders = Orders(models[0].hierarchy)
    under = {orders.names[0]: list(comparisons)}
    for number, name in list(enumerate(orders.names))[1:]:
        views = [orders.under(number, model) for model in models]
        under[name] = compare_all(views, seed=seed, resamples=resamples, **options)
    return OrderAudit(
        orders=orders,
        rates={model.name: disputed_rates(model, orders, resamples=resamples, seed=seed) for model in models},
        comparisons=[
            OrderedComparison(one.reference, one.candidate, {order: under[order][place] for order in orders.names})
            for place, one in enumerate(comparisons)
        ],
    )
