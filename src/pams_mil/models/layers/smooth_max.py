"""A maximum that can be trained: between the mean and the largest score, as sharp as the data ask for.

    z_k = (1 / r_k) log mean_i exp(r_k s_ik),   r_k = exp(rho_k) > 0

Towards r = 0 it is the mean of the scores, towards infinity their maximum. A bag of one instance has the score of that
instance, so every instance has a score, and with it a probability, of its own. dz_k / ds_ik = softmax_i(r_k s_ik) is
how much an instance counts. r starts at 1, where weight decay draws it to.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pams_mil.ops import at_least_float32


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
