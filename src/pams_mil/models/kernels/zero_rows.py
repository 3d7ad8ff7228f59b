"""Rows of zeros before and after others. `functional.pad` would write everything twice: zeros first, then the rows."""

from __future__ import annotations

import torch
from torch import Tensor


def with_zero_rows(rows: Tensor, before: int, after: int) -> Tensor:
    """[n, ...] -> [before + n + after, ...].

    >>> with_zero_rows(torch.tensor([[5.0]]), 1, 2).flatten().tolist()
    [0.0, 5.0, 0.0, 0.0]
    """
    shape = rows.shape[1:]
    return torch.cat([rows.new_zeros(before, *shape), rows, rows.new_zeros(after, *shape)])
