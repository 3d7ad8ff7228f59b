"""What must be said before any score: calls that carry no information, and slides too few to tell.

With n slides, let c be the class called most often, n_c how often it is called and N_c how often it is true.

| kind | when |
|---|---|
| seen patients | patients that the model has seen are scored; see `pams_mil.data.exposure` |
| constant | n − n_c = 0: every slide is called c |
| collapsed | 0 < n − n_c < (n − N_c) / 4: something else is called less than a quarter as often as it is true |
| one-sided rule | the calls of a chosen operating point are constant or collapsed, which is no fault of the model |
| no skill | K > 1 classes occur, and their recall averages at most 1/K, as a constant call's does, at every level |
| contradictory calls | probabilities are given, and the call is not the most probable class |
| equal probabilities | several classes are the most probable, so the call is the least urgent of them |
| miscalibrated | mean of max_c p_c and accuracy of argmax_c p_c differ by 10 points and 3 standard errors |
| absent classes | no slide is truly of the class, so nothing is known about missing it |
| few patients | fewer than 29: 0.9^n > 0.05, so a mistake made in one patient of ten may well not occur at all |

The rule for collapse has no threshold on n_c alone: a model that says "benign" 96 times in 100 has not collapsed where
95 slides are benign. Constant, collapsed and no skill disqualify: such a model is not safer than another, whatever its
scores say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pams_mil.arrays import Ints
from pams_mil.data.exposure import MARK
from pams_mil.errors import listing
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics import reduce
from pams_mil.metrics.confusion import count_cells

COLLAPSED_BELOW = 0.25
MISCALIBRATED = 0.1
RARE_MISTAKE = 0.1
FEW_PATIENTS = 29
"""The smallest n with (1 - RARE_MISTAKE)^n <= 0.05."""


@dataclass(frozen=True)
class Caution:
    """One thing to say first, of a kind in the table above; one that disqualifies leaves nothing to compare."""

    kind: str
    message: str
    disqualifies: bool = False


@dataclass(frozen=True)
class TopCall:
    """The class that is called most often, how often of how many slides, and how often it is true."""

    label: int
    called: int
    true: int
    slides: int

    @classmethod
    def of(cls, confusion: Ints) -> TopCall:
        """The most frequent call of a confusion matrix [true, predicted]; the least urgent of equally frequent ones.

        >>> TopCall.of(np.array([[5, 1], [4, 0]]))
        TopCall(label=0, called=9, true=6, slides=10)
        """
        calls = confusion.sum(0)
        label = int(calls.argmax())
        return cls(label, int(calls[label]), int(confusion[label].sum()), int(confusion.sum()))

    @property
    def share(self) -> float:
        """Its share of all calls."""
        return self.called / self.slides

    @property
    def constant(self) -> bool:
        """Whether nothing else is ever called, although something else occurs."""
        return self.called == self.slides > max(1, self.true)

    @property
    def collapsed(self) -> bool:
        """Whether something else is called (nearly) never, constant calls included.

        >>> TopCall(0, 44, 9, 45).collapsed, TopCall(0, 96, 95, 100).collapsed
        (True, False)
        """
        return self.slides > 1 and self.slides - self.called < COLLAPSED_BELOW * (self.slides - self.true)


def cautions(predictions: Predictions) -> tuple[Caution, ...]:
    """Everything to say first about one model's predictions; what disqualifies comes first."""
    rules = (_seen, _calls, _probabilities, _confidence, _absent, _few)
    return tuple(caution for rule in rules for caution in rule(predictions))


def _seen(predictions: Predictions) -> Iterator[Caution]:
    yield from (Caution("seen patients", note) for note in predictions.notes if note.startswith(MARK))


def _calls(predictions: Predictions) -> Iterator[Caution]:
    """One caution about the calls: the gravest that holds, at the finest level where it does."""
    hierarchy = predictions.hierarchy
    levels = range(hierarchy.num_levels - 1, -1, -1)
    rule, p = predictions.decided_by, predictions.probabilities
    if p is not None and rule not in ("", "argmax"):
        # Calls of a chosen operating point say how it was chosen; whether the model tells slides apart, its own do.
        yield from _operating_point(predictions)
        predictions = replace(predictions, predicted=p.argmax(1).astype(np.int64))
    confusions = {level: count_cells(*predictions.at(level)[:2], hierarchy.num_classes(level)) for level in levels}
    for level, confusion in confusions.items():
        top = TopCall.of(confusion)
        if top.collapsed:
            yield collapse(top, hierarchy.names(level)[top.label])
            return
    finest = confusions[levels[0]]
    if np.count_nonzero(finest.sum(1)) > 1 and all(map(_no_skill, confusions.values())):
        recall = float(reduce.balanced_accuracy(reduce.ConfusionCells.of(finest)))
        yield Caution(
            "no skill",
            f"The recall averaged over classes is {100 * recall:.1f} %, no better than giving every slide the same "
            "answer.",
            disqualifies=True,
        )


def _operating_point(predictions: Predictions) -> Iterator[Caution]:
    """A rule that calls (nearly) all slides the same is worth saying, and no fault of the model."""
    hierarchy = predictions.hierarchy
    top = TopCall.of(count_cells(predictions.target, predictions.predicted, hierarchy.num_classes()))
    if top.collapsed:
        yield Caution(
            "one-sided rule",
            f"Decided by {predictions.decided_by}, {top.called} of {top.slides} slides are called "
            f"{hierarchy.names()[top.label]!r} although {top.true} are: that is the operating point, not the model.",
        )


def collapse(top: TopCall, label: str) -> Caution:
    """The caution for calls that are always, or nearly always, the same.

    >>> collapse(TopCall(0, 44, 9, 45), "N").message
    "44 of 45 slides are called 'N' although 9 are: the model has collapsed to one answer."
    """
    if top.constant:
        message = f"All {top.slides} slides are called {label!r} although {top.true} are: the model gives one answer."
        return Caution("constant", message, disqualifies=True)
    message = (
        f"{top.called} of {top.slides} slides are called {label!r} although {top.true} are: the model has collapsed to "
        "one answer."
    )
    return Caution("collapsed", message, disqualifies=True)


def _no_skill(confusion: Ints) -> bool:
    """Whether the calls are no better than a constant call; always true where all slides are of one group."""
    return bool(
        reduce.balanced_accuracy(reduce.ConfusionCells.of(confusion)) <= 1 / np.count_nonzero(confusion.sum(1)) + 1e-12
    )


def _probabilities(predictions: Predictions) -> Iterator[Caution]:
    """Calls that the probabilities beside them do not bear out."""
    p, names = predictions.probabilities, predictions.hierarchy.names()
    if p is None:
        return
    top = p.max(1)
    other = np.flatnonzero(p[np.arange(len(p)), predictions.predicted] < top)
    if other.size and predictions.decided_by in ("", "argmax"):
        row = int(other[0])
        yield Caution(
            "contradictory calls",
            f"{other.size} of {len(p)} slides are not called their most probable class, the first is "
            f"{predictions.slide_ids[row]!r}: called {names[predictions.predicted[row]]!r}, most probable "
            f"{names[int(p[row].argmax())]!r}. The calls are scored as they are given; was a decision rule applied?",
        )
    tied = np.flatnonzero((p == top[:, None]).sum(1) > 1)
    if tied.size:
        slides = listing((predictions.slide_ids[row] for row in tied[:6].tolist()), most=5)
        yield Caution(
            "equal probabilities",
            f"{tied.size} of {len(p)} slides have several most probable classes, so their call is arbitrary: {slides}.",
        )


def _confidence(predictions: Predictions) -> Iterator[Caution]:
    """Probabilities that are too high or too low to weigh a miss against a false alarm by."""
    p = predictions.probabilities
    # Where slides have several findings, the class probabilities are derived and the findings' own decide.
    if p is None or predictions.finding_probabilities is not None or predictions.num_patients < FEW_PATIENTS:
        return
    right = p.argmax(1) == predictions.target
    excess = p.max(1) - right
    error = np.sqrt((np.bincount(predictions.patient, excess - excess.mean()) ** 2).sum()) / len(p)
    if abs(excess.mean()) < max(MISCALIBRATED, 3 * error):
        return
    word, effect = ("over", "fewer") if excess.mean() > 0 else ("under", "more")
    yield Caution(
        "miscalibrated",
        f"The most probable class has a probability of {100 * p.max(1).mean():.0f} % on average and is right in "
        f"{100 * right.mean():.0f} %: the model is {word}confident, and a κ above 1 raises {effect} false alarms than "
        "that cost ratio calls for. Calibrate the probabilities first (pams calibrate), or choose κ by the curve.",
    )


def _absent(predictions: Predictions) -> Iterator[Caution]:
    names = predictions.hierarchy.names()
    present = set(predictions.target.tolist())
    absent = [name for index, name in enumerate(names) if index not in present]
    if absent:
        yield Caution("absent classes", f"No slide is truly {listing(absent)}: nothing is known about missing it.")


def _few(predictions: Predictions) -> Iterator[Caution]:
    count = predictions.num_patients
    if count < FEW_PATIENTS:
        unseen = (1 - RARE_MISTAKE) ** count
        yield Caution(
            "few patients",
            f"Only {count} patient{'' if count == 1 else 's'}: a mistake made in one patient of ten would not be seen "
            f"at all with a probability of {100 * unseen:.0f} %, so intervals and p-values say little.",
        )
