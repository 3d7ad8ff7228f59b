"""Dealing patients to parts so that every part has its share of patients and slides of every class.

Two goals, in this order. Patients: part p gets its share f_p of the n_c patients of class c to within one. Slides:
the chi-square distance of the slide counts N_pc from their shares is small,

    X = sum_pc (N_pc - f_p N_c)^2 / (f_p N_c).

Patients are dealt greedily, those with most slides first, and small cohorts, where one patient matters, are
improved by exchanging pairs of patients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_MOST_EXCHANGED = 240  # patients; beyond, the greedy deal is already even
_MOST_ROUNDS = 8
_MOST_PARTNERS = 8  # tried for a patient, the best first; the best is often refused to keep patients to within one


@dataclass
class Deal:
    """A deal in progress: for each patient its part, and slides [p, c] and patients [p, c] of every part."""

    slides_of: Floats  # [n, c] slides per patient and class
    class_of: npt.NDArray[np.int64]  # [n] class of each patient
    fractions: Floats  # [p]
    part_of: npt.NDArray[np.int64]  # [n]
    slides: Floats  # [p, c]
    patients: Floats  # [p, c]


def deal(slides_of: Floats, class_of: Sequence[int], fractions: Sequence[float]) -> list[int]:
    """The part of every patient; patients must come in the order in which ties are to be broken.

    >>> deal(np.array([[3.0, 0], [2, 0], [1, 0], [0, 1]]), [0, 0, 0, 1], [0.5, 0.5])
    [0, 1, 1, 0]
    """
    parts, (count, classes) = len(fractions), slides_of.shape
    state = Deal(
        slides_of,
        np.asarray(class_of, np.int64),
        np.asarray(fractions, np.float64),
        np.full(count, -1, np.int64),
        np.zeros((parts, classes)),
        np.zeros((parts, classes)),
    )
    filled = [0.0] * parts
    members = {c: np.flatnonzero(state.class_of == c) for c in range(classes)}
    # The rarest class first: later, larger classes even out what rounding leaves.
    for c in sorted((c for c in members if len(members[c])), key=lambda c: (len(members[c]), c)):
        room = shares(len(members[c]), fractions, filled)
        # Running debt of every part in patients: the next class repays it where remainders are equal.
        for part in range(parts):
            filled[part] += room[part] - len(members[c]) * fractions[part]
        _fill(state, members[c], room)
    # n^2 pairs per round.
    if count <= _MOST_EXCHANGED:
        _exchange(state)
    return [int(part) for part in state.part_of]


def shares(count: int, fractions: Sequence[float], filled: Sequence[float]) -> list[int]:
    """Whole numbers that add up to `count`, each within one of its share.

    What remains after rounding down goes to the largest remainders, and among equal ones to the part that is
    furthest below its share so far (`filled`: how full each part is, in patients above its share).

    >>> shares(10, [0.7, 0.1, 0.2], [0, 0, 0])
    [7, 1, 2]
    >>> shares(1, [0.5, 0.5], [0.5, -0.5])
    [0, 1]
    """
    ideal = [count * fraction for fraction in fractions]
    # 7 patients times 1/7 may come out as 0.9999999.
    whole = [math.floor(value + 1e-9) for value in ideal]
    # Remainders that differ by rounding errors alone are equal, or the order of parts would be chance.
    order = sorted(
        range(len(fractions)), key=lambda part: (-round(ideal[part] - whole[part], 9), round(filled[part], 9), part)
    )
    for part in order[: count - sum(whole)]:
        whole[part] += 1
    return whole


def _fill(state: Deal, members: npt.NDArray[np.int64], room: list[int]) -> None:
    """Each patient, those with most slides first, goes where the slide counts profit most."""
    total = state.slides_of.sum(axis=0)
    weight = 1 / (state.fractions[:, None] * np.maximum(total, 1))
    sizes = state.slides_of[members].sum(axis=1)
    left = np.asarray(room, np.float64)
    # Large patients first, while there is room to choose; a stable sort keeps the seeded order of equal ones.
    for patient in members[np.argsort(-sizes, kind="stable")]:
        added = state.slides_of[patient]
        # The change of X is weight * (2 N + a) a, up to a term that is equal for all parts.
        cost = ((2 * state.slides + added) * added * weight).sum(axis=1)
        part = int(np.argmin(np.where(left > 0, cost, np.inf)))
        left[part] -= 1
        state.part_of[patient] = part
        state.slides[part] += added
        state.patients[part, state.class_of[patient]] += 1


def _exchange(state: Deal) -> None:
    """Exchange pairs of patients while that lowers X and every part keeps its patients to within one."""
    total = np.maximum(state.slides_of.sum(axis=0), 1)
    ideal = state.fractions[:, None] * state.slides_of.sum(axis=0)
    weight = 1 / (state.fractions[:, None] * total)
    patients_ideal = state.fractions[:, None] * np.bincount(state.class_of, minlength=len(total))
    for _ in range(_MOST_ROUNDS):
        improved = False
        for first in range(len(state.part_of)):
            p = int(state.part_of[first])
            change = state.slides_of - state.slides_of[first]  # what part p would gain, per partner [n, c]
            q = state.part_of
            # Only parts p and q of X change: their terms as they are, and as they would be.
            distance = (weight * (state.slides - ideal) ** 2).sum(axis=1)
            now = distance[p] + distance[q]
            p_then = (weight[p] * (state.slides[p] + change - ideal[p]) ** 2).sum(axis=1)
            q_then = (weight[q] * (state.slides[q] - change - ideal[q]) ** 2).sum(axis=1)
            gain = np.where(q != p, now - (p_then + q_then), -np.inf)
            # Stable: of equal gains the patient that comes first by seed, so that results repeat.
            for partner in np.argsort(-gain, kind="stable")[:_MOST_PARTNERS]:
                if gain[partner] > 1e-9 and _keeps_patients(state, first, int(partner), patients_ideal):
                    _swap(state, first, int(partner))
                    improved = True
                    break
        if not improved:
            return


def _keeps_patients(state: Deal, first: int, second: int, ideal: Floats) -> bool:
    """Whether the parts still have their patients of every class to within one after an exchange."""
    a, b = state.class_of[first], state.class_of[second]
    if a == b:
        return True
    p, q = state.part_of[first], state.part_of[second]
    moved = ((p, a, -1), (p, b, 1), (q, b, -1), (q, a, 1))
    # Within one of the ideal, strictly: the promise of the greedy deal is kept.
    return all(abs(state.patients[part, c] + step - ideal[part, c]) < 1 - 1e-9 for part, c, step in moved)


def _swap(state: Deal, first: int, second: int) -> None:
    p, q = int(state.part_of[first]), int(state.part_of[second])
    change = state.slides_of[second] - state.slides_of[first]
    state.slides[p] += change
    state.slides[q] -= change
    state.patients[p, state.class_of[first]] -= 1
    state.patients[p, state.class_of[second]] += 1
    state.patients[q, state.class_of[second]] -= 1
    state.patients[q, state.class_of[first]] += 1
    state.part_of[first], state.part_of[second] = q, p
