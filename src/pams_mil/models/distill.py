"""Ranking the instances of pseudo-bags by class activation, for DTFD's "max" and "maxmin" distillation.

    s_i = softmax_c(C1 (alpha_i h_i))[class],  without the bias of C1

Every pseudo-bag gives its q highest rows and, for "maxmin", its q lowest; so that all pseudo-bags of a bag
give equally many, a short one repeats rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pams_mil.models.heads import Head


@torch.no_grad()
def ranked_rows(
    instances: Tensor, weights: Tensor, groups: Tensor, head: Head, *, cam_class: str | int, q: int, lowest: bool
) -> Tensor:
    """Rows chosen from every pseudo-bag, highest first, [g * q] or [g * 2q].

    Args:
        instances: h, [n, e]
        weights: alpha per pseudo-bag, [g, n], zero outside it.
        groups: f, [g, e]
        head: the tier-1 head C1.
        cam_class: "last", "predicted" or a class index.
        q: rows per pseudo-bag.
        lowest: also take the q lowest.
    """
    chosen = []
    rows_per_class = functional.linear(instances, head.rows())
    for group, alpha in enumerate(weights):
        members = alpha.nonzero().squeeze(-1)
        activation = (alpha[members, None] * rows_per_class[members]).float().softmax(-1)
        if cam_class == "predicted":
            score = activation[:, head(groups[group]).argmax()]
        else:
            score = activation[:, -1 if cam_class == "last" else int(cam_class)]
        order = members[score.argsort(descending=True, stable=True)]
        chosen.append(order[torch.arange(q, device=order.device).clamp(max=len(order) - 1)])
        if lowest:
            chosen.append(order[torch.arange(-q, 0, device=order.device).clamp(min=-len(order))])
    return torch.cat(chosen)
