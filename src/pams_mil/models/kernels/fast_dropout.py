"""Dropout whose mask costs little on a CPU: four decisions from every 64-bit random number.

An entry is dropped when 16 fresh random bits, read as a number below 65536, are smaller than round(65536 p); the
others are divided by the exact probability of staying, so the expectation is exact. At p = 0.1 the
probability of dropping is 0.100006. Random bits come from torch's global generator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEVELS = 2**16


class FastDropout(nn.Module):
    """Drop entries with probability p in training; nothing in evaluation.

    >>> FastDropout(0.5).eval()(torch.ones(2)).tolist()
    [1.0, 1.0]
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropped = round(_LEVELS * p)

    def forward(self, values: Tensor) -> Tensor:
        """Same shape as the input."""
        if not self.training or self.dropped == 0:
            return values
        if values.device.type != "cpu":
            return nn.functional.dropout(values, self.dropped / _LEVELS)
        draws = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: values.numel()].view(values.shape)
        keep = bits >= self.dropped - _LEVELS // 2
        # Only the one-byte mask is kept for the backward pass.
        return (values * keep).mul_(_LEVELS / (_LEVELS - self.dropped))
