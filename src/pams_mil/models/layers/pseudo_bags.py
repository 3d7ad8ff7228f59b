"""DTFD's pseudo-bags: random groups of nearly equal size, reproducible in training and fixed in evaluation.

Distillation "max" and "maxmin" rank the instances of every pseudo-bag by class activation,

    s_i = softmax_c(C1 (alpha_i h_i))[class],  without the bias of C1

and take its q highest rows and, for "maxmin", also its q lowest; a pseudo-bag of fewer than 2q instances then gives
some of them twice, and one of fewer than q gives all it has.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pams_mil import seeding
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head
from pams_mil.ops import at_least_float32


def random_groups(n: int, count: int, generator: torch.Generator | None) -> Tensor:
    """The group of every instance, [n]: a random order cut into `count` chunks, the first n mod count one longer.

    >>> sorted(random_groups(7, 3, torch.Generator().manual_seed(0)).tolist())
    [0, 0, 0, 1, 1, 2, 2]
    """
    short, longer = divmod(n, count)
    sizes = [short + (group < longer) for group in range(count)]
    in_order = torch.from_numpy(np.repeat(np.arange(count), sizes))
    return torch.empty_like(in_order).scatter_(0, torch.randperm(n, generator=generator), in_order)


def stratified_groups(origins: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """The group of every instance of a remixed bag, [n]: rows of each origin are dealt to the groups in turn.

    Pseudo-bags inherit the label of the bag. Each must hold its share of the rows that give it, or most of them would
    carry the label of what they do not show. Groups are as large as those of `random_groups`.

    >>> groups = stratified_groups(torch.tensor([1, 1, 1, 1, 0, 0]), 2, torch.Generator().manual_seed(0))
    >>> sorted(groups[:4].tolist()), sorted(groups[4:].tolist())
    ([0, 0, 1, 1], [0, 1])
    """
    order = torch.randperm(len(origins), generator=generator)
    # Shuffled within each origin, one origin after the other, and dealt round without a break between them.
    order = order[torch.argsort(origins[order], stable=True)]
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)) % count)


def fixed_groups(n: int, count: int, key: str, *, splits: int = 1) -> Tensor:
    """The partitions [splits, n] of evaluation: a function of the slide id alone, into min(count, n) groups each.

    >>> fixed_groups(5, 2, "slide 1").sum(1).tolist()
    [2]
    """
    generators = [seeding.generator(0, "pseudo_bags", key, split) for split in range(splits)]
    return torch.stack([random_groups(n, min(count, n), generator) for generator in generators])


def batch_groups(batch: BagBatch, index: int, count: int, *, splits: int, training: bool) -> Tensor:
    """Partitions of one bag, [splits, n], into min(count, n) groups each.

    In training the partition follows the bag's seed, or torch's global state when there is none; in
    evaluation it follows the slide id alone, so a prediction does not depend on when and with whom it is made. Rows of
    the two bags of a remix are dealt separately.
    """
    n = batch.sizes[index]
    if training:
        generator = seeding.generator(batch.seeds[index], "pseudo_bags") if batch.seeds else None
        origins = None if batch.origins is None else batch.split(batch.origins)[index].cpu()
        if origins is None or bool((origins == origins[0]).all()):
            groups = random_groups(n, min(count, n), generator)[None]
        else:
            groups = stratified_groups(origins, min(count, n), generator)[None]
    else:
        groups = fixed_groups(n, count, batch.key(index), splits=splits)
    return groups.to(batch.features.device)


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
