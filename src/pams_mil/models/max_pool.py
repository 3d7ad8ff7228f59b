"""Max pooling: h_i = ReLU(W x_i + b), z_k = max_i h_ik, logits = C z + c.

Invariant to the order of the instances. The attention of an instance is the share of the e coordinates in
which it is the (first) maximum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head
from pams_mil.models.core.mil_model import Embedded, MILModel
from pams_mil.models.layers.projection import CHUNK_ROWS, Projection

DISCOVER = {"max_pool": "MaxPool"}


class MaxPool(MILModel):
    """The coordinate-wise maximum of the projected instances and a linear head.

    Args:
        in_features: feature width d.
        num_classes: c.
        embedding_features: width of h and z, 512.
        head: "linear" or "normalized".
    """

    packs = True  # the projection does not know of bags

    def __init__(
        self, *, in_features: int, num_classes: int, embedding_features: int = 512, head: str = "linear"
    ) -> None:
        super().__init__(
            in_features=in_features, num_classes=num_classes, embedding_features=embedding_features, head=head
        )
        self.projection = Projection(in_features, embedding_features)

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Maximum vectors [b, e]."""
        if torch.is_grad_enabled() or len(batch.features) <= CHUNK_ROWS:
            maxima: list[tuple[Tensor, Tensor]] = [rows.max(0) for rows in batch.split(self.projection(batch.features))]
        else:
            maxima = [self._streamed(bag) for bag in batch.bags()]
        weights = None
        if attention:
            counts = zip(maxima, batch.sizes, strict=True)
            weights = torch.cat([torch.bincount(rows, minlength=n) / len(rows) for (_, rows), n in counts])
        return Embedded(torch.stack([top for top, _ in maxima]), weights)

    def _streamed(self, bag: Tensor) -> tuple[Tensor, Tensor]:
        pieces = [self.projection(piece).max(0) for piece in torch.split(bag, CHUNK_ROWS)]
        top, piece = torch.stack([values for values, _ in pieces]).max(0)
        # Of every coordinate, the row within the piece that holds the maximum.
        rows = torch.stack([within for _, within in pieces]).gather(0, piece[None])[0]
        return top, rows + piece * CHUNK_ROWS
