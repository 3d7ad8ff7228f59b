"""Readers as data: each reader's misses and false alarms, how far they agree, and whether a model is in their range.

Every reader is scored against a reference: the column of true classes, or, without one, the mode of the other readers'
classes (the more urgent where several are named equally often), so that nobody is compared with himself. With U_i and
O_i the misses and false alarms of reader i and U(O) the model's curve against the same reference,

    D_i = U(O_i) − U_i

is what the model misses more than reader i at that reader's false alarms. A model is outside of the readers' range only
where it misses more than each of them, or less than each of them: all intervals of D_i must lie on one side, so no
correction for the number of readers is needed. The model is within the range where min_i D_i ≤ 0 ≤ max_i D_i; both ends
have intervals of their own, from the same resamples of patients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Bools, Ints
from pams_mil.data.tables import read_table
from pams_mil.errors import PredictionsError, listing, nearest
from pams_mil.evaluate.predictions.predictions import Predictions, numbered
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.metrics.label_scores import quadratic_kappa
from pams_mil.metrics.operating import CurveResampler, OperatingCurve, class_shares, missed_at
from pams_mil.metrics.resampling import RESAMPLES, Units, percentile_interval

ABSENT = -1
"""The class of a slide that a reader did not read."""
_BLOCK = 200


@dataclass(frozen=True)
class ReaderShare:
    """A share of slides, or a difference of two, with its interval over patients."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


@dataclass(frozen=True)
class ReaderScores:
    """One reader: slides with a reference, misses, false alarms, and the model's misses minus the reader's."""

    name: str
    slides: int
    missed: ReaderShare
    false_alarms: ReaderShare
    model_misses_more: ReaderShare | None = None


@dataclass(frozen=True)
class ReaderAgreement:
    """Two readers on the slides that both read; kappa is Cohen's, with quadratic weights."""

    first: str
    second: str
    slides: int
    same: float
    cohen_kappa: float


@dataclass(frozen=True)
class ModelRange:
    """What a model misses more than the reader it does best against (`least`) and worst against (`most`)."""

    least: ReaderShare
    most: ReaderShare
    within: bool
    """Whether the model cannot be told to miss more than every reader, nor less than every reader."""


@dataclass(frozen=True)
class ReaderAudit:
    """What `pams audit --readers` prints and writes."""

    hierarchy: ClassHierarchy
    reference: str
    readers: Sequence[ReaderScores]
    agreement: Sequence[ReaderAgreement]
    patients: int
    model: str = ""
    range: ModelRange | None = None
    """Of the model among the readers."""
    curve: OperatingCurve | None = field(default=None, compare=False)
    """Of the model; None without a reference that is the same for all readers."""
    shares: Array | None = field(default=None, compare=False)
    """Of the ranks in that reference, least urgent first."""

    @property
    def sentences(self) -> list[str]:
        """The readers' range, their agreement, and where the model is."""
        missed = [100 * one.missed.value for one in self.readers]
        alarms = [100 * one.false_alarms.value for one in self.readers]
        kappas = [pair.cohen_kappa for pair in self.agreement if not np.isnan(pair.cohen_kappa)]
        agreement = f"; Cohen's kappa between two of them is {min(kappas):.2f} to {max(kappas):.2f}" if kappas else ""
        sentences = [
            f"Against {self.reference}, the {len(self.readers)} readers miss urgency in {min(missed):.1f} to "
            f"{max(missed):.1f} % of the slides and raise {min(alarms):.1f} to {max(alarms):.1f} % false alarms"
            f"{agreement}."
        ]
        return sentences if self.range is None else [*sentences, self._model_sentence(self.range)]

    def _model_sentence(self, span: ModelRange) -> str:
        gaps = {one.name: one.model_misses_more for one in self.readers if one.model_misses_more is not None}
        more = [name for name, gap in gaps.items() if gap.low > 0]
        less = [name for name, gap in gaps.items() if gap.high < 0]
        ends = [
            f"{100 * end.value:+.1f} ({100 * end.low:+.1f} to {100 * end.high:+.1f})" for end in (span.least, span.most)
        ]
        detail = f"{' to '.join(ends)} points at each reader's own false alarms, 95 % intervals in brackets"
        if len(more) == len(gaps):
            return f"{self.model} is outside of the readers' range: it misses more than every reader ({detail})."
        if len(less) == len(gaps):
            return f"{self.model} is outside of the readers' range: it misses less than every reader ({detail})."
        rest = [name for name in gaps if name not in (*more, *less)]
        claims = [
            *([f"misses more than {listing(more)}"] if more else []),
            *([f"misses less than {listing(less)}"] if less else []),
            *([f"cannot be told apart from {listing(rest)}"] if rest else []),
        ]
        return f"{self.model} is within the readers' range: it {', '.join(claims)} ({detail})."

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kind": "pams readers",
            "classes": self.hierarchy.digest,
            "reference": self.reference,
            "patients": self.patients,
            "model": self.model or None,
            "range": None if self.range is None else asdict(self.range),
            "readers": [asdict(one) for one in self.readers],
            "agreement": [asdict(pair) for pair in self.agreement],
            "sentences": self.sentences,
        }


def others_reference(calls: Ints, reader: int, ranks: Ints) -> Ints:
    """The mode of all other readers' classes, the more urgent of equally frequent ones; -1 where nobody else read.

    >>> others_reference(np.array([[0, 0], [1, 2], [2, -1], [2, 0]]), 0, np.arange(3)).tolist()
    [2, 2]
    """
    others = np.delete(calls, reader, axis=0)
    counts = np.stack([(others == index).sum(axis=0) for index in range(len(ranks))], axis=1)  # [n, C]
    most = counts == counts.max(axis=1, keepdims=True)
    # The later of equally urgent ones, so that the answer is one class.
    order = np.where(most & (counts > 0), ranks * len(ranks) + np.arange(len(ranks)), -1)
    reference: Ints = np.where(counts.any(axis=1), order.argmax(axis=1), ABSENT)
    return reference


def audit_readers(
    calls: Mapping[str, Ints],
    hierarchy: ClassHierarchy,
    patient: Ints,
    *,
    target: Ints | None = None,
    reference: str = "the true class",
    model: tuple[str, Array] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> ReaderAudit:
    """Score readers against the true classes or against each other.

    Args:
        calls: Class indices by reader, [n] each; -1 where a reader did not read.
        hierarchy: Order and ties of the classes.
        patient: Patient of each slide, numbers from 0.
        target: True class of each slide; None: the mode of the other readers.
        reference: What `target` is, in words.
        model: Name and probabilities [n, C] of a model for the same slides.
        resamples: Resamples of patients for intervals; 0: none.
        seed: Of the resampling.
    """
    names, table, ranks = list(calls), np.stack(list(calls.values())), hierarchy.ranks()
    if len(names) < 2:
        raise PredictionsError(
            f"Expected at least two readers, found {listing(names)}. Name each reader's column with --pred, or audit "
            "one reader against --true as a model, without --readers."
        )
    read = (table != ABSENT).sum(axis=0) > 1
    if target is None and read.any() and _always_agree(table):
        raise PredictionsError(
            f"The readers {listing(names)} agree on every slide, so their mode says nothing about any of them. Give a "
            "reference with --true, or slides on which they differ."
        )
    units = Units.of(int(patient.max()) + 1, seed=seed)
    unit, draws = units.of_patient[patient], units.draws(seed, resamples).astype(np.float64)
    readers, gaps = [], []
    for number, name in enumerate(names):
        truth = others_reference(table, number, ranks) if target is None else target
        rows = np.flatnonzero((table[number] != ABSENT) & (truth != ABSENT))
        if not len(rows):
            raise PredictionsError(f"No slide of the reader {name!r} has a reference: nobody else read any of them.")
        true, call = truth[rows], table[number, rows]
        events = np.stack([ranks[true] > ranks[call], ranks[true] < ranks[call]])
        curve = None if model is None else CurveResampler(decision_path(model[1][rows], hierarchy), true)
        observed, samples = _rates(events, curve, draws, unit[rows])
        shares = [_share(value, sample) for value, sample in zip(observed, samples.T, strict=True)]
        readers.append(ReaderScores(name, len(rows), *shares))
        gaps.append((observed[2:], samples[:, 2:]))
    return ReaderAudit(
        hierarchy=hierarchy,
        reference="the other readers" if target is None else reference,
        readers=readers,
        agreement=[_agreement(names, table, pair, hierarchy) for pair in combinations(range(len(names)), 2)],
        patients=len(np.unique(patient)),
        model="" if model is None else model[0],
        range=None if model is None else _model_range(readers, gaps),
        **_shared_curve(model, target, hierarchy),
    )


def _shared_curve(model: tuple[str, Array] | None, target: Ints | None, hierarchy: ClassHierarchy) -> dict[str, Any]:
    if model is None or target is None:
        return {}
    rows = np.flatnonzero(target != ABSENT)
    true, once = target[rows], np.ones(len(rows))
    curve = CurveResampler(decision_path(model[1][rows], hierarchy), true).curve(once)
    return {"curve": curve, "shares": class_shares(true, once, hierarchy.ranks())}


def _model_range(readers: Sequence[ReaderScores], gaps: Sequence[tuple[Array, Array]]) -> ModelRange:
    observed, samples = (np.concatenate(values, axis=-1) for values in zip(*gaps, strict=True))
    own = [one.model_misses_more for one in readers if one.model_misses_more is not None]
    outside = all(gap.low > 0 for gap in own) or all(gap.high < 0 for gap in own)
    least, most = (_share(float(pick(observed)), pick(samples, axis=1)) for pick in (np.min, np.max))
    return ModelRange(least, most, within=not outside)


def _always_agree(table: Ints) -> bool:
    top = table.max(axis=0)
    return bool(((table == top) | (table == ABSENT)).all())


def _share(value: float, samples: Array) -> ReaderShare:
    return ReaderShare(float(value), *percentile_interval(samples))


def _rates(
    events: Bools, curve: Callable[[Array], tuple[Array, Array]] | None, draws: Array, unit: Ints
) -> tuple[Array, Array]:
    """Misses, false alarms and, with a curve, the model's misses at these false alarms minus these misses.

    Observed, [2 or 3], and of every resample, [B, 2 or 3]; NaN where a resample has none of the slides.
    """

    def values(weights: Array) -> Array:
        """[B, 2 or 3] for weights [B, n]."""
        rates = weights @ events.T.astype(np.float64) / weights.sum(axis=1, keepdims=True)
        if curve is None:
            return np.asarray(rates)
        missed, alarms = curve(weights)
        at = [missed_at(u, o, np.asarray(rate)) for u, o, rate in zip(missed, alarms, rates[:, 1], strict=True)]
        return np.column_stack([rates, np.asarray(at) - rates[:, 0]])

    observed = values(np.ones((1, len(unit))))[0]
    samples = np.full((len(draws), len(observed)), np.nan)
    for start in range(0, len(draws), _BLOCK):
        weights = draws[start : start + _BLOCK, unit]
        drawn = weights.sum(axis=1) > 0
        samples[start : start + _BLOCK][drawn] = values(weights[drawn])
    return observed, samples


def _agreement(names: Sequence[str], table: Ints, pair: tuple[int, int], hierarchy: ClassHierarchy) -> ReaderAgreement:
    first, second = table[pair[0]], table[pair[1]]
    both = (first != ABSENT) & (second != ABSENT)
    same = float((first[both] == second[both]).mean()) if both.any() else float("nan")
    kappa = quadratic_kappa(first[both], second[both], hierarchy) if both.any() else float("nan")
    return ReaderAgreement(names[pair[0]], names[pair[1]], int(both.sum()), same, kappa)


def read_readers(
    path: Path | str,
    hierarchy: ClassHierarchy,
    columns: Sequence[str],
    *,
    true: str | None = None,
    slide: str | None = None,
    patient: str | None = None,
    model: Predictions | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> ReaderAudit:
    """The audit of a table with one row per slide and one column of classes per reader; empty cells were not read."""
    table = read_table(path)
    wanted = [*columns, *(one for one in (true, slide, patient) if one is not None)]
    for column in wanted:
        if column not in table:
            raise PredictionsError(
                f"{path} has no column {column!r}, found {listing(table, most=30)}.{nearest(column, table)}"
            )
    if len(set(columns)) < len(columns):
        raise PredictionsError(f"Every reader is named once, found {listing(columns)}.")
    key = slide or "slide_id"
    if key not in table:
        raise PredictionsError(f"{path} has no column 'slide_id', found {listing(table, most=30)}; name it with --id.")
    slides = table[key]
    if len(set(slides)) < len(slides):
        twice = next(one for one in slides if slides.count(one) > 1)
        raise PredictionsError(f"{path} has slide {twice!r} twice; expected one row per slide, a column per reader.")
    whose = table.get(patient or "patient_id", slides)

    def indices(column: str) -> Ints:
        return np.array([hierarchy.index(cell) if cell else ABSENT for cell in table[column]], dtype=np.int64)

    probabilities = None
    if model is not None:
        probabilities = _probabilities_of(model, slides, str(path))
    return audit_readers(
        {column: indices(column) for column in columns},
        hierarchy,
        numbered(whose),
        target=None if true is None else indices(true),
        reference=repr(true),
        model=None if model is None or probabilities is None else (model.name, probabilities),
        resamples=resamples,
        seed=seed,
    )


def _probabilities_of(model: Predictions, slides: Sequence[str], where: str) -> Array:
    if model.probabilities is None:
        raise PredictionsError(f"{model.name} has no probabilities, so it has no curve to place readers on.")
    row_of = {slide: row for row, slide in enumerate(model.slide_ids)}
    missing = [slide for slide in slides if slide not in row_of]
    if missing:
        raise PredictionsError(
            f"{model.name} predicts {len(slides) - len(missing)} of the {len(slides)} slides in {where}; missing "
            f"{listing(missing, most=5)}. Predict all slides that were read."
        )
    return np.asarray(model.probabilities[[row_of[slide] for slide in slides]])
