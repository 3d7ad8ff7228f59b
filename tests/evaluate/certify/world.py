"""A world of patients whose every miss is known, and what calibrations on a few of them lead to.

Patients have 1 to 5 slides; slides resemble their patient, and difficult patients have fewer of them, so that slides
are no substitute for patients. Drawn with replacement, patients are independent and the world is their distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from tests.evaluate.certify.models import FLAT

from pams_mil.evaluate.certify.bounds import smallest_kappa
from pams_mil.evaluate.certify.miss_losses import SlideReach, rank_reach
from pams_mil.metrics.kappa_path import decision_path

CALIBRATIONS = 2000
SIZES = (19, 50, 200)


@dataclass(frozen=True)
class World:
    """All patients there are: where their slides are, and where those reach each rank."""

    slides: SlideReach
    probabilities: np.ndarray
    start: np.ndarray
    lengths: np.ndarray

    def draw(self, rng, n):
        """n patients drawn with replacement: rows of the world, and whose each row is."""
        chosen = rng.integers(0, len(self.start), n)
        lengths = self.lengths[chosen]
        whose = np.repeat(np.arange(n), lengths)
        rows = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + self.start[chosen][whose]
        return rows, whose

    def risk(self, unit, boundary=None):
        return self.slides.miss_losses(unit, boundary)

    def take(self, rows, whose):
        """Drawn rows as slides of patients numbered from 0."""
        return SlideReach(self.slides.reach[rows], self.slides.rank[rows], whose)


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
    return World(SlideReach(rank_reach(decision_path(p, FLAT)), target, patient), p, np.cumsum(slides) - slides, slides)


def alpha_for(guarantee):
    """A share that 19 patients can certify."""
    return 0.1 if guarantee.confidence is None else 0.2


def realized(n, alpha, guarantee, unit, *, boundary=None, as_patients=False, calibrations=CALIBRATIONS):
    """The true miss rate of every calibrated system; those that could not be calibrated have no bound."""
    one = world()
    risk, rng = one.risk(unit, boundary), np.random.default_rng(n)
    rates = []
    for _ in range(calibrations):
        rows, whose = one.draw(rng, n)
        curve = one.take(rows, np.arange(len(rows)) if as_patients else whose).miss_losses(unit, boundary)
        kappa = smallest_kappa(curve, alpha, guarantee)
        if kappa is not None:
            rates.append(risk.mean(kappa))
    assert len(rates) > 0.8 * calibrations
    return np.asarray(rates)
