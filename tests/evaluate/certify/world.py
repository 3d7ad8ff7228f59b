"""A world of patients whose every miss is known, and what calibrations on a few of them lead to.

Patients have 1 to 5 slides; slides resemble their patient, and difficult patients have fewer of them, so that slides
are no substitute for patients. Drawn with replacement, patients are independent and the world is their distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from tests.evaluate.certify.models import FLAT

from pams_mil.evaluate.certify.calls import Dial, rank_reach
from pams_mil.evaluate.certify.miss_losses import miss_losses
from pams_mil.evaluate.certify.promise import smallest_kappa
from pams_mil.metrics.kappa_path import decision_path

CALIBRATIONS = 2000
SIZES = (19, 50, 200)


@dataclass(frozen=True)
class World:
    """All patients there are: where their slides are, and the slides on the dial."""

    dial: Dial
    probabilities: np.ndarray
    start: np.ndarray
    slides: np.ndarray

    def draw(self, rng, n):
        """n patients drawn with replacement: rows of the world, and whose each row is."""
        chosen = rng.integers(0, len(self.start), n)
        lengths = self.slides[chosen]
        whose = np.repeat(np.arange(n), lengths)
        rows = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + self.start[chosen][whose]
        return rows, whose

    def risk(self, unit, boundary=None):
        return miss_losses(
            self.dial.reach, self.dial.rank, self.dial.patient, unit=unit, boundary=boundary, most_slides=5
        )


@cache
def world(seed=0, patients=20_000, noise=1.0):
    people = np.random.default_rng(1)  # the same patients for every model of them
    hard = people.random(patients)
    slides = np.clip(np.ceil(5 * (1 - hard) + people.normal(0, 0.5, patients)), 1, 5).astype(int)
    patient = np.repeat(np.arange(patients), slides)
    top = people.integers(0, 3, patients)
    target = np.where(people.random(len(patient)) < 0.7, top[patient], np.minimum(top[patient], 1))
    rng = np.random.default_rng(seed)
    own = rng.normal(0, 1, (patients, 3))[patient] + rng.normal(0, 0.5, (len(patient), 3))
    logits = -2.5 * (1 - hard[patient, None]) * np.abs(np.arange(3) - target[:, None]) + noise * own
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    dial = Dial(rank_reach(decision_path(p, FLAT)), target, patient)
    return World(dial, p, np.cumsum(slides) - slides, slides)


def alpha_for(guarantee, unit, n):
    """A share that so many patients can certify; few patients with several slides each certify little about slides."""
    if guarantee.confidence is None:
        return 0.2 if unit == "rate" and n == 19 else 0.1
    return {19: 0.6, 50: 0.4}.get(n, 0.2) if unit == "rate" else 0.2


def realized(n, alpha, guarantee, unit, *, boundary=None, as_patients=False, calibrations=CALIBRATIONS):
    """The true miss rate of every calibrated system; those that could not be calibrated promise nothing."""
    one = world()
    risk, rng = one.risk(unit, boundary), np.random.default_rng(n)
    found = []
    for _ in range(calibrations):
        rows, whose = one.draw(rng, n)
        whose = np.arange(len(rows)) if as_patients else whose
        reach, rank = one.dial.reach[rows], one.dial.rank[rows]
        curve = miss_losses(reach, rank, whose, unit=unit, boundary=boundary, most_slides=5)
        kappa = smallest_kappa(curve, alpha, guarantee)
        if kappa is not None:
            found.append(risk.mean(kappa))
    assert len(found) > 0.8 * calibrations
    return np.asarray(found)
