"""Random but valid inputs: class hierarchies with ties, confusion matrices, and predictions."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import numpy as np
import yaml
from hypothesis.extra import numpy as hnp

from pams_mil import ClassHierarchy
from pams_mil.class_checks import Level
from pams_mil.evaluate.predictions.predictions import Predictions

STEMS = ("c", "grade ", "é", "=cmd()", "<b>", 'a,"b"', "no", "0", "1.", "-x", "'q", "階", "#", "a: b", "line\nbreak ")
MOST_CLASSES = 30


@st.composite
def trees(draw: st.DrawFn, *, most_levels: int = 4, most_classes: int = MOST_CLASSES) -> ClassHierarchy:
    """Hierarchies of 1 to 4 levels and 2 to 30 classes, with ties wherever ties are allowed."""
    count = draw(st.integers(1, most_levels))
    levels: list[Level] = []
    for number in range(count):
        stem = draw(st.sampled_from(STEMS))
        parents = _parents(draw, levels, finest=number == count - 1, most=most_classes)
        names = tuple(f"{stem}{number}.{index}" for index in range(len(parents)))
        levels.append(Level(names, tuple(parents), _ranks(draw, parents, levels)))
    return ClassHierarchy(name="random", levels=tuple(levels))


def _parents(draw: st.DrawFn, levels: list[Level], *, finest: bool, most: int) -> list[int]:
    if not levels:
        return [0] * draw(st.integers(2 if finest else 1, min(6, most)))
    groups = len(levels[-1])
    room = most - groups
    parents: list[int] = []
    for group in range(groups):
        extra = draw(st.integers(0, min(3, room)))
        room -= extra
        parents += [group] * (1 + extra)
    return parents if len(parents) > 1 or not finest else [0, 0]


def _ranks(draw: st.DrawFn, parents: list[int], levels: list[Level]) -> tuple[int, ...]:
    """Free ties inside a group, none across groups, except that the classes of tied groups all tie."""
    above = levels[-1].ranks if levels else (0,)
    ranks = [0]
    for previous, parent in itertools.pairwise(parents):
        if levels and above.count(above[parent]) > 1:
            tied = above[previous] == above[parent]
        else:
            tied = previous == parent and draw(st.booleans())
        ranks.append(ranks[-1] + (not tied))
    return tuple(ranks)


@st.composite
def trees_and_levels(draw: st.DrawFn, **limits: int) -> tuple[ClassHierarchy, int]:
    """A hierarchy and one of its levels with at least two classes."""
    hierarchy = draw(trees(**limits))
    return hierarchy, draw(st.sampled_from([n for n in range(hierarchy.num_levels) if hierarchy.num_classes(n) > 1]))


@st.composite
def confusions(draw: st.DrawFn, num_classes: int, *, errors: bool = False) -> np.ndarray:
    """Counts [C, C] with at least one sample, and at least one error when asked."""
    S = draw(hnp.arrays(np.int64, (num_classes, num_classes), elements=st.integers(0, 9), fill=st.just(0)))
    if not S.sum() or (errors and S.sum() == np.trace(S)):
        S = S.copy()
        S[draw(st.integers(1, num_classes - 1)), 0] += 1
    return S


@st.composite
def predictions(draw: st.DrawFn, *, most_rows: int = 60, most_classes: int = 8, scored: bool = True) -> Predictions:
    """Predictions with several slides per patient, probabilities with ties, and possibly absent classes."""
    hierarchy = draw(trees(most_levels=3, most_classes=most_classes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(1, most_rows))
    return random_predictions(hierarchy, rows, patients=draw(st.integers(1, rows)), rng=rng, scored=scored)


def random_predictions(
    hierarchy: ClassHierarchy,
    rows: int,
    *,
    patients: int,
    rng: np.random.Generator,
    scored: bool = True,
    name: str = "model",
    target: np.ndarray | None = None,
    patient: np.ndarray | None = None,
) -> Predictions:
    """Noisy predictions of random labels; scores are rounded, so that some tie."""
    size = hierarchy.num_classes()
    target = rng.integers(0, size, rows) if target is None else target
    patient = rng.integers(0, patients, rows) if patient is None else patient
    scores = np.round(rng.dirichlet(np.ones(size), rows), 2) + np.eye(size)[target] * rng.random((rows, 1)).round(1)
    scores /= scores.sum(1, keepdims=True)
    return Predictions(
        name=name,
        hierarchy=hierarchy,
        slide_ids=[f"slide {row}" for row in range(rows)],
        target=target,
        predicted=scores.argmax(1),
        probabilities=scores if scored else None,
        patient_ids=[f"patient {number}" for number in patient],
    )


def labels_of(S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted labels, one pair per sample of a confusion matrix."""
    true, predicted = np.indices(S.shape)
    return np.repeat(true.ravel(), S.ravel()), np.repeat(predicted.ravel(), S.ravel())


def class_file(hierarchy: ClassHierarchy) -> str:
    """The YAML text of a hierarchy, as its author would nest it."""
    return yaml.safe_dump(
        {"name": hierarchy.name, "classes": _nested(hierarchy, 0, 0)}, allow_unicode=True, sort_keys=False
    )


def _nested(hierarchy: ClassHierarchy, number: int, parent: int) -> list[Any]:
    level = hierarchy.levels[number]
    children = [index for index, above in enumerate(level.parents) if above == parent]
    ties = [list(tie) for _, tie in itertools.groupby(children, key=level.ranks.__getitem__)]
    entries = [[_entry(hierarchy, number, index) for index in tie] for tie in ties]
    return [tie[0] if len(tie) == 1 else tie for tie in entries]


def _entry(hierarchy: ClassHierarchy, number: int, index: int) -> Any:
    name = hierarchy.levels[number].names[index]
    return name if number == hierarchy.num_levels - 1 else {name: _nested(hierarchy, number + 1, index)}
