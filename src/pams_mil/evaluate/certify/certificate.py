"""A certificate: the bounds it guarantees, for which patients and weights, and what it was calibrated on.

The file is JSON with a digest of its own content, so that a changed certificate is refused instead of applied.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil import __version__, atomic
from pams_mil.arrays import Array
from pams_mil.data.exposure import Exposure
from pams_mil.digests import sealed, unsealed
from pams_mil.errors import CertificateError, from_fields, stored_format
from pams_mil.evaluate.certify.bounds import Bound, Guarantee, Spread
from pams_mil.evaluate.certify.miss_losses import Unit
from pams_mil.hierarchy import ClassHierarchy, hierarchy_from_json, hierarchy_to_json

FORMAT, VERSION = "pams-certificate", 1
NOT_A_GUARANTEE = "not a guarantee"
MEANING: dict[Unit, str] = {
    "case": "a new patient, called as the most urgently called of its slides, is called below its most urgent label",
    "slide": "a random slide of a new patient is called below its label",
}


@dataclass(frozen=True)
class Rates:
    """Shares of the calibration patients at one κ."""

    missed_rate: float
    false_alarm_rate: float


@dataclass(frozen=True)
class BoundaryLimit:
    """How many calibration patients are at or above a boundary, and the smallest α that they can certify."""

    name: str
    n: int
    smallest_alpha: float


@dataclass(frozen=True, repr=False)
class Certificate:
    """Certified upper bounds on missed urgency, and the operating point that meets them.

    Attributes:
        hierarchy: The classes, with every order of urgency that it is for.
        kappa: The certified κ, the largest that any bound needs.
        bounds: What it guarantees, order by order.
        guarantee: On average, or with a confidence.
        unit: What is counted: case or slide.
        kappa_low: The κ just below which the lower end of the interval is called; None: there is none, as of several
            orders.
        n: Calibration patients.
        slides: Their slides.
        own_call, certified_call: Rates of the model's own call (κ = 1) and of the certified one, by the first order.
        review: Share of cases (slides) whose interval holds more than one rank; None without an interval.
        boundaries: Every boundary of the first order, certified or not.
        reservations: Why it is not a guarantee; empty when it is one.
        notes: What else the reader must know.
        weights: Digests of the weights it holds for; empty when it was made from a predictions file.
        exposure: Patients that the weights or this certificate have seen, by digest.
        calibration: Digest of the calibration slides, patients and labels.
        prevalence: Shares of the classes that the bound for all patients was re-weighted to.
        breakpoints: [p, R - 1] where calibration cases reach each rank of the first order, to compare later ones with.
        created: When.
    """

    hierarchy: ClassHierarchy
    kappa: float
    bounds: tuple[Bound, ...]
    guarantee: Guarantee
    unit: Unit
    kappa_low: float | None
    n: int
    slides: int
    own_call: Rates
    certified_call: Rates
    review: float | None
    boundaries: tuple[BoundaryLimit, ...]
    reservations: tuple[str, ...]
    notes: tuple[str, ...]
    weights: tuple[str, ...]
    exposure: Exposure
    calibration: str
    prevalence: Mapping[str, float] | None
    breakpoints: Array
    created: str

    @property
    def meaning(self) -> str:
        """What is missed, in words."""
        return MEANING[self.unit]

    @property
    def leading(self) -> Bound:
        """The bound for all patients where there is one, else the one that needs the largest κ."""
        whole = (bound for bound in self.bounds if bound.at is None and not bound.findings)
        return next(whole, max(self.bounds, key=lambda b: b.kappa))

    @property
    def words(self) -> str:
        """κ for people."""
        return kappa_in_words(self.kappa, self.hierarchy)

    @property
    def bound_sentences(self) -> list[str]:
        """One sentence for every bound."""
        weighted = bool((self.hierarchy.finding_weights != 1.0).any())
        words = self.guarantee.words
        return [bound.sentence(words, self.unit, self.kappa, weighted=weighted) for bound in self.bounds]

    @property
    def sentences(self) -> list[str]:
        """The operating point, every bound, and what it costs (by one order), one sentence each."""
        if self.hierarchy.other_orders:
            return [
                f"Called with κ = {self.kappa:.4g}, the largest that any of the {len(self.hierarchy.orders)} orders "
                "needs; the answer is the set of their calls.",
                *self.bound_sentences,
            ]
        own, new = self.own_call, self.certified_call
        price = (
            f"On the calibration patients the model's own call misses {100 * own.missed_rate:.3g} % with "
            f"{100 * own.false_alarm_rate:.3g} % false alarms, the certified one {100 * new.missed_rate:.3g} % with "
            f"{100 * new.false_alarm_rate:.3g} %"
        )
        if self.review is not None:
            price += f"; for {100 * self.review:.3g} % more than one rank remains"
        return [f"Called with κ = {self.kappa:.4g}: {self.words}.", *self.bound_sentences, f"{price}."]

    def __repr__(self) -> str:
        bounds = ", ".join(f"{bound.who} <= {100 * bound.alpha:g} %" for bound in self.bounds)
        doubt = f", {NOT_A_GUARANTEE}" if self.reservations else ""
        return f"<Certificate: κ = {self.kappa:.4g}, {bounds}, {self.guarantee.words}, n = {self.n}{doubt}>"

    def _repr_html_(self) -> str:
        """For notebooks: reservations, sentences, and a table of the bounds."""
        doubts = [f"<b>{NOT_A_GUARANTEE.capitalize()}: {html.escape(reason)}</b>" for reason in self.reservations]
        lines = "".join(f"<p>{line}</p>" for line in (*doubts, *map(html.escape, self.sentences)))
        heads = ("", "at most", "κ needed", "calibration patients", "missed among them", "smallest α possible")
        rows = [heads] + [
            (html.escape(b.who), percent(b.alpha), f"{b.kappa:.4g}", f"{b.n}", percent(b.observed),
             percent(b.smallest_alpha)) for b in self.bounds
        ]  # fmt: skip
        cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
        return f"{lines}<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    def covers(self, other: object) -> bool:
        """Whether this certificate guarantees all that another one does, for the same weights and classes.

        A bound on average and one with a confidence do not imply each other.
        """
        if not isinstance(other, Certificate):
            return False
        mine, theirs = self.guarantee.confidence, other.guarantee.confidence
        return (
            self._subject == other._subject
            and (not self.reservations or bool(other.reservations))
            and (mine is None) == (theirs is None)
            and (mine or 0.0) >= (theirs or 0.0)
            and all(any(_as_strict(m, b) for m in self.bounds) for b in other.bounds)
        )

    def is_stricter_than(self, other: Certificate) -> bool:
        """Whether it guarantees all that another one does, and more; a strict partial order."""
        return self.covers(other) and not other.covers(self)

    @property
    def _subject(self) -> tuple[object, ...]:
        """What two certificates must share to be compared."""
        shares = None if self.prevalence is None else sorted(self.prevalence.items())
        return [order.digest for order in self.hierarchy.orders], sorted(self.weights), self.unit, shares

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form, with a digest of all the rest."""
        lead = self.leading
        content = {
            **{name: getattr(self, name) for name in (*_PLAIN, *_VALUES)},
            "kappa_in_words": self.words,
            "meaning": self.meaning,
            "guarantee": "mean" if self.guarantee.confidence is None else self.guarantee.confidence,
            "delta": None if self.guarantee.confidence is None else self.guarantee.delta,
            "alpha": lead.alpha,
            "smallest_alpha": lead.smallest_alpha,
            "spread": lead.spread,
            "is_guarantee": not self.reservations,
            "classes": {"digest": self.hierarchy.digest, **hierarchy_to_json(self.hierarchy)},
            "calibration": {"digest": self.calibration, "breakpoints": self.breakpoints},
            "pams_version": __version__,
        }
        return sealed(_infinity_as_text(atomic.plain(content)), FORMAT, VERSION)

    @cached_property
    def digest(self) -> str:
        """32 hex digits of everything in it."""
        return str(self.to_json()["digest"])

    def write(self, path: Path | str) -> None:
        """Write certificate.json."""
        atomic.write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> Certificate:
        """Read a certificate, refusing what is not one, of another version, or changed since it was written."""
        if not Path(path).is_file():
            raise CertificateError(
                f"{path} cannot be used as a certificate: there is no such file. Expected the certificate.json of "
                "'pams certify'."
            )
        try:
            content = unsealed(json.loads(Path(path).read_text("utf-8")), FORMAT, VERSION)
        except (OSError, ValueError) as error:
            raise CertificateError(
                f"{path} cannot be used as a certificate: {error}. Make it again with 'pams certify'."
            ) from error
        with stored_format(path, CertificateError, "Make it again with 'pams certify'."):
            return cls(
                hierarchy=hierarchy_from_json(content["classes"]),
                kappa=float(content["kappa"]),
                bounds=tuple(map(_stored_bound, content["bounds"])),
                guarantee=Guarantee.of(content["guarantee"]),
                kappa_low=None if content["kappa_low"] is None else float(content["kappa_low"]),
                own_call=from_fields(Rates, content["own_call"]),
                certified_call=from_fields(Rates, content["certified_call"]),
                boundaries=tuple(from_fields(BoundaryLimit, of) for of in content["boundaries"]),
                exposure=Exposure.from_json(content["exposure"], f"The exposure in {path}"),
                calibration=content["calibration"]["digest"],
                # JSON has no ∞, which `float` reads
                breakpoints=np.array([list(map(float, row)) for row in content["calibration"]["breakpoints"]]),
                **{name: _tuples(content[name]) for name in _PLAIN},
            )

    def refuse_other_classes(self, hierarchy: ClassHierarchy, what: str) -> None:
        """Stop when something has other classes than those certified."""
        if hierarchy.digest != self.hierarchy.digest:
            raise CertificateError(
                f"The certificate is for the classes of {self.hierarchy.name!r} (digest {self.hierarchy.digest}), "
                f"{what} has those of {hierarchy.name!r} (digest {hierarchy.digest}). Names, groups and ranks must be "
                "the same."
            )

    def refuse_other_weights(self, weights: tuple[str, ...]) -> None:
        """Stop when it was made for other weights, or for none that are known."""
        if not self.weights:
            raise CertificateError(
                "The certificate was made from a predictions file, so it is not known for which weights it holds. "
                "Make one for this run: pams certify RUN --alpha ..."
            )
        if sorted(weights) != sorted(self.weights):
            raise CertificateError(
                f"The certificate holds for the weights {', '.join(self.weights)}, not for {', '.join(weights)}. "
                "Other weights make other mistakes; certify these on their own."
            )


def kappa_in_words(kappa: float, hierarchy: ClassHierarchy) -> str:
    """κ read aloud.

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> kappa_in_words(4.0, tree)
    'a missed urgency counts as much as 4 false alarms'
    >>> kappa_in_words(math.inf, tree)
    "every case is called 'malignant': no smaller κ meets the bound"
    """
    if math.isinf(kappa):
        return f"every case is called {hierarchy.names()[-1]!r}: no smaller κ meets the bound"
    if kappa == 0:
        return "the least urgent call meets the bound: so much missed urgency was allowed"
    if kappa < 1:
        return f"a missed urgency counts as little as {kappa:.3g} of a false alarm: below the model's own call"
    if kappa == 1:
        return "the model's own call"
    return f"a missed urgency counts as much as {kappa:.3g} false alarms"


_PLAIN = ("unit", "n", "slides", "review", "reservations", "notes", "weights", "prevalence", "created")
"""Fields that the file has as they are."""
_VALUES = ("kappa", "bounds", "kappa_low", "own_call", "certified_call", "boundaries", "exposure")


def _infinity_as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _infinity_as_text(of) for key, of in value.items()}
    if isinstance(value, list):
        return [_infinity_as_text(of) for of in value]
    return "inf" if value == math.inf else value


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _stored_bound(content: Mapping[str, Any]) -> Bound:
    spread = from_fields(Spread, content["spread"])
    return from_fields(Bound, {**content, "kappa": float(content["kappa"]), "spread": spread})


def percent(share: float | None) -> str:
    """A share for people.

    >>> percent(0.1234), percent(0.00321), percent(None), percent(float("nan"))
    ('12.3 %', '0.321 %', '–', '–')
    """
    return "–" if share is None or math.isnan(share) else f"{100 * share:.3g} %"


def _as_strict(mine: Bound, other: Bound) -> bool:
    same = (mine.rank, mine.findings, mine.order) == (other.rank, other.findings, other.order)
    return same and mine.alpha <= other.alpha
