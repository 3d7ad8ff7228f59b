"""DTFD's pseudo-bags: random groups of nearly equal size, reproducible in training and fixed in evaluation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pams_mil import seeding
from pams_mil.models.core.batch import BagBatch


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
