"""CLAM-SB, clustering-constrained attention with a single branch (Lu et al., Nature BME 2021).

    h_i = ReLU(W x_i + b)
    alpha = softmax_i(w^T (tanh(V h_i) * sigmoid(U h_i)))
    z = sum_i alpha_i h_i,  logits = C z + c

AB-MIL with dropout and a wider attention, plus one two-way instance head per class, whose loss asks that the
most attended instances be evidence for the true class. It is part of every training step, with any method:

    L = L_method + w L_instance,   w = 3/7

the published 0.7 to 0.3, scaled so that the method keeps its own weight. Invariant to the order of the instances.

CLAM-MB, clustering-constrained attention with one branch per class (Lu et al., Nature BME 2021).

    h_i = ReLU(W x_i + b)
    alpha_k = softmax_i(w_k^T (tanh(V h_i) * sigmoid(U h_i)))
    z_k = sum_i alpha_ki h_i,  logit_k = C_k^T z_k + c_k

Every class looks for its own evidence. The rest is CLAM-SB: dropout, and one two-way instance head per class, whose
loss takes the instances that the branch of its own class attends to most. The attention that is shown is that of all
classes, each weighed by its probability. Invariant to the order of the instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from pams_mil.errors import Count, Dropout, NotNegative
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head, Scored
from pams_mil.models.core.mil_model import Embedded, MILModel, Widths
from pams_mil.models.layers.attention_pool import AttentionScores, Projection, merge_gates, spread_scores, stream_pool
from pams_mil.ops import at_least_float32

DISCOVER = {"clam_sb": "ClamSB", "clam_mb": "ClamMB"}


class ClamSB(MILModel):
    """Gated attention pooling with dropout; `bag_loss` is the clustering constraint, the term "instance".

    Args, beyond those of `MILModel`:
        attention_features: 256 for the published "small", 384 for "big".
        dropout: after the projection and on both factors of the attention.
        instance_weight: w, how much the instance loss counts in training; 0: not at all, which leaves the instance
            heads as they are.
        instance_samples: B, instances that are taken for evidence, and as many against it.
        subtyping: classes exclude one another, so the other classes' heads learn as well.
    """

    published_keys: ClassVar[dict[str, str]] = {
        r"attention_net\.0\.(weight|bias)": r"projection.\1",
        r"attention_net\.[23]\.attention_a\.0\.(weight|bias)": r"scores.V.\1",
        r"attention_net\.[23]\.attention_b\.0\.(weight|bias)": r"scores.U.\1",
        r"attention_net\.[23]\.attention_c\.(weight|bias)": r"scores.outer.\1",
        r"classifiers\.(weight|bias)": r"head.\1",
        r"instance_classifiers\.(\d+)\.(weight|bias)": r"instance_heads.\1.\2",
        # The SVM instance loss of the original keeps its constants in the checkpoint.
        r"instance_loss_fn\..*": "",
    }
    merge_published = staticmethod(merge_gates)

    def __init__(
        self,
        *,
        attention_features: Count = 256,
        dropout: Dropout = 0.25,
        instance_weight: NotNegative = 3 / 7,
        instance_samples: Count = 8,
        subtyping: bool = False,
        **widths: Unpack[Widths],
    ) -> None:
        super().__init__(**widths)
        self.instance_weight, self.instance_samples, self.subtyping = instance_weight, instance_samples, subtyping
        # How many attentions there are, one per class where every class has its vector; None: one for all classes.
        self.branches = self.num_classes if self.own_head else None
        self.vector_features = (self.branches or 1) * self.embedding_features
        self.projection = Projection(self.in_features, self.embedding_features)
        self.dropout = nn.Dropout(dropout)
        self.scores = AttentionScores(
            self.embedding_features, attention_features, dropout=dropout, branches=self.branches
        )
        self.instance_heads = nn.ModuleList(nn.Linear(self.embedding_features, 2) for _ in range(self.num_classes))

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Attention-pooled vectors [b, e], and in training the instance loss of the same pass."""
        auxiliary = None
        if not torch.is_grad_enabled() and not self.training:
            streamed = [stream_pool(bag, self.projection, self.scores, None, 1) for bag in batch.bags()]
            pooled = [vector for vector, _ in streamed]
            weights = [scores.softmax(0) for _, scores in streamed]
        else:
            instances, weights = self._attend(batch)
            parts = zip(weights, instances, strict=True)
            pooled = [spread_scores(weight, None, 1).to(rows.dtype) @ rows for weight, rows in parts]
            if self.training and self.instance_weight:
                auxiliary = partial(self._auxiliary, instances, weights)
        vectors = torch.stack([vector.flatten() for vector in pooled])
        return Embedded(vectors, self._shown(weights, vectors) if attention else None, auxiliary=auxiliary)

    def _shown(self, weights: list[Tensor], vectors: Tensor) -> Tensor:
        """The attention of the instances of all bags, [sum n_i]."""
        return torch.cat(weights)

    def _auxiliary(self, instances: list[Tensor], weights: list[Tensor], targets: Tensor) -> dict[str, Tensor]:
        losses = [self.bag_loss(*bag) for bag in zip(instances, weights, targets.tolist(), strict=True)]
        return {"instance": self.instance_weight * torch.stack(losses)}

    def _attend(self, batch: BagBatch) -> tuple[list[Tensor], list[Tensor]]:
        instances = self.dropout(self.projection(batch.features))
        scores = batch.split(at_least_float32(self.scores(instances)))
        return batch.split(instances), [bag_scores.softmax(0) for bag_scores in scores]

    def bag_loss(self, rows: Tensor, weights: Tensor, target: int) -> Tensor:
        """The clustering constraint of one bag, from its instances and their attention.

        The true class's instance head sees the B most attended instances with label 1 and the B least
        attended with label 0; with `subtyping` the other heads see the B most attended with label 0, and the
        sum is divided by c. B = min(instance_samples, n), so small bags are no error.
        """
        count = min(self.instance_samples, len(rows))
        ordered = self._ordered(rows, weights, target)
        label = torch.ones(count, dtype=torch.long, device=rows.device)
        # With fewer than 2 B instances some are taken both for and against.
        logits = self.instance_heads[target](torch.cat([ordered[:count], ordered[-count:]]))
        loss = functional.cross_entropy(logits, torch.cat([label, label * 0]))
        if not self.subtyping:
            return loss
        others = [
            functional.cross_entropy(head(self._ordered(rows, weights, index)[:count]), label * 0)
            for index, head in enumerate(self.instance_heads)
            if index != target
        ]
        return torch.stack([loss, *others]).sum() / self.num_classes

    def _ordered(self, rows: Tensor, weights: Tensor, branch: int) -> Tensor:
        """Instances by falling attention: the only one there is, or that of a class."""
        own = weights if self.branches is None else weights[:, branch]
        return rows[own.detach().argsort(descending=True, stable=True)]


class ClamMB(ClamSB):
    """One gated attention per class, with dropout; options as for CLAM-SB.

    A class's logit needs its own vector, so there is no head for other classes: a shared tower sums its classes for
    coarser levels.
    """

    own_head: ClassVar[bool] = True
    of_classes: ClassVar[tuple[str, ...]] = (*ClamSB.of_classes, "scores.outer.")
    published_keys: ClassVar[dict[str, str]] = {
        **{theirs: ours for theirs, ours in ClamSB.published_keys.items() if not theirs.startswith("classifiers")},
        r"classifiers\.(\d+)\.(weight|bias)": r"head.\1.\2",
    }

    @staticmethod
    def merge_published(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As for CLAM-SB, and the classes' separate classifiers as the rows of one head."""
        merged = merge_gates(state)
        for kind in ("weight", "bias"):
            rows = sorted((key for key in merged if key.startswith("head.") and key.endswith(kind)), key=_row)
            if rows:
                merged[f"head.{kind}"] = torch.cat([merged.pop(key) for key in rows])
        return merged

    def score(self, embedded: Embedded) -> Scored:
        """Every class's logit from its own vector."""
        return Scored(self._logits(embedded.vectors), embedded.vectors, self.head.rows())

    def _logits(self, vectors: Tensor) -> Tensor:
        by_class = at_least_float32(vectors).reshape(-1, self.num_classes, self.embedding_features)
        return (by_class * self.head.rows()).sum(-1) + self.head.bias

    def _shown(self, weights: list[Tensor], vectors: Tensor) -> Tensor:
        shares = self._logits(vectors).softmax(-1)
        return torch.cat([(weight * share).sum(1) for weight, share in zip(weights, shares, strict=True)])


def _row(key: str) -> int:
    """The class of a key such as `head.3.weight`."""
    return int(key.split(".")[1])
