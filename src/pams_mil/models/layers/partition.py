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
    evaluation it follows the slide id alone, so a prediction does not depend on when and with whom it is made.
    """
    n = batch.sizes[index]
    if training:
        generator = seeding.generator(batch.seeds[index], "pseudo_bags") if batch.seeds else None
        groups = random_groups(n, min(count, n), generator)[None]
    else:
        groups = fixed_groups(n, count, batch.key(index), splits=splits)
    return groups.to(batch.features.device)
