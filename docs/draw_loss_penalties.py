"""Draws docs/images/loss-penalties.png: what each method punishes. Run: python docs/draw_loss_penalties.py."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Patch

from pams_mil import discover
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.method import Method
from pams_mil.models.core.mil_model import LevelOutput

PICTURE = Path(__file__).parent / "images" / "loss-penalties.png"
CONFIDENCE = 0.8
MISS, ALARM, TIE = "#c0392b", "#2f6fb3", "#9a9a9a"


def prediction(hierarchy: ClassHierarchy, predicted: int) -> np.ndarray:
    """Most probability on one class, the rest spread evenly."""
    count = hierarchy.num_classes()
    p = np.full(count, (1 - CONFIDENCE) / (count - 1))
    p[predicted] = CONFIDENCE
    return p


def logits_for(name: str, p: np.ndarray) -> torch.Tensor:
    """Logits that a method reads as the probabilities p."""
    if name != "corn":
        return torch.tensor(np.log(p))[None]
    above = 1 - p.cumsum()[:-1]
    return torch.tensor(np.append(np.log(above / p[:-1]), 0.0))[None]


def loss(name: str, method: Method, hierarchy: ClassHierarchy, true: int, predicted: int) -> float:
    """The method's whole loss when every level predicts the same, summed along the tree."""
    outputs, targets = [], []
    for level in method.trained_levels(hierarchy):
        count = hierarchy.num_classes(level)
        p = np.bincount(hierarchy.groups(level), weights=prediction(hierarchy, predicted), minlength=count)
        logits = logits_for(name, p)
        outputs.append(LevelOutput(logits, logits, weight=torch.eye(count, 16, dtype=torch.float64)))
        targets.append(torch.tensor(hierarchy.lift([true], level)))
    objective = method.objective(hierarchy).double().eval()
    return float(sum(objective(outputs, targets).values()))


def penalties(name: str, hierarchy: ClassHierarchy, true: int) -> np.ndarray:
    """What each predicted class adds to the loss of the right one; the mean over wrong classes is 1."""
    method = discover.load("methods", name)()
    values = np.array([loss(name, method, hierarchy, true, predicted) for predicted in range(hierarchy.num_classes())])
    extra = values - values[true]
    return extra / np.delete(extra, true).mean()


def all_penalties(hierarchy: ClassHierarchy, true: int) -> dict[str, list[float]]:
    """Penalties of every method to two digits, PAMS first; stored in the picture, so that a test can tell its age."""
    names = sorted(discover.available("methods"), key=lambda name: (name != "pams", name != "ce", name))
    return {name: penalties(name, hierarchy, true).round(2).tolist() for name in names}


def draw(hierarchy: ClassHierarchy, true: int) -> None:
    """One panel per method."""
    table = all_penalties(hierarchy, true)
    colors = [
        MISS if hierarchy.outranks()[true, r] else ALARM if hierarchy.outranks()[r, true] else TIE for r in range(7)
    ]
    figure, axes = plt.subplots(4, 4, figsize=(11, 8.4), sharey=True, layout="constrained")
    for axis, name in zip(axes.flat, table, strict=False):
        axis.bar(hierarchy.names(), table[name], color=colors)
        axis.set_title(name, fontsize=11, fontweight="bold" if name == "pams" else "normal", family="monospace")
        axis.axhline(1, color="black", linewidth=0.6, linestyle=":")
        axis.tick_params(axis="x", labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(table) :]:
        axis.set_axis_off()
    figure.supylabel("penalty relative to the mean over wrong classes", fontsize=10)
    figure.supxlabel(f"class that the model says with {CONFIDENCE:.0%} confidence", fontsize=10)
    figure.suptitle(f"The truth is {hierarchy.names()[true]}. What does it cost to say something else?", fontsize=13)
    handles = [
        Patch(color=MISS, label="less urgent: a missed finding"),
        Patch(color=ALARM, label="more urgent: a false alarm"),
        Patch(color=TIE, label="equally urgent"),
    ]
    axes.flat[-1].legend(handles=handles, loc="center", frameon=False, fontsize=9)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None, "Description": json.dumps(table)})


if __name__ == "__main__":
    bracs = ClassHierarchy.load("bracs")
    draw(bracs, bracs.index("FEA"))
