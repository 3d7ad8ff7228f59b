"""Is one method safer than another? Every metric's difference at every level, and misses at equal false alarms.

Both are scored on the slides they share. A model can always miss less by raising more false alarms, so misses are also
compared where both raise equally many: the mean of the two models' own false-alarm rates, recomputed in every resample,
so that neither has the advantage of its own operating point. Operating points that are chosen on the slides that are
scored describe the two curves; to compare decisions as deployed, fix κ beforehand (`matching_kappa`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.atomic import plain
from pams_mil.data.tables import OnFraction
from pams_mil.errors import PredictionsError, counted, listing
from pams_mil.evaluate.cautions import cautions
from pams_mil.evaluate.contrast import Contrast, adjusted
from pams_mil.evaluate.inference import SWAPS, MethodPair, common_networks
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.metric import METRICS, Metric, false_alarms_there, metrics_for, missed_there
from pams_mil.metrics.operating import exact_curve
from pams_mil.metrics.resampling import RESAMPLES
from pams_mil.severity import PENALTY

_COST_GRID = np.geomspace(0.1, 100.0, 121)


@dataclass(frozen=True)
class Matched:
    """Candidate against reference at one level, at the same operating point.

    Attributes:
        at_false_alarms: The share of false alarms at which misses are compared: the mean of the two models' own.
        missed: Misses there.
        at_missed: The share of misses at which false alarms are compared: the mean of the two models' own.
        false_alarms: False alarms there.
        candidate_cheaper: Ranges of κ from 0.1 to 100 in which the candidate costs less than the reference.
    """

    at_false_alarms: float
    missed: Contrast
    at_missed: float
    false_alarms: Contrast
    candidate_cheaper: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """`difference`, `ci` and `p` are those of the misses at equal false alarms."""
        return {
            "at_false_alarms": self.at_false_alarms,
            **self.missed.to_json(),
            "at_missed": self.at_missed,
            "false_alarms": self.false_alarms.to_json(),
            "candidate_cheaper_for_kappa": [list(pair) for pair in self.candidate_cheaper],
        }


@dataclass(frozen=True)
class Comparison:
    """Two methods on their shared slides: {level name: {metric: Contrast}}."""

    reference: str
    candidate: str
    n: int
    levels: dict[str, dict[str, Contrast]]
    notes: tuple[str, ...] = ()
    matched: dict[str, Matched] = field(default_factory=dict)
    """By level; empty when either has no probabilities."""
    patients: int = 0
    void: tuple[str, ...] = ()
    """Models whose calls carry no information, see `pams_mil.evaluate.cautions`."""
    seeds: tuple[int, int] = (1, 1)
    """How many seeds the reference and the candidate have."""
    networks: tuple[int, int] = (1, 1)
    """How many networks they are made from."""
    common: tuple[int, int] = (0, 0)
    """How many of their seeds have networks in common with the other."""

    @property
    def about_methods(self) -> bool:
        """Whether networks of both were taken as chance, so that the result is about methods and not given networks."""
        return min(self.seeds) > 1

    @property
    def subject(self) -> str:
        """What was compared, for people."""
        reference, candidate = self.seeds
        if self.about_methods and not any(self.common):
            return f"Chance: patients and networks ({candidate} and {reference} seeds)."
        if self.about_methods:
            whole = self.common == self.seeds and candidate == reference
            seeds = (
                f"the same {candidate} seeds"
                if whole
                else f"{candidate} and {reference} seeds, {self.common[1]} of them"
            )
            return f"Chance: patients and networks ({seeds}{'' if whole else ' from the same networks'}, in pairs)."
        if self.seeds == (1, 1):
            return f"Chance: patients. This is about {self._models}; other seeds may differ."
        single, several = (self.reference, self.candidate) if reference == 1 else (self.candidate, self.reference)
        drawn = max(self.seeds) - self.common[reference == 1]
        if not drawn:
            return f"Chance: patients. {single} is made from the networks of {several}; other seeds may differ."
        which = f" that {single} is not made from" if drawn < max(self.seeds) else ""
        return (
            f"Chance: patients and the {counted(drawn, 'seed')} of {several}{which}; of {single} there is one, and "
            "other seeds of it may differ."
        )

    @property
    def _models(self) -> str:
        if self.networks == (1, 1):
            return "the same network, used in two ways" if any(self.common) else "these two networks"
        counts = zip((self.candidate, self.reference), self.networks[::-1], strict=True)
        both = " and ".join(f"{name} ({counted(count, 'network')})" for name, count in counts)
        return f"these two models as they are, {both}{', which have networks in common' if any(self.common) else ''}"

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "n": self.n,
            "patients": self.patients,
            "seeds": {"reference": self.seeds[0], "candidate": self.seeds[1]},
            "networks": {"reference": self.networks[0], "candidate": self.networks[1]},
            "seeds_in_common": {"reference": self.common[0], "candidate": self.common[1]},
            "notes": list(self.notes),
            "void": list(self.void),
            "levels": {
                level: {
                    **({"matched": self.matched[level].to_json()} if level in self.matched else {}),
                    **plain(differences),
                }
                for level, differences in self.levels.items()
            },
        }


def compare_all(
    models: Sequence[Predictions],
    *,
    reference: int = 0,
    candidate: int | None = None,
    progress: OnFraction | None = None,
    **options: Any,
) -> list[Comparison]:
    """Every other model against the reference, p-values and intervals adjusted for their number, metric by metric.

    With a `candidate`, that one against every other model. `options` are the others of `compare`.
    """
    fixed = reference if candidate is None else candidate
    others = [model for position, model in enumerate(models) if position != fixed]
    comparisons = []
    for number, model in enumerate(others):
        step = part_of(progress, number, len(others))
        pair = (models[fixed], model) if candidate is None else (model, models[fixed])
        comparisons.append(compare(*pair, progress=step, **options))
    return _adjusted(comparisons)


def compare(
    reference: Predictions,
    candidate: Predictions,
    *,
    penalty: float = PENALTY,
    seed: int = 0,
    resamples: int = RESAMPLES,
    progress: OnFraction | None = None,
) -> Comparison:
    """Candidate minus reference at every level, paired by patient."""
    first, second, notes = paired(reference, candidate)
    hierarchy = first.hierarchy
    scored = first.probabilities is not None and second.probabilities is not None
    metrics = metrics_for(scored=scored)
    levels: dict[str, dict[str, Contrast]] = {}
    at_equal: dict[str, Matched] = {}
    for level, name in enumerate(hierarchy.level_names):
        pair = MethodPair.of(first, second, level=level, penalty=penalty, seed=seed, resamples=resamples, swaps=SWAPS)
        if not scored:
            levels[name] = pair.contrasts(metrics)
        else:
            levels[name], at_equal[name] = with_matched(pair, metrics)
            small = dict.fromkeys((*pair.reference.too_small, *pair.candidate.too_small))
            if small:
                notes = (*notes, f"{name}: too small for a curve and left out of its mean: {listing(small, most=6)}.")
        if progress is not None:
            progress((level + 1) / hierarchy.num_levels)
    common = common_networks(first, second)
    return Comparison(
        reference=reference.name,
        candidate=candidate.name,
        n=len(set(first.slide_ids)),
        levels=levels,
        notes=notes,
        matched=at_equal,
        patients=first.num_patients,
        void=tuple(sorted(m.name for m in (first, second) if any(caution.disqualifies for caution in cautions(m)))),
        seeds=(first.num_seeds, second.num_seeds),
        networks=(first.num_networks, second.num_networks),
        common=(int(common.any(axis=1).sum()), int(common.any(axis=0).sum())),
    )


def with_matched(pair: MethodPair, metrics: Iterable[Metric]) -> tuple[dict[str, Contrast], Matched]:
    """Every metric, and the two at equal false alarms, the mean of their own, and at equal misses."""
    rates = [METRICS[key] for key in ("false_alarm_rate", "missed_rate")]
    seen, drawn = ([side.read(rates) for side in pair.sides], [side.drawn(rates) for side in pair.sides])

    def own(key: str) -> tuple[Array, Array]:
        """The mean of the two rates; swapping two models moves none out of the pair, so that of swaps is this, too."""
        means = [0.5 * sum(side[key].mean(axis=0) for side in sides) for sides in (seen, drawn) if sides[0]]
        return means[0], means[-1]

    alarms, misses = own("false_alarm_rate"), own("missed_rate")
    results = pair.contrasts([*metrics, missed_there(alarms), false_alarms_there(misses)])
    missed, raised = results.pop("missed"), results.pop("false_alarms")
    return results, Matched(
        at_false_alarms=float(alarms[0][0]),
        missed=replace(missed, metric="missed_rate"),
        at_missed=float(misses[0][0]),
        false_alarms=replace(raised, metric="false_alarm_rate"),
        candidate_cheaper=_cheaper(pair),
    )


def paired(first: Predictions, second: Predictions) -> tuple[Predictions, Predictions, tuple[str, ...]]:
    """Both on the slides that all their seeds share; refused when there are none or labels contradict."""
    if first.hierarchy.digest != second.hierarchy.digest:
        raise PredictionsError(
            f"{first.name} and {second.name} were read with different class hierarchies, {first.hierarchy.name!r} and "
            f"{second.hierarchy.name!r}. Models can be compared on the same classes, in one order or in several."
        )
    shared = slides_of_all_seeds(first) & slides_of_all_seeds(second)
    if not shared:
        raise PredictionsError(
            f"{first.name} and {second.name} share no slide ids, so they cannot be compared slide by slide "
            f"(e.g. {listing(first.slide_ids[:2])} against {listing(second.slide_ids[:2])})."
        )
    a, b = (model.where(np.array([slide in shared for slide in model.slide_ids])) for model in (first, second))
    order = {slide: number for number, slide in enumerate(dict.fromkeys(a.slide_ids))}
    b = b.take(np.lexsort((np.array([order[slide] for slide in b.slide_ids]), b.seed_number)))
    known = dict(zip(a.slide_ids, zip(a.target.tolist(), a.patient.tolist(), strict=True), strict=True))
    target, patients = (np.array(column) for column in zip(*(known[slide] for slide in b.slide_ids), strict=True))
    contradictory = [b.slide_ids[row] for row in np.flatnonzero(b.target != target).tolist()]
    if contradictory:
        raise PredictionsError(
            f"{first.name} and {second.name} disagree on the true class of {len(contradictory)} slides: "
            f"{listing(contradictory, most=5)}. Were they labelled differently?"
        )
    notes = []
    left_out = len(set(first.slide_ids)) - len(order), len(set(second.slide_ids)) - len(order)
    if any(left_out):
        notes.append(
            f"Compared on the {len(order)} slides that both predict; {left_out[0]} of {first.name} and {left_out[1]} "
            f"of {second.name} are left out."
        )
    if a.patient_ids is None and b.patient_ids is not None:  # either file may know the patients
        of_slide = dict(zip(b.slide_ids, b.patient_ids, strict=True))
        a = replace(a, patient_ids=[of_slide[slide] for slide in a.slide_ids])
    elif b.patient_ids is not None and not _same_grouping(patients, b.patient):
        notes.append(
            f"{first.name} and {second.name} put slides together as patients in different ways; those of {first.name} "
            "are used for intervals and tests."
        )
    return a, b, tuple(notes)


def slides_of_all_seeds(model: Predictions) -> set[str]:
    """The slides that every seed of a method predicts."""
    seeds: list[set[str]] = [set() for _ in range(model.num_seeds)]
    for seed, slide in zip(model.seed_number.tolist(), model.slide_ids, strict=True):
        seeds[seed].add(slide)
    return set.intersection(*seeds)


def _same_grouping(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> bool:
    """Whether two numberings of patients, under whatever names, put the same rows together."""
    pairs = len(np.unique(first * (int(second.max()) + 1) + second))
    return pairs == len(np.unique(first)) == len(np.unique(second))


def part_of(progress: OnFraction | None, number: int, of: int) -> OnFraction | None:
    """The progress of one of several equally long steps, as progress of the whole."""
    return None if progress is None else lambda fraction: progress((number + fraction) / of)


def _cheaper(pair: MethodPair) -> tuple[tuple[float, float], ...]:
    """Ranges of κ on a grid in which the candidate's expected cost is the lower one."""
    costs = []
    for networks in pair.sides:
        curve = exact_curve(networks.slides.path, networks.slides.target)
        place = np.searchsorted(curve.kappa, _COST_GRID, side="right") - 1
        costs.append(curve.false_alarms[place] + _COST_GRID * curve.missed[place])
    # Equal curves are summed in another order, and must not count as cheaper.
    better = costs[1] < costs[0] - 1e-12
    edges = np.flatnonzero(np.diff(np.concatenate([[0], better.astype(np.int64), [0]])))
    return tuple((float(_COST_GRID[a]), float(_COST_GRID[b - 1])) for a, b in edges.reshape(-1, 2))


def _adjusted(comparisons: list[Comparison]) -> list[Comparison]:
    """All comparisons with one reference are one family for every metric and for the misses at equal false alarms."""
    result = list(comparisons)
    for level in comparisons[0].levels if comparisons else ():
        own = adjusted([one.levels[level] for one in result])
        matches = [one.matched.get(level) for one in result]
        equal = adjusted([{} if one is None else {"missed": one.missed, "alarms": one.false_alarms} for one in matches])
        for place, (one, match) in enumerate(zip(result, matches, strict=True)):
            matched = dict(one.matched)
            if match is not None:
                both = equal[place]
                matched[level] = replace(match, missed=both["missed"], false_alarms=both["alarms"])
            result[place] = replace(one, levels={**one.levels, level: own[place]}, matched=matched)
    return result
