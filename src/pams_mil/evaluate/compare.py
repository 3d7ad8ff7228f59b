"""Is one model safer than another? Paired differences with intervals and p-values, patient by patient.

Both models are scored on the slides they share. The interval comes from resampling patients and the
p-value from swapping the two models' predictions in random patients: if the models were alike, a swap would
not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pams_mil.arrays import Array
from pams_mil.errors import PredictionsError, listing
from pams_mil.evaluate.cautions import cautions
from pams_mil.evaluate.matched import SWAPS, Matched, matched, part_of, swap_p_value
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics.bootstrap import RESAMPLES, AucResampler, Patterns, auc_samples, holm, interval
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.metric import METRICS, LabelMetrics
from pams_mil.metrics.probability import macro_auc
from pams_mil.severity import PENALTY

PERMUTATIONS = 10_000


@dataclass(frozen=True)
class Difference:
    """candidate - reference for one metric; p_value is None where no permutation test applies (AUC)."""

    metric: str
    reference: float
    candidate: float
    difference: float
    interval: tuple[float, float]
    p_value: float | None
    corrected_p: float | None = None

    @property
    def p(self) -> float | None:
        """The p-value, corrected where several models were compared."""
        return self.p_value if self.corrected_p is None else self.corrected_p

    @property
    def better(self) -> bool | None:
        """Whether the candidate is better, None when the interval holds 0 or is undefined."""
        low, high = self.interval
        if not (low > 0 or high < 0):
            return None
        return (self.difference > 0) == METRICS[self.metric].higher_is_better


@dataclass(frozen=True)
class Comparison:
    """Two models on their shared slides: {level name: {metric: Difference}}."""

    reference: str
    candidate: str
    n: int
    levels: dict[str, dict[str, Difference]]
    notes: tuple[str, ...] = ()
    matched: dict[str, Matched] = field(default_factory=dict)
    """By level; empty when either has no probabilities."""
    patients: int = 0
    void: tuple[str, ...] = ()
    """Models whose calls carry no information, see `pams_mil.evaluate.cautions`."""

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "n": self.n,
            "patients": self.patients,
            "notes": list(self.notes),
            "void": list(self.void),
            "levels": {
                level: {
                    **({"matched": self.matched[level].to_json()} if level in self.matched else {}),
                    **{metric: {
                        "reference": d.reference, "candidate": d.candidate, "difference": d.difference,
                        "ci": list(d.interval), "p_value": d.p_value, "p_value_holm": d.corrected_p,
                    }
                    for metric, d in differences.items()},
                }
                for level, differences in self.levels.items()
            },
        }  # fmt: skip


def compare_all(
    models: Sequence[Predictions],
    *,
    reference: int = 0,
    penalty: float = PENALTY,
    seed: int = 0,
    resamples: int = RESAMPLES,
    progress: Callable[[float], None] | None = None,
) -> list[Comparison]:
    """Every other model against the reference, p-values Holm-corrected over the models for each metric."""
    others = [model for position, model in enumerate(models) if position != reference]
    found = []
    for number, model in enumerate(others):
        step = part_of(progress, number, len(others))
        found.append(compare(models[reference], model, penalty=penalty, seed=seed, resamples=resamples, progress=step))
    return _corrected(found)


def compare(
    reference: Predictions,
    candidate: Predictions,
    *,
    penalty: float = PENALTY,
    seed: int = 0,
    resamples: int = RESAMPLES,
    progress: Callable[[float], None] | None = None,
) -> Comparison:
    """Candidate minus reference at every level, paired by patient."""
    first, second, notes = paired(reference, candidate)
    hierarchy = first.hierarchy
    levels = range(hierarchy.num_levels)
    scored = first.probabilities is not None and second.probabilities is not None
    aucs = _auc_draws(first, second, seed, resamples, part_of(progress, 0, 2)) if scored else None
    at_equal: dict[str, Matched] = {}
    for level in levels if scored else ():
        step = part_of(part_of(progress, 1, 2), level, len(levels))
        found = matched(first, second, level, seed=seed, resamples=resamples, swaps=SWAPS, progress=step)
        if found is not None:
            at_equal[hierarchy.level_names[level]] = found
    return Comparison(
        reference=reference.name,
        candidate=candidate.name,
        n=len(first),
        levels={
            hierarchy.level_names[level]: _differences(
                first, second, level, penalty, seed, resamples, None if aucs is None else aucs[level]
            )
            for level in levels
        },
        notes=notes,
        matched=at_equal,
        patients=first.num_patients,
        void=tuple(sorted(m.name for m in (first, second) if any(caution.disqualifies for caution in cautions(m)))),
    )


def paired(first: Predictions, second: Predictions) -> tuple[Predictions, Predictions, tuple[str, ...]]:
    """Both on their shared slides in the first one's order; refused when none are shared or labels contradict."""
    if first.hierarchy.digest != second.hierarchy.digest:
        raise PredictionsError(f"{first.name} and {second.name} were read with different class hierarchies.")
    position = {slide: row for row, slide in enumerate(second.slide_ids)}
    rows_first = np.asarray([row for row, slide in enumerate(first.slide_ids) if slide in position], dtype=np.int64)
    if not rows_first.size:
        raise PredictionsError(
            f"{first.name} and {second.name} share no slide ids, so they cannot be compared slide by slide "
            f"(e.g. {listing(first.slide_ids[:2])} against {listing(second.slide_ids[:2])})."
        )
    rows_second = np.asarray([position[first.slide_ids[row]] for row in rows_first], dtype=np.int64)
    a, b = first.take(rows_first), second.take(rows_second)
    contradictory = np.flatnonzero(a.target != b.target)
    if contradictory.size:
        raise PredictionsError(
            f"{first.name} and {second.name} disagree on the true class of {contradictory.size} slides: "
            f"{listing((a.slide_ids[row] for row in contradictory.tolist()), most=5)}. Were they labelled differently?"
        )
    if a.patient_ids is None and b.patient_ids is not None:  # either file may know the patients
        a = replace(a, patient_ids=b.patient_ids)
    notes = []
    left_out = len(first) - len(a), len(second) - len(b)
    if any(left_out):
        notes.append(
            f"Compared on the {len(a)} slides that both predict; {left_out[0]} of {first.name} and {left_out[1]} of "
            f"{second.name} are left out."
        )
    # Patients are numbered as they appear, so other names for the same patients do no harm.
    if b.patient_ids is not None and not np.array_equal(a.patient, b.patient):
        notes.append(
            f"{first.name} and {second.name} put slides together as patients in different ways; those of {first.name} "
            "are used for intervals and tests."
        )
    return a, b, tuple(notes)


def _differences(
    first: Predictions, second: Predictions, level: int, penalty: float, seed: int, resamples: int, aucs: Array | None
) -> dict[str, Difference]:
    hierarchy = first.hierarchy
    size = hierarchy.num_classes(level)
    # Rows of both are the same slides in the same order, so one target and one patient serve both.
    target, one, scores_one = first.at(level)
    _, two, scores_two = second.at(level)
    score = LabelMetrics(hierarchy, level, penalty)
    patterns = Patterns.of(first.patient, target * size + one, target * size + two, size=size**2)
    counts = patterns.resample(np.random.default_rng(seed), resamples).reshape(-1, 2, size, size)
    drawn = score(counts)
    observed = score(np.stack([count_cells(target, one, size), count_cells(target, two, size)]))
    # another stream than the resamples
    swapped = patterns.swap(np.random.default_rng(seed + 1), PERMUTATIONS)
    shuffled = score(np.stack([cells.reshape(-1, size, size) for cells in swapped], axis=1))
    found = {
        metric: Difference(
            metric, float(pair[0]), float(pair[1]), _minus(pair[1], pair[0]),
            interval(_minus_all(drawn[metric])), swap_p_value(_minus(pair[1], pair[0]), _minus_all(shuffled[metric])),
        )
        for metric, pair in observed.items()
    }  # fmt: skip
    if aucs is not None and scores_one is not None and scores_two is not None:
        pair = macro_auc(target, scores_one), macro_auc(target, scores_two)
        found["auc"] = Difference("auc", *pair, _minus(pair[1], pair[0]), interval(aucs[1] - aucs[0]), None)
    return found


def _auc_draws(
    first: Predictions, second: Predictions, seed: int, resamples: int, progress: Callable[[float], None] | None
) -> Array:
    resamplers = []
    for level in range(first.hierarchy.num_levels):
        for model in (first, second):
            target, _, scores = model.at(level)
            if scores is not None:
                resamplers.append(AucResampler(target, scores))
    # All levels and both models on the same resamples: differences stay paired.
    draws = auc_samples(resamplers, first.patient, seed=seed, resamples=resamples, progress=progress)
    return draws.reshape(len(resamplers) // 2, 2, resamples)


def _minus(candidate: float, reference: float) -> float:
    """The difference; two models without errors (both infinite) do not differ."""
    return 0.0 if candidate == reference else float(candidate - reference)


def _minus_all(pairs: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(pairs[:, 0] == pairs[:, 1], 0.0, pairs[:, 1] - pairs[:, 0])


def _corrected(comparisons: list[Comparison]) -> list[Comparison]:
    if not comparisons:
        return []
    corrected = [{level: dict(d) for level, d in comparison.levels.items()} for comparison in comparisons]
    for level, differences in comparisons[0].levels.items():
        for metric in differences:
            tested = [i for i, c in enumerate(corrected) if metric in c[level] and c[level][metric].p_value is not None]
            adjusted = holm([corrected[i][level][metric].p_value or 0.0 for i in tested])
            for i, p in zip(tested, adjusted, strict=True):
                corrected[i][level][metric] = replace(corrected[i][level][metric], corrected_p=float(p))
    found = [replace(comparison, levels=levels) for comparison, levels in zip(comparisons, corrected, strict=True)]
    return _corrected_matches(found)


def _corrected_matches(comparisons: list[Comparison]) -> list[Comparison]:
    """The same for the misses at equal false alarms."""
    matches = [dict(comparison.matched) for comparison in comparisons]
    for level in comparisons[0].levels:
        tested = [found for found in matches if level in found and found[level].missed.p_value is not None]
        adjusted = holm([found[level].missed.p_value or 0.0 for found in tested])
        for found, p in zip(tested, adjusted, strict=True):
            found[level] = replace(found[level], missed=replace(found[level].missed, corrected_p=float(p)))
    return [replace(comparison, matched=found) for comparison, found in zip(comparisons, matches, strict=True)]
