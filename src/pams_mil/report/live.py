"""Data of a live page: for every model the exact call of every slide at every κ, small enough to be embedded.

A slide's path is the list of κ at which its call changes (`DecisionPath.rises`). The page's script walks along these
breakpoints, so what it shows at a κ is what `pams audit --decide kappa=K` prints, to the last slide. Numbers travel as
base64 of little-endian arrays: a double stays the same double.

With more than MOST_EMBEDDED slides a page carries STOPS operating points with their exact confusion matrices, at which
the handle halts, and the slides are in a file beside the page, which it loads when somebody asks for them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.kappa_path import DecisionPath, decision_path
from pams_mil.severity import PENALTY, metric_weight

MOST_EMBEDDED = 20_000
"""Slides of all models together up to which the page holds them itself."""
STOPS = 1_000
"""Operating points of a larger model that its page knows without the file of slides."""
SLIDES_FILE = "report-slides.js"


def live_data(
    models: Sequence[Predictions],
    *,
    penalty: float = PENALTY,
    pages: Mapping[str, str] | None = None,
    command: str = "",
    with_slides: bool | None = None,
) -> dict[str, Any]:
    """What the script of a page needs, as plain JSON.

    Args:
        models: With or without probabilities; one hierarchy.
        penalty: P of the weight that sorts misses by gravity.
        pages: Addresses of pages about single slides, by slide id.
        command: The command line that made this audit, without --decide; empty when there was none.
        with_slides: Whether the slides are in the page; by default up to MOST_EMBEDDED of them.
    """
    hierarchy = models[0].hierarchy
    embedded = sum(map(len, models)) <= MOST_EMBEDDED if with_slides is None else with_slides
    return {
        "classes": [hierarchy.display(name) for name in hierarchy.names()],
        "ranks": hierarchy.ranks().tolist(),
        "gravity": metric_weight(hierarchy, penalty=penalty).tolist(),
        "command": command,
        "pages": dict(pages or {}) if embedded else {},
        "models": [_with_slides(model, models) if embedded else _with_stops(model) for model in models],
        "file": None if embedded else SLIDES_FILE,
    }


def slides_script(models: Sequence[Predictions], pages: Mapping[str, str] | None = None) -> str:
    """The file of slides beside a large page: a script that hands its data over, since pages on disk cannot fetch."""
    slides = {"models": [_with_slides(model, models) for model in models], "pages": dict(pages or {})}
    return f"window.pamsSlides({embedded_json(slides)});\n"


def embedded_json(value: object) -> str:
    r"""JSON that cannot end the element it stands in.

    >>> embedded_json({"slide": "</script>"})
    '{"slide":"\\u003c/script>"}'
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def script_hash(text: str) -> str:
    """The source expression of a Content-Security-Policy for one inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _with_slides(model: Predictions, models: Sequence[Predictions]) -> dict[str, Any]:
    first = models[0]
    # Models are mostly compared on the same slides: then the names are written once.
    shared = model is not first and list(model.slide_ids) == list(first.slide_ids)
    data: dict[str, Any] = {
        "name": model.name,
        "decided_by": model.decided_by,
        "slides": None if shared else list(model.slide_ids),
        "patients": None if shared or model.patient_ids is None else list(model.patient_ids),
        "target": _packed(model.target, "<u2"),
        "decided": _packed(model.predicted, "<u2"),
        "path": None,
        "probability": None,
    }
    if model.probabilities is not None:
        path = decision_path(model.probabilities, model.hierarchy)
        data["path"] = _breakpoints(path)
        true = model.probabilities[np.arange(len(model)), model.target]
        data["probability"] = _packed(np.rint(1000 * true), "<u2")  # shown with three digits
    return data


def _breakpoints(path: DecisionPath) -> dict[str, str]:
    """Of all slides, one after the other: how many calls a slide has, which, and the κ each begins at."""
    reach = path.reach
    # A class is called from its threshold on unless the next one begins there too.
    beyond = np.concatenate([reach[:, 1:], np.full((len(path), 1), np.nan)], axis=1)
    called = ~np.isnan(reach) & (reach != beyond)
    row, column = np.nonzero(called)
    return {
        "count": _packed(called.sum(axis=1), "<u2"),
        "call": _packed(column, "<u2"),
        "kappa": _packed(reach[row, column], "<f8"),
    }


def _with_stops(model: Predictions) -> dict[str, Any]:
    size = model.hierarchy.num_classes()
    data: dict[str, Any] = {
        "name": model.name,
        "decided_by": model.decided_by,
        "confusion": count_cells(model.target, model.predicted, size).ravel().tolist(),
        "stops": None,
    }
    if model.probabilities is not None:
        path = decision_path(model.probabilities, model.hierarchy)
        kappas = np.unique(path.reach[~np.isnan(path.reach)])
        positions = np.unique(np.linspace(0, len(kappas) - 1, STOPS).round().astype(np.int64))
        # κ = 1, the most probable class, is always a stop.
        stops = np.union1d(kappas[positions], [0.0, 1.0, np.inf])
        cells = [count_cells(model.target, path.calls(float(kappa)), size).ravel() for kappa in stops]
        data["stops"] = {"kappa": _packed(stops, "<f8"), "cells": _packed(np.concatenate(cells), "<u4")}
    return data


def _packed(values: npt.NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=np.dtype(kind)).tobytes()).decode("ascii")
