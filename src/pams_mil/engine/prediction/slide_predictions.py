"""What prediction gives: probabilities of every slide at every level, and the files they are written to.

One answer decides: the call at the finest level, lifted to the coarser ones. A coarser level with an output of its own
may say otherwise; that is shown beside the call as a disagreement, and lists the slide for review.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil import atomic
from pams_mil.arrays import Array, Bools, Ints
from pams_mil.data import tables
from pams_mil.data.finding_labels import set_label, united_label
from pams_mil.digests import file_digest
from pams_mil.engine.run.folder import RunFolder, read_json
from pams_mil.errors import OutputError, PredictionsError, listing
from pams_mil.evaluate.certify import Certificate, apply_certificate
from pams_mil.evaluate.certify.make import require_patients
from pams_mil.evaluate.decisions.decide import DecisionRule, decide
from pams_mil.evaluate.predictions.findings import called_sets
from pams_mil.evaluate.predictions.predictions import DISAGREES, FINDINGS, OWN, Predictions, write_predictions
from pams_mil.evaluate.predictions.sidecar import write_sidecar
from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class SlidePredictions:
    """Slides in the order of the table as runs predict them, and what their files say besides.

    Attributes:
        sample: The finest level, called by the rule; targets are -1 where there is no label.
        splits: As in the table.
        coarse: Probabilities [n, c] of the coarser levels that have a trained output of their own, by level; the others
            are summed from the finest.
        runs: Which runs predicted.
        failures: Slides that could not be predicted, with the reason; they are in none of the other fields.
        rule: What makes calls of probabilities; the files say so.
        incomplete: Patients of whom a slide is among the failures.
        excluded: Patients the guarantee of a certificate does not cover.
        relabeled: Slides whose label is not the one that the table had when a run was trained: what it was, and is.
    """

    sample: Predictions
    splits: Sequence[str]
    coarse: Mapping[int, Array] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    rule: DecisionRule = field(default_factory=DecisionRule)
    incomplete: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
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
        return len(self.sample)

    @property
    def hierarchy(self) -> ClassHierarchy:
        """The class hierarchy of the runs."""
        return self.sample.hierarchy

    @property
    def names(self) -> Sequence[str]:
        """Slide ids, or case ids where a run merges cases."""
        return self.sample.slide_ids

    @cached_property
    def probabilities(self) -> tuple[Array, ...]:
        """[n, c] of every level, coarsest first: of its own output, or summed from the finest."""
        finest, coarser = self.sample.probabilities, range(self.hierarchy.num_levels - 1)
        if finest is None:
            raise PredictionsError(f"{self.sample.name} has no probabilities; predict the slides again.")
        return (
            *(self.coarse[at] if at in self.coarse else self.hierarchy.summed(finest, at) for at in coarser), finest
        )  # fmt: skip

    def calls(self, level: int = -1) -> Ints:
        """Class indices [n] of a level: the finest level's calls, decided by the rule, lifted."""
        return self.hierarchy.lift(self.sample.predicted, level)

    def own_calls(self, level: int) -> Ints:
        """What a level's own output says by the same rule; it decides nothing."""
        return decide(self.probabilities[level], self.hierarchy, level, rule=self.rule)

    def decided(self, rule: DecisionRule) -> SlidePredictions:
        """The same probabilities called by another rule."""
        calls = decide(self.probabilities[-1], self.hierarchy, rule=rule)
        return replace(self, rule=rule, sample=replace(self.sample, predicted=calls, decided_by=str(rule)))

    def disagreements(self) -> dict[str, str]:
        """Slides on which a coarser level's own output contradicts the call, with what it says."""
        opinions: dict[str, list[str]] = {}
        for level in self.coarse:
            own, names = self.own_calls(level), self.hierarchy.names(level)
            for row in np.flatnonzero(own != self.calls(level)).tolist():
                opinion = f"{self.hierarchy.level_names[level]}: {names[int(own[row])]}"
                opinions.setdefault(self.names[row], []).append(opinion)
        return {slide: "; ".join(opinion) for slide, opinion in opinions.items()}

    def by_level(self, row: int) -> dict[str, dict[str, float]]:
        """The probabilities of one slide: level -> class -> value."""
        return {
            name: dict(zip(self.hierarchy.names(level), self.probabilities[level][row].tolist(), strict=True))
            for level, name in enumerate(self.hierarchy.level_names)
        }

    def named(self, name: str) -> Predictions:
        """All slides as a sample, with what must be said about them; targets are -1 where there is no label."""
        return replace(self.sample, name=name, notes=self.notes)

    def labeled(self, name: str, *, rows: Ints | None = None) -> Predictions:
        """For scores and comparisons, which see to it that they use no patient they must not; all slides or some.

        Every slide must have a label.
        """
        every = self.named(name)
        chosen = every if rows is None else every.take(rows)
        unknown = [slide for slide, target in zip(chosen.slide_ids, chosen.target, strict=True) if target < 0]
        if unknown:
            raise PredictionsError(
                f"{len(unknown)} slides have no label, so they cannot be scored: {listing(unknown)}."
            )
        return chosen

    def called_findings(self) -> list[str]:
        """The set that is called for each slide, as text, least urgent first; the most urgent call is among them."""
        kappa = self.rule.kappa if self.rule.name == "kappa" else 1.0
        rows = zip(called_sets(self.sample, kappa), self.calls().tolist(), strict=True)
        return [set_label(row, self.hierarchy, self.hierarchy.classes[call]) for row, call in rows]

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
        sample = self.sample
        certificate.refuse_other_classes(self.hierarchy, "the run")
        certificate.refuse_other_weights(sample.weights)
        require_patients(self.named("The table of slides"), patients_are_slides=patients_are_slides)
        calls = apply_certificate(
            certificate, self.probabilities[-1], sample.patients, incomplete=self.incomplete,
            findings=sample.finding_probabilities,
        )  # fmt: skip
        seen = certificate.exposure.roles(self.names, sample.patients, sample.features)
        roles = None if sample.roles is None else [one | two for one, two in zip(sample.roles, seen, strict=True)]
        tags = {**sample.tags, **calls.columns()}
        return replace(self, sample=replace(sample, tags=tags, roles=roles), excluded=calls.notes)

    def write(self, folder: Path | str, *, name: str = "predictions") -> list[Path]:
        """Write `<name>.csv` of the finest level and `<name>_<level>.csv` of coarser levels with their own output.

        Both hold the same calls. `<name>_review.csv` lists slides on which levels disagree, the most urgent answer
        first, and `<name>_failed.csv` those that could not be predicted; each exists only if there are any.
        What made the predictions is in `<name>.json`, with digests of the files, so that no others are taken for them.
        """
        folder = Path(folder)
        finest = folder / f"{name}.csv"
        unlike, patients = self.disagreements(), self.sample.patients
        columns = {DISAGREES: [unlike.get(slide, "") for slide in self.names]} if self.coarse else {}
        columns |= {} if self.sample.finding_probabilities is None else {FINDINGS: self.called_findings()}
        write_predictions(finest, self.sample, splits=self.splits, columns=columns)
        written = [finest]
        for level, p in self.coarse.items():
            written.append(folder / f"{name}_{self.hierarchy.level_names[level]}.csv")
            own = [self.hierarchy.names(level)[call] for call in self.own_calls(level).tolist()]
            at_level = replace(self.sample, probabilities=p)
            write_predictions(written[-1], at_level, splits=self.splits, columns={OWN: own}, level=level)
        review = [
            [self.names[row], patients[row], self.hierarchy.names()[int(self.sample.predicted[row])], opinion]
            for row in self._most_urgent_first()
            if (opinion := unlike.get(self.names[row]))
        ]
        lists = {
            "review": (["slide_id", "patient_id", "prediction", DISAGREES], review),
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
            folder / f"{name}.json", written, made_by=self.sample.made_by, weights=self.sample.weights,
            table=self.sample.table, slides=len(self), exposure=self.sample.exposure,
        )  # fmt: skip
        return written

    def _most_urgent_first(self) -> list[int]:
        """Rows, first those of which any level says the most urgent thing.

        Urgency counts in shares of a level's ranks, so that levels of different size can be held together.
        """
        shares = []
        for level in (*self.coarse, self.hierarchy.num_levels - 1):
            ranks = self.hierarchy.ranks(level).astype(np.float64)
            shares.append((ranks[self.own_calls(level)] - ranks.min()) / max(1.0, float(np.ptp(ranks))))
        rows: list[int] = np.argsort(-np.max(shares, axis=0), kind="stable").tolist()
        return rows


def finding_targets(labels: Sequence[str], hierarchy: ClassHierarchy) -> Bools | None:
    """The findings [n, k] that labels name, none where there is no label; None where slides have one class each."""
    if hierarchy.findings == "one":
        return None
    sets = np.zeros((len(labels), len(hierarchy.finding_classes)), dtype=bool)
    known = [row for row, label in enumerate(labels) if label]
    if known:
        # A case of several slides may have "nothing" on some of them and a finding on others.
        sets[known] = hierarchy.finding_matrix([united_label(labels[row], hierarchy) for row in known])
    return sets


def table_identity(table: Path, split: str | None) -> dict[str, Any]:
    """Of which split of which table predictions are."""
    return {"name": table.name, "digest": file_digest(table), "split": split}


@dataclass(frozen=True)
class Destination:
    """Where predictions are written: `<folder>/<name>.csv`, and files of their slides and tiles below `side`."""

    folder: Path
    name: str
    side: Path

    @classmethod
    def prepared(
        cls, out: Path | None, run: RunFolder, table: Path, split: str | None, kinds: Sequence[str],
        weights: tuple[str, ...],
    ) -> Destination:  # fmt: skip
        """A folder that the user names, or a place of its own in the run for this table, split and kind of calls.

        No files of other weights or slides stay under the new calls.

        Raises:
            OutputError: the user's folder holds predictions of other weights, or of another table or split.
        """
        next(iter(tables.read_chunks(table, rows=1)))  # refuses what is not a table before its digest is taken
        if out is None:
            slot = run.slot(table, split, *kinds)
            place = cls(run.predictions, slot, run.predictions / slot)
        else:
            place = cls(out, "predictions_calibrated" if "calibrated" in kinds else "predictions", out)
        stored = read_json(place.folder / f"{place.name}.json")
        same_weights = stored.get("weights") == list(weights)
        if not stored or (same_weights and (out is None or stored.get("table") == table_identity(table, split))):
            return place
        if out is not None:
            raise OutputError(
                f"{out} holds predictions of other weights, or of another table or split; attention and tables "
                "of tiles beside them would be taken for those of the new ones. Choose another folder with --out."
            )
        shutil.rmtree(place.side, ignore_errors=True)
        return place
