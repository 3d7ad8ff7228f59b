"""A model made for urgency: a slide is as urgent as its most urgent finding, so every step of urgency is a question.

    h_i = ReLU(W x_i + b)
    z_k = what the instances say to question k, "at least k?", each question with an attention of its own
    P(at least k) = P(at least k - 1) sigmoid(z_k)

Equally urgent classes share a boundary and are told apart by one more question, "which of them?" (`UrgencyChain`).
The logits are the logarithms of the class probabilities, so softmax(logits) = p, and coarser levels are sums of p: one
tower serves all levels, which therefore cannot contradict each other. Pooling is one of

    attention    a_ik = softmax_i(w_k^T (tanh(V h_i) * sigmoid(U h_i))),  z_k = u_k^T sum_i a_ik h_i + c_k
    smooth_max   s_ik = u_k^T h_i + c_k,  z_k = (1 / r_k) log mean_i exp(r_k s_ik),  r_k learned
    mean         z_k = u_k^T mean_i h_i + c_k

With smooth_max an instance alone has z_k = s_ik, so each has a probability of its own of being at least k urgent. With
attention and equally urgent classes only, this is AB-MIL. At the start all ranks are about equally likely:
c_k = log(R - k) of R ranks. Invariant to the order of the instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Unpack

import torch
from torch import Tensor

from pams_mil.errors import Count, ParameterError
from pams_mil.models.core.batch import BagBatch, joined
from pams_mil.models.core.heads import Head, Scored, make_head
from pams_mil.models.core.mil_model import Embedded, MILModel, Widths
from pams_mil.models.layers.attention_pool import CHUNK_ROWS, AttentionScores, Projection, stream_pool
from pams_mil.models.layers.urgency_chain import SmoothMax, UrgencyChain
from pams_mil.ops import at_least_float32

DISCOVER = {"priority": "Priority"}
Pooling = Literal["attention", "smooth_max", "mean"]


class Priority(MILModel):
    """A chain of questions, one per boundary of urgency.

    Args, beyond those of `MILModel`:
        pooling: "attention", "smooth_max" or "mean".
        attention_features: width of V and U, 128; only with attention.
        ranks: urgency of every class, least urgent first, equal for equally urgent ones; None: all differ.
    """

    own_head: ClassVar[bool] = True
    one_tower: ClassVar[bool] = True
    packs = True  # projection and scores do not know of bags

    def __init__(
        self,
        *,
        pooling: Pooling = "attention",
        attention_features: Count = 128,
        ranks: Sequence[int] | None = None,
        **widths: Unpack[Widths],
    ) -> None:
        super().__init__(**widths)
        self.pooling = pooling
        if ranks is not None and len(ranks) != self.num_classes:
            raise ParameterError(
                f"ranks must hold one rank for each of {self.num_classes} classes, found {list(ranks)}."
            )
        self.chain = UrgencyChain(range(self.num_classes) if ranks is None else ranks)
        self.projection = Projection(self.in_features, self.embedding_features)
        self.head = make_head(widths.get("head", "linear"), self.embedding_features, self.chain.scores)
        with torch.no_grad():
            # sigmoid(log(R - k)) = (R - k) / (R - k + 1): of the ranks that are left one stays behind here.
            steps = torch.arange(self.chain.boundaries, 0, -1, dtype=self.head.bias.dtype, device=self.head.bias.device)
            self.head.bias[: self.chain.boundaries] = steps.log()
        if pooling == "attention":
            self.scores = AttentionScores(self.embedding_features, attention_features, branches=self.chain.questions)
            self.vector_features = self.chain.questions * self.embedding_features
        if pooling == "smooth_max":
            self.smooth_max = SmoothMax(self.chain.scores)
            self.vector_features, self.judges_instances = self.chain.scores, True

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """What the questions are answered from: a vector per question, the mean vector, or the scores themselves."""
        pooled = self._pool(batch) if torch.is_grad_enabled() else [self._stream(bag) for bag in batch.bags()]
        vectors = torch.stack([vector for vector, _ in pooled])
        if not attention:
            return Embedded(vectors)
        asked = self.chain.asked(self._answers(vectors))
        weights = [self._weights(scores, share) for (_, scores), share in zip(pooled, asked, strict=True)]
        return Embedded(vectors, joined(weights))

    def score(self, embedded: Embedded) -> Scored:
        """The logarithms of the class probabilities; no row of weights belongs to a class."""
        return Scored(self.chain.log_probabilities(self._answers(embedded.vectors)), embedded.vectors, None)

    def _pool(self, batch: BagBatch) -> list[tuple[Tensor, Tensor]]:
        """What each bag's questions are answered from, and the scores of its instances, which attention is made of.

        All rows are projected and scored in one go.
        """
        instances = self.projection(batch.features)
        if self.pooling == "mean":
            return [(rows.mean(0), self._no_scores(rows)) for rows in batch.split(instances)]
        if self.pooling == "smooth_max":
            return [(self.smooth_max(logits), logits) for logits in batch.split(at_least_float32(self.head(instances)))]
        parts = zip(batch.split(at_least_float32(self.scores(instances))), batch.split(instances), strict=True)
        return [((scores.softmax(0).T.to(rows.dtype) @ rows).flatten(), scores) for scores, rows in parts]

    def _stream(self, bag: Tensor) -> tuple[Tensor, Tensor]:
        """The same for one bag without gradients, piece by piece."""
        if self.pooling == "mean":
            return self.projection.mean(bag), self._no_scores(bag)
        if self.pooling == "smooth_max":
            pieces = torch.split(bag, CHUNK_ROWS)
            scores = joined([at_least_float32(self.head(self.projection(piece))) for piece in pieces])
            return self.smooth_max(scores), scores
        pooled, scores = stream_pool(bag, self.projection, self.scores, None, 1)
        return pooled.flatten(), scores

    def _no_scores(self, bag: Tensor) -> Tensor:
        return torch.zeros(len(bag), self.chain.questions, device=bag.device)

    def _answers(self, vectors: Tensor) -> Tensor:
        """z, one per score, [b, ..] -> [b, scores]."""
        vectors = at_least_float32(vectors)
        if self.pooling == "smooth_max":
            return vectors
        if self.pooling == "mean":
            return at_least_float32(self.head(vectors))
        by_question = vectors.reshape(-1, self.chain.questions, self.embedding_features)
        return (by_question[:, list(self.chain.question)] * self.head.rows()).sum(-1) + self.head.bias

    def _weights(self, scores: Tensor, share: Tensor) -> Tensor:
        """How much a bag's instances count, [n]: their shares in every score, weighed by how far that one matters."""
        smooth = self.pooling == "smooth_max"
        weights = self.smooth_max.weights(scores) if smooth else scores.softmax(0)[:, list(self.chain.question)]
        return (weights * share).sum(1)
