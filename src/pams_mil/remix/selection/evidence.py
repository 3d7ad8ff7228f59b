"""How much each instance speaks for its slide's label, learned from slide labels alone.

The labeling rule says that a slide less urgent than y holds no instance of class y. So for a class y the instances N of
all less urgent training slides are certain negatives, and those of slides at least as urgent, P, are candidates:

    w_y = (Σ + r · tr(Σ)/d · I)⁻¹ (μ_P − μ_N),   Σ = (Cov P + Cov N) / 2      every slide weighs the same
    R times: P = the rows of each of its slides with the highest w_y · z (a share s of them); fit again
    evidence of z = share of N (slides weighing the same) with w_y · z' < w_y · z,   in [0, 1]

An evidence of 0.9 means: more like an urgent finding than 90 % of what is known not to be one. To keep a slide from
vouching for itself, w_y comes from the slides of other patients (F folds). Instance labels are never used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pams_mil import seeding
from pams_mil.errors import ParameterError
from pams_mil.parameters import require_count, require_number

Read = Callable[[int], Tensor]


@dataclass(frozen=True)
class EvidenceSettings:
    """How the discriminants are fitted."""

    ridge: float = 1.0
    """r, relative to the mean variance of a feature."""
    rounds: int = 3
    """R, how often the candidates are narrowed down."""
    keep: float = 0.5
    """s, the share of a candidate slide's rows that is kept."""
    folds: int = 5
    """F, groups of patients for cross-fitting."""
    components: int = 128
    """Features are reduced to at most this many principal components first."""
    most_rows: int = 20_000
    """Rows used for fitting, shared equally by the slides; all rows are scored."""

    def __post_init__(self) -> None:
        require_number("ridge", self.ridge, at_least=1e-9)
        require_count("rounds", self.rounds, at_least=0)
        require_number("keep", self.keep, at_least=0, at_most=1)
        require_count("folds", self.folds, at_least=2)
        require_count("components", self.components, at_least=1)
        require_count("most_rows", self.most_rows, at_least=2)


@dataclass(frozen=True)
class _Sample:
    """Rows drawn for fitting, in principal components."""

    rows: Tensor  # [m, q]
    slide: Tensor  # [m] which slide a row is from
    rank: Tensor  # [m] urgency of the slide
    fold: Tensor  # [m]

    def weights(self, chosen: Tensor) -> Tensor:
        """Weights of the chosen rows, summing to 1, by which every slide among them counts the same."""
        slide = self.slide[chosen]
        # 1 / rows of the slide: large slides would outvote small ones otherwise.
        share = torch.bincount(slide)[slide].double().reciprocal()
        return share / share.sum()


def score_evidence(
    read: Read,
    ranks: Sequence[int],
    patients: Sequence[str],
    *,
    seed: int = 0,
    settings: EvidenceSettings | None = None,
) -> list[Tensor | None]:
    """Evidence [n_i] of every training slide's instances; None for slides that outrank no other.

    Args:
        read: gives the features [n, d] of the slide at a position; called twice per slide, so bags need not be held.
        ranks: urgency of each slide's label at the finest level, `hierarchy.ranks()[targets]`.
        patients: patient of each slide; slides of one patient never vouch for one another.
        seed: decides the folds and the rows drawn for fitting.
        settings: how to fit.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> bags = [torch.randn(50, 4) for _ in range(12)]
    >>> for bag in bags[6:]:
    ...     _ = bag[:5, 0].add_(6.0)  # the urgent half: five planted instances each
    >>> evidence = score_evidence(bags.__getitem__, [0] * 6 + [1] * 6, [str(i) for i in range(12)])
    >>> evidence[0] is None, bool(evidence[6][:5].min() > 0.95), bool(evidence[6][5:].mean() < 0.7)
    (True, True, True)
    """
    settings = settings or EvidenceSettings()
    if not len(ranks) == len(patients) > 0:
        raise ParameterError(f"Evidence needs a rank and a patient per slide, found {len(ranks)} and {len(patients)}.")
    folds = patient_folds(patients, settings.folds, seed)
    sample, center, basis = _draw_sample(read, ranks, folds, seed, settings)
    lines: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor] | None] = {}
    scores: list[Tensor | None] = []
    for slide, (rank, fold) in enumerate(zip(ranks, folds, strict=True)):
        if (rank, fold) not in lines:
            lines[rank, fold] = _fit(sample, rank, fold, settings)
        line = lines[rank, fold]
        scores.append(
            # [d, q] times [q] first: one product per row instead of q.
            None if line is None else _evidence((read(slide).float() - center) @ (basis @ line[0]), *line[1:])
        )
    return scores


def patient_folds(patients: Sequence[str], folds: int, seed: int) -> list[int]:
    """A fold for each slide, the same for all slides of a patient.

    >>> patient_folds(["p", "q", "p", "r"], 2, seed=0) in ([0, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1],
    ...     [1, 1, 1, 0], [1, 0, 1, 0])
    True
    """
    names = sorted(set(patients))
    order = seeding.numpy_generator(seed, "evidence folds").permutation(len(names))
    # Dealt in a random order, so folds differ by one patient at most.
    fold = {names[position]: number % folds for number, position in enumerate(order)}
    return [fold[patient] for patient in patients]


def _draw_sample(
    read: Read, ranks: Sequence[int], folds: Sequence[int], seed: int, settings: EvidenceSettings
) -> tuple[_Sample, Tensor, Tensor]:
    most = max(1, settings.most_rows // len(ranks))
    drawn = []
    for slide in range(len(ranks)):
        rows = read(slide)
        # A stream per slide: how many rows one slide has does not move the draws of the others.
        order = torch.randperm(len(rows), generator=seeding.generator(seed, "evidence rows", slide))[:most]
        drawn.append(rows[order.to(rows.device)].float())
    counts = torch.tensor([len(rows) for rows in drawn])
    joined = torch.cat(drawn)
    center = joined.mean(0)
    rows = joined - center
    # Eigenvalues rise: the last columns are the directions of largest variance, [d, q].
    basis = torch.linalg.eigh(rows.T @ rows)[1][:, -settings.components :]
    slide_of = torch.repeat_interleave(torch.arange(len(ranks)), counts)
    sample = _Sample(
        rows=rows @ basis,
        slide=slide_of,
        rank=torch.tensor(list(ranks))[slide_of],
        fold=torch.tensor(list(folds))[slide_of],
    )
    return sample, center, basis


def _fit(sample: _Sample, rank: int, fold: int, settings: EvidenceSettings) -> tuple[Tensor, Tensor, Tensor] | None:
    """w_y for one rank and fold, with the negatives' scores, ascending, and their summed weights."""
    negative, candidate = sample.rank < rank, sample.rank >= rank
    if not negative.any():
        return None
    other = sample.fold != fold
    # A class seen in one fold alone has no other slides to learn from: then its own are better than none.
    negative = negative & other if (negative & other).any() else negative
    candidate = candidate & other if (candidate & other).any() else candidate
    positive = candidate
    line = _discriminant(sample, negative, positive, settings.ridge)
    for _ in range(settings.rounds):
        positive = _strongest(sample, candidate, sample.rows @ line, settings.keep)
        line = _discriminant(sample, negative, positive, settings.ridge)
    # With scores ascending, a running sum of weights is the share of negatives below any score.
    scores, order = (sample.rows[negative] @ line).sort()
    return line, scores, sample.weights(negative)[order].cumsum(0).to(scores.dtype)


def _discriminant(sample: _Sample, negative: Tensor, positive: Tensor, ridge: float) -> Tensor:
    means, covariance = [], torch.zeros(())
    for chosen in (positive, negative):
        rows, weight = sample.rows[chosen].double(), sample.weights(chosen)
        means.append(weight @ rows)
        # The root on both sides of the product is the weight of each row.
        centered = (rows - means[-1]) * weight.sqrt()[:, None]
        covariance = covariance + centered.T @ centered / 2
    # Without any variance every direction is as good as another; the smallest number keeps the system solvable.
    floor = (ridge * covariance.diagonal().mean()).clamp_min(torch.finfo(torch.float64).tiny)
    covariance.diagonal().add_(floor)
    line: Tensor = torch.linalg.solve(covariance, means[0] - means[1])
    return line.to(sample.rows.dtype)


def _strongest(sample: _Sample, candidate: Tensor, score: Tensor, keep: float) -> Tensor:
    """The highest-scoring share of every candidate slide's rows, at least one each."""
    rows = candidate.nonzero().squeeze(1)
    # By slide, and within a slide by falling score: the last key of lexsort counts first.
    order = rows[np.lexsort((-score[rows].numpy(), sample.slide[rows].numpy()))]
    _, counts = torch.unique_consecutive(sample.slide[order], return_counts=True)
    # Where the slide of each row begins, so that `place` counts from 0 in every slide.
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    place = torch.arange(len(order)) - starts
    # Rounded first, as in RandomMix: 7 % of 100 rows is a little more than 7 in binary.
    limit = torch.repeat_interleave((counts.double() * keep).round(decimals=9).ceil().clamp_min(1), counts)
    chosen = torch.zeros_like(candidate)
    chosen[order[place < limit]] = True
    return chosen


def _evidence(score: Tensor, negatives: Tensor, weights: Tensor) -> Tensor:
    """Share of the negatives, by weight, that score lower."""
    # How many are strictly lower; the leading 0 is the share of none.
    below = torch.searchsorted(negatives, score)
    return torch.cat([weights.new_zeros(1), weights])[below]


def convincing_rows(evidence: Tensor | None, rows: int, level: float) -> Tensor:
    """Rows with an evidence of at least 1 − level, in their order; the most convincing one when there are none.

    >>> evidence = torch.tensor([0.95, 0.3, 0.8])
    >>> convincing_rows(evidence, 3, 0.2).tolist(), convincing_rows(evidence, 3, 0.01).tolist()
    ([0, 2], [0])
    """
    if evidence is None:
        raise ParameterError(
            "selection='evidence' needs the evidence of the first bag's rows, found none. Score the training slides "
            "once with score_evidence(...) and pass evidence=..., or choose another selection."
        )
    if evidence.shape != (rows,):
        raise ParameterError(f"evidence must be one number per row, [{rows}], found shape {list(evidence.shape)}.")
    # In float32, 1 - 0.2 is not exactly the 0.8 that a share of the negatives may be.
    chosen = (evidence >= 1 - level - 1e-6).nonzero().squeeze(1)
    return chosen if len(chosen) else evidence.argmax()[None]
