"""One vector per slide, as TITAN, PRISM, CHIEF or GigaPath give it: logits = C z + c with z = x, a linear probe.

    z = (1/n) sum_i x_i                          n = 1 for slide vectors; several slides of one case are averaged
    z <- ReLU(W z + b)                           with embedding_features: one hidden layer

Invariant to the order of the instances; every instance has attention 1/n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head
from pams_mil.models.core.mil_model import Embedded, MILModel
from pams_mil.models.layers.projection import Projection
from pams_mil.ops import at_least_float32

DISCOVER = {"linear": "LinearProbe"}


class LinearProbe(MILModel):
    """A linear head on the slide's vector.

    Args:
        in_features: feature width d.
        num_classes: c.
        embedding_features: width of a hidden layer; None: no hidden layer, the head sees the vector itself.
        head: "linear" or "normalized".
    """

    packs = True  # a mean of rows does not know of other bags
    precision: Tensor

    def __init__(
        self, *, in_features: int, num_classes: int, embedding_features: int | None = None, head: str = "linear"
    ) -> None:
        super().__init__(
            in_features=in_features, num_classes=num_classes, embedding_features=embedding_features or in_features,
            head=head,
        )  # fmt: skip
        # Where nothing else has weights, this follows the model to its device and precision.
        self.register_buffer("precision", torch.ones(()), persistent=False)
        self.hidden = None if embedding_features is None else Projection(in_features, embedding_features)

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """The vectors [b, e]."""
        means = torch.stack([self._mean(bag) for bag in batch.bags()])
        weights = None
        if attention:
            weights = torch.cat([torch.full((n,), 1 / n, device=means.device) for n in batch.sizes])
        return Embedded(means if self.hidden is None else self.hidden(means), weights)

    def _mean(self, bag: Tensor) -> Tensor:
        return at_least_float32(bag).mean(0).to(self.precision.dtype)
