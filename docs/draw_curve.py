"""Draws docs/images/curve.png from the benchmark of docs/operating-points.md. Run: python docs/draw_curve.py cric.

The numbers that the README quotes are stored in the picture, and a test compares them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from pams_mil import tables
from pams_mil.evaluate.compare import Matched, compare
from pams_mil.evaluate.operating_points import OperatingPoints
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.scores import score
from pams_mil.hierarchy import ClassHierarchy

PICTURE = Path(__file__).parent / "images" / "curve.png"
MODELS = {"CE": "#2f6fb3", "PAMS": "#c0392b"}
WORDS = {"CE": "cross-entropy", "PAMS": "PAMS, urgent label"}


def pooled(bench: Path, label: str, scratch: Path) -> Predictions:
    """The test predictions of all folds of one method, as one file would hold them."""
    parts = [tables.read_table(path) for path in sorted(bench.glob(f"cells/*--{label}--seed0--fold*/predictions.csv"))]
    if not parts:
        raise SystemExit(
            f"{bench} has no predictions of {label}: make it with the commands of docs/operating-points.md."
        )
    names = [name for name in parts[0] if all(name in part for part in parts)]
    rows = [",".join(cells) for part in parts for cells in zip(*(part[name] for name in names), strict=True)]
    file = scratch / f"{label}.csv"
    file.write_text("\n".join([",".join(names), *rows]) + "\n", "utf-8")
    found = read_predictions(file, ClassHierarchy.load("bethesda"), Source())
    return found.take(np.argsort(found.slide_ids))


def quoted(points: dict[str, OperatingPoints], compared: Matched) -> dict[str, float]:
    """What the README says of this picture, in percent."""
    missed = compared.missed
    numbers = {f"{name} missed": one.decided[0] for name, one in points.items()}
    numbers |= {f"{name} false alarms": one.decided[1] for name, one in points.items()}
    numbers |= {"CE at equal false alarms": missed.reference, "PAMS at equal false alarms": missed.candidate}
    return {name: round(100 * value, 1) for name, value in numbers.items()}


def draw(points: dict[str, OperatingPoints], numbers: dict[str, float]) -> None:
    """Both curves with their bands, both models as decided, and the comparison at equal false alarms."""
    figure, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for name, one in points.items():
        color, (missed, alarms) = MODELS[name], one.decided
        if one.band is not None:
            axis.fill_between(
                100 * one.band.false_alarms, 100 * one.band.low, 100 * one.band.high, color=color, alpha=0.1, lw=0
            )
        axis.plot(100 * one.curve.false_alarms, 100 * one.curve.missed, color=color, label=WORDS[name], linewidth=1.8)
        axis.plot(100 * alarms, 100 * missed, "o", color=color, markersize=9)
        text = f"{WORDS[name]}, as decided:\n{100 * missed:.1f} % missed, {100 * alarms:.1f} % false alarms"
        place = (26, 40) if name == "CE" else (40, 29)
        axis.annotate(
            text, (100 * alarms, 100 * missed), place, color=color, arrowprops={"arrowstyle": "-", "color": color}
        )
    axis.set(xlim=(0, 80), ylim=(0, 80), xlabel="false alarms, % of fields", ylabel="missed urgency, % of fields")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, loc="upper right", title="a line: all operating points; shaded: 95 % over patients")
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None, "Description": json.dumps(numbers)})


def main(bench: Path) -> None:
    """Read, compare, draw."""
    with tempfile.TemporaryDirectory() as scratch:
        models = {name: pooled(bench, name, Path(scratch)) for name in MODELS}
    points = {name: found for name, one in models.items() if (found := score(one)[-1].points) is not None}
    compared = list(compare(models["CE"], models["PAMS"], resamples=0).matched.values())
    if not compared:
        raise SystemExit("The predictions have no probabilities.")
    draw(points, quoted(points, compared[-1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
