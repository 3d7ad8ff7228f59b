"""No remix, the control of every comparison, and RandomMix.

RandomMix (Hong et al., 2025): a random share of the more urgent bag joins the other.

    m = max(1, ⌈τ/100 · |Z_a|⌉),   Z = Z_b ∪ {m rows of Z_a drawn without replacement},   label Y_a

If a share ρ of Z_a carries the label, at least one carrier is drawn with probability of at least 1 − (1 − ρ)^m.
That τ is a percentage is our reading; the publication's full text was not available to us.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from pams_mil.errors import CheckedFields, Within
from pams_mil.remix.strategy import FROM_A, Mixed, PartnerRule, check_pair, shuffled, take

DISCOVER = {"none": "NoRemix", "randommix": "RandomMix"}


@dataclass(frozen=True)
class NoRemix:
    """Z = Z_a, label Y_a.

    >>> NoRemix()(torch.ones(2, 3), torch.zeros(4, 3), torch.Generator()).features.shape
    torch.Size([2, 3])
    """

    partner: ClassVar[PartnerRule] = "keep_label"
    """Irrelevant: the partner is not used."""

    def __call__(self, a: Tensor, b: Tensor, generator: torch.Generator) -> Mixed:
        """A copy of `a`."""
        check_pair(a, b)
        origin_bag = torch.full((len(a),), FROM_A, dtype=torch.int8, device=a.device)
        return Mixed(a.detach().clone(), origin_bag, torch.arange(len(a), device=a.device))


@dataclass(frozen=True)
class RandomMix(CheckedFields):
    """Z_b and a random τ percent of Z_a.

    >>> mixed = RandomMix(tau=10)(torch.ones(25, 4), torch.zeros(7, 4), torch.Generator().manual_seed(0))
    >>> len(mixed.rows_from(0)), len(mixed.rows_from(1))  # ⌈2.5⌉ of a, all of b
    (3, 7)
    """

    tau: Annotated[float, Within(at_least=0, at_most=100)] = 10.0
    """τ, the share of Z_a in percent."""

    partner: ClassVar[PartnerRule] = "keep_label"
    """Z_a must be strictly more urgent than Z_b."""

    def count(self, rows: int) -> int:
        """How many rows of a bag of `rows` are drawn.

        >>> [RandomMix(tau=10).count(rows) for rows in (1, 10, 11, 1000)]
        [1, 1, 2, 100]
        """
        # The rounding keeps 2.2 % of 1,500 rows at 33: in binary it is a little more.
        return min(rows, max(1, math.ceil(round(self.tau * rows / 100, 9))))

    def __call__(self, a: Tensor, b: Tensor, generator: torch.Generator) -> Mixed:
        """Z_b and the drawn rows of Z_a in their original order."""
        check_pair(a, b)
        return take(a, b, shuffled(len(a), generator, a)[: self.count(len(a))].sort().values)
