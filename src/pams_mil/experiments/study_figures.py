"""Figures for papers: column width, colors that color-blind readers tell apart, PNG and SVG of the same drawing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from pams_mil import atomic

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's palette; repeated colors differ by marker."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "svg.hashsalt": "pams",
    "legend.frameon": False,
    "legend.fontsize": 7,
}


@contextmanager
def drawing(
    folder: Path, name: str, *, width: float = 3.5, height: float = 2.6, **layout: Any
) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes; saved as `<name>.png` and `<name>.svg` when the drawing is done."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(**layout)
        yield figure, axes
        for kind, options in (("png", {"dpi": 200}), ("svg", {"metadata": {"Date": None}})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, **options)
            atomic.write_bytes(folder / f"{name}.{kind}", buffer.getvalue())


def look(number: int) -> dict[str, Any]:
    """Color and marker of the n-th series."""
    return {"color": COLORS[number % len(COLORS)], "marker": MARKERS[(number // len(COLORS) + number) % len(MARKERS)]}
