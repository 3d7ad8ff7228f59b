"""The instance projection h_i = ReLU(W x_i + b) that every model starts with, streamed in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pams_mil.ops import at_least_float32

# Rows per piece: large enough for a fast matrix product, small enough for a piece to stay in cache.
CHUNK_ROWS = 2048


class Projection(nn.Linear):
    """h = ReLU(x W^T + b); [n, d] -> [n, e].

    Features of another precision than the weights are converted piece by piece, so float16 bags need no
    full-size float32 copy in evaluation.

    >>> projection = Projection(1, 1)
    >>> _ = projection.weight.data.fill_(2.0), projection.bias.data.fill_(-1.0)
    >>> projection(torch.tensor([[0.0], [3.0]])).tolist()
    [[0.0], [5.0]]
    """

    def forward(self, features: Tensor) -> Tensor:
        """Projected instances; without gradients they are computed in pieces."""
        if torch.is_grad_enabled() or len(features) <= CHUNK_ROWS:
            return self.project(features)
        # The first piece tells the precision, which under autocast is not that of the weights. The others are written
        # into place: all pieces and their concatenation would need twice the memory.
        first = self.project(features[:CHUNK_ROWS])
        projected = first.new_empty(len(features), self.out_features)
        projected[:CHUNK_ROWS] = first
        for start in range(CHUNK_ROWS, len(features), CHUNK_ROWS):
            projected[start : start + CHUNK_ROWS] = self.project(features[start : start + CHUNK_ROWS])
        return projected

    def mean(self, features: Tensor) -> Tensor:
        """The mean of a bag's projected instances, [n, d] -> [e]; without gradients piece by piece."""
        if torch.is_grad_enabled():
            rows: Tensor = self(features)
            return rows.mean(0)
        # In float32: sums of float16 would overflow where their mean does not.
        sums = [at_least_float32(self(piece)).sum(0) for piece in torch.split(features, CHUNK_ROWS)]
        return (torch.stack(sums).sum(0) / len(features)).to(self.weight.dtype)

    def project(self, features: Tensor) -> Tensor:
        """Projected instances in one piece; ReLU in place, since its derivative needs only its result."""
        return functional.linear(features.to(self.weight.dtype), self.weight, self.bias).relu_()
