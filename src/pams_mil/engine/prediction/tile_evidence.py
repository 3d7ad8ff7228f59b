"""What a model sees in every tile: where it looks, and what speaks for and against each class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pams_mil.engine.training.learner import Learner
from pams_mil.models.core.batch import BagBatch

Array = npt.NDArray[np.float64]
_CHUNK = 2048  # tiles scored at once, each as a bag of its own


def evidence(learner: Learner, features: Tensor, attention: list[Tensor], slide_id: str) -> list[Array]:
    """What every tile says for and against every class [n, c], per trained level.

    With a_i the attention of tile i and p_i the probabilities of a bag that holds this tile alone,

        e_ic = a_i (log p_ic - mean over classes of log p_i)

    For attention pooling with a linear head these add up, over tiles, to the bag's own logits (centered).
    """
    parts: list[list[Tensor]] = []
    for start in range(0, len(features), _CHUNK):
        rows = features[start : start + _CHUNK]
        alone = learner.predict(BagBatch(rows, (1,) * len(rows), (slide_id,) * len(rows)))
        parts.append(alone.probabilities)
    found = []
    for level, weight in enumerate(attention):
        log_p = torch.cat([part[level] for part in parts]).clamp_min(1e-300).log()
        centered = log_p - log_p.mean(1, keepdim=True)
        found.append((weight.double()[:, None] * centered).numpy())
    return found


def measure(learner: Learner, features: Tensor, attention: list[Tensor], slide_id: str) -> dict[str, tuple[str, Array]]:
    """Named values per tile, with the kind that decides how they are drawn: rank or sign."""
    hierarchy, levels = learner.hierarchy, learner.levels[-len(attention) :]
    measured: dict[str, tuple[str, Array]] = {}
    scores = evidence(learner, features, attention, slide_id)
    for position, level in enumerate(levels):
        name = hierarchy.level_names[level]
        measured[f"attention {name}"] = ("rank", attention[position].double().numpy())
        for index, label in enumerate(hierarchy.names(level)):
            measured[f"evidence {name} {label}"] = ("sign", scores[position][:, index])
    return measured
