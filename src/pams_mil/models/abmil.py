"""AB-MIL, attention-based multiple-instance learning (Ilse, Tomczak and Welling, ICML 2018).

    h_i = ReLU(W x_i + b)
    alpha = softmax_i(w^T (tanh(V h_i) * sigmoid(U h_i)))
    z = sum_i alpha_i h_i,  logits = C z + c

Invariant to the order of the instances.
"""

from __future__ import annotations

from typing import ClassVar, Unpack

from pams_mil.errors import Count
from pams_mil.models.core.batch import BagBatch, joined
from pams_mil.models.core.heads import Head
from pams_mil.models.core.mil_model import Embedded, MILModel, Widths
from pams_mil.models.layers.attention_pool import AttentionScores, Projection, attention_pool, merge_gates

DISCOVER = {"abmil": "ABMIL"}


class ABMIL(MILModel):
    """Gated (or plain) attention pooling and a linear head.

    Args, beyond those of `MILModel`:
        attention_features: width of V and U, 128.
        gated: multiply by the sigmoid gate.
    """

    packs = True  # bags are groups of one softmax
    # Of MIL-Lab, whose pretrained AB-MIL is FEATHER; there without a classifier.
    published_keys: ClassVar[dict[str, str]] = {
        r"patch_embed\.0\.(weight|bias)": r"projection.\1",
        r"global_attn\.attention_a\.0\.(weight|bias)": r"scores.V.\1",
        r"global_attn\.attention_b\.0\.(weight|bias)": r"scores.U.\1",
        r"global_attn\.attention_c\.(weight|bias)": r"scores.outer.\1",
        r"global_attn\.module\.0\.(weight|bias)": r"scores.V.\1",
        r"global_attn\.module\.3\.(weight|bias)": r"scores.outer.\1",
        r"classifier\.(weight|bias)": r"head.\1",
    }
    merge_published = staticmethod(merge_gates)

    def __init__(self, *, attention_features: Count = 128, gated: bool = True, **widths: Unpack[Widths]) -> None:
        super().__init__(**widths)
        self.projection = Projection(self.in_features, self.embedding_features)
        self.scores = AttentionScores(self.embedding_features, attention_features, gated=gated)

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Attention-pooled vectors [b, e]."""
        pooled = [
            attention_pool(piece.features, self.projection, self.scores, piece.groups, len(piece))
            for piece in batch.pieces()
        ]
        weights = None
        if attention:
            scores = batch.split(joined([own for _, own in pooled]))
            weights = joined([bag_scores.softmax(-1) for bag_scores in scores])
        return Embedded(joined([vectors for vectors, _ in pooled]), weights)
