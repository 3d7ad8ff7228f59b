"""Data of a live page: for every model the exact call of every slide at every κ, small enough to be embedded.

A slide's path is the list of κ at which its call changes (`DecisionPath.rises`). The page's script walks along these
breakpoints, so what it shows at a κ is what `pams audit --decide kappa=K` prints, to the last slide. Numbers travel as
base64 of little-endian arrays: a double stays the same double.

With more than MOST_EMBEDDED slides a page carries STOPS operating points with their exact counts, at which the handle
halts, and the slides are in a file beside the page, which it loads when somebody asks for them. Counts are misses by
class and the matrix that is shown, of classes or of their groups: hundreds of classes have no matrix of their own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil import atomic
from pams_mil.arrays import Array, Ints
from pams_mil.digests import slide_key
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import DecisionPath
from pams_mil.report.page import readable_level
from pams_mil.severity import PENALTY

MOST_EMBEDDED = 20_000
"""Slides of all models together up to which the page holds them itself."""
STOPS = 1_000
"""Operating points of a larger model that its page knows without the file of slides."""
FEWEST_STOPS, MOST_COUNTS = 100, 2**19
"""Of hundreds of classes there are fewer, so that the counts of all of them stay below this number."""
SLIDES_FILE = "report-slides.js"
VIEW_PORT = 8777
"""Where links of a page look for the viewer: a page on disk cannot ask which port is free."""


@dataclass(frozen=True)
class Links:
    """Where the slides of a model lead.

    Attributes:
        shell: The command line that counts them as the page does, without the option that sets κ; empty: there is none.
        python: The same in Python, with braces for the rule; empty: there is none.
        view: The command that shows them in the viewer; empty: there is none.
        pages: Addresses of pages about single slides, by slide id.
        pictures: Addresses of small pictures, by slide id.
    """

    shell: str = ""
    python: str = "pams.redecide(predictions, {})"
    view: str = ""
    pages: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScreenModel:
    """One model as a page counts it: rows with their truth, their call and their path along κ.

    Attributes:
        name: As sentences name it.
        hierarchy: The classes that are called.
        ids: Of the rows.
        target: [n] true classes.
        decided: [n] calls as decided.
        path: The call at every κ; None without probabilities.
        patients: Whose each row is; None where nobody said or rows are patients.
        probability: [n] of the true class; None without probabilities.
        weight: Of a row in every count, one number for all or [n]: with three seeds a slide is three rows of a third.
        networks: The network of each row where there are several.
        decided_by: The rule of the calls, in words.
        noun: What is counted.
        links: Where the rows lead.
    """

    name: str
    hierarchy: ClassHierarchy
    ids: Sequence[str]
    target: Ints
    decided: Ints
    path: DecisionPath | None
    patients: Sequence[str] | None = None
    probability: Array | None = None
    weight: float | Array = 1.0
    networks: Sequence[str] | None = None
    decided_by: str = ""
    noun: str = "slide"
    links: Links = Links()

    @classmethod
    def of(cls, predictions: Predictions, links: Links | None = None, *, name: str = "") -> ScreenModel:
        """The slides of a predictions file; those of several seeds count by their mean."""
        p, seeds = predictions.probabilities, predictions.num_seeds
        rows = range(len(predictions))
        return cls(
            name=name or predictions.name,
            hierarchy=predictions.hierarchy,
            ids=predictions.slide_ids,
            target=predictions.target,
            decided=predictions.predicted,
            path=None if p is None else predictions.path,
            patients=None if predictions.patient_ids is None else predictions.patients,
            probability=None if p is None else p[np.arange(len(p)), predictions.target],
            weight=1.0 / seeds,
            networks=[predictions.network_name(row) for row in rows] if seeds > 1 else None,
            decided_by=predictions.decided_by,
            links=links or Links(),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_weighted(self) -> bool:
        """Whether counts can be fractions."""
        return isinstance(self.weight, np.ndarray) or self.weight != 1.0

    @property
    def num_seeds(self) -> int:
        """How many seeds a count is the mean of."""
        return 1 if self.networks is None else round(1.0 / float(self.weight))

    def cells(self) -> Array:
        """The weighted confusion matrix [true, called] of the calls as decided."""
        size = len(self.hierarchy)
        return self.count(self.target * size + self.decided, size**2).reshape(size, size)

    def count(self, bins: Ints, size: int) -> Array:
        """The weight of the rows in every bin, [size]."""
        each = isinstance(self.weight, np.ndarray)
        counts = np.bincount(bins, weights=self.weight if each else None, minlength=size)
        # One weight for all is multiplied once, so that many thirds do not add up to almost a number.
        return np.asarray(counts, dtype=np.float64) * (1.0 if each else self.weight)


def live_data(
    models: Sequence[ScreenModel],
    *,
    penalty: float = PENALTY,
    file: str | None = SLIDES_FILE,
    needed: Mapping[str, float] | None = None,
    rule: str = "--decide kappa=",
) -> dict[str, Any]:
    """What the script of a page needs, as plain JSON; classes of the models may be ordered differently.

    The `penalty` P sorts misses by gravity. `file` is where the slides of a large page are, from the page (None:
    nowhere), `needed` the smallest κ that meets the bounds of a certificate, by order of urgency, and `rule` the option
    of the commands that sets κ.
    """
    embedded = is_embedded(models)
    return {
        "orders": [_order(hierarchy) for hierarchy in orders_of(models).values()],
        "penalty": penalty,
        "noun": models[0].noun,
        "rule": rule,
        # JSON has no infinity; the script reads numbers from text as well.
        "needed": [[name, str(kappa).replace("inf", "Infinity")] for name, kappa in (needed or {}).items()],
        "port": VIEW_PORT,
        "file": None if embedded else file,
        **(_slides(models) if embedded else {"models": [_with_stops(one, models) for one in models]}),
    }


def orders_of(models: Sequence[ScreenModel]) -> dict[str, ClassHierarchy]:
    """The class hierarchies of the models by their digests; one where all are under the same order."""
    return {model.hierarchy.digest: model.hierarchy for model in models}


def is_embedded(models: Sequence[ScreenModel]) -> bool:
    """Whether the page itself holds the slides."""
    return sum(map(len, models)) <= MOST_EMBEDDED


def write_slides(models: Sequence[ScreenModel], out: Path) -> None:
    """Write the slides of a page that is too large to hold them; nothing for others.

    The file is a script that hands its data over, since pages on disk cannot fetch.
    """
    if not is_embedded(models):
        atomic.write_text(out / SLIDES_FILE, f"window.pamsSlides({embedded_json(_slides(models))});\n")


def _order(hierarchy: ClassHierarchy) -> dict[str, Any]:
    """Classes and their urgency, and the classes or groups of the confusion matrix."""
    level = readable_level(hierarchy)
    by_rank = hierarchy.distance_by == "rank"
    return {
        "classes": [hierarchy.display(name) for name in hierarchy.names()],
        "ranks": hierarchy.ranks().tolist(),
        # Where each class stands on the line on which distances are measured.
        "places": hierarchy.ranks().tolist() if by_rank else [*range(len(hierarchy))],
        "groups": None if level is None else hierarchy.groups(level).tolist(),
        "names": [] if level is None else [hierarchy.display(name) for name in hierarchy.names(level)],
    }


def _slides(models: Sequence[ScreenModel]) -> dict[str, Any]:
    return {
        "models": [_with_slides(model, models) for model in models],
        "keys": {one: slide_key(one) for one in {o for m in models if m.links.view for o in m.ids}},
    }


def embedded_json(value: object) -> str:
    r"""JSON that cannot end the element it stands in.

    >>> embedded_json({"slide": "</script>"})
    '{"slide":"\\u003c/script>"}'
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _with_slides(model: ScreenModel, models: Sequence[ScreenModel]) -> dict[str, Any]:
    first = models[0]

    def once(own: Any, of_first: Any) -> Any:
        # Models are mostly compared on the same slides: then these and their links are written once.
        return None if model is not first and own == of_first else own

    ids = once(list(model.ids), list(first.ids))
    return {
        **_facts(model, models),
        "slides": ids,
        "patients": None if ids is None or model.patients is None else list(model.patients),
        "networks": None if model.networks is None else list(model.networks),
        "target": _packed(model.target, "<u2"),
        "decided": _packed(model.decided, "<u2"),
        "weight": _packed(model.weight, "<f8") if isinstance(model.weight, np.ndarray) else model.weight,
        "path": None if model.path is None else _breakpoints(model.path),
        # Shown with three digits.
        "probability": None if model.probability is None else _packed(np.rint(1000 * model.probability), "<u2"),
        "view": model.links.view,
        "pages": once(dict(model.links.pages), dict(first.links.pages)),
        "pictures": once(dict(model.links.pictures), dict(first.links.pictures)),
    }


def _facts(model: ScreenModel, models: Sequence[ScreenModel]) -> dict[str, Any]:
    return {
        "name": model.name,
        "order": list(orders_of(models)).index(model.hierarchy.digest),
        "decided_by": model.decided_by,
        "mean_of": model.num_seeds,
        "shell": model.links.shell,
        "python": model.links.python,
    }


def _breakpoints(path: DecisionPath) -> dict[str, str]:
    """Of all slides, one after the other: how many calls a slide has, which, and the κ each begins at."""
    count, call, kappa = path.breakpoints()
    return {"count": _packed(count, "<u2"), "call": _packed(call, "<u2"), "kappa": _packed(kappa, "<f8")}


def _with_stops(model: ScreenModel, models: Sequence[ScreenModel]) -> dict[str, Any]:
    rows, stops = [_counts(model, model.decided)], None
    if model.path is not None:
        kappas = np.unique(model.path.reach[~np.isnan(model.path.reach)])
        most = max(FEWEST_STOPS, min(STOPS, MOST_COUNTS // len(rows[0])))
        positions = np.unique(np.linspace(0, len(kappas) - 1, most).round().astype(np.int64))
        # κ = 1, the most probable class, is always a stop.
        stops = np.union1d(kappas[positions], [0.0, 1.0, np.inf])
        rows += [_counts(model, model.path.calls(float(kappa))) for kappa in stops]
    return {
        **_facts(model, models),
        "all": model.count(model.target, len(model.hierarchy)).tolist(),
        "counts": _packed(np.concatenate(rows), "<f8" if model.is_weighted else "<u4"),
        "stops": None if stops is None else _packed(stops, "<f8"),
        "weighted": model.is_weighted,
    }


def _counts(model: ScreenModel, calls: Ints) -> Array:
    """One row of counts, as the script reads it: false alarms, right, misses by true class, matrix that is shown."""
    hierarchy, true, level = model.hierarchy, model.target, readable_level(model.hierarchy)
    ranks = hierarchy.ranks()
    # Three bins by direction (missed, equal, false alarm), and whether it is right.
    direction = np.sign(ranks[calls] - ranks[true]) + 1
    missed = model.count(np.where(direction == 0, true, len(hierarchy)), len(hierarchy) + 1)[:-1]
    alarms, right = model.count(direction, 3)[2:], model.count((true == calls).astype(np.int64), 2)[1:]
    if level is None:
        return np.concatenate([alarms, right, missed])
    groups, size = hierarchy.groups(level), hierarchy.num_classes(level)
    return np.concatenate([alarms, right, missed, model.count(groups[true] * size + groups[calls], size**2)])


def _packed(values: npt.NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=np.dtype(kind)).tobytes()).decode("ascii")
