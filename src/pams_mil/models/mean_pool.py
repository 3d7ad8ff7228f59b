"""Mean pooling: h_i = ReLU(W x_i + b), z = (1/n) sum_i h_i, logits = C z + c.

Invariant to the order of the instances; every instance has attention 1/n.
"""

from __future__ import annotations

import torch

from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head
from pams_mil.models.core.mil_model import Embedded, MILModel
from pams_mil.models.layers.projection import CHUNK_ROWS, Projection

DISCOVER = {"mean_pool": "MeanPool"}


class MeanPool(MILModel):
    """The mean of the projected instances and a linear head.

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
        """Mean vectors [b, e]."""
        weights = None
        if attention:
            weights = torch.cat([torch.full((n,), 1 / n, device=batch.features.device) for n in batch.sizes])
        if torch.is_grad_enabled() or len(batch.features) <= CHUNK_ROWS:
            means = [rows.mean(0) for rows in batch.split(self.projection(batch.features))]
        else:
            means = [self.projection.mean(bag) for bag in batch.bags()]
        return Embedded(torch.stack(means), weights)
