"""Several bags, packed one after the other: no padding, so nothing that a neighbor could leak through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from pams_mil.errors import ModelInputError

_Item = TypeVar("_Item")
PACKED_CELLS = 1 << 17
"""Most bags times rows of one pass. Attention pooling lays its weights out as [bags, rows], which costs nothing beside
the projection up to here; and rows beyond what fills a core's cache make no pass faster."""

PACKED_BAGS = 32
"""Of one pass where nothing else says how many: without gradients."""


def in_packs(items: Iterable[_Item], rows: Callable[[_Item], int], *, most: int) -> Iterator[list[_Item]]:
    """Neighbors that go through one pass together: `most` at the most, and no more than `PACKED_CELLS`.

    A bag that is too large to share a pass goes alone.

    >>> list(in_packs([3, 4, 200_000, 5, 6, 7], lambda n: n, most=2))
    [[3, 4], [200000], [5, 6], [7]]
    """
    pack: list[_Item] = []
    total = 0
    for item in items:
        # Bags times rows if this one came along.
        if pack and (len(pack) == most or (len(pack) + 1) * (total + rows(item)) > PACKED_CELLS):
            yield pack
            pack, total = [], 0
        pack.append(item)
        total += rows(item)
    if pack:
        yield pack


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
        origins: [sum n_i], which of two remixed bags each row is from; None when no bag is a remix.
        checked: shape, width and values were found good (`as_batch`), so that the next tower need not look again.
    """

    features: Tensor
    sizes: tuple[int, ...]
    keys: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    origins: Tensor | None = None
    checked: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if sum(self.sizes) != len(self.features):
            raise ModelInputError(
                f"The sizes of the bags add up to {sum(self.sizes)} instances, but there are {len(self.features)} rows."
            )
        if self.origins is not None and len(self.origins) != len(self.features):
            raise ModelInputError(
                f"Expected the origin of each of {len(self.features)} rows, found {len(self.origins)}."
            )
        for name in ("keys", "seeds"):
            values = getattr(self, name)
            if values and len(values) != len(self.sizes):
                raise ModelInputError(
                    f"Expected one of {name} for each of {len(self.sizes)} bags, found {len(values)}."
                )

    @classmethod
    def single(cls, features: Tensor, key: str = "") -> BagBatch:
        """One bag [n, d]."""
        return cls(features, (len(features),), (key,))

    @classmethod
    def pack(cls, bags: Sequence[Tensor], keys: Sequence[str] = (), seeds: Sequence[int] = ()) -> BagBatch:
        """Bags [n_i, d] of any sizes, stacked; a single bag is not copied."""
        if not bags:
            raise ModelInputError("Expected at least one bag, found none.")
        widths = {tuple(bag.shape[1:]) for bag in bags}
        if len(widths) > 1:
            raise ModelInputError(f"Bags of one pass must be equally wide, found {sorted(widths)}.")
        return cls(joined(bags), tuple(len(bag) for bag in bags), tuple(keys), tuple(seeds))

    def __len__(self) -> int:
        return len(self.sizes)

    def split(self, packed: Tensor) -> list[Tensor]:
        """Cut a tensor with one row per instance into views, one per bag."""
        return list(torch.split(packed, list(self.sizes)))

    def bags(self) -> list[Tensor]:
        """The features of every bag, as views."""
        return self.split(self.features)

    @cached_property
    def groups(self) -> Tensor | None:
        """The bag of every row, [1, sum n_i], as attention pooling takes groups; None for a single bag.

        >>> BagBatch.pack([torch.zeros(2, 3), torch.ones(1, 3)]).groups.tolist()
        [[0, 0, 1]]
        """
        if len(self.sizes) == 1:
            return None
        sizes = torch.tensor(self.sizes, device=self.features.device)
        return torch.repeat_interleave(sizes, output_size=len(self.features))[None]

    def pieces(self) -> list[BagBatch]:
        """The same bags as batches that each fit into one pass; nearly always this batch itself."""
        bags = len(self)
        if bags * len(self.features) <= PACKED_CELLS or bags == 1:
            return [self]
        packs = list(in_packs(range(bags), lambda index: self.sizes[index], most=bags))
        rows = [sum(self.sizes[index] for index in pack) for pack in packs]
        cut = torch.split(self.features, rows)
        origins = [None] * len(packs) if self.origins is None else torch.split(self.origins, rows)
        return [
            replace(
                self,
                features=features,
                sizes=self.sizes[pack[0] : pack[-1] + 1],
                keys=self.keys[pack[0] : pack[-1] + 1],
                seeds=self.seeds[pack[0] : pack[-1] + 1],
                origins=own,
            )
            for pack, features, own in zip(packs, cut, origins, strict=True)
        ]

    def key(self, index: int) -> str:
        """The slide id of a bag, empty when unknown."""
        return self.keys[index] if self.keys else ""

    def to(self, device: torch.device | str) -> BagBatch:
        """The same bags on another device."""
        origins = None if self.origins is None else self.origins.to(device)
        return replace(self, features=self.features.to(device), origins=origins)

    def with_seeds(self, seeds: Sequence[int]) -> BagBatch:
        """The same bags with one seed each for the random choices of a training step."""
        return replace(self, seeds=tuple(seeds))
