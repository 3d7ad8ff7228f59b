"""A certificate: what is promised, about which patients, by which weights, and what it was calibrated on.

The file is JSON with a digest of its own content, so that a changed certificate is refused instead of applied.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil import __version__, atomic
from pams_mil.arrays import Array
from pams_mil.digests import digest
from pams_mil.errors import CertificateError, HierarchyError
from pams_mil.evaluate.certify.miss_losses import Unit
from pams_mil.evaluate.certify.promise import Guarantee, Promise
from pams_mil.evaluate.certify.spread import Spread
from pams_mil.hierarchy import ClassHierarchy, hierarchy_from_json, hierarchy_to_json

FORMAT, VERSION = "pams-certificate", 1
NOT_A_GUARANTEE = "not a guarantee"
MEANING: dict[Unit, str] = {
    "case": "a new patient, called as the most urgently called of its slides, is called below its most urgent label",
    "slide": "a random slide of a new patient is called below its label",
    "rate": "missed slides among all slides of new patients with at most {most} slides each",
}


@dataclass(frozen=True)
class Rates:
    """Shares of the calibration patients (slides, under `rate`) at one κ."""

    missed: float
    false_alarms: float


@dataclass(frozen=True)
class Scarcity:
    """What a boundary's patients allow: how many there are, and the smallest α that they can certify."""

    name: str
    n: int
    smallest_alpha: float


@dataclass(frozen=True)
class Certificate:
    """What `pams certify` found.

    Attributes:
        hierarchy: The classes.
        kappa: The certified κ, the largest that any promise needs.
        promises: What it keeps.
        guarantee: On average, or with a confidence.
        unit: The estimand: case, slide or rate.
        kappa_low: The κ just below which the lower end of the interval is called; None: there is none.
        n: Calibration patients.
        slides: Their slides.
        most_slides: The most slides of a patient that the unit `rate` covers.
        own, certified: Rates of the model's own call (κ = 1) and of the certified one.
        review: Share of cases (slides) whose interval holds more than one rank; None without an interval.
        scarcity: Every boundary, certified or not.
        reservations: Why it is not a guarantee; empty when it is one.
        notes: What else the reader must know.
        weights: Digests of the weights it holds for; empty when it was made from a predictions file.
        calibration: Digest of the calibration slides, patients and labels.
        prevalence: Shares of the classes that the promise for all patients was re-weighted to.
        breakpoints: [p, R - 1] where calibration cases reach each rank, to compare later ones with.
        made: When.
    """

    hierarchy: ClassHierarchy
    kappa: float
    promises: tuple[Promise, ...]
    guarantee: Guarantee
    unit: Unit
    kappa_low: float | None
    n: int
    slides: int
    most_slides: int | None
    own: Rates
    certified: Rates
    review: float | None
    scarcity: tuple[Scarcity, ...]
    reservations: tuple[str, ...]
    notes: tuple[str, ...]
    weights: tuple[str, ...]
    calibration: str
    prevalence: Mapping[str, float] | None
    breakpoints: Array
    made: str

    @property
    def meaning(self) -> str:
        """The estimand in words."""
        return MEANING[self.unit].format(most=self.most_slides)

    @property
    def leading(self) -> Promise:
        """The promise for all patients where there is one, else the one that needs the largest κ."""
        return next((p for p in self.promises if p.name is None), max(self.promises, key=lambda p: p.kappa))

    @property
    def words(self) -> str:
        """κ for people."""
        return kappa_in_words(self.kappa, self.hierarchy)

    @property
    def sentences(self) -> list[str]:
        """Everything that is promised, one sentence each, and what it costs."""
        found = [f"Called with κ = {self.kappa:.4g}: {self.words}."]
        found += [promise.sentence(self.guarantee.words, self.unit, self.kappa) for promise in self.promises]
        own, new = self.own, self.certified
        price = (
            f"On the calibration patients the model's own call misses {100 * own.missed:.3g} % with "
            f"{100 * own.false_alarms:.3g} % false alarms, the certified one {100 * new.missed:.3g} % with "
            f"{100 * new.false_alarms:.3g} %"
        )
        if self.review is not None:
            price += f"; for {100 * self.review:.3g} % more than one rank remains"
        return [*found, f"{price}."]

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form, with a digest of all the rest."""
        lead = self.leading
        content = {
            "format": FORMAT,
            "version": VERSION,
            "kappa": _number(self.kappa),
            "kappa_in_words": self.words,
            "estimand": self.unit,
            "meaning": self.meaning,
            "guarantee": "mean" if self.guarantee.confidence is None else self.guarantee.confidence,
            "delta": None if self.guarantee.confidence is None else self.guarantee.delta,
            "alpha": lead.alpha,
            "n": self.n,
            "slides": self.slides,
            "most_slides": self.most_slides,
            "smallest_alpha": lead.smallest_alpha,
            "spread": lead.spread.to_json(),
            "promises": [_promise_json(promise) for promise in self.promises],
            "kappa_low": None if self.kappa_low is None else _number(self.kappa_low),
            "own_call": asdict(self.own),
            "certified_call": asdict(self.certified),
            "review": self.review,
            "boundaries": [asdict(boundary) for boundary in self.scarcity],
            "is_guarantee": not self.reservations,
            "reservations": list(self.reservations),
            "notes": list(self.notes),
            "weights": list(self.weights),
            "classes": {"digest": self.hierarchy.digest, **hierarchy_to_json(self.hierarchy)},
            "calibration": {
                "digest": self.calibration,
                "breakpoints": [[_number(value) for value in row] for row in self.breakpoints.tolist()],
            },
            "prevalence": None if self.prevalence is None else dict(self.prevalence),
            "made": self.made,
            "pams_version": __version__,
        }
        return {**content, "digest": content_digest(content)}

    @cached_property
    def digest(self) -> str:
        """32 hex digits of everything in it."""
        return str(self.to_json()["digest"])

    def write(self, path: Path | str) -> None:
        """Write certificate.json."""
        atomic.write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> Certificate:
        """Read a certificate, refusing what is no certificate, of a later version, or changed since it was written."""
        try:
            content = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise CertificateError(
                f"{path} is not a readable certificate: {error}. 'pams certify' makes one."
            ) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CertificateError(f"{path} is not a certificate; expected the certificate.json of 'pams certify'.")
        if content.get("version") != VERSION:
            raise CertificateError(
                f"{path} has version {content.get('version')!r}; this PAMS reads {VERSION}. Install a newer pams-mil."
            )
        digest = content.pop("digest", None)
        if digest != content_digest(content):
            raise CertificateError(
                f"{path} was changed after it was written: its content does not match its digest. A certificate holds "
                "only as it was made; make it again with 'pams certify'."
            )
        try:
            return _from_json(content)
        except (KeyError, TypeError, ValueError, HierarchyError) as error:
            raise CertificateError(f"{path} does not hold what a certificate holds: {error!r}.") from error

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
    "every case is called 'malignant': no smaller dial keeps the promise"
    """
    if math.isinf(kappa):
        return f"every case is called {hierarchy.names()[-1]!r}: no smaller dial keeps the promise"
    if kappa == 0:
        return "the least urgent call keeps the promise: so much missed urgency was allowed"
    if kappa < 1:
        return f"a missed urgency counts as little as {kappa:.3g} of a false alarm: below the model's own call"
    if kappa == 1:
        return "the model's own call"
    return f"a missed urgency counts as much as {kappa:.3g} false alarms"


def content_digest(content: Mapping[str, Any]) -> str:
    """32 hex digits over canonical JSON."""
    # Written and read once, so that it is taken over what a reader of the file will find.
    return digest(json.loads(atomic.strict_json(content)))


def _number(value: float) -> float | str:
    """JSON has no ∞; `float` reads "inf"."""
    return "inf" if math.isinf(value) else value


def _promise_json(promise: Promise) -> dict[str, Any]:
    return {
        "at": promise.name, "rank": promise.rank, "alpha": promise.alpha, "kappa": _number(promise.kappa),
        "n": promise.n, "mass": promise.mass, "smallest_alpha": promise.smallest_alpha,
        "observed": promise.observed, "spread": promise.spread.to_json(),
    }  # fmt: skip


def _from_json(content: Mapping[str, Any]) -> Certificate:
    def promise(of: Mapping[str, Any]) -> Promise:
        spread = of["spread"]
        return Promise(
            of["at"], of["rank"], of["alpha"], float(of["kappa"]), of["n"], of["mass"], of["smallest_alpha"],
            of["observed"], Spread(spread["p5"], spread["p95"], spread["mean"], spread["how"]),
        )  # fmt: skip

    hierarchy = hierarchy_from_json(content["classes"])
    rows = [[float(value) for value in row] for row in content["calibration"]["breakpoints"]]
    return Certificate(
        hierarchy=hierarchy,
        kappa=float(content["kappa"]),
        promises=tuple(promise(of) for of in content["promises"]),
        guarantee=Guarantee.of(content["guarantee"]),
        unit=content["estimand"],
        kappa_low=None if content["kappa_low"] is None else float(content["kappa_low"]),
        n=content["n"],
        slides=content["slides"],
        most_slides=content["most_slides"],
        own=Rates(**content["own_call"]),
        certified=Rates(**content["certified_call"]),
        review=content["review"],
        scarcity=tuple(Scarcity(**of) for of in content["boundaries"]),
        reservations=tuple(content["reservations"]),
        notes=tuple(content["notes"]),
        weights=tuple(content["weights"]),
        calibration=content["calibration"]["digest"],
        prevalence=content["prevalence"],
        breakpoints=np.asarray(rows, dtype=np.float64).reshape(len(rows), -1),
        made=content["made"],
    )
