"""Nystrom attention as TransMIL uses it, linear in the number of tokens n, one bag at a time.

    q, k, v = W x (q / sqrt(d)),  qL, kL = means of q, k over landmarks
    A1 = softmax(q kL^T),  A2 = softmax(qL kL^T),  A3 = softmax(qL k^T)
    out = A1 pinv(A2) (A3 v) + conv33(v)

pinv is six steps of an iteration whose start is scaled per bag (never over a batch, which would couple bags).
Products are taken from the right, A1 (pinv (A3 v)), so no n x m matrix times m x m, and both wide softmaxes
go through scaled_dot_product_attention, which never stores them. Landmark mathematics stays in float32.

Landmarks of a token sequence, with all padding folded into one zero token that counts many times.

TransMIL pads n tokens on the left with zeros until m landmarks of l = ceil(n / m) consecutive tokens fit. The
pad tokens have q = k = v = 0, so they are all alike: one zero token of multiplicity `pad` replaces them in
every softmax, and a few zero landmarks, of multiplicity z / copies each, replace the z = pad // l landmarks that
hold padding only. Same function, shorter sequence, and for small bags far smaller landmark matrices. The number
of copies makes the matrices a multiple of 8 wide, which GEMM kernels prefer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pams_mil.errors import ParameterError
from pams_mil.models.layers.nystrom_kernels import class_row, pseudo_inverse_apply, value_conv
from pams_mil.ops import at_least_float32


class _Core(NamedTuple):
    """Landmark queries and keys [h, m, d], A2 [h, m, m] in orthonormal coordinates, its scale, and sqrt(mu) [m, 1]."""

    queries: Tensor
    keys: Tensor
    a2: Tensor
    scale: Tensor
    root: Tensor
    log_multiplicity: Tensor


class NystromAttention(nn.Module):
    """Self-attention of n tokens through m landmarks; [n, e] -> [n, e] before dropout.

    Args:
        features: e.
        heads: h; every head has e / h features.
        landmarks: m.
        pinv_steps: steps of the pseudo-inverse.
        kernel: taps of the depthwise value convolution.
    """

    def __init__(self, features: int, *, heads: int, landmarks: int, pinv_steps: int, kernel: int) -> None:
        super().__init__()
        if features % heads:
            raise ParameterError(f"The width {features} must be a multiple of the number of heads, found {heads}.")
        self.heads, self.landmarks, self.pinv_steps = heads, landmarks, pinv_steps
        self.scale = (features // heads) ** -0.5
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features)
        self.taps = nn.Parameter(torch.empty(heads, kernel))
        nn.init.uniform_(self.taps, -(kernel**-0.5), kernel**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Attended tokens [n, e]."""
        plan = LandmarkPlan(len(tokens), self.landmarks)
        core = self._core(plan, tokens)
        padded = plan.with_zero_token(tokens)
        q, k, v = (self._by_head(chunk) for chunk in self.qkv(padded).chunk(3, dim=-1))
        # A3 v. Landmark queries are scaled already, and the logarithm of how often a key occurs, added to its logits,
        # counts it as often.
        distilled = _attend(core.queries.to(q.dtype), k, v, plan.token_log_multiplicity(q), scale=1.0)
        weighted = self._inverse(core, distilled, transpose=False)
        # With a copy for every zero landmark each stands for itself.
        bias = core.log_multiplicity if plan.copies != plan.zero_landmarks else None
        mixed = _attend(q, core.keys.to(q.dtype), weighted.to(q.dtype), bias, scale=self.scale)
        mixed = mixed.transpose(0, 1) + value_conv(v.transpose(0, 1), self.taps)
        attended: Tensor = self.out(mixed.reshape(len(padded), -1))
        return attended[int(plan.pad > 0) :]

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` gives for the first token, [1, e], and its attention [h, n] to all tokens.

        Values are never computed for all tokens: sum_j p_j v_j = (sum_j p_j x_j) W_v^T.
        """
        plan = LandmarkPlan(len(tokens), self.landmarks)
        core = self._core(plan, tokens)
        query_weight, key_weight, value_weight = self.qkv.weight.chunk(3)
        heads, width = self.heads, tokens.shape[1] // self.heads
        # The convolution at the first token sees no more than these.
        first = tokens[: self.taps.shape[1] // 2 + 1]
        query = functional.linear(first[:1], query_weight).reshape(1, heads, width).transpose(0, 1)
        logits = at_least_float32(query) * self.scale @ core.keys.mT + core.log_multiplicity
        # The row a Z of A1 pinv(A2) as the column Z^T a^T, [h, m]: summed over landmarks that are equal.
        u = self._inverse(core, logits.softmax(-1).mT, transpose=True).squeeze(-1)
        keys = at_least_float32(functional.linear(tokens, key_weight)).reshape(-1, heads, width)
        row = class_row(u, core.queries, keys, zeros=plan.pad)
        pooled = row.to(tokens.dtype) @ tokens
        mixed = (pooled[:, None] @ value_weight.reshape(heads, width, -1).mT).reshape(1, -1)
        return self.out(mixed + self._first_value_conv(first, value_weight)), row

    def _first_value_conv(self, first: Tensor, value_weight: Tensor) -> Tensor:
        """The value convolution at the first token, [1, e]: only taps from the middle on meet a token."""
        taps = self.taps[:, self.taps.shape[1] // 2 :]
        values = functional.linear(first, value_weight)
        values = values.reshape(len(values), self.heads, -1).transpose(0, 1)
        return (taps[:, None, : values.shape[1]].to(values.dtype) @ values).reshape(1, -1)

    def _core(self, plan: LandmarkPlan, tokens: Tensor) -> _Core:
        with torch.autocast(tokens.device.type, enabled=False):
            # The projection has no bias, so the mean of projected tokens is the projected mean: m rows instead of n.
            means = plan.means(at_least_float32(tokens))
            weight = at_least_float32(self.qkv.weight)[: 2 * tokens.shape[1]]
            queries, keys = (self._by_head(chunk) for chunk in functional.linear(means, weight).chunk(2, dim=-1))
            queries = queries * self.scale
            mu = plan.landmark_multiplicity(means)
            # Rows of A2 summed over the landmarks that each column stands for, then seen in the orthonormal
            # basis in which z equal landmarks are one vector of length sqrt(z).
            merged = (queries @ keys.mT + mu.log()).softmax(-1)
            # c, the largest row sum times the largest column sum, over all heads as in TransMIL. Rows of A2 sum to 1. A
            # column of all m landmarks: its entry is merged / mu, and row i is there mu_i times.
            scale = (mu[:, None] * merged / mu).sum(-2).max()
            # The iteration starts from A2's transpose; only in an orthonormal basis is that its matrix transposed.
            root = mu.sqrt()[:, None]
            return _Core(queries, keys, root * merged / root.mT, scale, root, mu.log())

    def _inverse(self, core: _Core, y: Tensor, *, transpose: bool) -> Tensor:
        """pinv(A2) Y, or pinv(A2)^T Y, with landmarks of multiplicity mu counted mu times."""
        with torch.autocast(y.device.type, enabled=False):
            y = at_least_float32(y)
            # Y has the value of one of mu equal landmarks, which is 1 / root of their coordinate; transposed it has
            # weights that are summed over them, which is root times the coordinate.
            before, after = (1 / core.root, core.root) if transpose else (core.root, 1 / core.root)
            applied = pseudo_inverse_apply(core.a2, core.scale, before * y, steps=self.pinv_steps, transpose=transpose)
            return after * applied

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), self.heads, -1).transpose(0, 1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, *, scale: float) -> Tensor:
    """softmax(scale q k^T + bias) v for [h, ., d]; the bias [keys] is the same for every query."""
    mask = None if bias is None else bias.to(queries.dtype).expand(1, 1, queries.shape[1], -1)
    return functional.scaled_dot_product_attention(
        queries[None], keys[None], values[None], attn_mask=mask, scale=scale
    )[0]


class LandmarkPlan:
    """How n tokens form m landmarks.

    >>> plan = LandmarkPlan(tokens=5, landmarks=4)  # l = 2, pad = 3: landmarks 00, 0a, bc, de
    >>> plan.pad, plan.zero_landmarks, plan.first, plan.count
    (3, 1, 1, 4)

    Attributes:
        length: tokens per landmark, l = ceil(n / m).
        pad: zero tokens on the left; where there are any, one stands before the sequence.
        zero_landmarks: landmarks that hold padding only.
        first: real tokens of the first landmark that holds any.
        copies: zero landmarks that the landmarks start with, standing for all `zero_landmarks`.
        count: landmarks that are computed with.
    """

    def __init__(self, tokens: int, landmarks: int) -> None:
        self.tokens = tokens
        self.length = -(-tokens // landmarks)
        self.pad = landmarks * self.length - tokens
        self.zero_landmarks = self.pad // self.length
        self.first = self.length - self.pad % self.length
        # As many as are missing to a multiple of 8. Where none is missing 8, since at least one has to stand for all.
        real = landmarks - self.zero_landmarks
        self.copies = min(self.zero_landmarks, -real % 8 or 8)
        self.count = real + self.copies

    def with_zero_token(self, tokens: Tensor) -> Tensor:
        """[n, e] -> [n + 1, e], or the tokens themselves when there is no padding."""
        return functional.pad(tokens, (0, 0, 1, 0)) if self.pad else tokens

    def means(self, tokens: Tensor) -> Tensor:
        """Landmark means of tokens without the zero token: [n, e] -> [count, e]."""
        head, rest = torch.split(tokens, [self.first, len(tokens) - self.first])
        # Padding is on the left, so only the first landmark can be partly padding. Its zeros add nothing to the sum but
        # count in the mean, as in TransMIL.
        first = head.sum(0, keepdim=True) / self.length
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
        if not self.pad:
            return None
        logs = torch.zeros(self.tokens + 1, dtype=like.dtype, device=like.device)
        logs[0] = math.log(self.pad)
        return logs
