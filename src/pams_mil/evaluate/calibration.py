"""Probabilities that mean what they say, by a few numbers fitted on validation slides.

    ln q_y = (ln p_y + σ c_y(p) − τ ln g_y) / T + b_y + const

c(p) is what undoes MSCE and g the class drift of the remix (`pams_mil.evaluate.debias`), each for runs that have it and
with a strength from 0 (leave the network's probabilities alone) to 1 (believe the theory). T is the temperature. The
offset b has one of three forms, each allowed from so many validation slides on:

| form | offset b | needs |
|---|---|---|
| temperature | none | 10 slides of two classes |
| slope | β · rank: one number for the lean toward urgency | 40 slides, 5 in every class |
| bias | one number per class; it contains the drift | 20 slides in every class |

An offset also learns how common the classes are among these slides. From slides of few patients or without the urgent
classes it would learn to deny urgency, so it needs slides of every class, and must do better on other patients.

With 1/T, σ/T, τ/T and b as unknowns the negative log-likelihood is convex. To keep every answer finite, also when all
slides are right, one further slide's worth of evidence says what the network says: T = 1, no strength, no offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from pams_mil import seeding
from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError, listing
from pams_mil.evaluate import softmax_fit
from pams_mil.evaluate.debias import TrainingBias, logarithm
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.probability import check_probabilities

Form = Literal["temperature", "slope", "bias"]
FORMS: tuple[Form, ...] = get_args(Form)

FEWEST_SLIDES = 10
"""With fewer, nothing is fitted."""
SLIDES_FOR_SLOPE, PER_CLASS_FOR_SLOPE, PER_CLASS_FOR_BIAS = 40, 5, 20
PRIOR_SLIDES = 1.0
"""How many slides' worth of evidence says that the network is right as it is."""
HOTTEST = 100.0
"""A temperature above this says that the probabilities are no help."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Fitted numbers of one level; call it with probabilities [n, c] to get calibrated ones.

    Attributes:
        form: Which offset was fitted.
        temperature: T; above 1 the network was too sure, below 1 not sure enough.
        strengths: "msce" (σ) and "remix" (τ), as far as the run has them.
        offset: b, [c], zero for the first class.
        bias: What is known about training at this level.

    >>> sharp = Calibration("temperature", 0.5, offset=np.zeros(2))
    >>> sharp([[0.25, 0.75]]).round(6).tolist()  # odds squared: 1 to 9
    [[0.1, 0.9]]
    """

    form: Form
    temperature: float
    offset: Array
    strengths: Mapping[str, float] = field(default_factory=dict)
    bias: TrainingBias = field(default_factory=TrainingBias)

    def __call__(self, probabilities: npt.ArrayLike) -> Array:
        """Calibrated probabilities, [n, c] -> [n, c]."""
        p = check_probabilities(probabilities, len(self.offset))
        parts = self.bias.corrections(p) if self.strengths else {}
        logits = logarithm(p) + sum(strength * parts[name] for name, strength in self.strengths.items())
        calibrated: Array = softmax(logits / self.temperature + self.offset, axis=1)
        return calibrated

    def describe(self) -> str:
        """The fitted numbers in one line."""
        said = [f"T = {self.temperature:.3g}"]
        symbols = {"msce": "σ", "remix": "τ"}
        said += [f"{symbols[name]} = {strength:.2f} ({name})" for name, strength in self.strengths.items()]
        if self.form != "temperature":
            said.append("b = " + ", ".join(f"{value:+.2f}" for value in self.offset))
        return "; ".join(said)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "form": self.form,
            "temperature": self.temperature,
            "offset": self.offset.tolist(),
            "strengths": dict(self.strengths),
            "bias": self.bias.to_json(),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Calibration:
        """What `to_json` was given."""
        return cls(
            form=content["form"],
            temperature=float(content["temperature"]),
            offset=np.asarray(content["offset"], dtype=np.float64),
            strengths={str(name): float(value) for name, value in content["strengths"].items()},
            bias=TrainingBias.from_json(content["bias"]),
        )


def choose_form(targets: npt.ArrayLike, num_classes: int) -> Form:
    """The richest form that so many slides can carry.

    >>> choose_form([0] * 20 + [1] * 20, 2), choose_form([0] * 60 + [1] * 19, 2), choose_form([0] * 60 + [1] * 4, 2)
    ('bias', 'slope', 'temperature')
    """
    per_class = np.bincount(np.asarray(targets, dtype=np.int64), minlength=num_classes)
    if per_class.min() >= PER_CLASS_FOR_BIAS:
        return "bias"
    enough = per_class.sum() >= SLIDES_FOR_SLOPE and per_class.min() >= PER_CLASS_FOR_SLOPE
    return "slope" if enough else "temperature"


def prove_form(
    probabilities: npt.ArrayLike,
    targets: npt.ArrayLike,
    patients: npt.ArrayLike,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    bias: TrainingBias | None = None,
) -> Form:
    """The richest allowed form that, on patients its fit did not see, is better than every simpler one.

    Everything that is given means what it means to `cross_calibrated`, which judges the forms.
    """
    true = np.asarray(targets, dtype=np.int64)
    best, least = FORMS[0], np.inf
    # From simple to rich, and only a strictly better score goes on: ties stay simple.
    for form in FORMS[: FORMS.index(choose_form(true, hierarchy.num_classes(level))) + 1]:
        q = cross_calibrated(probabilities, true, patients, hierarchy, level, form=form, bias=bias)
        value = np.inf if q is None else float(-logarithm(q[np.arange(len(true)), true]).mean())
        if value < least:
            best, least = form, value
    return best


def fit_calibration(
    probabilities: npt.ArrayLike,
    targets: npt.ArrayLike,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    form: Form | None = None,
    bias: TrainingBias | None = None,
    prior_slides: float = PRIOR_SLIDES,
) -> Calibration:
    """Fit temperature, strengths and offset on validation slides.

    Args:
        probabilities: What the network says, [n, c].
        targets: True classes of that level, [n].
        hierarchy: Order of the classes.
        level: The level that the probabilities are of.
        form: Which offset; None: as many numbers as the slides can carry, see `choose_form`.
        bias: What is known about training.
        prior_slides: How many slides' worth of evidence says that the network is right; 0 for maximum likelihood.
    """
    classes = hierarchy.num_classes(level)
    p, true = check_probabilities(probabilities, classes), np.asarray(targets, dtype=np.int64)
    _check_slides(p, true, hierarchy.names(level), form)
    chosen = form or choose_form(true, classes)
    directions = _directions(chosen, hierarchy, level)
    return _fit(p, true, chosen, directions, bias or TrainingBias(), prior_slides)


def cross_calibrated(
    probabilities: npt.ArrayLike,
    targets: npt.ArrayLike,
    patients: npt.ArrayLike,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    form: Form,
    bias: TrainingBias | None = None,
    folds: int = 5,
) -> Array | None:
    """Every slide calibrated by the slides of other patients, [n, c]: what scores of a fit may be computed from.

    The slides of a patient (`patients` [n] numbers them) stay together when patients are dealt into `folds` parts. The
    rest is as in `fit_calibration`. None when the patients are too few for this.
    """
    p, true = check_probabilities(probabilities, hierarchy.num_classes(level)), np.asarray(targets, dtype=np.int64)
    patient = np.unique(np.asarray(patients), return_inverse=True)[1]
    count = int(patient.max()) + 1
    # A shuffled deal, always the same: parts differ by one patient at most.
    dealt = seeding.numpy_generator(0, "calibration").permutation(count) % min(folds, count)
    fold, found, directions = dealt[patient], np.empty_like(p), _directions(form, hierarchy, level)
    for number in range(min(folds, count)):
        held = fold == number
        if held.all() or len(np.unique(true[~held])) < 2:
            return None
        try:
            part = _fit(p[~held], true[~held], form, directions, bias or TrainingBias(), PRIOR_SLIDES)
        except ParameterError:
            return None
        found[held] = part(p[held])
    return found


def _fit(p: Array, true: Ints, form: Form, directions: Array, bias: TrainingBias, prior_slides: float) -> Calibration:
    parts = bias.corrections(p)
    if form == "bias":
        parts.pop("remix", None)  # a constant per class, as the offset is
    # The further slide is dealt out over all rows: on each, a little evidence that its class is drawn from p.
    truth = np.eye(p.shape[1])[true] + prior_slides / len(p) * p
    theta, strengths = _Problem(logarithm(p), parts, directions, truth).solve()
    return Calibration(
        form=form,
        temperature=float(1.0 / theta[0]),
        offset=directions @ theta[1:],
        strengths=strengths,
        bias=bias if strengths else TrainingBias(),
    )


@dataclass(frozen=True, eq=False)
class _Problem:
    """Minimize over 1/T, the strengths in [0, 1] and the offset.

    A strength is free (None), 0 or 1. The problem is convex and its bounds are few, so the best of the fits whose free
    strengths lie within bounds is the minimum.
    """

    logits: Array
    corrections: Mapping[str, Array]
    directions: Array
    truth: Array

    def solve(self) -> tuple[Array, dict[str, float]]:
        """1/T with the offset's coefficients, and the strengths."""
        best: tuple[float, Array, dict[str, float]] | None = None
        choices: tuple[float | None, ...] = (None, 0.0, 1.0)
        # At most 3² small fits: the square of two strengths, its sides and its corners.
        for states in itertools.product(choices, repeat=len(self.corrections)):
            value, theta, strengths = self._fit(dict(zip(self.corrections, states, strict=True)))
            # 1/T of 0 or less has no temperature: probabilities would be flat, or turned upside down.
            if theta[0] > 0 and all(0 <= strength <= 1 for strength in strengths.values()):
                best = min(best or (np.inf, theta, strengths), (value, theta, strengths), key=lambda found: found[0])
        if best is None or best[1][0] < 1 / HOTTEST:
            raise ParameterError(
                "The probabilities say nothing about these slides: the best temperature is above "
                f"{HOTTEST:g} or has no finite value, so there is nothing to calibrate. Is the model trained, and are "
                "these the slides and labels it was meant for?"
            )
        return best[1], best[2]

    def _fit(self, states: Mapping[str, float | None]) -> tuple[float, Array, dict[str, float]]:
        free = [name for name, state in states.items() if state is None]
        base = self.logits + sum(self.corrections[name] for name, state in states.items() if state == 1.0)
        n, classes = base.shape
        offset = np.broadcast_to(self.directions, (n, classes, self.directions.shape[1]))
        # θ = (1/T, σ/T of the free strengths, b): linear in the features, hence convex.
        columns = [base, *(self.corrections[name] for name in free)]
        features = np.concatenate([np.stack(columns, axis=2), offset], axis=2)
        start = np.zeros(features.shape[2])
        start[0] = 1.0
        found = softmax_fit.fit(features, self.truth, start)
        inverse, free_part, rest = found.theta[0], found.theta[1 : len(columns)], found.theta[len(columns) :]
        strengths = {name: float(state) for name, state in states.items() if state is not None}
        # 1/T may be 0 here; strengths are then no numbers and the fit is passed over by `solve`.
        with np.errstate(divide="ignore", invalid="ignore"):
            strengths |= dict(zip(free, (free_part / inverse).tolist(), strict=True))
        return found.value, np.concatenate([[inverse], rest]), {name: strengths[name] for name in states}


def _directions(form: Form, hierarchy: ClassHierarchy, level: int) -> Array:
    """What the offset is made of, [c, k]: nothing, the rank, or every class but the first."""
    classes = hierarchy.num_classes(level)
    if form == "temperature":
        return np.zeros((classes, 0))
    if form == "slope":
        return np.unique(hierarchy.ranks(level), return_inverse=True)[1].astype(np.float64)[:, None]
    return np.eye(classes)[:, 1:]


def _check_slides(p: Array, true: Ints, names: tuple[str, ...], form: Form | None) -> None:
    if form is not None and form not in FORMS:
        raise ParameterError(f"form must be one of {listing(FORMS)}, found {form!r}.")
    if true.shape != p.shape[:1]:
        raise ParameterError(f"Expected one target per row of probabilities, found {true.shape} and {p.shape}.")
    if len(true) < FEWEST_SLIDES:
        raise ParameterError(
            f"{len(true)} slides are too few to calibrate on; expected at least {FEWEST_SLIDES}. "
            "Use the probabilities as they are, or give the validation split more slides."
        )
    if true.min() < 0 or true.max() >= len(names):
        raise ParameterError(f"targets must be from 0 to {len(names) - 1}, found {true.min()} to {true.max()}.")
    per_class = np.bincount(true, minlength=len(names))
    missing = [label for label, count in zip(names, per_class, strict=True) if not count]
    if (per_class > 0).sum() < 2:
        raise ParameterError(
            f"All {len(true)} slides are {names[int(true[0])]!r}; calibration needs at least two classes to compare."
        )
    if form == "bias" and missing:
        raise ParameterError(
            f"A bias per class needs slides of every class; there are none of {listing(missing)}. "
            "Fit the form 'slope' or 'temperature' instead."
        )
