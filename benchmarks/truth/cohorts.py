"""Cohorts in which the class of every instance is known: two synthetic ones, and folders of real bags if given.

A real folder holds `h5_files/<slide_id>.h5`, `labels.csv` (case_id, slide_id, label), `instance_labels.csv`
(slide_id, row, label) and, unless its classes are those of Bethesda, `classes.yaml`. Instance labels serve to score
what a remix selects or a model sees, never to select or train.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from pams_mil.cohorts.digits import Digits
from pams_mil.cohorts.synthetic import Synthetic
from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class TruthCohort:
    """Bags with their label, patient and the truth of every instance."""

    name: str
    hierarchy: ClassHierarchy
    slide_ids: list[str]
    bags: list[Tensor]
    targets: np.ndarray
    patients: list[str]
    instances: list[np.ndarray]
    """Per bag, the class of every instance; -1 where it has none."""

    @property
    def carriers(self) -> list[np.ndarray]:
        """Per bag, which instances are of the bag's class."""
        return [own == target for own, target in zip(self.instances, self.targets, strict=True)]

    @property
    def ranks(self) -> list[int]:
        """Urgency of every bag."""
        return self.hierarchy.ranks()[self.targets].tolist()

    def pairs(self, count: int, seed: int = 0) -> list[tuple[int, int]]:
        """Random (a, b) with a strictly more urgent."""
        random = np.random.default_rng(seed)
        ranks, found = np.asarray(self.ranks), []
        while len(found) < count:
            a, b = random.integers(len(ranks), size=2)
            if ranks[a] > ranks[b]:
                found.append((int(a), int(b)))
        return found


def _synthetic(name: str, hierarchy: ClassHierarchy, slides) -> TruthCohort:
    chosen = [slide for slide in slides if slide.record.split == "train"]
    labels = [slide.record.label for slide in chosen]
    return TruthCohort(
        name=name,
        hierarchy=hierarchy,
        slide_ids=[slide.record.slide_id for slide in chosen],
        bags=[torch.from_numpy(np.asarray(slide.bag.features, dtype=np.float32)) for slide in chosen],
        targets=np.array([hierarchy.index(label) for label in labels]),
        patients=[slide.record.patient_id for slide in chosen],
        instances=[
            np.array([hierarchy.index(own) if own in hierarchy.names() else -1 for own in slide.instance_labels])
            for slide in chosen
        ],
    )


def _read_rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def real(folder: Path) -> TruthCohort:
    """A folder of real bags with instance labels."""
    own = folder / "classes.yaml"
    hierarchy = ClassHierarchy.load(own if own.exists() else "bethesda")
    slides = list(_read_rows(folder / "labels.csv"))
    truth: dict[str, dict[int, str]] = {}
    for row in _read_rows(folder / "instance_labels.csv"):
        truth.setdefault(row["slide_id"], {})[int(row["row"])] = row["label"]
    bags, instances = [], []
    for slide in slides:
        with h5py.File(folder / "h5_files" / f"{slide['slide_id']}.h5") as file:
            bags.append(torch.from_numpy(file["features"][:]).float())
        labels = truth[slide["slide_id"]]
        instances.append(np.array([hierarchy.index(labels[row]) for row in range(len(bags[-1]))]))
    return TruthCohort(
        name=folder.name,
        hierarchy=hierarchy,
        slide_ids=[slide["slide_id"] for slide in slides],
        bags=bags,
        targets=np.array([hierarchy.index(slide["label"]) for slide in slides]),
        patients=[slide["case_id"] for slide in slides],
        instances=instances,
    )


def cohorts(folders: Sequence[Path] = ()) -> list[TruthCohort]:
    """The digits, planted lesions, and the real folders."""
    return [
        _synthetic("digits", ClassHierarchy.load("digits"), Digits().slides()),
        _synthetic("planted", ClassHierarchy.load("bracs"), Synthetic(scale=0.5).slides()),
        *map(real, folders),
    ]
