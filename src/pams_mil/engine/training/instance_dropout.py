"""Instance dropout: at every step a bag shows another random part of its instances.

    kept = max(1, ⌈(1 − share) · n⌉) of n instances, drawn without replacement, in their order

It is done before a remix. The remix then puts at least one row of Z_a into the bag that carries Z_a's label; dropped
afterwards, all of these rows could be lost and Z_b alone would carry a label that is not its own. Both bags are thinned
alike, and clustering has less to do. What the right share is depends on how many instances carry the label: dropping
nine in ten suits a bag that is urgent all over, and ruins one with a single urgent instance in thirteen.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pams_mil import seeding


def kept_count(n: int, share: float) -> int:
    """How many of n instances stay; never none.

    >>> [kept_count(n, 0.7) for n in (1, 3, 10, 100)]
    [1, 1, 3, 30]
    """
    # The rounding keeps 30 % of 10 at 3: 1 - 0.7 is a little more than 0.3 in binary.
    return min(n, max(1, math.ceil(round((1.0 - share) * n, 9))))


def kept_rows(
    n: int, share: float | None, *, seed: int, epoch: int, step: tuple[str, int], slide: str
) -> Tensor | None:
    """Rows of a slide that a training step sees, ascending; None for all of them.

    Args:
        n: instances of the slide.
        share: how many of them are dropped, from 0 to below 1; None: none.
        seed: the run's seed.
        epoch: the epoch.
        step: the slide drawn and which of its steps this is; a partner is thinned anew in every step.
        slide: the slide whose rows these are.

    >>> rows = kept_rows(10, 0.7, seed=0, epoch=0, step=("s", 0), slide="s")
    >>> len(rows), bool((rows.diff() > 0).all())
    (3, True)
    """
    if not share:
        return None
    count = kept_count(n, share)
    if count == n:
        return None
    random = seeding.numpy_generator(seed, "instance dropout", epoch, *step, slide)
    # In their order: models that see positions, and sums, must not depend on the order of the draw.
    return torch.from_numpy(np.sort(random.choice(n, count, replace=False, shuffle=False)))
