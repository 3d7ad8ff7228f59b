"""Predictions files of other tools, recognized by their columns: ours, CLAM's, STAMP's, or any with column names.

Labels are matched exactly or through aliases of the class file. Integers are class indices of someone's own
order, so they are read only with `index_order`, which names the classes in that order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.data.exposure import COLUMN, Roles, parse_roles, roles_of_split
from pams_mil.data.finding_labels import has_class_columns
from pams_mil.data.tables import Columns, OnFraction, read_chunks, table_name
from pams_mil.errors import LabelError, PredictionsError, listing, nearest
from pams_mil.evaluate.predictions import reviews
from pams_mil.evaluate.predictions.findings import (
    finding_columns,
    finding_probabilities,
    present_findings,
    split_scores,
    with_target,
)
from pams_mil.evaluate.predictions.join import join_predictions
from pams_mil.evaluate.predictions.predictions import DECIDED, DECIDED_BY, Predictions, require_probabilities
from pams_mil.evaluate.predictions.probability_columns import numbers, probability_columns
from pams_mil.evaluate.predictions.sidecar import sidecar
from pams_mil.hierarchy import ClassHierarchy, as_hierarchy

NETWORK = ("fold", "seed")
"""Columns that say which network predicted a row; kept wherever they are."""


@dataclass(frozen=True)
class Layout:
    """Which column holds what; `scores` has one column per class in the order of `classes`."""

    name: str
    slide: str
    true: str
    predicted: str | None = None
    patient: str | None = None
    scores: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    """Columns of the probabilities of single findings, in the order of the finding classes."""


@dataclass(frozen=True)
class Source:
    """How to read a file: everything that the command line may say about it.

    Without `labels_needed` a file may leave the true class out, whole or row by row; such targets are -1.
    """

    true: str | None = None
    predicted: str | None = None
    slide: str | None = None
    patient: str | None = None
    index_order: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    labels_needed: bool = True
    scores: str | None = None
    """Columns of the probabilities: see `pams_mil.evaluate.predictions.probability_columns`."""


def read_predictions(
    path: Path | str,
    hierarchy: ClassHierarchy | str | Path | Sequence[Any] | Mapping[str, Any],
    source: Source | None = None,
    *,
    name: str | None = None,
    progress: OnFraction | None = None,
) -> Predictions:
    """Read a predictions file of any known layout in one pass, bounded by what is kept.

    `hierarchy` may be anything that `as_hierarchy` takes: a preset, a class file, nested lists or groups.
    """
    source, hierarchy = source or Source(), as_hierarchy(hierarchy)
    _check_index_order(source.index_order, hierarchy)
    reader: _Reader | None = None
    for piece in read_chunks(path, progress=progress):
        if not source.true and has_class_columns(piece, hierarchy, label="target"):
            piece = with_target(piece, source.slide or "slide_id", hierarchy, str(path))
        if reader is None:
            layout = recognize(tuple(piece), hierarchy, source, str(path))
            networks = tuple(column for column in NETWORK if column in piece and column not in source.tags)
            reader = _Reader(layout, hierarchy, replace(source, tags=(*source.tags, *networks)), str(path))
        reader.add(piece)
    if reader is None or not reader.parts:
        raise PredictionsError(f"{path} has a header but no rows to score.")
    return replace(reader.finish(name or table_name(path)), **sidecar(path))


def recognize(header: Sequence[str], hierarchy: ClassHierarchy, source: Source, where: str) -> Layout:
    """The layout of a file by its columns, with what the user said about them."""
    ours = tuple(f"p_{label}" for label in hierarchy.names() if f"p_{label}" in header)
    # From the most particular to the most general: reviews, for one, may have all that ours have.
    if source.true or source.predicted:
        layout = _generic(header, hierarchy, source, ours)
    elif set(header) >= reviews.COLUMNS:
        layout = Layout(reviews.LAYOUT, "slide_id", *reviews.compared(header))
    elif {"slide_id", "Y", "Y_hat"} <= set(header):
        layout = _clam(header, hierarchy, source)
    elif "PATIENT" in header and ("pred" in header or any(f"pred_{column}" in header for column in header)):
        layout = _stamp(header, hierarchy, where)
    elif (source.slide or "slide_id") in header and ("target" in header or not source.labels_needed):
        predicted = "prediction" if "prediction" in header else None
        true = "target" if "target" in header else ""
        layout = Layout("PAMS", "slide_id", true, predicted, scores=ours, classes=hierarchy.names())
    else:
        raise PredictionsError(
            f"{where} has none of the known layouts. Columns: {listing(header, most=12)}. Expected 'slide_id, target, "
            "p_<class>...' (PAMS), 'slide_id, Y, Y_hat, p_0...' (CLAM), 'PATIENT, <target>, pred, ...' (STAMP), "
            "or name the columns with --true and --pred."
        )
    if source.patient or (layout.patient is None and "patient_id" in header):
        layout = replace(layout, patient=source.patient or "patient_id")
    if source.slide:
        layout = replace(layout, slide=source.slide)
    if source.scores:
        scores, classes = probability_columns(
            source.scores, header, hierarchy, predicted=layout.predicted, index_order=source.index_order, where=where
        )
        layout = replace(layout, scores=scores, classes=classes)
    if hierarchy.findings == "several":
        findings = finding_columns(header, layout.scores, hierarchy)
        layout = replace(layout, findings=findings, scores=() if findings == layout.scores else layout.scores)
    _check_columns(layout, header, source, where)
    return layout


def _generic(header: Sequence[str], hierarchy: ClassHierarchy, source: Source, scores: tuple[str, ...]) -> Layout:
    if not source.true or not (source.predicted or source.scores or len(scores) >= len(hierarchy.finding_classes)):
        raise PredictionsError(
            "--true and --pred go together: the columns of the true and the predicted class. Instead of --pred, "
            "columns of probabilities may be named with --proba."
        )
    slide = next((column for column in ("slide_id", "id", "slide") if column in header), "")
    return Layout("named columns", slide, source.true, source.predicted, scores=scores, classes=hierarchy.names())


def _clam(header: Sequence[str], hierarchy: ClassHierarchy, source: Source) -> Layout:
    """CLAM numbers its classes; p_<i> belongs to the i-th class of the index order, or to a class known as <i>."""
    scores = tuple(column for column in header if column.startswith("p_"))
    if source.index_order:
        return Layout(
            "CLAM evaluation", "slide_id", "Y", "Y_hat", classes=source.index_order,
            scores=tuple(f"p_{i}" for i in range(len(source.index_order))) if scores else (),
        )  # fmt: skip
    encode = label_encoder(hierarchy, "CLAM's columns")
    classes = tuple(hierarchy.names()[encode([column[2:]], column, ["any"])[0]] for column in scores)
    return Layout("CLAM evaluation", "slide_id", "Y", "Y_hat", scores=scores, classes=classes)


def _stamp(header: Sequence[str], hierarchy: ClassHierarchy, where: str) -> Layout:
    """STAMP: <target>, <target>_<class> and pred; of several targets, with pred_<target>, the one with these classes.

    `loss` is not read: it takes probabilities for logits.
    """
    names, single = hierarchy.names(), "pred" in header
    targets = [column for column in header if single or f"pred_{column}" in header]
    scores = {one: tuple(f"{one}_{label}" for label in names if f"{one}_{label}" in header) for one in targets}
    fitting = [target for target, columns in scores.items() if len(columns) >= (1 if single else len(names))]
    if not fitting:
        several = "" if single else f" of the targets {listing(targets)}"
        raise PredictionsError(
            f"{where} looks like STAMP's patient-preds.csv, but no column <target>_<class>{several} matches the "
            f"classes {listing(names)}. Columns: {listing(header, most=12)}."
        )
    target = fitting[0]
    if len(fitting) > 1 and not single:
        raise PredictionsError(
            f"{where} has several targets with these classes: {listing(fitting)}. Say which: --id PATIENT --patient "
            f"PATIENT --true {target} --pred pred_{target} --proba '{target}_{{class}}'."
        )
    predicted = "pred" if single else f"pred_{target}"
    return Layout("STAMP patient-preds", "PATIENT", target, predicted, "PATIENT", scores[target], names)


def _check_columns(layout: Layout, header: Sequence[str], source: Source, where: str) -> None:
    needed = [layout.slide, layout.true or None, layout.predicted, layout.patient, *layout.scores, *source.tags]
    if "" in needed:
        raise PredictionsError(f"{where} has no column that identifies the slides; name it with --id.")
    missing = [column for column in needed if column is not None and column not in header]
    if missing:
        hints = "".join(nearest(column, header) for column in missing)
        raise PredictionsError(f"{where} has no column {listing(missing)}.{hints} Columns: {listing(header, most=12)}.")
    if layout.scores and len(layout.scores) != len(layout.classes):
        raise PredictionsError(
            f"{where} has {len(layout.scores)} probability columns ({listing(layout.scores)}) for "
            f"{len(layout.classes)} classes ({listing(layout.classes)}); expected one per class."
        )
    if layout.predicted is None and not layout.scores and not layout.findings:
        raise PredictionsError(
            f"{where} has neither a column 'prediction' nor probabilities; expected one column p_<class> per class: "
            f"{listing(f'p_{label}' for label in layout.classes)}."
        )


def _check_index_order(order: tuple[str, ...], hierarchy: ClassHierarchy) -> None:
    if order and sorted(order) != sorted(hierarchy.names()):
        raise PredictionsError(
            f"--index-order must name every class once, in the order of the indices: expected the "
            f"{hierarchy.num_classes()} classes {listing(hierarchy.names(), most=30)}, found {listing(order, most=30)}."
        )


class _Reader:
    """Turns pieces of a table into predictions, and all pieces into those of the file."""

    def __init__(self, layout: Layout, hierarchy: ClassHierarchy, source: Source, where: str) -> None:
        self.layout, self.hierarchy, self.source, self.where = layout, hierarchy, source, where
        self.parts: list[Predictions] = []
        self.splits: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.reading = reviews.Tally(hierarchy) if layout.name == reviews.LAYOUT else None
        self._encode = label_encoder(hierarchy, where, order=source.index_order)
        self._targets = label_encoder(hierarchy, where, order=source.index_order, blanks=not source.labels_needed)

    def add(self, piece: Columns) -> None:
        layout, hierarchy = self.layout, self.hierarchy
        # Deferred cases have no class and leave before anything is looked up.
        if self.reading is not None:
            piece = self.reading.decided(piece)
        slides = piece[layout.slide]
        require_cells(piece, (layout.slide, layout.patient), self.where, before=sum(map(len, self.parts)))
        if not slides:
            return
        self.splits.update(piece.get("split", ()))
        self.rules.update(piece.get(DECIDED_BY, ()))
        called, labels = layout.predicted, piece.get(layout.true, [""] * len(slides))
        roles, known = _roles(piece)
        self.parts.append(
            Predictions(
                name=self.where,
                hierarchy=hierarchy,
                slide_ids=slides,
                target=self._targets(labels, layout.true, slides),
                predicted=self._encode(piece[called], called, slides) if called else np.zeros(len(slides), np.int64),
                probabilities=self._scores(piece, slides) if layout.scores else None,
                patient_ids=None if layout.patient is None else piece[layout.patient],
                tags={tag: piece[tag] for tag in self.source.tags},
                layout=layout.name,
                finding_targets=present_findings(labels, slides, hierarchy, self.where)
                if hierarchy.findings == "several"
                else None,
                finding_probabilities=finding_probabilities(piece, layout.findings, slides, self.where)
                if layout.findings
                else None,
                roles=roles,
                exposure_known=known,
            )
        )

    def _scores(self, piece: Columns, slides: list[str]) -> Array:
        order = np.argsort([self.hierarchy.index(label) for label in self.layout.classes])
        scores = numbers(piece, [self.layout.scores[place] for place in order], self.where)
        require_probabilities(scores, slides, self.where)
        return scores

    def finish(self, name: str) -> Predictions:
        whole = join_predictions(name, self.parts)
        seeds = whole.seeds or [""] * len(whole)
        twice = [slide for (slide, _), times in Counter(zip(whole.slide_ids, seeds, strict=True)).items() if times > 1]
        if twice:
            raise PredictionsError(
                f"{self.where}: {len(twice)} slide ids appear more than once: {listing(twice, most=5)}. "
                "Every slide must be predicted once per seed: add a column 'seed', or put seeds in files of their own."
            )
        scores, findings = whole.probabilities, whole.finding_probabilities
        if scores is None and findings is not None:
            scores, findings = split_scores(findings, self.hierarchy)
        called = None if self.layout.predicted or scores is None else scores.argmax(1).astype(np.int64)
        whole = replace(
            whole,
            predicted=whole.predicted if called is None else called,
            probabilities=scores,
            finding_probabilities=findings,
            decided_by=next(iter(self.rules)) if len(self.rules) == 1 else "",
            # What splits say counts where it says that anybody was seen.
            roles=whole.roles if whole.exposure_known or any(whole.roles or ()) else None,
        )
        notes = () if self.reading is None else self.reading.notes()
        return replace(whole, notes=(*notes, *_notes(whole, self.splits, self.rules)))


def _roles(piece: Columns) -> tuple[list[Roles] | None, bool]:
    """The roles of each row's patient and whether they are known: by our own column, or only by the column split."""
    cells, splits = piece.get(COLUMN), piece.get("split")
    known = {cell: roles for cell in set(cells or ()) if (roles := parse_roles(cell)) is not None}
    if cells is not None and len(known) == len(set(cells)):
        return [known[cell] for cell in cells], True
    stated = {split: roles_of_split(split) for split in set(splits or ())}
    return None if splits is None else [stated[split] for split in splits], False


def _notes(predictions: Predictions, splits: Counter[str], rules: Counter[str]) -> tuple[str, ...]:
    notes = [] if predictions.patient_ids is not None else ["No patient column: every slide counts as its own patient."]
    odd = predictions.contradictory_patients()
    if odd:
        notes.append(f"{len(odd)} patients have slides with different labels: {listing(odd, most=5)}.")
    if len(splits) > 1:
        present = listing(f"{split} ({count})" for split, count in splits.most_common())
        notes.append(f"Rows of several splits are scored together: {present}. Use --tag split=test for one of them.")
    if len(rules) > 1:
        notes.append(f"{DECIDED} several rules: {listing(rules)}.")
    elif predictions.decided_by not in ("", "argmax"):
        notes.append(f"{DECIDED} {predictions.decided_by}.")
    return tuple(notes)


def require_cells(table: Columns, columns: Iterable[str | None], where: str, before: int = 0) -> None:
    """Refuse rows without a slide or patient: an empty patient would tie unrelated slides together."""
    for column in columns:
        if column is not None and "" in table[column]:
            row = before + table[column].index("") + 1
            raise PredictionsError(f"{where}: row {row} has no {column}; every row needs one.")


def label_encoder(
    hierarchy: ClassHierarchy, where: str, *, order: tuple[str, ...] = (), blanks: bool = False
) -> Callable[[list[str], str, list[str]], Ints]:
    """Text to class index, with each distinct spelling looked up once; with `blanks`, an empty cell is -1."""
    known = {"": -1} if blanks else {}

    def look_up(label: str) -> int:
        position = _whole(label)
        # Once an order is given, a whole number is an index, also where a class is called '1'.
        if order and position is not None:
            if position >= len(order):
                raise LabelError(f"class index {label!r} is outside --index-order, which names {len(order)} classes.")
            return hierarchy.index(order[position])
        try:
            return hierarchy.index(label)
        except LabelError:
            if position is None:
                raise
            raise LabelError(
                f"{label!r} is a class index, and the order of the indices is never guessed. Name the classes in that "
                f"order with --index-order, e.g. --index-order {','.join(hierarchy.names())}"
            ) from None

    def encode(labels: list[str], column: str, slides: list[str]) -> Ints:
        for label in set(labels) - known.keys():
            try:
                known[label] = look_up(label)
            except LabelError as error:
                slide = slides[labels.index(label)]
                raise PredictionsError(f"{where}, column {column!r}, slide {slide!r}: {error}") from error
        return np.fromiter(map(known.__getitem__, labels), np.int64, len(labels))

    return encode


def _whole(text: str) -> int | None:
    """The index in '3' or '3.0', as CLAM writes it; None for anything else."""
    head, _, tail = text.partition(".")
    return int(head) if head.isascii() and head.isdigit() and len(head) < 10 and not tail.strip("0") else None
