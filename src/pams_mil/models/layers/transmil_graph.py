"""PPEG, TransMIL's pyramid position encoding: out = x + dw7(x) + dw5(x) + dw3(x) on the square token map.

dwk is a depthwise k x k convolution with zero padding and bias. All four summands are linear and shift
invariant, so they are one depthwise 7 x 7 convolution whose kernel is the sum of the three (padded to 7 x 7)
and a one in the middle. Tokens [s * s, e] are already a channels-last map, so nothing is transposed.

TransMIL's layers as they are published, in operations that a graph of any number of tokens can hold.

The layers that train count tokens in Python and skip what is zero; a traced graph would keep the counts of the bag it
was traced with. Here every count is a tensor: rows are taken by index, padding is one zero row taken many times.

    rows of the square map: i mod n for i < s^2, s = ceil(sqrt(n))
    left padding to m l tokens: row max(0, j - pad + 1) of [0, t_1, ..., t_n],  l = ceil(n / m), pad = m l - n
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from pams_mil.models.layers.nystrom_kernels import pseudo_inverse_apply

if TYPE_CHECKING:
    from pams_mil.models.layers.nystrom import NystromAttention


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


def count_rows(rows: Tensor) -> Tensor:
    """The number of rows as a tensor, which a tracer follows."""
    return torch._shape_as_tensor(rows)[0]  # a plain `len` is a number, and stays that of the traced example


def count_up(stop: Tensor) -> Tensor:
    """0, 1, ..., stop - 1, for a number that is a tensor.

    >>> count_up(torch.tensor(3)).tolist()
    [0, 1, 2]
    """
    return torch.arange(stop, device=stop.device)  # type: ignore[call-overload, no-any-return]


def square_side(n: Tensor) -> Tensor:
    """The side s = ceil(sqrt(n)); double precision is exact for every number of tiles there can be.

    >>> [square_side(torch.tensor(n)).item() for n in (1, 2, 4, 5, 10**8, 10**8 + 1)]
    [1, 2, 2, 3, 10000, 10001]
    """
    return n.double().sqrt().ceil().long()


def fill_square(rows: Tensor, side: Tensor) -> Tensor:
    """[n, e] -> [s^2, e]: the first rows once more until the square is full.

    >>> fill_square(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor(2)).flatten().tolist()
    [1.0, 2.0, 3.0, 1.0]
    """
    return rows[count_up(side * side).to(rows.device) % count_rows(rows)]


def encode_position(ppeg: PPEG, tokens: Tensor, side: Tensor) -> Tensor:
    """PPEG of a square map: x + dw7(x) + dw5(x) + dw3(x); [s^2, e] -> [s^2, e]."""
    width = tokens.shape[1]
    square = tokens.transpose(0, 1).reshape(1, width, side, side)  # type: ignore[call-overload]
    encoded: Tensor = square + ppeg.conv7(square) + ppeg.conv5(square) + ppeg.conv3(square)
    return encoded.reshape(width, -1).transpose(0, 1)


def attend_plainly(attention: NystromAttention, tokens: Tensor) -> Tensor:
    """Nystrom attention with all its landmarks and all padding, as its equations have it; [n, e] -> [n, e]."""
    n, heads, landmarks = count_rows(tokens), attention.heads, attention.landmarks
    length = (n + landmarks - 1) // landmarks
    pad = landmarks * length - n
    # Into [0, t_1, ..., t_n]: every pad token is row 0, token i is row i.
    index = torch.clamp(count_up(landmarks * length).to(tokens.device) - pad + 1, min=0)
    padded = torch.cat([torch.zeros_like(tokens[:1]), tokens])[index]
    width = tokens.shape[1] // heads
    qkv = functional.linear(padded, attention.qkv.weight).reshape(-1, 3, heads, width).permute(1, 2, 0, 3)
    q, k, v = qkv[0] * width**-0.5, qkv[1], qkv[2]
    q_mean, k_mean = (side.reshape(heads, landmarks, -1, width).mean(2) for side in (q, k))
    a1 = (q @ k_mean.transpose(-1, -2)).softmax(-1)
    a2 = (q_mean @ k_mean.transpose(-1, -2)).softmax(-1)
    a3 = (q_mean @ k.transpose(-1, -2)).softmax(-1)
    taps = attention.taps[:, None, :, None]
    near = functional.conv2d(v[None], taps, padding=(taps.shape[2] // 2, 0), groups=heads)[0]
    # Rows of A2 sum to 1, so the scale of its start is the largest column sum of any head.
    mixed = a1 @ pseudo_inverse_apply(a2, a2.sum(-2).amax(), a3 @ v, steps=attention.pinv_steps) + near
    attended: Tensor = attention.out(mixed.transpose(0, 1).reshape(-1, heads * width))
    return attended[count_up(n) + pad]
