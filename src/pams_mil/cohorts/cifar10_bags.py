"""CIFAR-10 from a local copy: every image is a bag of its patches, in the order of urgency of the PAMS paper.

Reads the standard python batches (`data_batch_1` ... `test_batch`) or folders of class folders with images
(`train/<class>/*.png`, `test/<class>/*.png`). A tenth of the training images validates. The batches are pickles, read
by an unpickler that neither imports nor calls anything.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import AnyArray
from pams_mil.cohorts.cohort_writer import CohortSlide
from pams_mil.data.bags.bag import Bag, BagInfo
from pams_mil.data.manifest.manifest import SPLITS, SlideRecord
from pams_mil.errors import BagError, ParameterError, first_line, listing
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.seeding import numpy_generator

SIDE = 32
IMAGE_BYTES = 3 * SIDE * SIDE
BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")


@dataclass(frozen=True)
class Cifar10:
    """CIFAR-10 as bags of patches.

    Args:
        source: The folder `cifar-10-batches-py`, or one with class folders.
        train: Images for training; `val` and `test` likewise. Fewer are used where there are fewer.
        patch_px: Side of a patch; `stride_px` the step between patches.
        seed: Which images are drawn.
    """

    source: Path
    train: int = 2000
    val: int = 500
    test: int = 1000
    patch_px: int = 8
    stride_px: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.patch_px <= SIDE or self.stride_px < 1 or min(self.train, self.val, self.test) < 1:
            raise ParameterError(f"patch_px must be from 1 to {SIDE}, and stride_px and the counts at least 1.")
        if not Path(self.source).is_dir():
            raise ParameterError(f"There is no folder {self.source}; expected cifar-10-batches-py or class folders.")

    def __len__(self) -> int:
        return sum(len(rows) for rows, _ in self._chosen().values())

    def slides(self) -> Iterator[CohortSlide]:
        """All images as bags, split by split."""
        hierarchy = ClassHierarchy.load("cifar10")
        for split, (rows, subset) in self._chosen().items():
            images, labels = self._images(subset)
            for row in rows.tolist():
                label = hierarchy.names()[hierarchy.index(labels[row])]
                slide_id = f"{subset}_{row:05d}"
                bag = self._bag(images(row))
                record = SlideRecord(slide_id, slide_id, label, split)
                yield CohortSlide(record, bag, (label,) * bag.num_instances)

    def images(self, split: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Whole images [n, 3, 32, 32] of a split and their classes [n] in the order of urgency."""
        hierarchy = ClassHierarchy.load("cifar10")
        rows, subset = self._chosen()[split]
        image, labels = self._images(subset)
        pixels = [np.rint(255 * image(row)).astype(np.uint8).transpose(2, 0, 1) for row in rows.tolist()]
        return np.stack(pixels), np.asarray([hierarchy.index(labels[row]) for row in rows], dtype=np.int64)

    def _chosen(self) -> dict[str, tuple[AnyArray, str]]:
        """For every split, the rows of its images and the subset of the source they are in."""
        count = {subset: len(self._images(subset)[1]) for subset in BATCHES}
        order = {subset: numpy_generator(self.seed, "cifar10", subset).permutation(n) for subset, n in count.items()}
        # Validation images come before the cut to `train`: more training images never change which ones validate.
        held = max(1, count["train"] // 10)
        rows = {"train": order["train"][held:], "val": order["train"][:held], "test": order["test"]}
        most = {"train": self.train, "val": self.val, "test": self.test}
        return {split: (rows[split][: most[split]], "test" if split == "test" else "train") for split in SPLITS}

    def _images(self, subset: str) -> tuple[Callable[[int], AnyArray], Sequence[str]]:
        """What gives the image [32, 32, 3] of a row, in [0, 1], and the labels of all rows."""
        source = Path(self.source)
        files = [source / name for name in BATCHES[subset]]
        if all(path.is_file() for path in files):
            batches = [read_batch(path) for path in files]
            pixels = np.concatenate([data for data, _ in batches])
            return partial(_from_batch, pixels), [str(label) for _, labels in batches for label in labels]
        if (source / subset).is_dir():
            paths = sorted(path for path in (source / subset).glob("*/*") if path.suffix.lower() in _IMAGE_SUFFIXES)
            if paths:
                return partial(_from_file, paths), [path.parent.name for path in paths]
        raise ParameterError(
            f"{source} is not a copy of CIFAR-10: expected the files {listing(BATCHES[subset])}, "
            f"or images in '{subset}/<class>/'."
        )

    def _bag(self, image: AnyArray) -> Bag:
        """Patches [n, 3 * patch^2] of an image [32, 32, 3] in [0, 1]."""
        starts = np.arange(0, SIDE - self.patch_px + 1, self.stride_px)
        corners = np.array([(x, y) for y in starts for x in starts], dtype=np.int32)
        patches = np.stack([image[y : y + self.patch_px, x : x + self.patch_px].ravel() for x, y in corners])
        info = BagInfo(encoder="patch-pixels", tile_px=self.patch_px, tile_px0=float(self.patch_px), layout="pams")
        return Bag(patches.astype(np.float32), corners, info)


def _from_batch(pixels: AnyArray, row: int) -> AnyArray:
    planes: AnyArray = pixels[row].reshape(3, SIDE, SIDE)
    scaled: AnyArray = planes.transpose(1, 2, 0) / 255.0
    return scaled


def _from_file(paths: Sequence[Path], row: int) -> AnyArray:
    from PIL import Image  # noqa: PLC0415  only folders of images need it

    with Image.open(paths[row]) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE))) / 255.0


class _Inert:
    """Stands for whatever a pickle wants to import or call; keeps the state it is given and does nothing else."""

    state: Any = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _DataUnpickler(pickle.Unpickler):
    """Builds dictionaries, lists, numbers and bytes; every class and function is an `_Inert`."""

    def find_class(self, module: str, name: str) -> Any:
        """Nothing of another module."""
        return _Inert


def read_batch(path: Path) -> tuple[AnyArray, list[int]]:
    """Pixels [n, 3072] uint8 and labels [n] of one python batch."""
    try:
        with path.open("rb") as file:
            content = _DataUnpickler(file, encoding="bytes").load()
        # Of numpy's array the state is kept, whose last entry are its bytes.
        pixels = np.frombuffer(content[b"data"].state[-1], np.uint8)
        labels = [int(label) for label in content[b"labels"]]
    except Exception as error:  # a forged or damaged pickle raises anything
        raise BagError(f"{path} is not one of CIFAR-10's python batches: {first_line(error)}.") from error
    if not labels or pixels.size != len(labels) * IMAGE_BYTES:
        raise BagError(f"{path} has {pixels.size:,} pixel bytes for {len(labels)} labels; expected {IMAGE_BYTES} each.")
    return pixels.reshape(-1, IMAGE_BYTES), labels
