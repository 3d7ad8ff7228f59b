"""What prediction gives: probabilities of every slide at every level, and the files they are written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pams_mil import atomic
from pams_mil.engine.training.learner import Learner
from pams_mil.errors import PredictionsError, listing
from pams_mil.evaluate.certify import Certificate, apply_certificate
from pams_mil.evaluate.decide import DecisionRule
from pams_mil.evaluate.predictions import DECIDED_BY, Predictions, write_predictions
from pams_mil.hierarchy import ClassHierarchy

Array = npt.NDArray[np.float64]
_RESERVED = ("slide_id", "patient_id", "split", "target", "prediction", DECIDED_BY)


@dataclass(frozen=True)
class SlidePredictions:
    """Predictions in the order of the table.

    Attributes:
        hierarchy: The class hierarchy of the runs.
        names: Slide ids, or case ids where a run merges cases.
        patient_ids: Whose slide it is.
        splits: As in the table.
        targets: [n] finest classes, -1 where unknown.
        probabilities: [n, c] of every level, coarsest first.
        own_levels: Levels with a trained output of their own; the others are summed from the finest.
        tags: Further columns of the table.
        runs: Which runs predicted.
        weights: Digests of the weights that predicted, one per run.
        failures: Slides that could not be predicted, with the reason; they are in none of the other fields.
        rule: What makes calls of probabilities; the files say so.
    """

    hierarchy: ClassHierarchy
    names: tuple[str, ...]
    patient_ids: tuple[str, ...]
    splits: tuple[str, ...]
    targets: npt.NDArray[np.int64]
    probabilities: tuple[Array, ...]
    own_levels: tuple[int, ...]
    tags: Mapping[str, Sequence[str]]
    runs: tuple[str, ...]
    failures: Mapping[str, str] = field(default_factory=dict)
    weights: tuple[str, ...] = ()
    rule: DecisionRule = field(default_factory=DecisionRule)

    def __post_init__(self) -> None:
        for level in self.probabilities:
            bad = np.flatnonzero(~np.isfinite(level).all(1))
            if len(bad):
                raise PredictionsError(
                    f"The probabilities of {len(bad)} slides are not finite numbers, so they have no prediction: "
                    f"{listing(self.names[row] for row in bad.tolist())}."
                )

    def __len__(self) -> int:
        return len(self.names)

    def calls(self, level: int = -1) -> npt.NDArray[np.int64]:
        """Class indices [n] of a level, decided by the rule."""
        return self.rule.calls(self.probabilities[level], self.hierarchy, level)

    def labeled(self, name: str) -> Predictions:
        """For scores and comparisons; every slide must have a label."""
        unknown = [slide for slide, target in zip(self.names, self.targets, strict=True) if target < 0]
        if unknown:
            raise PredictionsError(
                f"{len(unknown)} slides have no label, so they cannot be scored: {listing(unknown)}."
            )
        return Predictions(
            name=name,
            hierarchy=self.hierarchy,
            slide_ids=self.names,
            target=self.targets,
            predicted=self.calls(),
            probabilities=self.probabilities[-1],
            patient_ids=self.patient_ids,
            tags=self.tags,
            layout="PAMS",
            notes=self.notes,
            decided_by=str(self.rule),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What every report on these predictions must say."""
        if not self.failures:
            return ()
        return (
            f"{len(self.failures)} of {len(self) + len(self.failures)} slides could not be predicted and are in no "
            f"score: {listing(self.failures)}.",
        )

    def certified(self, certificate: Certificate) -> SlidePredictions:
        """With the certified calls as further columns; refused for other classes or weights than were certified."""
        certificate.refuse_other_classes(self.hierarchy, "the run")
        certificate.refuse_other_weights(self.weights)
        calls = apply_certificate(certificate, self.probabilities[-1], self.patient_ids)
        return replace(self, tags={**self.tags, **calls.columns()})

    def write(self, folder: Path | str, *, name: str = "predictions") -> list[Path]:
        """Write `<name>.csv` of the finest level and `<name>_<level>.csv` of coarser levels with their own output.

        Slides that could not be predicted are in `<name>_failed.csv`, which exists only if there are any.
        """
        folder = Path(folder)
        finest = folder / f"{name}.csv"
        if (self.targets >= 0).all():
            write_predictions(finest, self.labeled(name), splits=self.splits)
        else:
            self._write_level(finest, self.hierarchy.num_levels - 1)
        written = [finest]
        for level in self.own_levels:
            if level < self.hierarchy.num_levels - 1:
                written.append(folder / f"{name}_{self.hierarchy.level_names[level]}.csv")
                self._write_level(written[-1], level)
        failed = folder / f"{name}_failed.csv"
        if self.failures:
            atomic.write_csv(failed, ["slide_id", "reason"], (list(item) for item in self.failures.items()))
            written.append(failed)
        else:
            failed.unlink(missing_ok=True)
        return written

    def _write_level(self, path: Path, level: int) -> None:
        classes, probabilities = self.hierarchy.names(level), self.probabilities[level]
        known = self.targets >= 0
        lifted = np.where(known, self.hierarchy.groups(level)[np.where(known, self.targets, 0)], -1)
        tags = [tag for tag in self.tags if tag not in _RESERVED]
        target = ["target"] if known.any() else []
        first = ["slide_id", "patient_id", "split", *target, "prediction", DECIDED_BY]
        header = [*first, *(f"p_{label}" for label in classes), *tags]
        called = self.calls(level)
        rows = (
            [
                self.names[row], self.patient_ids[row], self.splits[row],
                *(["" if lifted[row] < 0 else classes[lifted[row]]] if target else []),
                classes[int(called[row])], str(self.rule),
                *(repr(p) for p in probabilities[row].tolist()),
                *(self.tags[tag][row] for tag in tags),
            ]
            for row in range(len(self))
        )  # fmt: skip
        atomic.write_csv(path, header, rows)


def summed(learner: Learner, probabilities: list[Tensor], level: int) -> Tensor:
    """Probabilities [b, c] of a level: of its own output where it was trained, else summed from the finest."""
    if level in learner.levels:
        return probabilities[learner.levels.index(level)]
    groups = torch.from_numpy(learner.hierarchy.groups(level))
    finest = probabilities[-1]
    return finest.new_zeros(len(finest), learner.hierarchy.num_classes(level)).index_add(1, groups, finest)
