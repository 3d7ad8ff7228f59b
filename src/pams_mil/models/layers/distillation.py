"""Ranking the instances of pseudo-bags by class activation, for DTFD's "max" and "maxmin" distillation.

    s_i = softmax_c(C1 (alpha_i h_i))[class],  without the bias of C1

Every pseudo-bag gives its q highest rows and, for "maxmin", also its q lowest; a pseudo-bag of fewer than 2q
instances then gives some of them twice, and one of fewer than q gives all it has.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pams_mil.models.core.heads import Head
from pams_mil.ops import at_least_float32


@torch.no_grad()
def ranked_rows(
    instances: Tensor, weights: Tensor, groups: Tensor, head: Head, *, cam_class: str | int, q: int, lowest: bool
) -> tuple[Tensor, Tensor]:
    """Rows chosen from every pseudo-bag, highest first, and the pseudo-bag of each: both [rows].

    Args:
        instances: h, [n, e]
        weights: log alpha per pseudo-bag, [g, n], -inf outside it.
        groups: f, [g, e]
        head: the tier-1 head C1.
        cam_class: "last", "predicted" or a class index.
        q: rows per pseudo-bag.
        lowest: also take the q lowest.
    """
    chosen, owners = [], []
    # C1 (alpha_i h_i) = alpha_i (C1 h_i), so that one product serves all pseudo-bags.
    rows_per_class = at_least_float32(functional.linear(instances, head.rows()))
    for group, log_alpha in enumerate(weights):
        # -inf marks the rows of other pseudo-bags; a member's logarithm is finite even where alpha itself is 0.
        members = torch.isfinite(log_alpha).nonzero().squeeze(-1)
        activation = (log_alpha[members, None].exp() * rows_per_class[members]).softmax(-1)
        if cam_class == "predicted":
            score = activation[:, head(groups[group]).argmax()]
        else:
            score = activation[:, -1 if cam_class == "last" else int(cam_class)]
        # Stable: instances that score the same (where alpha is 0, all do) keep their order on every machine.
        order = members[score.argsort(descending=True, stable=True)]
        picked = torch.cat([order[:q], order[-q:]]) if lowest else order[:q]
        chosen.append(picked)
        owners.append(torch.full_like(picked, group))
    return torch.cat(chosen), torch.cat(owners)
