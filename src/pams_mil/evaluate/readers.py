"""Readers as data: each reader's misses and false alarms, how far they agree, and whether a model is in their range.

Every reader is scored against a reference: the column of true classes, or, without one, the mode of the other readers'
classes (the more urgent where several are named equally often), so that nobody is compared with himself. With U_i and
O_i the misses and false alarms of reader i and U(O) the model's curve against the same reference,

    D_i = U(O_i) − U_i

is what the model misses more than reader i at that reader's false alarms. A model is outside of the readers' range only
where it misses more than each of them, or less than each of them: all intervals of D_i must lie on one side, so no
correction for the number of readers is needed. A reader is a sample like a model, with calls and no probabilities, and
D_i is a contrast like any other (`pams_mil.evaluate.inference`): patients are chance and, of a model of several seeds,
its networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.atomic import plain
from pams_mil.data.tables import read_table
from pams_mil.errors import PredictionsError, listing, nearest
from pams_mil.evaluate.compare import slides_of_all_seeds
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.inference import MethodPair, Networks
from pams_mil.evaluate.operating_points import curve_of, rates_of
from pams_mil.evaluate.predictions.prediction_layouts import label_encoder, require_cells
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.label_scores import quadratic_kappa
from pams_mil.metrics.metric import METRICS, missed_there
from pams_mil.metrics.operating import OperatingCurve, class_shares
from pams_mil.metrics.resampling import RESAMPLES

ABSENT = -1
"""The class of a slide that a reader did not read."""


@dataclass(frozen=True)
class ReaderScores:
    """One reader: slides with a reference, misses, false alarms, and the model's misses minus the reader's."""

    name: str
    slides: int
    missed: Contrast
    false_alarms: Contrast
    model_misses_more: Contrast | None = None


@dataclass(frozen=True)
class ReaderAgreement:
    """Two readers on the slides that both read; kappa is Cohen's, with quadratic weights."""

    first: str
    second: str
    slides: int
    same: float
    cohen_kappa: float


@dataclass(frozen=True)
class ReaderCurve:
    """A model's curve against the reference, (missed, false alarms) of its most probable classes, and rank shares."""

    curve: OperatingCurve
    decided: tuple[float, float]
    shares: Array


@dataclass(frozen=True)
class ReaderAudit:
    """What `pams audit --readers` prints and writes."""

    hierarchy: ClassHierarchy
    reference: str
    readers: Sequence[ReaderScores]
    agreement: Sequence[ReaderAgreement]
    patients: int
    model: str = ""
    curve: ReaderCurve | None = field(default=None, compare=False)
    """Of the model; None without a reference that is the same for all readers."""

    @property
    def _gaps(self) -> dict[str, Contrast]:
        """What the model misses more than each reader, from the one that it does best against to the worst."""
        gaps = {one.name: one.model_misses_more for one in self.readers if one.model_misses_more is not None}
        return dict(sorted(gaps.items(), key=lambda gap: gap[1].difference))

    def _sides(self) -> tuple[list[str], list[str]]:
        """Readers than whom the model misses more, and less."""
        gaps = self._gaps.items()
        return [name for name, gap in gaps if gap.interval[0] > 0], [name for name, gap in gaps if gap.interval[1] < 0]

    @property
    def within(self) -> bool | None:
        """Whether the model neither misses more than every reader nor less; None without a model or intervals."""
        tested = self._gaps and all(gap.varied != "nothing" for gap in self._gaps.values())
        return all(len(side) < len(self.readers) for side in self._sides()) if tested else None

    @property
    def sentences(self) -> list[str]:
        """The readers' range, their agreement, and where the model is."""
        missed = [100 * one.missed.value for one in self.readers]
        alarms = [100 * one.false_alarms.value for one in self.readers]
        kappas = [pair.cohen_kappa for pair in self.agreement if not np.isnan(pair.cohen_kappa)]
        agreement = f"; Cohen's kappa between two of them is {min(kappas):.2f} to {max(kappas):.2f}" if kappas else ""
        sentence = (
            f"Against {self.reference}, the {len(self.readers)} readers miss urgency in {min(missed):.1f} to "
            f"{max(missed):.1f} % of the slides and raise {min(alarms):.1f} to {max(alarms):.1f} % false alarms"
            f"{agreement}."
        )
        return [sentence, self._model_sentence()] if self.model else [sentence]

    def _model_sentence(self) -> str:
        gaps, (more, less) = self._gaps, self._sides()
        ends = [list(gaps.values())[place] for place in (0, -1)]
        if self.within is None:
            best, worst = (f"{100 * gap.difference:+.1f}" for gap in ends)
            return (
                f"{self.model} misses {best} to {worst} points more at each reader's own false alarms; without "
                "resamples there are no intervals, so whether that is within the readers' range is not tested."
            )
        best, worst = (
            f"{100 * gap.difference:+.1f} ({100 * gap.interval[0]:+.1f} to {100 * gap.interval[1]:+.1f})"
            for gap in ends
        )
        varied = ends[0].varied
        detail = f"({best} to {worst} points at each reader's own false alarms, 95 % intervals over {varied})"
        for side, words in ((more, "more"), (less, "less")):
            if len(side) == len(gaps):
                return f"{self.model} is outside of the readers' range: it misses {words} than every reader {detail}."
        rest = [name for name in gaps if name not in (*more, *less)]
        claims = {"misses more than": more, "misses less than": less, "cannot be told apart from": rest}
        verdict = ", ".join(f"{words} {listing(names)}" for words, names in claims.items() if names)
        return f"{self.model} is within the readers' range: it {verdict} {detail}."

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kind": "pams readers",
            "classes": self.hierarchy.digest,
            "reference": self.reference,
            "patients": self.patients,
            "model": self.model or None,
            "within": self.within,
            "readers": plain(self.readers),
            "agreement": plain(self.agreement),
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
    slides: Sequence[str],
    *,
    patients: Sequence[str] | None = None,
    target: Ints | None = None,
    reference: str = "the true class",
    model: Predictions | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> ReaderAudit:
    """Score readers against the true classes or against each other.

    `calls` are class indices by reader, [n] each, -1 where a reader did not read. `target` is the true class of each
    slide (None: the mode of the other readers), `reference` is what it is, in words. `model` has probabilities of these
    slides, by one or several networks; its own targets are not looked at.
    """
    names, table, ranks = list(calls), np.stack(list(calls.values())), hierarchy.ranks()
    if len(names) < 2:
        raise PredictionsError(
            f"Expected at least two readers, found {listing(names)}. Name each reader's column with --pred, or audit "
            "one reader against --true as a model, without --readers."
        )
    read = table != ABSENT
    if target is None and (read.sum(axis=0) > 1).any() and ((table == table.max(axis=0)) | ~read).all():
        raise PredictionsError(
            f"The readers {listing(names)} agree on every slide, so their mode says nothing about any of them. Give a "
            "reference with --true, or slides on which they differ."
        )
    readers = []
    for number, name in enumerate(names):
        truth = others_reference(table, number, ranks) if target is None else target
        rows = np.flatnonzero(read[number] & (truth != ABSENT))
        if not len(rows):
            lacking = "is read by anyone else" if target is None else "has a true class"
            raise PredictionsError(f"No slide of the reader {name!r} has a reference: none {lacking}.")
        reader = Predictions(name, hierarchy, slides, truth, table[number], patient_ids=patients or slides).take(rows)
        readers.append(_reader_scores(reader, model, seed, resamples))
    curve = None
    if model is not None and target is not None:
        sample = _judged(model, slides, target)
        path, true = sample.path, ranks[sample.target]
        curve = ReaderCurve(
            curve_of(Networks(sample)),
            rates_of(path.ranks[path.calls(1.0)], true),
            class_shares(sample.target, np.ones(len(sample)), ranks),
        )
    return ReaderAudit(
        hierarchy=hierarchy,
        reference="the other readers" if target is None else reference,
        readers=readers,
        agreement=[_agreement(names, table, pair, hierarchy) for pair in combinations(range(len(names)), 2)],
        patients=len(set(patients or slides)),
        model="" if model is None else model.name,
        curve=curve,
    )


def _reader_scores(reader: Predictions, model: Predictions | None, seed: int, resamples: int) -> ReaderScores:
    """A reader's rates, and the model's misses at this reader's false alarms (in each resample) minus the reader's."""
    rates = [METRICS[key] for key in ("missed_rate", "false_alarm_rate")]
    other = reader if model is None else _judged(model, reader.slide_ids, reader.target)
    # Reader and model are not exchanged: the one has a point, the other a curve.
    pair = MethodPair.of(reader, other, seed=seed, resamples=resamples, swaps=0)
    scores = pair.reference.estimates(rates)[0]
    gap = None
    if model is not None:
        seen = pair.reference.read(rates)
        drawn = pair.reference.drawn(rates) or seen
        alarms = seen["false_alarm_rate"][0], drawn["false_alarm_rate"][0]
        own = replace(METRICS["missed_rate"], key="missed")
        gap = replace(pair.contrasts([missed_there(alarms)], [own])["missed"], metric="missed_rate")
    return ReaderScores(reader.name, len(reader), scores["missed_rate"], scores["false_alarm_rate"], gap)


def _judged(model: Predictions, slides: Sequence[str], target: Ints) -> Predictions:
    """A model's rows of the slides that have another truth, against it."""
    truth = {slide: true for slide, true in zip(slides, target.tolist(), strict=True) if true != ABSENT}
    sample = model.where(np.array([slide in truth for slide in model.slide_ids]))
    return replace(sample, target=np.array([truth[slide] for slide in sample.slide_ids]))


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
    table, key = read_table(path), slide or "slide_id"
    for column in [*columns, key, *(one for one in (true, patient) if one is not None)]:
        if column not in table:
            hint = " Name the column of the slides with --id." if column == "slide_id" else nearest(column, table)
            raise PredictionsError(f"{path} has no column {column!r}, found {listing(table, most=30)}.{hint}")
    if len(set(columns)) < len(columns):
        raise PredictionsError(f"Every reader is named once, found {listing(columns)}.")
    slides, patients = table[key], patient or ("patient_id" if "patient_id" in table else None)
    require_cells(table, (key, patients), str(path))
    if len(set(slides)) < len(slides):
        twice = next(one for one in slides if slides.count(one) > 1)
        raise PredictionsError(f"{path} has slide {twice!r} twice; expected one row per slide, a column per reader.")

    encode = label_encoder(hierarchy, str(path), blanks=True)
    if model is not None:
        if model.probabilities is None:
            raise PredictionsError(f"{model.name} has no probabilities, so it has no curve to place readers on.")
        predicted = slides_of_all_seeds(model)
        missing = [slide for slide in slides if slide not in predicted]
        if missing:
            raise PredictionsError(
                f"{model.name} predicts {len(slides) - len(missing)} of the {len(slides)} slides in {path}; missing "
                f"{listing(missing, most=5)}. Predict all slides that were read."
            )
    return audit_readers(
        {column: encode(table[column], column, slides) for column in columns},
        hierarchy,
        slides,
        patients=None if patients is None else table[patients],
        target=None if true is None else encode(table[true], true, slides),
        reference=repr(true),
        model=model,
        resamples=resamples,
        seed=seed,
    )
