"""No remix: the bag stays as it is. The control of every comparison."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pams_mil.remix.strategy import FROM_A, Mixed, PartnerRule, check_pair

DISCOVER = {"none": "NoRemix"}


@dataclass(frozen=True)
class NoRemix:
    """Z = Z_a, label Y_a.

    >>> NoRemix()(torch.ones(2, 3), torch.zeros(4, 3), torch.Generator()).features.shape
    torch.Size([2, 3])
    """

    @property
    def partner(self) -> PartnerRule:
        """Irrelevant: the partner is not used."""
        return "keep_label"

    def __call__(self, a: Tensor, b: Tensor, generator: torch.Generator) -> Mixed:
        """A copy of `a`."""
        check_pair(a, b)
        origin_bag = torch.full((len(a),), FROM_A, dtype=torch.int8, device=a.device)
        return Mixed(a.detach().clone(), origin_bag, torch.arange(len(a), device=a.device))
