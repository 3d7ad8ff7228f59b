"""The training dataset: bags as torch tensors, read when asked for, in any number of workers.

Nothing is opened until the first item is read, and open files and the cache are left behind when the dataset
is pickled, so fork and spawn give the same data. Checksums and finite values are verified the first time a
bag is read; all workers share what has been verified.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag
from pams_mil.data.bags.feature_origin import OriginCheck, feature_origin
from pams_mil.data.bags.store import BagStore, open_store
from pams_mil.data.manifest.manifest import BagSource, Manifest, bag_sources
from pams_mil.errors import BagError, ParameterError
from pams_mil.hierarchy import ClassHierarchy


class BagSample(NamedTuple):
    """One bag ready for a model, as it was read or as a step of training sees it.

    Attributes:
        features: [n, d]
        target: The finest class; -1: unknown.
        slide_id: The slide or case; of a training step, the one that was drawn.
        patient_id: Its patient.
        coords_px0: [n, 2], where they were asked for.
        findings: All that was found, where slides have several findings: of a remixed bag the union of both.
        name: Of a remixed bag, both slides, for messages.
        origins: [n] which of two remixed bags each row is from.
        weight: How much the target counts; what is left is the weight of `other`, the class of the second bag.
        other: See `weight`.
        seed: Fixes the model's random choices in a training step.
        counts: What a training step did to the bag, for the log: dropped, remixed, copied, degenerate, capped.
    """

    features: Tensor
    target: int
    slide_id: str
    patient_id: str
    coords_px0: Tensor | None = None
    findings: tuple[int, ...] = ()
    name: str = ""
    origins: Tensor | None = None
    weight: float = 1.0
    other: int = -1
    seed: int = 0
    counts: Mapping[str, float] = {}


class BagCache:
    """Bags that were read, up to `limit` bytes; datasets that share one read a feature file once between them."""

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ParameterError(f"cache_bytes must be 0 or more, found {limit}.")
        self.limit, self.nbytes = limit, 0
        self._bags: dict[Hashable, tuple[Bag, ...]] = {}

    def __len__(self) -> int:
        return len(self._bags)

    def get(self, key: Hashable) -> tuple[Bag, ...] | None:
        """The slides of a bag that was kept."""
        return self._bags.get(key)

    def keep(self, key: Hashable, bags: tuple[Bag, ...]) -> bool:
        """Keep the slides of a bag if there is room, and say so."""
        # An epoch visits every bag once: whatever fits first is as good to keep as anything else.
        size = sum(bag.features.nbytes + (0 if bag.coords_px0 is None else bag.coords_px0.nbytes) for bag in bags)
        if self.nbytes + size > self.limit:
            return False
        self._bags[key] = bags
        self.nbytes += size
        return True

    def __reduce__(self) -> tuple[type[BagCache], tuple[int]]:
        # A spawned worker would otherwise be sent all bags.
        return BagCache, (self.limit,)


class BagDataset(Dataset[BagSample]):
    """The bags of a manifest as a map-style torch dataset.

    Args:
        manifest: The slides, e.g. `manifest.select("train")`.
        hierarchy: The class hierarchy that turns labels into targets.
        features: The folder of feature files, a pack, or an opened store; the manifest's folder when None.
        dtype: Precision of the returned features; None keeps what is stored.
        cache_bytes: Keep bags in memory, in their stored precision, until this many bytes are used. Each
            worker process has a cache of its own.
        cache: A cache to share with other datasets of this process, in place of one of `cache_bytes`.
        with_coords: Return level-0 coordinates [n, 2] too, where the files have them.
        sources: Bags made of several slides (see `bag_sources`); one bag per slide if None.
        origin: Holds every slide's features against what is expected of them; None: nothing is.
    """

    def __init__(
        self,
        manifest: Manifest,
        hierarchy: ClassHierarchy,
        features: Path | str | BagStore | None,
        *,
        dtype: torch.dtype | None = torch.float32,
        cache_bytes: int = 0,
        cache: BagCache | None = None,
        with_coords: bool = False,
        sources: Sequence[BagSource] | None = None,
        origin: OriginCheck | None = None,
    ) -> None:
        self.sources = bag_sources(manifest, hierarchy) if sources is None else tuple(sources)
        self.dtype = dtype
        self.cache = BagCache(cache_bytes) if cache is None else cache
        self.with_coords = with_coords
        self.origin = origin
        self._store = open_store(features, manifest)
        # In shared memory: what one worker has verified, no other does again. A race costs a second check and no more.
        self._verified = torch.zeros(len(self.sources), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        # Bags that cannot be told from later ones of the same name are no one else's.
        self._unshared = BagCache(self.cache.limit)
        self._held: dict[int, tuple[Bag, ...]] = {}

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def targets(self) -> tuple[int, ...]:
        """The finest class index of every bag."""
        return tuple(source.target for source in self.sources)

    def __getitem__(self, index: int) -> BagSample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"bag {index} of {len(self)}")
        # A negative index counts from the end, as in a list; the cache and the marks need the one true index.
        index %= len(self)
        source = self.sources[index]
        bags = self._held.get(index) or self._load(index)
        cached = index in self._held  # then what is handed out is a copy, so that nobody can alter the cache
        stored = _joined([bag.features for bag in bags], source, copy=False)
        features = stored.to(stored.dtype if self.dtype is None else self.dtype, copy=cached)
        places = [bag.coords_px0 for bag in bags if bag.coords_px0 is not None]
        known = self.with_coords and len(places) == len(bags)
        coords = _joined(places, source, copy=cached) if known else None
        return BagSample(features, source.target, source.name, source.patient_id, coords, source.findings)

    def _load(self, index: int) -> tuple[Bag, ...]:
        source = self.sources[index]
        identities = [self._store.identity(record) for record in source.records]
        cache = self._unshared if None in identities else self.cache
        key = tuple(identities) if cache is self.cache else index
        kept = cache.get(key)
        verify = not bool(self._verified[index])
        bags = kept or tuple(self._store.read(record, verify=verify) for record in source.records)
        if self.origin is not None:
            for record, bag in zip(source.records, bags, strict=True):
                self.origin(record.slide_id, feature_origin(bag))
        # Only now: a bag that was refused above is checked again when it is asked for again.
        self._verified[index] = 1
        if kept is not None or cache.keep(key, bags):
            self._held[index] = bags
        return bags

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}}


def keep_bags(samples: list[BagSample]) -> list[BagSample]:
    """The `collate_fn` for bags: a list, because bags of different sizes do not stack."""
    return samples


def _joined(arrays: Sequence[AnyArray], source: BagSource, *, copy: bool) -> Tensor:
    """The rows of all slides of a bag; of a single slide not copied unless asked for."""
    widths = {array.shape[1] for array in arrays}
    if len(widths) > 1:
        raise BagError(
            f"The slides of case {source.name!r} have features of different widths {sorted(widths)}; "
            "extract them all with one encoder."
        )
    if len(arrays) > 1:
        return torch.from_numpy(np.concatenate(arrays))
    # torch warns about read-only arrays, and what writing to such a tensor does is not defined.
    return torch.from_numpy(arrays[0].copy() if copy or not arrays[0].flags.writeable else arrays[0])
