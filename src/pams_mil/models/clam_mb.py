"""CLAM-MB, clustering-constrained attention with one branch per class (Lu et al., Nature BME 2021).

    h_i = ReLU(W x_i + b)
    alpha_k = softmax_i(w_k^T (tanh(V h_i) * sigmoid(U h_i)))
    z_k = sum_i alpha_ki h_i,  logit_k = C_k^T z_k + c_k

Every class looks for its own evidence. The rest is CLAM-SB: dropout, and one two-way instance head per class, whose
loss takes the instances that the branch of its own class attends to most. The attention that is shown is that of all
classes, each weighed by its probability. Invariant to the order of the instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from pams_mil.models.clam_sb import ClamSB
from pams_mil.models.core.heads import Scored
from pams_mil.models.core.mil_model import Embedded
from pams_mil.models.layers.attention_pool import merge_gates
from pams_mil.ops import at_least_float32

DISCOVER = {"clam_mb": "ClamMB"}


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

    @property
    def branches(self) -> int | None:
        """One attention per class."""
        return self.num_classes

    @property
    def vector_features(self) -> int:
        """One vector per class."""
        return self.num_classes * self.embedding_features

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
