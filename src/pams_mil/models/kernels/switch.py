"""Where passes written by hand for a CPU may stand in for what autograd composes."""

from __future__ import annotations

import torch
from torch import Tensor


def by_hand(weight: Tensor) -> bool:
    """Whether they may: in main memory, in full precision, and not while a graph is traced, which cannot hold them.

    >>> by_hand(torch.zeros(1)), by_hand(torch.zeros(1, dtype=torch.bfloat16))
    (True, False)
    """
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    whole = weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return weight.device.type == "cpu" and whole and not traced
