"""What prediction gives: probabilities of every slide at every level, and the files they are written to.

One answer decides: the call at the finest level, lifted to the coarser ones. A coarser level with an output of its own
may say otherwise; that is shown beside the call as a disagreement, and lists the slide for review.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil import atomic
from pams_mil.arrays import Array, Bools
from pams_mil.data.exposure import COLUMN, Exposure, Roles, role_cell
from pams_mil.data.finding_labels import set_label, united_label
from pams_mil.digests import file_digest
from pams_mil.engine.run.folder import RunFolder, read_json
from pams_mil.errors import OutputError, PredictionsError, listing
from pams_mil.evaluate.certify import Certificate, apply_certificate
from pams_mil.evaluate.certify.make import require_patients
from pams_mil.evaluate.decisions.decide import DecisionRule, decide
from pams_mil.evaluate.predictions.findings import called_sets
from pams_mil.evaluate.predictions.predictions import DECIDED_BY, Predictions
from pams_mil.evaluate.predictions.sidecar import write_sidecar
from pams_mil.hierarchy import ClassHierarchy

DISAGREES = "disagrees"
"""Column: what coarser levels' own outputs say where they contradict the call; empty where all agree."""
FINDINGS = "findings"
"""Column: all findings that are called, where slides have several."""
OWN = "own_prediction"
"""Column of a coarser level's file: what its own output says."""
RESERVED = ("slide_id", "patient_id", "split", COLUMN, "target", "prediction", DECIDED_BY, DISAGREES, OWN)
"""Columns of ours; those of the table with such a name are left out."""


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
        made_by: What every run is, in full; `<name>.json` beside the predictions says so.
        failures: Slides that could not be predicted, with the reason; they are in none of the other fields.
        rule: What makes calls of probabilities; the files say so.
        incomplete: Patients of whom a slide is among the failures.
        excluded: Patients the guarantee of a certificate does not cover.
        roles: Those that each slide's patient has had for the weights; None when nothing is known.
        exposure: All patients that the weights have seen; None when nothing is known.
        patients_known: Whether the table names patients; else every slide stands for one.
        table: Name, digest and split of the table.
        findings: [n, k] probabilities of single findings, where slides have several.
        labels: What the table says of each slide; a set where slides have several findings.
        relabeled: Slides whose label is not the one that the table had when a run was trained: what it was, and is.
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
    made_by: tuple[Mapping[str, Any], ...] = ()
    rule: DecisionRule = field(default_factory=DecisionRule)
    incomplete: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    roles: tuple[Roles, ...] | None = None
    exposure: Exposure | None = None
    patients_known: bool = True
    table: Mapping[str, Any] = field(default_factory=dict)
    findings: Array | None = None
    labels: tuple[str, ...] = ()
    relabeled: Mapping[str, tuple[str, str]] = field(default_factory=dict)

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
        """Class indices [n] of a level: the finest level's calls, decided by the rule, lifted."""
        return self.hierarchy.lift(decide(self.probabilities[-1], self.hierarchy, rule=self.rule), level)

    def own_calls(self, level: int) -> npt.NDArray[np.int64]:
        """What a level's own output says by the same rule; it decides nothing."""
        return decide(self.probabilities[level], self.hierarchy, level, rule=self.rule)

    def disagreements(self) -> dict[str, str]:
        """Slides on which a coarser level's own output contradicts the call, with what it says."""
        opinions: dict[str, list[str]] = {}
        for level in self._coarse_levels:
            own, names = self.own_calls(level), self.hierarchy.names(level)
            for row in np.flatnonzero(own != self.calls(level)).tolist():
                opinion = f"{self.hierarchy.level_names[level]}: {names[int(own[row])]}"
                opinions.setdefault(self.names[row], []).append(opinion)
        return {slide: "; ".join(opinion) for slide, opinion in opinions.items()}

    @property
    def _coarse_levels(self) -> tuple[int, ...]:
        return tuple(level for level in self.own_levels if level < self.hierarchy.num_levels - 1)

    def by_level(self, row: int) -> dict[str, dict[str, float]]:
        """The probabilities of one slide: level -> class -> value."""
        return {
            self.hierarchy.level_names[level]: dict(zip(self.hierarchy.names(level), values[row].tolist(), strict=True))
            for level, values in enumerate(self.probabilities)
        }

    def labeled(self, name: str, *, rows: npt.NDArray[np.int64] | None = None) -> Predictions:
        """For scores and comparisons, which see to it that they use no patient they must not; all slides or some.

        Every slide must have a label.
        """
        every = self.as_predictions(name)
        chosen = every if rows is None else every.take(rows)
        unknown = [slide for slide, target in zip(chosen.slide_ids, chosen.target, strict=True) if target < 0]
        if unknown:
            raise PredictionsError(
                f"{len(unknown)} slides have no label, so they cannot be scored: {listing(unknown)}."
            )
        return chosen

    def as_predictions(self, name: str) -> Predictions:
        """All slides; targets are -1 where there is no label."""
        return Predictions(
            name=name,
            hierarchy=self.hierarchy,
            slide_ids=self.names,
            target=self.targets,
            predicted=self.calls(),
            probabilities=self.probabilities[-1],
            patient_ids=self.patient_ids if self.patients_known else None,
            tags=self.tags,
            layout="PAMS",
            notes=self.notes,
            decided_by=str(self.rule),
            made_by=self.made_by,
            weights=self.weights,
            table=self.table,
            roles=self.roles,
            exposure_known=self.roles is not None,
            finding_targets=self._finding_targets(),
            finding_probabilities=self.findings,
            exposure=self.exposure,
        )

    def _finding_targets(self) -> Bools | None:
        if self.findings is None:
            return None
        sets = np.zeros(self.findings.shape, dtype=bool)
        known = [row for row, label in enumerate(self.labels) if label]
        if known:
            # A case of several slides may have "nothing" on some of them and a finding on others.
            texts = [united_label(self.labels[row], self.hierarchy) for row in known]
            sets[known] = self.hierarchy.finding_matrix(texts)
        return sets

    def called_findings(self) -> list[str]:
        """The set that is called for each slide, as text, least urgent first; the most urgent call is among them."""
        kappa = self.rule.kappa if self.rule.name == "kappa" else 1.0
        called, names = called_sets(self.as_predictions("these"), kappa), self.hierarchy.classes
        rows = zip(called, self.calls().tolist(), strict=True)
        return [set_label(row, self.hierarchy, names[call]) for row, call in rows]

    @property
    def notes(self) -> tuple[str, ...]:
        """What every report on these predictions must say."""
        notes = []
        if self.failures:
            notes.append(
                f"{len(self.failures)} of {len(self) + len(self.failures)} slides could not be predicted and are in no "
                f"score: {listing(self.failures)}."
            )
        unlike = self.disagreements()
        if unlike:
            notes.append(
                f"On {len(unlike)} of {len(self)} slides a coarser level's own output contradicts the call; the finest "
                f"level decides: {listing(unlike, most=5)}."
            )
        if self.relabeled:
            changes = [f"{slide}: was {before}, is now {now}" for slide, (before, now) in self.relabeled.items()]
            notes.append(
                f"The labels of {len(changes)} of {len(self)} slides were changed after training: {listing(changes)}. "
                "Scores are of the labels as they are now."
            )
        return (*notes, *self.excluded)

    def certified(self, certificate: Certificate, *, patients_are_slides: bool = False) -> SlidePredictions:
        """With the certified calls as further columns; refused for other classes or weights than were certified.

        A case is called by the most urgent of its slides, so the call of a patient with a slide that could not be
        predicted is withheld: the missing slide may be the most urgent one.
        """
        certificate.refuse_other_classes(self.hierarchy, "the run")
        certificate.refuse_other_weights(self.weights)
        self.require_patients(patients_are_slides=patients_are_slides)
        calls = apply_certificate(
            certificate, self.probabilities[-1], self.patient_ids, incomplete=self.incomplete, findings=self.findings
        )
        seen = certificate.exposure.roles(self.names, self.patient_ids)
        roles = None if self.roles is None else tuple(one | two for one, two in zip(self.roles, seen, strict=True))
        return replace(self, tags={**self.tags, **calls.columns()}, excluded=calls.notes, roles=roles)

    def require_patients(self, *, patients_are_slides: bool) -> None:
        """Refuse a table that names no patients, unless each of its slides is declared to be one."""
        require_patients(self.as_predictions("The table of slides"), patients_are_slides=patients_are_slides)

    def write(self, folder: Path | str, *, name: str = "predictions") -> list[Path]:
        """Write `<name>.csv` of the finest level and `<name>_<level>.csv` of coarser levels with their own output.

        Both hold the same calls. `<name>_review.csv` lists slides on which levels disagree, the most urgent answer
        first, and `<name>_failed.csv` those that could not be predicted; each exists only if there are any.
        What made the predictions is in `<name>.json`, with digests of the files, so that no others are taken for them.
        """
        folder = Path(folder)
        finest = folder / f"{name}.csv"
        self._write_level(finest, self.hierarchy.num_levels - 1)
        written = [finest]
        for level in self._coarse_levels:
            written.append(folder / f"{name}_{self.hierarchy.level_names[level]}.csv")
            self._write_level(written[-1], level)
        lists = {
            "review": (["slide_id", "patient_id", "prediction", DISAGREES], self._review()),
            "failed": (["slide_id", "reason"], [list(item) for item in self.failures.items()]),
        }
        for kind, (header, rows) in lists.items():
            path = folder / f"{name}_{kind}.csv"
            if rows:
                atomic.write_csv(path, header, rows)
                written.append(path)
            else:
                # An earlier prediction into this folder may have left one.
                path.unlink(missing_ok=True)
        # Parquet tables of earlier calls; `csv_as_parquet` writes those of these ones.
        for path in (*written, *(folder / f"{name}_{kind}.csv" for kind in lists)):
            path.with_suffix(".parquet").unlink(missing_ok=True)
        write_sidecar(
            folder / f"{name}.json", written, made_by=self.made_by, weights=self.weights, table=self.table,
            slides=len(self), exposure=self.exposure,
        )  # fmt: skip
        return written

    def _tags_of_file(self, level: int) -> list[str]:
        """Tags but those with the name of a column of ours: nobody could read a table that has a name twice."""
        ours = {*RESERVED, FINDINGS, *(f"p_{label}" for label in self.hierarchy.names(level))}
        return [tag for tag in self.tags if tag not in ours]

    def _review(self) -> list[list[str]]:
        """Rows of the slides on which levels disagree; first those of which any level says the most urgent thing."""
        unlike, names = self.disagreements(), self.hierarchy.names()
        rows = [row for row, slide in enumerate(self.names) if slide in unlike]
        called = self.calls()
        # Urgency counts in shares of a level's classes, so that levels of different size can be held together.
        urgency = np.max([self._urgency(self.own_calls(level), level) for level in self.own_levels], axis=0)
        rows.sort(key=lambda row: -urgency[row])
        return [
            [self.names[row], self.patient_ids[row], names[int(called[row])], unlike[self.names[row]]] for row in rows
        ]

    def _urgency(self, called: npt.NDArray[np.int64], level: int) -> Array:
        ranks = self.hierarchy.ranks(level).astype(np.float64)
        shares: Array = (ranks[called] - ranks.min()) / max(1.0, float(np.ptp(ranks)))
        return shares

    def _write_level(self, path: Path, level: int) -> None:
        classes, probabilities = self.hierarchy.names(level), self.probabilities[level]
        known = self.targets >= 0
        # Class 0 stands in where the label is unknown, since -1 would be looked up as the last class; then -1 again.
        lifted = np.where(known, self.hierarchy.groups(level)[np.where(known, self.targets, 0)], -1)
        tags = self._tags_of_file(level)
        finest = level == self.hierarchy.num_levels - 1
        unlike, own = self.disagreements(), self.own_calls(level)
        extra = ([DISAGREES] if self._coarse_levels else []) if finest else [OWN]
        target = ["target"] if known.any() else []
        patient, exposure = ["patient_id"] if self.patients_known else [], [COLUMN] if self.roles is not None else []
        first = ["slide_id", *patient, "split", *exposure, *target, "prediction", DECIDED_BY]
        several = self.findings is not None and finest
        sets = self.called_findings() if several else []
        findings = [FINDINGS, *(f"f_{classes[c]}" for c in self.hierarchy.finding_classes.tolist())] if several else []
        header = [*first, *extra, *(f"p_{label}" for label in classes), *findings, *tags]
        called = self.calls(level)
        true = ["" if index < 0 else classes[index] for index in lifted.tolist()]
        if several:
            true = [united_label(label, self.hierarchy) if label else "" for label in self.labels]
        rows = (
            [
                self.names[row], *([self.patient_ids[row]] if patient else []), self.splits[row],
                *([] if self.roles is None else [role_cell(self.roles[row])]),
                *([true[row]] if target else []),
                classes[int(called[row])], str(self.rule),
                *([unlike.get(self.names[row], "") if finest else classes[int(own[row])]] if extra else []),
                *(repr(p) for p in probabilities[row].tolist()),
                *([] if self.findings is None or not several else [sets[row], *map(repr, self.findings[row].tolist())]),
                *(self.tags[tag][row] for tag in tags),
            ]
            for row in range(len(self))
        )  # fmt: skip
        atomic.write_csv(path, header, rows)


def table_identity(table: Path, split: str | None) -> dict[str, Any]:
    """Of which split of which table predictions are."""
    return {"name": table.name, "digest": file_digest(table), "split": split}


@dataclass(frozen=True)
class Destination:
    """Where predictions are written: `<folder>/<name>.csv`, and files of their slides and tiles below `side`."""

    folder: Path
    name: str
    side: Path
    in_run: bool

    @classmethod
    def of(cls, out: Path | None, run: RunFolder, table: Path, split: str | None, kinds: Sequence[str]) -> Destination:
        """A folder that the user names, or a place of its own in the run for this table, split and kind of calls."""
        if out is not None:
            return cls(out, "predictions_calibrated" if "calibrated" in kinds else "predictions", out, in_run=False)
        slot = run.slot(table, split, *kinds)
        return cls(run.predictions, slot, run.predictions / slot, in_run=True)

    def prepare(self, weights: tuple[str, ...], table: Path, split: str | None) -> None:
        """See to it that no files of other weights or slides stay under the new calls.

        Raises:
            OutputError: the user's folder holds predictions of other weights, or of another table or split.
        """
        stored = read_json(self.folder / f"{self.name}.json")
        if not stored:
            return
        same_table = stored.get("table") == table_identity(table, split)
        if stored.get("weights") == list(weights) and (self.in_run or same_table):
            return
        if not self.in_run:
            raise OutputError(
                f"{self.folder} holds predictions of other weights, or of another table or split; attention and tables "
                "of tiles beside them would be taken for those of the new ones. Choose another folder with --out."
            )
        shutil.rmtree(self.side, ignore_errors=True)
