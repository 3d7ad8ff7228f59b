"""Predictions of one model on labelled slides, at the finest level: what every audit starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil import atomic
from pams_mil.arrays import Array, Bools, Ints
from pams_mil.data.exposure import COLUMN, Exposure, Purpose, Role, Roles, admit, one_spelling, role_cell
from pams_mil.data.finding_labels import set_label
from pams_mil.data.tables import read_table
from pams_mil.errors import ParameterError, PredictionsError, listing, nearest
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import DecisionPath, decision_path
from pams_mil.metrics.probability import improper_rows

ROW_FIELDS = (
    "slide_ids", "target", "predicted", "probabilities", "patient_ids", "roles", "finding_targets",
    "finding_probabilities", "features",
)  # fmt: skip
"""Fields with an entry for every row."""
DECIDED_BY = "decided_by"
"""The column that says which rule made the predictions, e.g. argmax or kappa=3."""
DECIDED = "Decided by"
"""How every note begins that says which rule made the predictions."""
DISAGREES = "disagrees"
"""The column of what coarser levels' own outputs say where they contradict the call; empty where all agree."""
FINDINGS = "findings"
"""The column of all findings that are called, where slides have several."""
OWN = "own_prediction"
"""The column, in a coarser level's file, of what its own output says."""
RESERVED = ("slide_id", "patient_id", "split", COLUMN, "target", "prediction", DECIDED_BY, DISAGREES, OWN)
"""Columns of ours; those of the table with such a name are left out."""
_LABELS = {
    "label", "labels", "y", "y_true", "true", "true_class", "true_label", "truth", "ground_truth", "gt", "class",
    "diagnosis", "target",
}  # fmt: skip
_NOT_LABELS = {
    "slide_id", "patient_id", "split", COLUMN, "prediction", DECIDED_BY, DISAGREES, OWN, "certified",
    "certified_slide", "cannot_exclude", "interval_low", "interval_high", "tags",
}  # fmt: skip
"""Columns of our own files that name classes, but not the true one."""


@dataclass(frozen=True)
class Predictions:
    """Who was predicted as what; indices and probabilities [n], [n, C] are of the finest level.

    A row is a slide predicted by one network. The columns `fold` and `seed` of `tags` say which network that was; where
    they are missing there is one. Several seeds of a method are joined with `join_seeds`.
    `patient_ids` is None when the file has no patient column; then every slide counts as its own patient.
    `made_by` says which runs made them, as `RunSpec` does, and is empty when nobody said.
    Where slides have several findings, `finding_targets` and `finding_probabilities` [n, K] hold all of them; target,
    predicted and probabilities are then about the most urgent one.
    `decided_by` is the rule that made the predictions from the probabilities, empty when nobody said.
    `weights` are digests of the weights that predicted; of several seeds, `seed_weights` are those of each, and methods
    that have networks in common are compared in pairs. `table` says which subset of which table this is.
    `roles` are those that each row's patient has had for these weights, None when nothing is known; without
    `exposure_known` they are only what the file's column split says. `exposure` holds all patients that the weights
    have seen, also those that are not here. `features` are fingerprints of the feature files behind each row, None
    where they were not read.
    """

    name: str
    hierarchy: ClassHierarchy
    slide_ids: Sequence[str]
    target: Ints
    predicted: Ints
    probabilities: Array | None = None
    patient_ids: Sequence[str] | None = None
    tags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    layout: str = "memory"
    notes: tuple[str, ...] = ()
    decided_by: str = ""
    made_by: tuple[Mapping[str, Any], ...] = ()
    weights: tuple[str, ...] = ()
    seed_weights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)
    roles: Sequence[Roles] | None = None
    exposure_known: bool = False
    finding_targets: Bools | None = None
    finding_probabilities: Array | None = None
    exposure: Exposure | None = None
    features: Sequence[Sequence[str]] | None = None

    def __post_init__(self) -> None:
        lengths = [len(column) for column in (*self.columns.values(), *self.tags.values())]
        if any(length != len(self.slide_ids) for length in lengths) or not len(self.slide_ids):
            raise PredictionsError(
                f"{self.name}: every column must be as long as the slide ids and not empty, found "
                f"{len(self.slide_ids)} slide ids and columns of {listing(dict.fromkeys(lengths))}."
            )

    def __len__(self) -> int:
        return len(self.slide_ids)

    @property
    def columns(self) -> dict[str, Any]:
        """What is known of every row, but for the tags."""
        return {name: column for name in ROW_FIELDS if (column := getattr(self, name)) is not None}

    @cached_property
    def patient(self) -> Ints:
        """Patient of each row as a number from 0; slides are their own patients when no patient is known."""
        if self.patient_ids is None:
            return np.arange(len(self), dtype=np.int64) if self.seeds is None else numbered(self.slide_ids)
        return numbered(self.patients)

    @cached_property
    def patients(self) -> Sequence[str]:
        """Whose slide each row is, in one spelling; where nobody said, every slide stands for a patient."""
        return self.slide_ids if self.patient_ids is None else one_spelling(self.patient_ids)

    def seen_as(self, role: Role) -> Exposure:
        """The exposure of a model that sees these slides in a role."""
        rows = ((slide, patient, role) for slide, patient in zip(self.slide_ids, self.patients, strict=True))
        return Exposure.of(rows, dict(zip(self.slide_ids, self.features or (), strict=False)))

    @property
    def folds(self) -> Sequence[str] | None:
        """The fold that tested each row; None where nobody said."""
        return self.tags.get("fold")

    @property
    def seeds(self) -> Sequence[str] | None:
        """The seed of each row; None where nobody said."""
        return self.tags.get("seed")

    @cached_property
    def fold_number(self) -> Ints:
        """Fold of each row as a number from 0."""
        return np.zeros(len(self), np.int64) if self.folds is None else numbered(self.folds)

    @cached_property
    def seed_number(self) -> Ints:
        """Seed of each row as a number from 0."""
        return np.zeros(len(self), np.int64) if self.seeds is None else numbered(self.seeds)

    @cached_property
    def network(self) -> Ints:
        """Network of each row: one for each pair of seed and fold."""
        return self.seed_number * (int(self.fold_number.max()) + 1) + self.fold_number

    def network_name(self, row: int) -> str:
        """The network of a row in words, e.g. "seed 1, fold 0"."""
        names = [f"{key} {self.tags[key][row]}" for key in ("seed", "fold") if key in self.tags]
        return ", ".join(names) or self.name

    @property
    def num_seeds(self) -> int:
        """How many seeds there are."""
        return int(self.seed_number.max()) + 1

    @property
    def networks_of_seeds(self) -> list[frozenset[str]]:
        """The networks that each seed is made from, by the digests of their weights; empty where nobody said."""
        weights = (
            [self.weights] if self.seeds is None else [self.seed_weights.get(s, ()) for s in dict.fromkeys(self.seeds)]
        )
        # A calibrated network is <weights>+<calibration>.
        return [frozenset(digest.partition("+")[0] for digest in one) for one in weights]

    @property
    def num_networks(self) -> int:
        """How many networks these are predictions of."""
        known = self.networks_of_seeds
        return len(frozenset().union(*known)) if all(known) else len(np.unique(self.network))

    @cached_property
    def path(self) -> DecisionPath:
        """The call of every row at every cost ratio κ."""
        if self.probabilities is None:
            raise PredictionsError(
                f"{self.name} has no probabilities, so there is no operating point to choose; export one probability "
                "column per class."
            )
        return decision_path(self.probabilities, self.hierarchy)

    @property
    def num_patients(self) -> int:
        """How many patients there are."""
        return int(self.patient.max()) + 1

    def at(self, level: int) -> tuple[Ints, Ints, Array | None]:
        """Targets, predictions and probabilities at a level: labels lifted, probabilities summed."""
        target, predicted = self.hierarchy.lift(self.target, level), self.hierarchy.lift(self.predicted, level)
        if self.probabilities is None:
            return target, predicted, None
        return target, predicted, self.hierarchy.summed(self.probabilities, level)

    def where(self, rows: npt.NDArray[np.bool_], *, name: str | None = None) -> Predictions:
        """The chosen rows only."""
        return self.take(np.flatnonzero(rows), name=name)

    def take(self, rows: Ints, *, name: str | None = None) -> Predictions:
        """Rows by number, in the given order."""
        columns: dict[str, Any] = {
            key: column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]
            for key, column in self.columns.items()
        }
        tags = {tag: [cells[row] for row in rows] for tag, cells in self.tags.items()}
        return replace(self, name=name or self.name, tags=tags, **columns)

    def with_orders(self, hierarchy: ClassHierarchy) -> Predictions:
        """These predictions with the orders of a hierarchy of the same classes, groups and ranks."""
        if hierarchy.digest != self.hierarchy.digest:
            raise PredictionsError(
                f"Expected predictions read with the first order, {hierarchy.name!r}; {self.name} was read with other "
                "classes, groups or ranks. Give that order first."
            )
        return replace(self, hierarchy=hierarchy)

    def label(self, row: int) -> str:
        """The true label of a row as text: its class, or all its findings."""
        most_urgent = self.hierarchy.names()[int(self.target[row])]
        if self.finding_targets is None:
            return most_urgent
        return set_label(self.finding_targets[row], self.hierarchy, most_urgent)

    def admitted(self, purpose: Purpose, *, seen_patients: bool = False) -> Predictions:
        """These predictions for a purpose, with what must be said about patients that the model has seen.

        Raises:
            ExposureError: patients that the purpose must not use, unless `seen_patients` allows them.
        """
        if self.roles is None and not self.weights and self.layout == "memory":  # the caller vouches for arrays
            return self
        notes = admit(
            purpose, self.roles, self.patients, known=self.exposure_known, by_weights=bool(self.weights),
            seen_patients=seen_patients,
        )  # fmt: skip
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))

    def tag(self, name: str) -> Sequence[str]:
        """The cells of a further column of the table, e.g. `site`."""
        if name not in self.tags:
            raise ParameterError(
                f"{self.name} has no column {name!r} for subsets; it has {listing(self.tags) or 'none'}."
                f"{nearest(name, self.tags)}"
            )
        return self.tags[name]

    def tagged(self, tag: str, value: str) -> Predictions:
        """The rows whose column `tag` holds `value`."""
        cells = self.tag(tag)
        rows = np.array([cell == value for cell in cells])
        if not rows.any():
            raise PredictionsError(
                f"{self.name}: no row has {tag} = {value!r}. Values there: {listing(sorted(set(cells)))}."
            )
        return self.where(rows, name=f"{self.name} [{tag}={value}]")

    def contradictory_patients(self) -> list[str]:
        """Patients whose slides carry different labels; allowed, and worth saying."""
        if self.patient_ids is None:
            return []
        first: dict[str, int] = {}
        labels = zip(self.patients, self.target.tolist(), strict=True)
        return list(dict.fromkeys(patient for patient, label in labels if first.setdefault(patient, label) != label))


def numbered(patient_ids: Sequence[str]) -> Ints:
    """Patients as numbers from 0, in order of first appearance."""
    # Not sorted: `monitor` looks at patients in the order in which they came.
    numbers = {patient: number for number, patient in enumerate(dict.fromkeys(patient_ids))}
    return np.fromiter((numbers[patient] for patient in patient_ids), np.int64, len(patient_ids))


def require_probabilities(probabilities: Array, slide_ids: Sequence[str], where: str) -> None:
    """Refuse rows that are not probabilities, naming the first slides."""
    rows, complaint = improper_rows(probabilities)
    if len(rows):
        example = ", ".join(f"{value:.4g}" for value in probabilities[rows[0]])
        raise PredictionsError(
            f"{where}: the probabilities of {len(rows)} rows {complaint}: slides "
            f"{listing((slide_ids[row] for row in rows[:8].tolist()), most=5)} "
            f"(first: {example}). Expected class probabilities, e.g. after a softmax."
        )


def write_predictions(
    path: Path | str,
    predictions: Predictions,
    *,
    splits: Sequence[str] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    level: int = -1,
) -> None:
    """Write the predictions CSV: slide_id, patient_id, split, exposure, target, prediction, decided_by, p_<class>...

    `patient_id`, `exposure`, `target` and `decided_by` are left out when they are not known; tags follow, but those
    with the name of a column of ours: nobody could read a table that has a name twice.

    Args:
        path: The file.
        predictions: What is written.
        splits: Of each row; None: all are `test`.
        columns: Further columns, before the probabilities.
        level: The level of the file; the probabilities are then of this level, targets and calls are lifted to it.
    """
    hierarchy, n, finest = predictions.hierarchy, len(predictions), level in (-1, predictions.hierarchy.num_levels - 1)
    names, lifted = hierarchy.names(level), hierarchy.groups(level)
    table: dict[str, Iterable[object]] = {"slide_id": predictions.slide_ids}
    if predictions.patient_ids is not None:
        table["patient_id"] = predictions.patient_ids
    table["split"] = splits or repeat("test", n)
    if predictions.exposure_known and predictions.roles is not None:
        table[COLUMN] = map(role_cell, predictions.roles)
    if (predictions.target >= 0).any():
        rows = enumerate(predictions.target.tolist())
        table["target"] = (
            "" if t < 0 else predictions.label(row) if finest else names[lifted[t]] for row, t in rows
        )  # fmt: skip
    table["prediction"] = (names[lifted[call]] for call in predictions.predicted)
    if predictions.decided_by:
        table[DECIDED_BY] = repeat(predictions.decided_by, n)
    table |= columns or {}
    if (p := predictions.probabilities) is not None:
        table |= {f"p_{name}": map(float, p[:, place]) for place, name in enumerate(names)}
    if (p := predictions.finding_probabilities) is not None and finest:
        classes = hierarchy.finding_classes.tolist()
        table |= {f"f_{names[index]}": map(float, p[:, place]) for place, index in enumerate(classes)}
    table |= {tag: cells for tag, cells in predictions.tags.items() if tag not in {*RESERVED, *table}}
    atomic.write_csv(path, list(table), zip(*table.values(), strict=True))


def refuse_unread_labels(path: Path | str, hierarchy: ClassHierarchy) -> None:
    """Refuse a table that was read without labels although a column of it looks like the true class.

    Raises:
        PredictionsError: the columns, by their name or because all their cells are classes.
    """
    classes = {name for level in range(hierarchy.num_levels) for name in hierarchy.names(level)}
    # A certificate of several orders writes `certified [name of the order]`.
    columns = {name: cells for name, cells in read_table(path).items() if name.partition(" [")[0] not in _NOT_LABELS}
    table = {name: set(cells) - {""} for name, cells in columns.items()}
    likely = [name for name, cells in table.items() if cells and (name.casefold() in _LABELS or cells <= classes)]
    if likely:
        raise PredictionsError(
            f"{path} has no column 'target', but {listing(likely)} may hold the true class, and nothing would be "
            f"tested against it. Name it with --true {likely[0]}, or say that there are no labels with --no-labels."
        )
