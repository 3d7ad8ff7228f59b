"""Probabilities that mean what they say, by a few numbers fitted on validation slides.

    ln q_y = (ln p_y + σ c_y(p) − τ ln g_y) / T + b_y + const

c(p) is what undoes MSCE and g the class drift of the remix (`pams_mil.evaluate.debias`), each for runs that have it and
with a strength from 0 (leave the network's probabilities alone) to 1 (believe the theory). T is the temperature. The
offset b has one of three forms, each for as many slides as it needs:

| form | offset b | fitted on |
|---|---|---|
| temperature | none | fewer than 40 slides |
| slope | β · rank: one number for the lean toward urgency | 40 slides and more |
| bias | one number per class; it contains the drift | 20 slides and more in every class |

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

from pams_mil.errors import ParameterError, listing
from pams_mil.evaluate import softmax_fit
from pams_mil.evaluate.debias import TrainingBias, logarithm, softmax
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.probability import check_probabilities

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Form = Literal["temperature", "slope", "bias"]
FORMS: tuple[Form, ...] = get_args(Form)

FEWEST_SLIDES = 10
"""With fewer, nothing is fitted."""
SLIDES_FOR_SLOPE = 40
SLIDES_FOR_BIAS = 20
"""In every class."""
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
        return softmax(logits / self.temperature + self.offset)

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
    """The form that so many slides can carry.

    >>> [choose_form([0, 1] * pairs, 2) for pairs in (10, 19, 20)], choose_form([0] * 60 + [1] * 19, 2)
    (['temperature', 'temperature', 'bias'], 'slope')
    """
    per_class = np.bincount(np.asarray(targets, dtype=np.int64), minlength=num_classes)
    if per_class.min() >= SLIDES_FOR_BIAS:
        return "bias"
    return "slope" if per_class.sum() >= SLIDES_FOR_SLOPE else "temperature"


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
    bias = bias or TrainingBias()
    parts = bias.corrections(p)
    if chosen == "bias":
        parts.pop("remix", None)  # a constant per class, as the offset is
    truth = np.eye(classes)[true] + prior_slides / len(p) * p
    problem = _Problem(logarithm(p), parts, _directions(chosen, hierarchy, level), truth)
    theta, strengths = problem.solve()
    return Calibration(
        form=chosen,
        temperature=1.0 / theta[0],
        offset=_directions(chosen, hierarchy, level) @ theta[1:],
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
        for states in itertools.product(choices, repeat=len(self.corrections)):
            value, theta, strengths = self._fit(dict(zip(self.corrections, states, strict=True)))
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
        columns = [base, *(self.corrections[name] for name in free)]
        features = np.concatenate([np.stack(columns, axis=2), offset], axis=2)
        start = np.zeros(features.shape[2])
        start[0] = 1.0
        found = softmax_fit.fit(features, self.truth, start)
        inverse, free_part, rest = found.theta[0], found.theta[1 : len(columns)], found.theta[len(columns) :]
        strengths = {name: float(state) for name, state in states.items() if state is not None}
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
