"""Probability calibration: a temperature, and how much of two known corrections is due, fitted on validation slides.

    ln q_y = (ln p_y + σ c_y(p) − τ ln g_y) / T + const

c(p) is what undoes MSCE and g the class drift of the remix (`pams_mil.evaluate.decisions.debias`), each for runs that
have it and with a strength from 0 (leave the network's probabilities alone) to 1 (believe the theory). T is the
temperature.

There is no offset per class or per rank: it would also learn how common the classes are among these slides, and deny
urgency elsewhere; on the cohort of docs/calibration.md it never scored better than temperature and strengths alone.

With 1/T, σ/T and τ/T as unknowns the negative log-likelihood is convex. To keep every answer finite, also when all
slides are right, one further slide's worth of evidence says what the network says: T = 1, no strength.

`refined_nll` is the score after such a fit: how much probabilities know, whatever their operating point and however
sure of themselves they are.

    refined NLL = min over 1/T >= 0 and β of  mean_i −ln q_i,t_i,     ln q_iy = ln p_iy / T + β · rank(y) + const

A model that merely leans toward urgency, or away from it, is forgiven by β, and one that is too sure by T; what is left
is what it cannot tell apart. So an epoch that is chosen by it cannot win by moving the operating point.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax, softmax

from pams_mil import seeding
from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError
from pams_mil.evaluate.decisions.debias import TrainingBias, logarithm
from pams_mil.evaluate.decisions.softmax_fit import fit_softmax
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import Labels
from pams_mil.metrics.probability import Scores, check_probabilities, labels_and_probabilities

FEWEST_SLIDES = 10
"""With fewer, nothing is fitted."""
PRIOR_SLIDES = 1.0
"""How many slides' worth of evidence says what the network says; it keeps fits finite when every slide is right."""
HOTTEST = 100.0
"""A temperature above this says that the probabilities are no help."""


@dataclass(frozen=True, eq=False)
class ProbabilityCalibration:
    """The fitted numbers of one level; call it with probabilities [n, c] to get calibrated ones.

    Attributes:
        classes: c.
        temperature: T; above 1 the network was too sure, below 1 not sure enough.
        strengths: "msce" (σ) and "remix" (τ), as far as the run has them.
        bias: What is known about training at this level.

    >>> sharp = ProbabilityCalibration(2, temperature=0.5)
    >>> sharp([[0.25, 0.75]]).round(6).tolist()  # odds squared: 1 to 9
    [[0.1, 0.9]]
    """

    classes: int
    temperature: float
    strengths: Mapping[str, float] = field(default_factory=dict)
    bias: TrainingBias = field(default_factory=TrainingBias)

    def __call__(self, probabilities: npt.ArrayLike) -> Array:
        """Calibrated probabilities, [n, c] -> [n, c]."""
        p = check_probabilities(probabilities, self.classes)
        corrections = self.bias.corrections(p) if self.strengths else {}
        logits = logarithm(p) + sum(strength * corrections[name] for name, strength in self.strengths.items())
        calibrated: Array = softmax(logits / self.temperature, axis=1)
        return calibrated

    def describe(self) -> str:
        """The fitted numbers in one line."""
        symbols = {"msce": "σ", "remix": "τ"}
        strengths = [f"{symbols[name]} = {strength:.2f} ({name})" for name, strength in self.strengths.items()]
        return "; ".join([f"T = {self.temperature:.3g}", *strengths])

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ProbabilityCalibration:
        """What a file has of it."""
        return cls(
            classes=int(content["classes"]),
            temperature=float(content["temperature"]),
            strengths={str(name): float(value) for name, value in content["strengths"].items()},
            bias=TrainingBias.from_json(content["bias"]),
        )


def fit_probability_calibration(
    probabilities: npt.ArrayLike,
    targets: npt.ArrayLike,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    bias: TrainingBias | None = None,
    prior_slides: float = PRIOR_SLIDES,
) -> ProbabilityCalibration:
    """Fit temperature and strengths on validation slides.

    Args:
        probabilities: What the network says, [n, c].
        targets: True classes of that level, [n].
        hierarchy: The classes.
        level: The level that the probabilities are of.
        bias: What is known about training.
        prior_slides: How many slides' worth of evidence says that the network is right; 0 for maximum likelihood.
    """
    p, true = check_probabilities(probabilities, hierarchy.num_classes(level)), np.asarray(targets, dtype=np.int64)
    _check_slides(p, true, hierarchy.names(level))
    return _fit(p, true, bias or TrainingBias(), prior_slides)


def cross_calibrated(
    probabilities: npt.ArrayLike,
    targets: npt.ArrayLike,
    patients: npt.ArrayLike,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    bias: TrainingBias | None = None,
    folds: int = 5,
) -> Array | None:
    """Every slide calibrated by the slides of other patients, [n, c]: what scores of a fit may be computed from.

    The slides of a patient (`patients` [n] numbers them) stay together when patients are dealt into `folds`. The rest
    is as in `fit_probability_calibration`. None when the patients are too few for this.
    """
    p, true = check_probabilities(probabilities, hierarchy.num_classes(level)), np.asarray(targets, dtype=np.int64)
    patient = np.unique(np.asarray(patients), return_inverse=True)[1]
    count = int(patient.max()) + 1
    # A shuffled deal, always the same: folds differ by one patient at most.
    dealt = seeding.numpy_generator(0, "calibration").permutation(count) % min(folds, count)
    fold, calibrated = dealt[patient], np.empty_like(p)
    for number in range(min(folds, count)):
        held = fold == number
        if held.all() or len(np.unique(true[~held])) < 2:
            return None
        try:
            fitted = _fit(p[~held], true[~held], bias or TrainingBias(), PRIOR_SLIDES)
        except ParameterError:
            return None
        calibrated[held] = fitted(p[held])
    return calibrated


def _fit(p: Array, true: Ints, bias: TrainingBias, prior_slides: float) -> ProbabilityCalibration:
    """Minimize over 1/T and the strengths in [0, 1].

    A strength is free (None), 0 or 1. The problem is convex and its bounds are few, so the best of the fits whose free
    strengths lie within bounds is the minimum: at most 3² small fits, the square of two strengths, its sides and its
    corners.
    """
    truth = _with_prior(p, true, prior_slides)
    logits, corrections = logarithm(p), bias.corrections(p)
    best_value, best = np.inf, (0.0, dict[str, float]())
    choices: tuple[float | None, ...] = (None, 0.0, 1.0)
    for states in itertools.product(choices, repeat=len(corrections)):
        state = dict(zip(corrections, states, strict=True))
        free = [name for name, strength in state.items() if strength is None]
        base = logits + sum(corrections[name] for name, strength in state.items() if strength == 1.0)
        # θ = (1/T, σ/T of the free strengths): linear in the features, hence convex.
        features = np.stack([base, *(corrections[name] for name in free)], axis=2)
        fitted = fit_softmax(features, truth, np.eye(features.shape[2])[0])
        inverse = float(fitted.theta[0])
        # 1/T of 0 or less has no temperature: probabilities would be flat, or turned upside down.
        if inverse > 0 and fitted.value < best_value:
            ratios = dict(zip(free, (fitted.theta[1:] / inverse).tolist(), strict=True))
            strengths = {name: ratios.get(name, strength or 0.0) for name, strength in state.items()}
            if all(0 <= strength <= 1 for strength in strengths.values()):
                best_value, best = fitted.value, (inverse, strengths)
    inverse, strengths = best
    if inverse < 1 / HOTTEST:
        raise ParameterError(
            "The probabilities say nothing about these slides: the best temperature is above "
            f"{HOTTEST:g} or has no finite value, so there is nothing to calibrate. Is the model trained, and are "
            "these the slides and labels it was meant for?"
        )
    return ProbabilityCalibration(p.shape[1], 1.0 / inverse, strengths, bias if strengths else TrainingBias())


def _with_prior(p: Array, true: Ints, prior_slides: float) -> Array:
    """One-hot labels plus the further slide, dealt out over all rows: a little evidence for a class drawn from p."""
    evidence: Array = np.eye(p.shape[1])[true] + prior_slides / len(p) * p
    return evidence


def _check_slides(p: Array, true: Ints, names: tuple[str, ...]) -> None:
    if true.shape != p.shape[:1]:
        raise ParameterError(f"Expected one target per row of probabilities, found {true.shape} and {p.shape}.")
    if len(true) < FEWEST_SLIDES:
        raise ParameterError(
            f"{len(true)} slides are too few to calibrate probabilities on; expected at least {FEWEST_SLIDES}. "
            "Use the probabilities as they are, or give the validation split more slides."
        )
    if true.min() < 0 or true.max() >= len(names):
        raise ParameterError(f"targets must be from 0 to {len(names) - 1}, found {true.min()} to {true.max()}.")
    if len(np.unique(true)) < 2:
        raise ParameterError(
            f"All {len(true)} slides are {names[int(true[0])]!r}; probability calibration needs at least two classes "
            "to compare."
        )


def refined_nll(
    y_true: Labels,
    probabilities: Scores,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    prior_slides: float = PRIOR_SLIDES,
) -> float:
    """The negative log-likelihood after the best temperature and lean toward urgency; lower is better.

    Args:
        y_true: Class names or indices of `level`.
        probabilities: [n, c] of the classes at `level`.
        hierarchy: Order and ties of the classes.
        level: The level that labels and probabilities are of.
        prior_slides: How many slides' worth of evidence is added for what the network says, in the fit alone.

    >>> hierarchy = ClassHierarchy.flat(["benign", "malignant"])
    >>> timid = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.9, 0.1]]
    >>> round(refined_nll([0, 1, 1, 0], timid, hierarchy), 3) < 0.3  # the order is right, though nothing is called
    True
    >>> round(refined_nll([0, 1, 1, 0], [[0.5, 0.5]] * 4, hierarchy), 4)  # ln 2
    0.6931
    """
    true, p = labels_and_probabilities(y_true, probabilities, hierarchy, level)
    logits = logarithm(p)
    rank = hierarchy.ranks(level).astype(np.float64)
    # coefficients 1/T and β
    features = np.stack([logits, np.broadcast_to(rank, p.shape)], axis=2)
    truth = _with_prior(p, true, prior_slides)
    try:
        coefficients = fit_softmax(features, truth, np.array([1.0, 0.0])).theta
    except ParameterError:  # all slides are right beyond doubt: there is no best T, and the network's own will do
        coefficients = np.array([1.0, 0.0])
    if coefficients[0] < 0:  # worse than knowing nothing: the best temperature that is one is infinite
        coefficients = np.concatenate([[0.0], fit_softmax(features[:, :, 1:], truth, np.zeros(1)).theta])
    # The further slide took part in the fit alone; what is scored are the slides.
    q = log_softmax(features @ coefficients, axis=1)
    return float(-q[np.arange(len(true)), true].mean())
