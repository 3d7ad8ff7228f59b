"""Validation: predict every bag in evaluation mode, score at every level."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pams_mil.data.bags.dataset import BagDataset
from pams_mil.engine.inference_loop import infer
from pams_mil.engine.learner import Learner
from pams_mil.engine.training.one_process import Processes
from pams_mil.errors import NotFiniteError, PamsError, RunError, listing
from pams_mil.evaluate.cautions import TopCall
from pams_mil.evaluate.decisions.probability_calibration import refined_nll
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.metric import LabelMetrics
from pams_mil.metrics.operating import urgency_auc
from pams_mil.metrics.probability import OrderedProbabilities, macro_auc

SHOWN = ("acc", "auc", "ascc", "asmc", "missed_rate")
"""What a row of the log says about the coarser levels."""


def validate(fabric: Processes, learner: Learner, bags: BagDataset) -> dict[str, float]:
    """Scores of the finest level by metric, `<level>_<metric>` of the coarser ones, and the loss.

    `top_call` is the class that is called most often, `collapsed` 1 where hardly anything else is (`TopCall`).
    """
    learner.eval()
    hierarchy = learner.hierarchy
    sizes = [hierarchy.num_classes(level) for level in learner.levels]
    # One row per bag: the probabilities of all trained levels side by side, then the loss.
    table = torch.zeros(len(bags), sum(sizes) + 1, dtype=torch.float64)
    numbers = range(fabric.global_rank, len(bags), fabric.world_size)
    for number, _, outcome in infer([learner], bags, numbers=numbers, losses=True, autocast=fabric.autocast):
        if isinstance(outcome, NotFiniteError):
            table[number] = math.nan
        elif isinstance(outcome, PamsError):
            raise outcome
        else:
            # The loss of a pass is the mean over its bags; written beside each, the mean over rows is that over bags.
            table[number, :-1] = torch.cat(outcome[0].probabilities, dim=1)[0]
            table[number, -1] = math.nan if outcome[0].loss is None else outcome[0].loss
    # Every process has filled its own rows and left 0 in those of the others.
    if fabric.world_size > 1:
        table = fabric.all_reduce(table.to(fabric.device), reduce_op="sum").cpu()  # type: ignore[union-attr]
    _refuse_non_finite(table, bags)
    probabilities = torch.split(table[:, :-1], sizes, dim=1)
    targets = np.asarray(bags.targets, dtype=np.int64)
    scores = dict(_scores(learner, targets, [level.numpy() for level in probabilities]))
    return {**scores, "loss": float(table[:, -1].mean())}


def level_scores(
    hierarchy: ClassHierarchy, level: int, targets: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]
) -> dict[str, float]:
    """Every label metric and the AUC of one level; targets are classes of that level."""
    predicted = probabilities.argmax(1)
    counts = count_cells(targets, predicted, hierarchy.num_classes(level))
    scores = {name: float(value) for name, value in LabelMetrics(hierarchy, level)(counts).items()}
    return {**scores, "auc": macro_auc(targets, OrderedProbabilities(probabilities), hierarchy, level)}


def _refuse_non_finite(table: torch.Tensor, bags: BagDataset) -> None:
    """Scores of the other slides could not be compared with those of other epochs, so the run stops here.

    All processes hold the same table, so they stop together.
    """
    bad = (~torch.isfinite(table).all(1)).nonzero().flatten().tolist()
    if bad:
        names = [bags.sources[index].name for index in bad]
        raise RunError(
            f"The model's answer is not a finite number on {len(bad)} of {len(table)} validation slides: "
            f"{listing(names)}. The last good checkpoint is kept. Look at the slides with 'pams check', lower "
            "training.lr, or set training.clip_norm=1."
        )


def _scores(learner: Learner, targets: Any, trained: list[npt.NDArray[np.float64]]) -> Iterator[tuple[str, float]]:
    hierarchy = learner.hierarchy
    finest, p = hierarchy.num_levels - 1, OrderedProbabilities(trained[-1])
    yield from level_scores(hierarchy, finest, targets, trained[-1]).items()
    yield "urgency_auc", urgency_auc(targets, p, hierarchy)
    yield "refined_nll", refined_nll(targets, p, hierarchy)
    top = TopCall.of(count_cells(targets, trained[-1].argmax(1), hierarchy.num_classes()))
    yield from (("top_call", float(top.label)), ("top_call_share", top.share), ("collapsed", float(top.collapsed)))
    for level in range(finest):
        probabilities = learner.at_level(trained, level)
        scores = level_scores(hierarchy, level, hierarchy.lift(targets, level), probabilities)
        yield from ((f"{hierarchy.level_names[level]}_{name}", scores[name]) for name in SHOWN)
