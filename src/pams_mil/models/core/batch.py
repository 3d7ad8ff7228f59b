"""Several bags, packed one after the other: no padding, so nothing that a neighbor could leak through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pams_mil.errors import ModelInputError


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Rows of all parts, one after the other; a single part is not copied.

    >>> joined([torch.zeros(1, 2), torch.ones(1, 2)]).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


@dataclass(frozen=True)
class BagBatch:
    """Bags Z_1 ... Z_b stacked as rows.

    >>> batch = BagBatch.pack([torch.zeros(2, 3), torch.ones(1, 3)], keys=("s1", "s2"))
    >>> batch.sizes, tuple(batch.features.shape), [len(bag) for bag in batch.bags()]
    ((2, 1), (3, 3), [2, 1])

    Attributes:
        features: [sum n_i, d]
        sizes: n_i of every bag.
        keys: slide ids; they fix whatever a model must choose in evaluation (DTFD's partition).
        seeds: one integer per bag; they fix whatever a model chooses at random in training.
    """

    features: Tensor
    sizes: tuple[int, ...]
    keys: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if sum(self.sizes) != len(self.features):
            raise ModelInputError(
                f"The sizes of the bags add up to {sum(self.sizes)} instances, but there are {len(self.features)} rows."
            )
        for name in ("keys", "seeds"):
            given = getattr(self, name)
            if given and len(given) != len(self.sizes):
                raise ModelInputError(f"Expected one of {name} for each of {len(self.sizes)} bags, found {len(given)}.")

    @classmethod
    def single(cls, features: Tensor, key: str = "") -> BagBatch:
        """One bag [n, d]."""
        return cls(features, (len(features),), (key,))

    @classmethod
    def pack(cls, bags: Sequence[Tensor], keys: Sequence[str] = (), seeds: Sequence[int] = ()) -> BagBatch:
        """Bags [n_i, d] of any sizes, stacked; a single bag is not copied."""
        if not bags:
            raise ModelInputError("Expected at least one bag, found none.")
        return cls(joined(bags), tuple(len(bag) for bag in bags), tuple(keys), tuple(seeds))

    def __len__(self) -> int:
        return len(self.sizes)

    def split(self, packed: Tensor) -> list[Tensor]:
        """Cut a tensor with one row per instance into views, one per bag."""
        return list(torch.split(packed, list(self.sizes)))

    def bags(self) -> list[Tensor]:
        """The features of every bag, as views."""
        return self.split(self.features)

    def key(self, index: int) -> str:
        """The slide id of a bag, empty when unknown."""
        return self.keys[index] if self.keys else ""

    def to(self, device: torch.device | str) -> BagBatch:
        """The same bags on another device."""
        return replace(self, features=self.features.to(device))

    def with_seeds(self, seeds: Sequence[int]) -> BagBatch:
        """The same bags with one seed each for the random choices of a training step."""
        return replace(self, seeds=tuple(seeds))
