"""ReMix (Yang et al., 2022): prototypes of a slide are varied with those of another slide of the same class.

Reduce: Euclidean k-means gives K prototypes c_k (means) and, per prototype, a bank of shifts drawn from N(0, Σ_k), Σ_k
the covariance of the cluster. Mix, with λ ~ U(0, 1) once per bag and, for each prototype s_i of Z_a with its nearest
prototype t_i of Z_b, with probability `rate`:

    append       add t_i                          replace   s_i := t_i
    interpolate  add (1 − λ) s_i + λ t_i          cov       add s_i + λ δ, δ a shift from the bank of t_i
    joint        replace, append, interpolate and cov in this order, each with its own coin

The label stays. A shift is drawn as g X/√(n−1) with X the centered rows and g standard normal, which has covariance Σ_k
exactly, costs n·d instead of d² and is 0 for a cluster of one. The bank belongs to its slide, so that shuffling slides
cannot give a slide the shifts of another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from pams_mil.errors import CheckedFields, Count, Share, Within
from pams_mil.remix.clustering import euclidean_clusters, means
from pams_mil.remix.strategy import FROM_A, SYNTHETIC, Mixed, PartnerRule, check_pair, uniform, widened

DISCOVER = {"remix": "ReMix"}
Mode = Literal["append", "replace", "interpolate", "cov", "joint"]


@dataclass(frozen=True)
class ReducedBag:
    """A slide's rows with its prototypes and their shifts, made once and kept together."""

    rows: Tensor
    prototypes: Tensor
    """[K, d]."""
    shifts: Tensor
    """[K, bank, d]."""


@dataclass(frozen=True)
class ReMix(CheckedFields):
    """Z_a (or only its prototypes) with prototypes varied by those of Z_b.

    >>> mixed = ReMix(rate=1.0, mode="append")(torch.rand(40, 4), torch.rand(30, 4), torch.Generator().manual_seed(0))
    >>> len(mixed.rows_from(0)), int((mixed.origin_bag == -1).sum())  # all of a and one prototype for each of a's 11
    (40, 11)
    """

    mode: Mode = "joint"
    rate: Share = 0.2
    """Probability of each change of each prototype."""
    clusters: Count = 11
    """K, the prototypes of a slide at most."""
    iterations: Annotated[int, Within(at_least=0)] = 20
    bank: Count = 200
    """Shifts kept per prototype."""
    reduced: bool = False
    """Train on the prototypes alone, as its authors do, instead of adding to the slide's rows."""

    partner: ClassVar[PartnerRule] = "same_class"
    """A slide of the same class, possibly the same slide; the label stays."""

    def reduce(self, bag: Tensor, generator: torch.Generator) -> ReducedBag:
        """Prototypes and shift bank of a slide."""
        values = widened(bag)
        labels = euclidean_clusters(values, clusters=self.clusters, iterations=self.iterations, generator=generator)
        shifts = []
        prototypes = means(values, labels)
        for number, center in enumerate(prototypes):
            centered = values[labels == number] - center
            normal = torch.randn(self.bank, len(centered), generator=generator, device=generator.device)
            normal = normal.to(centered.device, centered.dtype)
            # g X / sqrt(n - 1) has the covariance X^T X / (n - 1), without a d x d matrix or its root.
            shifts.append(normal @ centered / math.sqrt(max(1, len(centered) - 1)))
        return ReducedBag(bag.detach(), prototypes, torch.stack(shifts))

    def __call__(self, a: Tensor, b: Tensor, generator: torch.Generator) -> Mixed:
        """The rows (or prototypes) of a, then what was generated."""
        check_pair(a, b)
        own, other = self.reduce(a, generator), self.reduce(b, generator)
        source, added = _mix(own, other, self.mode, self.rate, generator)
        if self.reduced:
            features = torch.cat([source, *added])
            own_rows = 0
        else:
            # The slide's own rows cannot be replaced; a replaced prototype joins them instead.
            replaced = (source != own.prototypes).any(1)
            features = torch.cat([own.rows.to(source.dtype), source[replaced], *added])
            own_rows = len(a)
        origin_bag = torch.full((len(features),), SYNTHETIC, dtype=torch.int8, device=features.device)
        origin_bag[:own_rows] = FROM_A
        origin_row = torch.full((len(features),), -1, dtype=torch.int64, device=features.device)
        origin_row[:own_rows] = torch.arange(own_rows, device=features.device)
        return Mixed(features.to(a.dtype), origin_bag, origin_row, live_clusters=len(own.prototypes))


def _mix(
    a: ReducedBag, b: ReducedBag, mode: Mode, rate: float, generator: torch.Generator
) -> tuple[Tensor, list[Tensor]]:
    """Prototypes of a after replacement, and the rows to add."""
    # What "replace" changes here is what later steps of "joint" see.
    source, added = a.prototypes.clone(), []
    nearest = torch.cdist(a.prototypes, b.prototypes).argmin(1)
    target = b.prototypes[nearest]
    strength = float(uniform(generator))
    for step in ("replace", "append", "interpolate", "cov") if mode == "joint" else (mode,):
        coin = (uniform(generator, len(source)) < rate).to(source.device)
        if step == "replace":
            source[coin] = target[coin]
        elif step == "append":
            added.append(target[coin])
        elif step == "interpolate":
            added.append(torch.lerp(source[coin], target[coin], strength))
        else:
            pick = (uniform(generator, len(source)) * b.shifts.shape[1]).long().to(source.device)
            added.append(source[coin] + strength * b.shifts[nearest, pick][coin])
    return source, added
