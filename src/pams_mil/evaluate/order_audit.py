"""An audit under several orders of urgency: each model's misses as an interval, and each comparison order by order.

A model is safer under every order only if each order's own comparison calls it safer. That needs no correction for the
number of orders: all tests must reject together, so the chance of a wrong "every" is at most that of any one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pams_mil.errors import HierarchyError, listing
from pams_mil.evaluate.compare import Comparison, compare_all
from pams_mil.evaluate.orders import DisputedRate, Orders, disputed_rates
from pams_mil.evaluate.predictions import Predictions
from pams_mil.evaluate.verdict import safer_model, verdict
from pams_mil.metrics.resampling import RESAMPLES
from pams_mil.severity import PENALTY


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
        pairs, size = self.orders.disputed_pairs(), len(self.orders.first)
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
            "disputed": [pair.to_json() for pair in self.orders.disputed_pairs()],
            "models": {
                name: {key: rate.to_json() for key, rate in rates.items()} for name, rates in self.rates.items()
            },
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "sentences": self.sentences,
        }


def _range(rate: DisputedRate) -> str:
    low, high = f"{100 * rate.undisputed:.1f}", f"{100 * rate.with_disputed:.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def audit_orders(
    models: Sequence[Predictions],
    orders: Orders,
    comparisons: Sequence[Comparison],
    *,
    reference: int = 0,
    penalty: float = PENALTY,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> OrderAudit:
    """The audit of models read with the first order; `comparisons` are those under it."""
    other = [model.name for model in models if model.hierarchy.digest != orders.first.digest]
    if other:
        raise HierarchyError(
            f"Expected predictions read with the first order, {orders.names[0]!r}; {listing(other)} was read with "
            "other classes, groups or ranks. Give that order first."
        )
    under = {orders.names[0]: list(comparisons)}
    for number, name in list(enumerate(orders.names))[1:]:
        views = [orders.under(number, model) for model in models]
        under[name] = compare_all(views, reference=reference, penalty=penalty, seed=seed, resamples=resamples)
    return OrderAudit(
        orders=orders,
        rates={model.name: disputed_rates(model, orders, resamples=resamples, seed=seed) for model in models},
        comparisons=[
            OrderedComparison(one.reference, one.candidate, {order: under[order][place] for order in orders.names})
            for place, one in enumerate(comparisons)
        ],
    )
