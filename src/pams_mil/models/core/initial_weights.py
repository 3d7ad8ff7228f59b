"""Start from a published aggregator: its weights in every tower, its head where the classes are as many.

What depends on the classes (the heads, CLAM's instance heads, CLAM-MB's attention per class) is taken at the finest
level only, and only when the checkpoint has as many classes; otherwise it stays as it was drawn from the seed.
Everything else must fit exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from pams_mil.errors import CheckpointError, listing
from pams_mil.models.core.heads import LevelHeads, SplitHeads, heads_of
from pams_mil.models.core.hierarchical import HierarchicalModel
from pams_mil.models.core.mil_model import MILModel
from pams_mil.models.core.published import check_fit, published_state


def start_from(model: HierarchicalModel, source: str | Path | Mapping[str, Any]) -> str:
    """Load the initial weights of all towers and return one sentence that says what was taken.

    >>> model = HierarchicalModel("abmil", in_features=4, num_classes=[3], embedding_features=2, attention_features=1)
    >>> feather = {"patch_embed.0.weight": torch.ones(2, 4), "patch_embed.0.bias": torch.zeros(2)}
    >>> feather |= {f"global_attn.attention_{part}.0.weight": torch.ones(1, 2) for part in "ab"}
    >>> feather |= {f"global_attn.attention_{part}.0.bias": torch.ones(1) for part in "ab"}
    >>> feather |= {"global_attn.attention_c.weight": torch.ones(1, 1), "global_attn.attention_c.bias": torch.ones(1)}
    >>> start_from(model, feather)
    'All but the head starts from published weights; the file has no head, so it starts fresh.'

    Args:
        model: As created; it is changed in place.
        source: As for `load_published`.

    Raises:
        CheckpointError: unsafe or unreadable, another architecture, another feature width, other widths inside.
    """
    towers = [cast("MILModel", tower) for tower in model.towers]
    state = published_state(towers[-1], source)
    bad = [key for key, value in state.items() if not torch.isfinite(value).all()]
    if bad:
        raise CheckpointError(f"The checkpoint holds numbers that are not finite, in {listing(bad, most=3)}.")
    of_classes = {key: state.pop(key) for key in list(state) if key.startswith(towers[-1].of_classes)}
    for tower in towers:
        own = {key: value for key, value in tower.state_dict().items() if not key.startswith(tower.of_classes)}
        check_fit(state, own, tower)
        tower.load_state_dict(state, strict=False)
    return _take_head(model, of_classes)


def _take_head(model: HierarchicalModel, of_classes: Mapping[str, Tensor]) -> str:
    finest = cast("MILModel", model.towers[-1])
    begun = "All but the head starts from published weights; "
    if not of_classes:
        return begun + "the file has no head, so it starts fresh."
    if isinstance(model.heads, SplitHeads):
        return begun + "split heads are not those of any file, so they start fresh."
    own = {key: value for key, value in finest.state_dict().items() if key.startswith(finest.of_classes)}
    for name, heads in (("head", model.heads), ("tier1_head", model.tier1_heads)):
        if isinstance(heads, LevelHeads):
            own |= {f"{name}.{key}": value for key, value in heads_of(heads)[-1].state_dict().items()}
    bias = of_classes.get("head.bias")
    if bias is not None and len(bias) != finest.num_classes:
        return begun + f"its head is for {len(bias)} classes and not these {finest.num_classes}, so it starts fresh."
    if {key: value.shape for key, value in of_classes.items()} != {key: value.shape for key, value in own.items()}:
        return begun + "the file does not hold all heads of this model, so they start fresh."
    for key, value in of_classes.items():
        # A state dict holds the weights themselves, not copies of them.
        own[key].copy_(value)
    return (
        f"All starts from published weights; the file's {finest.num_classes} classes are taken in the order of this "
        "hierarchy for the finest level's head."
    )
