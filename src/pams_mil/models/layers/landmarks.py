"""Landmarks of a token sequence, with all padding folded into one zero token that counts many times.

TransMIL pads n tokens on the left with zeros until m landmarks of l = ceil(n / m) consecutive tokens fit. The
pad tokens have q = k = v = 0, so they are all alike: one zero token of multiplicity `pad` replaces them in
every softmax, and a few zero landmarks, of multiplicity z / copies each, replace the z = pad // l landmarks that
hold padding only. Same function, shorter sequence, and for small bags far smaller landmark matrices. The number
of copies makes the matrices a multiple of 8 wide, which GEMM kernels prefer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class LandmarkPlan:
    """How n tokens form landmarks.

    >>> plan = LandmarkPlan(tokens=5, landmarks=4)  # l = 2, pad = 3: landmarks 00, 0a, bc, de
    >>> plan.pad, plan.zero_landmarks, plan.first, plan.count
    (3, 1, 1, 4)

    Attributes:
        tokens: n.
        landmarks: m.
        masked: leave padding out of every softmax and mean, instead of counting zeros as the published code does.
    """

    tokens: int
    landmarks: int
    masked: bool = False

    @cached_property
    def length(self) -> int:
        """Tokens per landmark, l = ceil(n / m)."""
        return -(-self.tokens // self.landmarks)

    @cached_property
    def pad(self) -> int:
        """Zero tokens on the left."""
        return self.landmarks * self.length - self.tokens

    @cached_property
    def zero_landmarks(self) -> int:
        """Landmarks that hold padding only."""
        return self.pad // self.length

    @cached_property
    def first(self) -> int:
        """Real tokens of the first landmark that holds any."""
        return self.length - self.pad % self.length

    @property
    def has_zero_token(self) -> bool:
        """Whether the sequence starts with a zero token."""
        return self.pad > 0 and not self.masked

    @cached_property
    def copies(self) -> int:
        """Zero landmarks that the landmarks start with, standing for all `zero_landmarks`."""
        if self.masked:
            return 0
        # As many as are missing to a multiple of 8. Where none is missing 8, since at least one has to stand for all.
        real = self.landmarks - self.zero_landmarks
        return min(self.zero_landmarks, -real % 8 or 8)

    @property
    def count(self) -> int:
        """Landmarks that are computed with."""
        return self.landmarks - self.zero_landmarks + self.copies

    def with_zero_token(self, tokens: Tensor) -> Tensor:
        """[n, e] -> [n + 1, e], or the tokens themselves when there is no padding."""
        return functional.pad(tokens, (0, 0, 1, 0)) if self.has_zero_token else tokens

    def means(self, tokens: Tensor) -> Tensor:
        """Landmark means of tokens without the zero token: [n, e] -> [count, e]."""
        head, rest = torch.split(tokens, [self.first, len(tokens) - self.first])
        # Padding is on the left, so only the first landmark can be partly padding. Its zeros add nothing to the sum but
        # count in the mean, as in TransMIL.
        first = head.sum(0, keepdim=True) / (self.first if self.masked else self.length)
        others = rest.reshape(-1, self.length, tokens.shape[1]).mean(1)
        return torch.cat([tokens.new_zeros(self.copies, tokens.shape[1]), first, others])

    def landmark_multiplicity(self, like: Tensor) -> Tensor:
        """How many of the m landmarks each one stands for, [count]."""
        multiplicity = torch.ones(self.count, dtype=like.dtype, device=like.device)
        if self.copies:
            # Need not be whole: only its logarithm and its root are ever used.
            multiplicity[: self.copies] = self.zero_landmarks / self.copies
        return multiplicity

    def token_log_multiplicity(self, like: Tensor) -> Tensor | None:
        """The logarithm of how many padded tokens each token stands for, [n + 1]; None when all are single."""
        if not self.has_zero_token:
            return None
        logs = torch.zeros(self.tokens + 1, dtype=like.dtype, device=like.device)
        logs[0] = math.log(self.pad)
        return logs
