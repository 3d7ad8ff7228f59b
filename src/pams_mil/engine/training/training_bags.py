"""Training bags: read, thinned, remixed and capped, each a pure function of (seed, epoch, slide).

Loader workers and the main process make the same bag bit for bit: all of it runs on one thread, because sums
over several threads may round differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pams_mil import seeding
from pams_mil.data.bags.dataset import BagDataset, BagSample, keep_bags
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.errors import ConfigError, ParameterError
from pams_mil.models.core.batch import joined
from pams_mil.models.core.devices import torch_threads
from pams_mil.models.core.inputs import instance_cap
from pams_mil.remix.pairing import Pairing
from pams_mil.remix.strategy import FROM_A, Remix, take

_INSPECTED_BAGS = 5


class StepKey(NamedTuple):
    """Which training bag: the epoch, the slide drawn, and which of its steps (0, or 1 for an added remix)."""

    epoch: int
    slide: int
    part: int


def packed(bags: Sequence[BagSample], device: torch.device) -> tuple[Any, ...]:
    """Bags of one pass as `Learner.forward` takes them; the features of a single one are not copied."""
    targets, weights = [[bag.target for bag in bags]], None
    if any(bag.weight < 1 for bag in bags):  # a label that a bag does not have is its first one with weight 0
        targets.append([bag.other if bag.weight < 1 else bag.target for bag in bags])
        weights = [[bag.weight for bag in bags], [1.0 - bag.weight for bag in bags]]
    return (
        joined([bag.features for bag in bags]).to(device, non_blocking=True),
        tuple(len(bag.features) for bag in bags),
        tuple(bag.slide_id for bag in bags),
        tuple(bag.seed for bag in bags),
        torch.tensor(targets, device=device),
        None if weights is None else torch.tensor(weights, device=device),
        None if all(bag.origins is None for bag in bags) else joined([_origins(bag) for bag in bags]).to(device),
        tuple(bag.findings for bag in bags),
    )


def _origins(bag: BagSample) -> Tensor:
    return torch.zeros(len(bag.features), dtype=torch.int8) if bag.origins is None else bag.origins


@dataclass(eq=False)
class TrainingBags(Dataset[BagSample]):
    """The training set as steps.

    Attributes:
        bags: The training bags as they are.
        seed: The run's seed.
        remix: How two bags become one; None: never.
        pairing: Which bags meet; None: none do.
        max_instances: Most instances of a step.
        drop_instances: Share of every bag's instances that a step does not see; None: none.
        unite: A remixed bag has all rows of both, so that the union of their findings is exact.
    """

    bags: BagDataset
    _: KW_ONLY
    seed: int
    remix: Remix | None = None
    pairing: Pairing | None = None
    max_instances: int | None = None
    drop_instances: float | None = None
    unite: bool = False

    def __len__(self) -> int:
        return len(self.bags)

    def epoch_keys(self, epoch: int, *, rank: int = 0, world_size: int = 1) -> list[StepKey]:
        """The steps of an epoch in order; several processes get disjoint shares of equal length."""
        # All processes draw the same order and take every n-th step of it.
        order = torch.randperm(len(self), generator=seeding.generator(self.seed, "order", epoch)).tolist()
        keys = [
            StepKey(epoch, slide, number)
            for slide in order
            for number in range(1 if self.pairing is None else len(self.pairing.steps(slide, epoch)))
        ]
        short = -len(keys) % world_size  # processes that wait for each other must take equally many steps
        return [*keys, *keys[:short]][rank::world_size]

    def __getitem__(self, key: StepKey) -> BagSample:
        with torch_threads(1):
            return self._make(key)

    def _make(self, key: StepKey) -> BagSample:
        drawn = self.bags[key.slide]
        pair = None if self.pairing is None else self.pairing.steps(key.slide, key.epoch)[key.part]
        # Which of the two is the slide drawn depends on the pair; it is not read twice.
        whole = [
            drawn if i == key.slide else self.bags[i] for i in ((key.slide,) if pair is None else (pair.a, pair.b))
        ]
        # Thinned, then remixed, then capped: see `kept_rows` for why dropping comes first.
        bags = [self._thinned(bag, key, drawn) for bag in whole]
        dropped = float(sum(map(rows_of, whole)) - sum(map(rows_of, bags)))
        bag = bags[0] if pair is None else self._remixed(bags, key)
        counts = {**({"dropped": dropped} if self.drop_instances else {}), **bag.counts}
        # Last, since a remixed bag has the rows of two.
        capped = instance_cap(
            len(bag.features), self.max_instances, seed=self.seed, epoch=key.epoch, slide_id=drawn.slide_id
        )
        if capped is not None:
            bag = bag._replace(
                features=bag.features[capped], origins=None if bag.origins is None else bag.origins[capped]
            )
            counts["capped"] = 1.0
        # By names and not by position, so that it does not matter who makes the bag, or when.
        seed = seeding.derive(self.seed, "model", key.epoch, key.part, drawn.slide_id)
        return bag._replace(slide_id=drawn.slide_id, patient_id=drawn.patient_id, seed=seed, counts=counts)

    def _thinned(self, bag: BagSample, key: StepKey, drawn: BagSample) -> BagSample:
        """A bag with the rows that this step sees."""
        rows = kept_rows(
            len(bag.features), self.drop_instances, seed=self.seed, epoch=key.epoch,
            step=(drawn.slide_id, key.part), slide=bag.slide_id,
        )  # fmt: skip
        return bag if rows is None else bag._replace(features=bag.features[rows])

    def _remixed(self, pair: Sequence[BagSample], key: StepKey) -> BagSample:
        """Two bags as one, with the label that the pairing or, of several findings, the most urgent one gives it."""
        if self.pairing is None or self.remix is None:
            raise ParameterError("Pairs of bags need a remix.")
        if self.unite:  # whatever the rule of the pair, a mixture is labeled by the most urgent finding of both
            ranks = self.pairing.hierarchy.ranks()
            a, b = sorted(pair, key=lambda bag: (-ranks[bag.target], bag.target))
            mixed = take(a.features, b.features, torch.arange(len(a.features)))
        else:
            a, b = pair
            mixed = self.remix(a.features, b.features, self.pairing.generator(key.slide, key.epoch))
        copied = int((mixed.origin_bag == FROM_A).sum()) / len(a.features)
        top_k = getattr(self.remix, "top_k", None)
        degenerate = mixed.live_clusters is not None and top_k is not None and mixed.live_clusters <= top_k
        return a._replace(
            features=mixed.features,
            findings=tuple(sorted({*a.findings, *b.findings})),
            name=f"{a.slide_id} remixed with {b.slide_id}",
            origins=mixed.origin_bag,
            weight=mixed.weight_a,
            other=b.target,
            counts={"remixed": 1.0, "copied": copied, "degenerate": float(degenerate)},
        )


def rows_of(bag: BagSample) -> int:
    """Its instances."""
    return len(bag.features)


class BagLoader:
    """Gives the bags of a list of keys in order, read ahead by worker processes that live as long as the loader.

    Without workers a bag is made when its turn comes; a `DataLoader` would only add its own work to every small bag.
    """

    def __init__(self, bags: TrainingBags, *, workers: int, pin_memory: bool = False) -> None:
        self._bags = bags
        self._keys: list[StepKey] = []
        self._loader: DataLoader[BagSample] | None = None
        if workers or pin_memory:
            ahead: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
            self._loader = DataLoader(
                bags, sampler=self._keys, batch_size=None, num_workers=workers, collate_fn=keep_bags,
                pin_memory=pin_memory,
                generator=torch.Generator(),  # its own: torch's global one belongs to the model
                **ahead,
            )  # fmt: skip

    def bags(self, keys: Sequence[StepKey]) -> Iterator[BagSample]:
        """The bags of these keys."""
        if self._loader is None:
            return map(self._bags.__getitem__, keys)
        # The list of keys is read in this process; workers get single keys, so one pool of them serves all epochs.
        self._keys[:] = keys
        return iter(self._loader)


def kept_count(n: int, share: float) -> int:
    """How many of n instances stay under instance dropout: max(1, ⌈(1 − share) · n⌉).

    >>> [kept_count(n, 0.7) for n in (1, 3, 10, 100)]
    [1, 1, 3, 30]
    """
    # The rounding keeps 30 % of 10 at 3: 1 - 0.7 is a little more than 0.3 in binary.
    return min(n, max(1, math.ceil(round((1.0 - share) * n, 9))))


def kept_rows(
    n: int, share: float | None, *, seed: int, epoch: int, step: tuple[str, int], slide: str
) -> Tensor | None:
    """Instance dropout: rows of a slide that a training step sees, ascending; None for all of them.

    Done before a remix. The remix then puts at least one row of Z_a into the bag that carries Z_a's label; dropped
    afterwards, all of these rows could be lost and Z_b alone would carry a label that is not its own. The right share
    depends on how many instances carry the label: dropping nine in ten suits a bag that is urgent all over, and ruins
    one with a single urgent instance in thirteen. `step` is the slide drawn and which of its steps: a partner is
    thinned again in every step.

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


def refuse_remix_of_vectors(config: RunConfig, remix: str, bags: BagDataset) -> None:
    """Stop before a remix is asked to exchange tiles between bags that are slide vectors."""
    first = min(_INSPECTED_BAGS, len(bags))
    if config.model.name != "linear" and any(len(bags[index].features) > 1 for index in range(first)):
        return
    why = (
        "the model 'linear' reads one vector per slide"
        if config.model.name == "linear"
        else f"the first {first} training bags hold one row each, such as the vector of a slide encoder"
    )
    raise ConfigError(
        f"The remix {remix!r} exchanges tiles between slides, and {why}: there is nothing to exchange. "
        "Train without it: method.remix=null."
    )
