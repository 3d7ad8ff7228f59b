"""Several findings per slide in a table: labels that are sets, and one column of probabilities per finding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pams_mil.arrays import Array, Bools
from pams_mil.class_checks import SEPARATOR
from pams_mil.errors import LabelError, PredictionsError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.tables import Columns, parse_number


def united_label(label: str, hierarchy: ClassHierarchy) -> str:
    """A label of several slides together: "nothing" is left out where another slide has a finding.

    >>> united_label("N; DCIS; UDH", ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N"))
    'UDH; DCIS'
    """
    parts = {hierarchy.index(name.strip()) for name in label.split(SEPARATOR) if name.strip()}
    findings = sorted(index for index in parts if hierarchy.classes[index] != hierarchy.nothing)
    return f"{SEPARATOR} ".join(hierarchy.classes[index] for index in findings or sorted(parts))


def finding_columns(header: Sequence[str], scores: tuple[str, ...], hierarchy: ClassHierarchy) -> tuple[str, ...]:
    """The columns of findings: f_<class>, or the named probabilities where none of them is of "nothing"."""
    names = [hierarchy.classes[index] for index in hierarchy.finding_classes.tolist()]
    own = tuple(f"f_{name}" for name in names)
    if all(column in header for column in own):
        return own
    return scores if hierarchy.nothing and len(scores) == len(names) else ()


class FindingColumns:
    """Collects sets and probabilities of findings while a table passes by; nothing where slides have one finding."""

    def __init__(self, hierarchy: ClassHierarchy, true: str, columns: Sequence[str], where: str) -> None:
        self.hierarchy, self.true, self.columns, self.where = hierarchy, true, tuple(columns), where
        self._sets: list[Bools] = []
        self._probabilities: list[Array] = []

    def add(self, piece: Columns, slides: Sequence[str]) -> None:
        """A piece of the table."""
        if self.hierarchy.findings == "one":
            return
        self._sets.append(self._present(piece, slides))
        if self.columns:
            self._probabilities.append(self._numbers(piece, slides))

    def finish(self) -> tuple[Bools | None, Array | None]:
        """True sets and probabilities, [n, K] each, as far as the table has them."""
        sets = np.concatenate(self._sets) if self._sets else None
        return sets, np.concatenate(self._probabilities) if self._probabilities else None

    def _present(self, piece: Columns, slides: Sequence[str]) -> Bools:
        sets = np.zeros((len(slides), len(self.hierarchy.finding_classes)), bool)
        for row, label in enumerate(piece.get(self.true, ())):
            try:
                sets[row] = self.hierarchy.finding_matrix([label])[0] if label else False
            except LabelError as error:
                raise PredictionsError(f"{self.where}, slide {slides[row]!r}: {error}") from error
        return sets

    def _numbers(self, piece: Columns, slides: Sequence[str]) -> Array:
        numbers = np.empty((len(slides), len(self.columns)))
        for place, column in enumerate(self.columns):
            try:
                numbers[:, place] = np.fromiter(map(parse_number, piece[column]), np.float64, len(slides))
            except ValueError as error:
                raise PredictionsError(f"{self.where}: column {column!r} must hold numbers: {error}.") from error
        bad = ~((numbers >= 0) & (numbers <= 1))
        if bad.any():
            row, place = (int(index[0]) for index in np.nonzero(bad))
            raise PredictionsError(
                f"{self.where}, slide {slides[row]!r}: the probability of a finding must be from 0 to 1, found "
                f"{numbers[row, place]:g} in column {self.columns[place]!r}."
            )
        return numbers


def headline_probabilities(findings: Array, hierarchy: ClassHierarchy) -> Array:
    """Probabilities [n, C] of the most urgent finding from those of single ones, for models that have no head for it.

        P(rank ≥ ρ) = max_{k: rank_k ≥ ρ} p_k

    the lower of Fréchet's bounds; the mass of a rank goes to its likeliest class. At κ the call has the largest rank of
    the called set, since both cross a boundary at the same κ.

    >>> tree = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N")
    >>> headline_probabilities(np.array([[0.7, 0.2]]), tree).round(2).tolist()
    [[0.3, 0.5, 0.2]]
    """
    ranks, columns = hierarchy.ranks(), hierarchy.finding_classes
    size = int(ranks.max()) + 1
    at_least = np.ones((len(findings), size + 1))
    at_least[:, size] = 0.0
    for rank in range(1, size):
        at_least[:, rank] = findings[:, ranks[columns] >= rank].max(axis=1)
    per_rank = at_least[:, :-1] - at_least[:, 1:]
    scores = np.zeros((len(findings), len(ranks)))
    for rank in range(size):
        classes = np.flatnonzero(ranks == rank)
        places = [int(np.flatnonzero(columns == c)[0]) if c in columns else -1 for c in classes]
        own = np.stack([findings[:, place] if place >= 0 else np.zeros(len(findings)) for place in places], axis=1)
        scores[np.arange(len(findings)), classes[own.argmax(axis=1)]] = per_rank[:, rank]
    return scores
