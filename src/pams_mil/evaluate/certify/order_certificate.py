"""One guarantee for several orders of urgency: κ = max_j κ_j, and as the answer the set of all orders' calls at κ.

Every order has its own certificate. Its losses fall with κ, so its bound also holds at the largest κ of all, and an
answer that holds its call misses no more than the call alone. Averaged costs would not do: see `evaluate/orders.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil import atomic
from pams_mil.arrays import Array, Bools, Ints
from pams_mil.data.exposure import Exposure
from pams_mil.errors import CertificateError, stored_format
from pams_mil.evaluate.certify.apply import CertifiedCalls, apply_certificate
from pams_mil.evaluate.certify.certificate import Certificate, content_digest
from pams_mil.evaluate.certify.make import certify
from pams_mil.evaluate.certify.miss_losses import rank_index
from pams_mil.evaluate.orders import Orders
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy

ORDERS_FORMAT, ORDERS_VERSION = "pams-order-certificate", 1


@dataclass(frozen=True)
class CertifiedSets:
    """The certified answers of n slides: for each, the set of all orders' calls."""

    orders: Orders
    calls: tuple[CertifiedCalls, ...]
    """By order."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Patients the guarantee does not cover."""
        return self.calls[0].notes

    @property
    def withheld(self) -> frozenset[int]:
        """Rows of patients with a missing slide."""
        return self.calls[0].withheld

    @cached_property
    def members(self) -> Bools:
        """Which classes of the first order each answer names, [n, C]; one where the orders agree."""
        named = np.zeros((len(self.calls[0].call), len(self.orders.first)), dtype=bool)
        for place, calls in zip(self.orders.places, self.calls, strict=True):
            named[np.arange(len(named)), np.argsort(place)[calls.call]] = True
        return named

    @property
    def answers(self) -> list[list[int]]:
        """For every slide the classes that its answer names, most urgent first in the first order."""
        return [np.flatnonzero(row)[::-1].tolist() for row in self.members]

    @cached_property
    def possible(self) -> Bools:
        """C(κ), what cannot be excluded: at most as urgent as the call in one of the orders, [n, C]; grows with κ."""
        reached = [
            rank_index(calls.hierarchy)[place] <= calls.high[:, None]
            for place, calls in zip(self.orders.places, self.calls, strict=True)
        ]
        possible: Bools = np.any(reached, axis=0)
        return possible

    @property
    def high(self) -> Ints:
        """The rank, in the first order, of the most urgent class that an answer names, [n]."""
        top: Ints = np.where(self.members, rank_index(self.orders.first), -1).max(axis=1)
        return top

    def take(self, rows: Ints, withheld: frozenset[int]) -> CertifiedSets:
        """The answers of chosen rows, of which some are withheld."""
        return CertifiedSets(self.orders, tuple(calls.take(rows, withheld) for calls in self.calls))

    def columns(self) -> dict[str, list[str]]:
        """For a predictions file: the set, what cannot be excluded, and one column per order with its call.

        Classes are listed in the first order, least urgent first.
        """
        names = self.orders.first.classes

        def cells(table: Bools) -> list[str]:
            return [
                "" if row in self.withheld else "; ".join(compress(names, present))
                for row, present in enumerate(table.tolist())
            ]

        by_order = zip(self.orders.names, self.calls, strict=True)
        return {
            "certified": cells(self.members),
            "cannot_exclude": cells(self.possible),
            **{f"certified [{name}]": calls.columns()["certified"] for name, calls in by_order},
        }


@dataclass(frozen=True)
class OrderCertificate:
    """Certificates of the same patients and weights, one per order, that hold together at one κ."""

    names: tuple[str, ...]
    certificates: tuple[Certificate, ...]

    @property
    def kappa(self) -> float:
        """The largest κ that any order needs."""
        return max(certificate.kappa for certificate in self.certificates)

    @property
    def weights(self) -> tuple[str, ...]:
        """Digests of the weights that all orders are certified for."""
        return self.certificates[0].weights

    def covers(self, other: object) -> bool:
        """Whether it guarantees, for every order of another one, all that the other does."""
        return isinstance(other, OrderCertificate) and all(
            any(mine.covers(theirs) for mine in self.certificates) for theirs in other.certificates
        )

    @property
    def hierarchy(self) -> ClassHierarchy:
        """The classes with all orders."""
        return self.orders.first

    @cached_property
    def orders(self) -> Orders:
        """The orders."""
        return Orders.of({name: one.hierarchy for name, one in zip(self.names, self.certificates, strict=True)})

    @property
    def exposure(self) -> Exposure:
        """Patients that the weights or the certificates have seen."""
        return self.certificates[0].exposure

    @property
    def reservations(self) -> tuple[str, ...]:
        """Why it is not a guarantee, by any order."""
        return tuple(dict.fromkeys(reason for one in self.certificates for reason in one.reservations))

    @property
    def notes(self) -> tuple[str, ...]:
        """What else the reader must know."""
        return tuple(dict.fromkeys(note for one in self.certificates for note in one.notes))

    @property
    def sentences(self) -> list[str]:
        """The operating point, and every order's bounds and κ."""
        return [
            f"Called with κ = {self.kappa:.4g}, the largest that any of the {len(self.names)} orders needs; the answer "
            "is the set of their calls.",
            *self.bound_sentences,
        ]

    @property
    def bound_sentences(self) -> list[str]:
        """One sentence for every order."""
        return [
            f"By {name} (κ = {one.kappa:.4g} alone): {' '.join(common.bound_sentences)}"
            for name, one, common in zip(self.names, self.certificates, self.at_kappa, strict=True)
        ]

    def answers(self, probabilities: Array) -> Bools:
        """Which classes of the first order are in each slide's answer, [n, C]."""
        return self.orders.answers(probabilities, self.kappa)

    def apply(
        self, probabilities: Array, patient_ids: Sequence[str], *, incomplete: Collection[str] = ()
    ) -> CertifiedSets:
        """The certified answers of slides; arguments as in `apply_certificate`, classes as in the first order."""
        calls = [
            apply_certificate(one, probabilities[:, np.argsort(place)], patient_ids, incomplete=incomplete)
            for place, one in zip(self.orders.places, self.at_kappa, strict=True)
        ]
        return CertifiedSets(self.orders, tuple(calls))

    @property
    def at_kappa(self) -> tuple[Certificate, ...]:
        """Every order's certificate at the common κ, whose bounds hold all the more; an interval is by one order."""
        return tuple(replace(one, kappa=self.kappa, kappa_low=None) for one in self.certificates)

    def refuse_other_classes(self, hierarchy: ClassHierarchy, what: str) -> None:
        """Stop when something has other classes than the first order."""
        self.certificates[0].refuse_other_classes(hierarchy, what)

    def refuse_other_weights(self, weights: tuple[str, ...]) -> None:
        """Stop when it was made for other weights, or for none that are known."""
        self.certificates[0].refuse_other_weights(weights)

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form, with a digest of all the rest."""
        content = {
            "format": ORDERS_FORMAT,
            "version": ORDERS_VERSION,
            "kappa": "inf" if np.isinf(self.kappa) else self.kappa,
            "orders": list(self.names),
            "sentences": self.sentences,
            "is_guarantee": not self.reservations,
            "certificates": [certificate.to_json() for certificate in self.certificates],
        }
        return {**content, "digest": content_digest(content)}

    def write(self, path: Path | str) -> None:
        """Write order-certificate.json."""
        atomic.write_json(path, self.to_json())


def certify_orders(predictions: Predictions, **options: Any) -> OrderCertificate:
    """A guarantee that holds at once for every order of the predictions' classes.

    Args:
        predictions: Calibration patients, whose hierarchy has several orders.
        options: `alpha`, `at`, `guarantee`, ... of `pams_mil.evaluate.certify.certify`, the same for every order.
    """
    orders = Orders(predictions.hierarchy)
    predictions_by_order = (orders.under(number, predictions) for number in range(len(orders)))
    return OrderCertificate(orders.names, tuple(certify(one, **options) for one in predictions_by_order))


def load_certificate(path: Path | str) -> Certificate | OrderCertificate:
    """Read a certificate of one order or of several; refused where it was changed since it was written."""
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError):
        return Certificate.load(path)  # says what is wrong
    if not isinstance(content, dict) or content.get("format") != ORDERS_FORMAT:
        return Certificate.load(path)
    digest = content.pop("digest", None)
    if content.get("version") != ORDERS_VERSION or digest != content_digest(content):
        raise CertificateError(
            f"{path} was changed after it was written, or has another version than {ORDERS_VERSION}. Make it again "
            "with 'pams certify'."
        )
    with stored_format(path, CertificateError, "Make it again with 'pams certify'."):
        parts = [Certificate.from_json(entry, path) for entry in content["certificates"]]
        return OrderCertificate(tuple(content["orders"]), tuple(parts))
