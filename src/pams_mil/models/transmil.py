"""TransMIL, transformer-based correlated multiple-instance learning (Shao et al., NeurIPS 2021).

    h = ReLU(W x + b), the first s^2 - n rows repeated until a square map of side s = ceil(sqrt(n)) is full
    t = [class token, h];  t <- t + Nystrom(LN(t));  t <- PPEG(t);  t <- t + Nystrom(LN(t));  z = LN(t)[0]
    logits = C z + c

Only the class token of the second layer is used, so only its row is computed. Not invariant to the order of
instances: position encoding, landmarks and the repeated rows follow it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from pams_mil.errors import Count, Dropout, ParameterError
from pams_mil.models.core.batch import BagBatch, joined
from pams_mil.models.core.heads import Head
from pams_mil.models.core.mil_model import Embedded, MILModel, Widths
from pams_mil.models.layers.attention_pool import Projection
from pams_mil.models.layers.nystrom import NystromAttention
from pams_mil.models.layers.transmil_graph import (
    PPEG,
    attend_plainly,
    count_rows,
    encode_position,
    fill_square,
    square_side,
)

DISCOVER = {"transmil": "TransMIL"}


class AttentionLayer(nn.Module):
    """Pre-norm attention without a feed-forward block: t + Dropout(Nystrom(LN(t)))."""

    def __init__(self, features: int, *, attention: NystromAttention, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.attention = attention
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """All tokens, [n, e]."""
        update: Tensor = self.dropout(self.attention(self.norm(tokens)))
        return tokens + update

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The first token only, [1, e], and its attention [h, n]."""
        update, row = self.attention.class_token(self.norm(tokens))
        return tokens[:1] + self.dropout(update), row


class TransMIL(MILModel):
    """Two Nystrom attention layers around a pyramid position encoding.

    Args, beyond those of `MILModel`:
        attention_heads: 8.
        landmarks: m, 256.
        pinv_steps: steps of the iterative pseudo-inverse, 6.
        kernel: taps of the value convolution, 33.
        dropout: on the attention output, 0.1.
    """

    published_keys: ClassVar[dict[str, str]] = {
        r"_fc1\.0\.(weight|bias)": r"projection.\1",
        r"cls_token": "class_token",
        r"(layer[12])\.norm\.(weight|bias)": r"\1.norm.\2",
        r"(layer[12])\.attn\.to_qkv\.weight": r"\1.attention.qkv.weight",
        r"(layer[12])\.attn\.to_out\.0\.(weight|bias)": r"\1.attention.out.\2",
        r"(layer[12])\.attn\.res_conv\.weight": r"\1.attention.taps",
        r"pos_layer\.proj\.(weight|bias)": r"position.conv7.\1",
        r"pos_layer\.proj1\.(weight|bias)": r"position.conv5.\1",
        r"pos_layer\.proj2\.(weight|bias)": r"position.conv3.\1",
        r"norm\.(weight|bias)": r"norm.\1",
        r"_fc2\.(weight|bias)": r"head.\1",
    }

    def __init__(
        self,
        *,
        attention_heads: Count = 8,
        landmarks: Count = 256,
        pinv_steps: Count = 6,
        kernel: Count = 33,
        dropout: Dropout = 0.1,
        **widths: Unpack[Widths],
    ) -> None:
        super().__init__(**widths)
        width = self.embedding_features
        if kernel % 2 == 0:
            raise ParameterError(f"kernel must be odd, so that it has a middle, found {kernel}.")

        def layer() -> AttentionLayer:
            attention = NystromAttention(
                width, heads=attention_heads, landmarks=landmarks, pinv_steps=pinv_steps, kernel=kernel
            )
            return AttentionLayer(width, attention=attention, dropout=dropout)

        self.projection = Projection(self.in_features, width)
        self.class_token = nn.Parameter(torch.randn(1, width))
        self.layer1, self.position, self.layer2 = layer(), PPEG(width), layer()
        self.norm = nn.LayerNorm(width)

    @staticmethod
    def merge_published(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Published shapes, 1 x 1 x e class token and h x 1 x 33 x 1 kernels, without their ones."""
        return {
            key: value.reshape(len(value), -1) if key == "class_token" or key.endswith(".taps") else value
            for key, value in state.items()
        }

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Class tokens [b, e]."""
        results = [self._embed_bag(bag) for bag in batch.bags()]
        weights = None
        if attention:
            rows = zip(results, batch.sizes, strict=True)
            weights = joined([_instance_attention(row, n) for (_, row), n in rows])
        return Embedded(joined([vector for vector, _ in results]), weights)

    def trace(self, features: Tensor, groups: Tensor | None = None) -> Embedded:
        """The class token [1, e] by the published equations, every token of both layers computed."""
        instances = self.projection.project(features)
        side = square_side(count_rows(features))
        tokens = torch.cat([self.class_token, fill_square(instances, side)])
        tokens = tokens + attend_plainly(self.layer1.attention, self.layer1.norm(tokens))
        tokens = torch.cat([tokens[:1], encode_position(self.position, tokens[1:], side)])
        tokens = tokens + attend_plainly(self.layer2.attention, self.layer2.norm(tokens))
        return Embedded(self.norm(tokens[:1]))

    def _embed_bag(self, bag: Tensor) -> tuple[Tensor, Tensor]:
        n = len(bag)
        # ceil(sqrt(n)) in whole numbers.
        side = math.isqrt(n - 1) + 1
        # Projected twice rather than sliced, and split rather than sliced: the gradient of a slice is as large as
        # what it was taken from.
        instances, repeated = self.projection(bag), self.projection(bag[: side * side - n])
        tokens = self.layer1(torch.cat([self.class_token.to(instances.dtype), instances, repeated]))
        token, rest = torch.split(tokens, [1, side * side])
        token, row = self.layer2.class_token(torch.cat([token, self.position(rest)]))
        return self.norm(token), row


@torch.no_grad()
def _instance_attention(row: Tensor, n: int) -> Tensor:
    """The class token's row [h, 1 + s^2] as a map over instances, [n]: mean over heads, sums to 1.

    Nystrom rows can hold small negative entries; these are evidence of approximation, not of absence, and count 0.
    """
    mean = row.mean(0).float()[1:].clamp(min=0)
    attention = mean[:n].clone()
    # The last tokens of the square are the first instances again.
    attention[: len(mean) - n] += mean[n:]
    total = attention.sum()
    return torch.where(total > 0, attention / total.clamp(min=torch.finfo(total.dtype).tiny), 1 / n)
