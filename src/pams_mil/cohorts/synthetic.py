"""Features with planted lesions: any hierarchy, any size, and a truth for every instance.

Every class has a direction, half of it shared with its group, and background tissue has a few of its own. An
instance is its direction times `separation` plus standard Gaussian noise. A slide of a class holds a few
instances of it among background; a mixed slide also holds less urgent findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pams_mil.arrays import AnyArray
from pams_mil.cohorts.cohort_writer import CohortSlide, cohort_slide, patient_names
from pams_mil.data.bags.bag import BagInfo
from pams_mil.data.manifest.manifest import SPLITS
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.seeding import numpy_generator

TILE_PX = 256
_TISSUES = 4
_INFO = BagInfo(encoder="planted", tile_px=TILE_PX, tile_px0=float(TILE_PX), mpp=1.0, layout="pams")

Counts = Mapping[str, Mapping[str, int]]

COUNTS: dict[str, Counts] = {
    "bracs": {
        "train": {"N": 27, "PB": 120, "UDH": 56, "FEA": 24, "ADH": 28, "DCIS": 40, "IC": 100},
        "val": {"N": 10, "PB": 11, "UDH": 9, "FEA": 6, "ADH": 8, "DCIS": 9, "IC": 12},
        "test": {"N": 7, "PB": 16, "UDH": 9, "FEA": 11, "ADH": 12, "DCIS": 12, "IC": 20},
    },
    "colon": {
        "train": {"IP": 181, "LP": 445, "HP": 602, "SSL": 282, "TA": 950, "TVA": 343, "TSA": 387},
        "val": {"IP": 37, "LP": 94, "HP": 127, "SSL": 59, "TA": 205, "TVA": 74, "TSA": 82},
        "test": {"IP": 38, "LP": 95, "HP": 136, "SSL": 114, "TA": 300, "TVA": 81, "TSA": 102},
    },
}
"""Slides per split and class of the two cohorts of the PAMS paper."""


@dataclass(frozen=True)
class Synthetic:
    """A cohort of planted lesions.

    Args:
        classes: A hierarchy preset or class file. For `bracs` and `colon` the slides per split and class are
            those of the paper's cohorts; for others every class gets 20, 5 and 10 slides.
        scale: Multiplies all slide counts; no count falls below one.
        width: Length of a feature vector.
        smallest: Fewest instances of a bag; `largest` the most. Sizes are log-uniform between.
        lesion: Share of a slide's instances that show its label, at least one instance.
        mixed: Share of slides that also hold less urgent findings.
        separation: Length of the class directions in units of the noise; less is harder.
        seed: Everything is a function of it.
    """

    classes: str = "bracs"
    scale: float = 1.0
    width: int = 64
    smallest: int = 50
    largest: int = 400
    lesion: float = 0.05
    mixed: float = 0.3
    separation: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width < 2 or not 4 <= self.smallest <= self.largest:
            raise ParameterError(
                f"width must be at least 2 and bag sizes 4 <= smallest <= largest, found width {self.width}, "
                f"smallest {self.smallest}, largest {self.largest}."
            )
        if not 0 < self.lesion <= 0.4 or not 0 <= self.mixed <= 1 or not self.scale > 0:
            raise ParameterError("lesion must be above 0 and at most 0.4, mixed from 0 to 1, and scale above 0.")

    def __len__(self) -> int:
        return sum(sum(per_class.values()) for per_class in self.counts().values())

    def counts(self) -> dict[str, dict[str, int]]:
        """Slides per split and class."""
        hierarchy = ClassHierarchy.load(self.classes)
        flat: Counts = {
            split: dict.fromkeys(hierarchy.names(), n) for split, n in zip(SPLITS, (20, 5, 10), strict=True)
        }
        table = COUNTS.get(hierarchy.name, flat)
        if set(table["train"]) != set(hierarchy.names()):
            table = flat
        return {
            split: {name: max(1, round(table[split][name] * self.scale)) for name in hierarchy.names()}
            for split in SPLITS
        }

    def slides(self) -> Iterator[CohortSlide]:
        """All slides, split by split, classes in random order."""
        hierarchy = ClassHierarchy.load(self.classes)
        directions = self.directions(hierarchy)
        counts = self.counts()
        for split in SPLITS:
            generator = numpy_generator(self.seed, "synthetic", split)
            targets = np.repeat(np.arange(hierarchy.num_classes()), [counts[split][name] for name in hierarchy.names()])
            targets = generator.permutation(targets)
            patients = patient_names(len(targets), generator, most_slides=3, prefix=f"{split}-")
            for number, target in enumerate(targets.tolist()):
                kinds = self._kinds(target, hierarchy, generator)
                features = self.separation * directions[kinds] + generator.standard_normal((len(kinds), self.width))
                ids = (f"{split}_{number:05d}", patients[number], split)
                yield cohort_slide(ids, features, kinds, hierarchy.names(), _INFO)

    def directions(self, hierarchy: ClassHierarchy) -> AnyArray:
        """Unit vectors [c + tissues, d]: one per finest class, then the background tissues."""
        generator = numpy_generator(self.seed, "synthetic", "directions")
        groups = _unit(generator.standard_normal((hierarchy.num_classes(0), self.width)))
        own = _unit(generator.standard_normal((hierarchy.num_classes(), self.width)))
        tissues = _unit(generator.standard_normal((_TISSUES, self.width)))
        # Classes of a group lie close together, so that coarse levels are easier than fine ones.
        return np.concatenate([_unit(own + groups[hierarchy.groups(0)]), tissues])

    def _kinds(self, target: int, hierarchy: ClassHierarchy, generator: np.random.Generator) -> AnyArray:
        """What every instance of a slide shows: a class index, or c and above for background tissues."""
        # + 1 and rounded down: `largest` itself can come up.
        size = int(np.exp(generator.uniform(np.log(self.smallest), np.log(self.largest + 1))))
        few = max(1, round(self.lesion * size))
        kinds = [np.full(few, target)]
        # Strictly less urgent: a tied class beside the target would leave the label open.
        below = np.flatnonzero(hierarchy.outranks()[target])
        if len(below) and generator.random() < self.mixed:
            kinds.append(np.full(few, generator.choice(below)))
        rest = size - sum(map(len, kinds))
        kinds.append(hierarchy.num_classes() + generator.integers(0, _TISSUES, rest))
        return generator.permutation(np.concatenate(kinds))


def _unit(rows: AnyArray) -> AnyArray:
    scaled: AnyArray = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled
