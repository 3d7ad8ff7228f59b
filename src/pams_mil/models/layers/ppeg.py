"""PPEG, TransMIL's pyramid position encoding: out = x + dw7(x) + dw5(x) + dw3(x) on the square token map.

dwk is a depthwise k x k convolution with zero padding and bias. All four summands are linear and shift
invariant, so they are one depthwise 7 x 7 convolution whose kernel is the sum of the three (padded to 7 x 7)
and a one in the middle. Tokens [s * s, e] are already a channels-last map, so nothing is transposed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class PPEG(nn.Module):
    """Position encoding of s * s tokens; [s * s, e] -> [s * s, e].

    >>> ppeg = PPEG(2)
    >>> _ = [parameter.data.zero_() for parameter in ppeg.parameters()]
    >>> ppeg(torch.ones(4, 2)).tolist() == torch.ones(4, 2).tolist()
    True
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv7 = nn.Conv2d(features, features, 7, padding=3, groups=features)
        self.conv5 = nn.Conv2d(features, features, 5, padding=2, groups=features)
        self.conv3 = nn.Conv2d(features, features, 3, padding=1, groups=features)

    def merged(self) -> tuple[Tensor, Tensor]:
        """The one kernel [e, 1, 7, 7] and bias [e] that stand for the four summands."""
        kernel = self.conv7.weight + functional.pad(self.conv5.weight, (1, 1, 1, 1))
        kernel = kernel + functional.pad(self.conv3.weight, (2, 2, 2, 2))
        # The summand x, the same for all channels.
        identity = torch.zeros(1, 1, 7, 7, dtype=kernel.dtype, device=kernel.device)
        identity[..., 3, 3] = 1
        biases = [conv.bias for conv in (self.conv7, self.conv5, self.conv3) if conv.bias is not None]
        return kernel + identity, torch.stack(biases).sum(0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens with position, in the same order."""
        side = round(len(tokens) ** 0.5)
        features = tokens.shape[1]
        kernel, bias = self.merged()
        square = tokens.reshape(1, side, side, features).permute(0, 3, 1, 2)
        encoded = functional.conv2d(square, kernel, bias, padding=3, groups=features)
        return encoded.permute(0, 2, 3, 1).reshape(-1, features)
