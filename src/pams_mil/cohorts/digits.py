"""Bags of handwritten digits that behave like slides, made from the 1,797 images that come with scikit-learn.

Digits 0 to 6 are findings of growing urgency (3 and 4 tie), digits 7 to 9 are background. A bag is mostly
background with a few findings, and its label is the most urgent digit in it. Every image belongs to one
split, so no test image was seen in training. Features are the 64 pixels in [0, 1] plus Gaussian noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pams_mil.arrays import AnyArray
from pams_mil.cohorts.cohort_writer import CohortSlide, cohort_slide, patient_names
from pams_mil.data.bags.bag import BagInfo
from pams_mil.data.manifest.manifest import SPLITS
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.seeding import numpy_generator

CLASSES = 7
TILE_PX = 8
_SHARE = {"train": 0.6, "val": 0.15, "test": 0.25}  # of the images of every digit
_BACKGROUND_DIGITS = (7, 8, 9)
_INFO = BagInfo(encoder="digit-pixels", tile_px=TILE_PX, tile_px0=float(TILE_PX), layout="pams")


@dataclass(frozen=True)
class Digits:
    """The digits cohort.

    Args:
        train: Number of training bags; `val` and `test` likewise.
        smallest: Fewest instances of a bag; `largest` the most.
        findings: Most instances of the digit that gives the label; at least one.
        mixed: Share of bags that also hold less urgent findings.
        noise: Standard deviation of the noise on pixels in [0, 1]; more is harder.
        seed: Everything is a function of it.
    """

    train: int = 280
    val: int = 70
    test: int = 140
    smallest: int = 15
    largest: int = 40
    findings: int = 3
    mixed: float = 0.6
    noise: float = 0.18
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.train, self.val, self.test) < CLASSES:
            raise ParameterError(f"Every split needs at least {CLASSES} bags, one per class.")
        if not 2 * self.findings + 1 <= self.smallest <= self.largest:
            raise ParameterError(
                f"Bag sizes must satisfy 2 * findings + 1 <= smallest <= largest, found findings {self.findings}, "
                f"smallest {self.smallest}, largest {self.largest}."
            )
        if self.findings < 1 or not 0 <= self.mixed <= 1 or not self.noise >= 0:
            raise ParameterError("findings must be at least 1, mixed from 0 to 1, and noise 0 or more.")

    def __len__(self) -> int:
        return self.train + self.val + self.test

    def slides(self) -> Iterator[CohortSlide]:
        """All bags, split by split."""
        hierarchy = ClassHierarchy.load("digits")
        images, digits = _load()
        pools = image_pools(digits, self.seed)
        for split in SPLITS:
            count = {"train": self.train, "val": self.val, "test": self.test}[split]
            generator = numpy_generator(self.seed, "digits", split)
            patients = patient_names(count, generator, most_slides=3, prefix=f"{split}-")
            targets = generator.permutation(np.arange(count) % CLASSES)
            for number in range(count):
                chosen = self._choose(int(targets[number]), hierarchy, pools[split], generator)
                noisy = images[chosen] + self.noise * generator.standard_normal(images[chosen].shape)
                ids = (f"{split}_{number:04d}", patients[number], split)
                yield cohort_slide(ids, noisy, digits[chosen], hierarchy.names(), _INFO)

    def _choose(
        self, target: int, hierarchy: ClassHierarchy, pool: dict[int, AnyArray], generator: np.random.Generator
    ) -> AnyArray:
        """Images of one bag: a few of the target digit, maybe less urgent ones, and background."""
        size = int(generator.integers(self.smallest, self.largest + 1))
        chosen = [generator.choice(pool[target], int(generator.integers(1, self.findings + 1)))]
        below = np.flatnonzero(hierarchy.outranks()[target])
        if len(below) and generator.random() < self.mixed:
            others = generator.choice(below, int(generator.integers(1, self.findings + 1)))
            chosen.extend(generator.choice(pool[int(digit)], 1) for digit in others)
        background = np.concatenate([pool[digit] for digit in _BACKGROUND_DIGITS])
        chosen.append(generator.choice(background, size - sum(map(len, chosen))))
        return generator.permutation(np.concatenate(chosen))


def image_pools(digits: AnyArray, seed: int) -> dict[str, dict[int, AnyArray]]:
    """For every split and digit, the rows of its images; no image is in two splits."""
    pools: dict[str, dict[int, AnyArray]] = {split: {} for split in SPLITS}
    for digit in range(10):
        rows = numpy_generator(seed, "digits", "images", digit).permutation(np.flatnonzero(digits == digit))
        # Cumulative ends are rounded, so the parts add up to all images.
        ends = np.rint(np.cumsum([_SHARE[split] for split in SPLITS]) * len(rows)).astype(int)
        for split, members in zip(SPLITS, np.split(rows, ends[:-1]), strict=True):
            pools[split][digit] = members
    return pools


def _load() -> tuple[AnyArray, AnyArray]:
    """Images [1797, 64] in [0, 1] and their digits [1797]."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  scikit-learn is slow to import

    bunch = load_digits()
    return bunch.data / 16.0, bunch.target
