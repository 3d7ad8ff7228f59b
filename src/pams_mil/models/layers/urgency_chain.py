"""A maximum that can be trained: between the mean and the largest score, as sharp as the data ask for.

    z_k = (1 / r_k) log mean_i exp(r_k s_ik),   r_k = exp(rho_k) > 0

Towards r = 0 it is the mean of the scores, towards infinity their maximum. A bag of one instance has the score of that
instance, so every instance has a score, and with it a probability, of its own. dz_k / ds_ik = softmax_i(r_k s_ik) is
how much an instance counts. r starts at 1, where weight decay draws it to.

From scores of questions to class probabilities that are in order of urgency by construction.

The classes have R ranks. Boundary k = 1, ..., R - 1 asks "at least rank k?" of what is at least k - 1 already, and the
answers form a chain, as in CORN:

    P(at least k) = P(at least k - 1) sigmoid(z_k),   P(at least 0) = 1
    P(rank k) = P(at least k) - P(at least k + 1)

Equally urgent classes share a rank. One more question, "which of them?", tells them apart by a softmax:

    P(class c) = P(rank k) softmax_c(t),   c over the classes of rank k

So there is one score per boundary, followed by one per tied class.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from pams_mil.errors import ParameterError
from pams_mil.ops import at_least_float32, chain_log_probabilities


class SmoothMax(nn.Module):
    """The smooth maximum of every column, each with a sharpness of its own.

    >>> round(SmoothMax(1)(torch.tensor([[0.0], [1.0]])).item(), 4)  # log((1 + e) / 2)
    0.6201

    Args:
        columns: k.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.log_sharpness = nn.Parameter(torch.zeros(columns))

    def forward(self, scores: Tensor) -> Tensor:
        """[n, k] -> [k]; the largest exponent is taken off first, so no score is too large."""
        sharpness = self.log_sharpness.exp()
        scaled = at_least_float32(scores) * sharpness
        # Added and taken off again, so it has no gradient.
        top = scaled.detach().amax(0)
        smooth: Tensor = (top + (scaled - top).exp().mean(0).log()) / sharpness
        return smooth

    def weights(self, scores: Tensor) -> Tensor:
        """How much every instance counts, softmax_i(r_k s_ik); [n, k] -> [n, k]."""
        return (at_least_float32(scores) * self.log_sharpness.exp()).softmax(0)


class UrgencyChain:
    """Which score answers which question.

    >>> chain = UrgencyChain([0, 1, 1, 2])
    >>> chain.boundaries, chain.ties, chain.scores, chain.question
    (2, (2,), 4, (0, 1, 2, 2))
    >>> chain.log_probabilities(torch.zeros(1, 4)).exp()
    tensor([[0.5000, 0.1250, 0.1250, 0.2500]])

    Args:
        ranks: The urgency of every class, least urgent first.

    Attributes:
        sizes: How many classes every rank has.
        boundaries: K = R - 1.
        ties: Sizes of the groups that a question tells apart: tied classes, or whatever there is without a boundary.
        questions: Boundaries and groups of tied classes.
        scores: One per boundary and one per tied class.
        question: The question that each score answers.
        tied_classes: The classes that a softmax tells apart.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        if not len(ranks) or any(low > high for low, high in pairwise(ranks)):
            raise ParameterError(
                f"ranks must hold the urgency of every class, least urgent first, found {list(ranks)}."
            )
        self.sizes = tuple(list(ranks).count(rank) for rank in sorted(set(ranks)))
        self.boundaries = len(self.sizes) - 1
        self.ties = tuple(size for size in self.sizes if size > 1 or not self.boundaries)
        self.questions, self.scores = self.boundaries + len(self.ties), self.boundaries + sum(self.ties)
        tied = [self.boundaries + number for number, size in enumerate(self.ties) for _ in range(size)]
        self.question = (*range(self.boundaries), *tied)
        shared = [size for size in self.sizes for _ in range(size)]
        self.tied_classes = [index for index, size in enumerate(shared) if size > 1 or not self.boundaries]

    def log_probabilities(self, scores: Tensor) -> Tensor:
        """Log-probabilities of the classes, [b, scores] -> [b, c]."""
        ranks = chain_log_probabilities(scores[:, : self.boundaries])
        # Behind the boundaries, one run of scores per group of tied classes, in the order of ranks.
        tied = iter(torch.split(scores[:, self.boundaries :], list(self.ties), dim=1))
        parts = [
            rank + next(tied).log_softmax(-1) if size > 1 or not self.boundaries else rank
            for rank, size in zip(torch.split(ranks, 1, dim=1), self.sizes, strict=True)
        ]
        return torch.cat(parts, dim=1)

    def asked(self, scores: Tensor) -> Tensor:
        """How far each score matters, [b, scores] -> [b, scores], rows that sum to 1.

        A boundary counts with the probability that the chain comes to it, a tied class with its own probability.

        >>> UrgencyChain([0, 1, 2]).asked(torch.zeros(1, 2))
        tensor([[0.6667, 0.3333]])
        """
        ranks = chain_log_probabilities(scores[:, : self.boundaries]).exp()
        # P(at least 0), ..., P(at least R - 2): boundary k is asked of what is at least k - 1.
        reached = ranks.flip(1).cumsum(1).flip(1)[:, : self.boundaries]
        weights = torch.cat([reached, self.log_probabilities(scores).exp()[:, self.tied_classes]], dim=1)
        return weights / weights.sum(1, keepdim=True)
