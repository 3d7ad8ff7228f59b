"""Pairs of bags as they come: small and large, with repeated, constant and zero rows, in half and full precision."""

from __future__ import annotations

import torch
from hypothesis import strategies as st


def make_bag(rows, width, kind, dtype, seed):
    random = torch.Generator().manual_seed(seed)
    bag = torch.randn(rows, width, generator=random) + 0.5
    if kind == "repeated":
        bag = bag[torch.randint(max(1, rows // 4), (rows,), generator=random)]
    elif kind == "constant":
        bag = torch.full((rows, width), 0.25)
    elif kind == "zeros":
        bag[torch.rand(rows, generator=random) < 0.5] = 0.0
    elif kind == "all zero":
        bag = torch.zeros(rows, width)
    elif kind == "positive":
        bag = bag.abs()
    elif kind == "huge":
        bag = bag * 1e3
    return bag.to(dtype)


KINDS = ("random", "repeated", "constant", "zeros", "all zero", "positive", "huge")
DTYPES = (torch.float16, torch.float32, torch.float64)


@st.composite
def pairs(draw, most_rows=300):
    width = draw(st.sampled_from([1, 2, 5, 16, 33]))
    dtype = draw(st.sampled_from(DTYPES))
    sizes = st.one_of(st.integers(1, 4), st.integers(1, most_rows))
    bags = [
        make_bag(draw(sizes), width, draw(st.sampled_from(KINDS)), dtype, draw(st.integers(0, 999))) for _ in range(2)
    ]
    return bags[0], bags[1]
