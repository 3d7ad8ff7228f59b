"""One output per level of the class hierarchy, from one tower per level, one shared tower, or the finest only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from pams_mil.errors import ParameterError
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.factory import create_model
from pams_mil.models.core.heads import heads_of, make_level_heads
from pams_mil.models.core.inputs import as_batch
from pams_mil.models.core.mil_model import LevelOutput, MILModel, level_output
from pams_mil.parameters import require_counts

_TOWERS = ("finest", "shared", "per_level")


class HierarchicalModel(nn.Module):
    """A model for H levels; `forward` returns one `LevelOutput` per trained level, coarse first.

    >>> model = HierarchicalModel("abmil", in_features=4, num_classes=[3, 7], towers="shared", heads="normalized")
    >>> [tuple(level.logits.shape) for level in model(torch.zeros(5, 4))]
    [(1, 3), (1, 7)]

    Args:
        model: name of the model, as in `create_model`.
        in_features: feature width d.
        num_classes: number of classes of every level, coarse first.
        towers: "per_level": H independent models; "shared": one model, H heads; "finest": one model, finest level.
        heads: "linear", "normalized" or, for a shared tower, "split".
        model_options: options of the model.
    """

    def __init__(
        self,
        model: str,
        *,
        in_features: int,
        num_classes: Sequence[int],
        towers: str = "per_level",
        heads: str = "linear",
        **model_options: Any,
    ) -> None:
        super().__init__()
        _check_arguments(num_classes, towers, heads)
        self.in_features = in_features
        self.towers_kind = towers
        counts = list(num_classes) if towers == "per_level" else [num_classes[-1]]
        kind = heads if towers != "shared" else "linear"
        self.towers = nn.ModuleList(
            create_model(model, in_features=in_features, num_classes=count, head=kind, **model_options)
            for count in counts
        )
        self.heads: nn.Module | None = None
        self.tier1_heads: nn.Module | None = None
        if towers == "shared":
            self._share(heads, num_classes)

    def _share(self, kind: str, num_classes: Sequence[int]) -> None:
        tower = cast(MILModel, self.towers[0])
        if tower.ranks_instances and kind == "split":
            raise ParameterError("Split heads cannot rank single instances: use distillation='afs' with them.")
        self.heads = make_level_heads(kind, tower.embedding_features, num_classes)
        if tower.tier1_head is not None:
            self.tier1_heads = make_level_heads(kind, tower.embedding_features, num_classes)
        # The tower's own heads would be parameters that nothing trains.
        del tower.head, tower.tier1_head

    def forward(
        self, bags: BagBatch | Tensor, *, mask: Tensor | None = None, attention: bool = False
    ) -> tuple[LevelOutput, ...]:
        """Outputs of every trained level; arguments as for a single model."""
        batch = as_batch(bags, mask=mask, in_features=self.in_features)
        if self.training and not batch.seeds:
            # Levels must cut a bag into the same pseudo-bags: draw the seeds once, from torch's own state.
            batch = batch.with_seeds(torch.randint(2**62, (len(batch),)).tolist())
        if self.heads is None:
            return tuple(tower(batch, attention=attention) for tower in self.towers)
        return self._forward_shared(batch, attention)

    def _forward_shared(self, batch: BagBatch, attention: bool) -> tuple[LevelOutput, ...]:
        tower = cast(MILModel, self.towers[0])
        heads = cast(Any, self.heads)
        tier1_heads = cast(Any, self.tier1_heads)
        ranking = heads_of(tier1_heads)[-1] if tower.ranks_instances else None
        embedded = tower.embed(batch, attention=attention, tier1_head=ranking)
        scored = heads(embedded.vectors)
        # What the tower adds to its loss speaks of its own classes, those of the finest level.
        parts = [*[replace(embedded, auxiliary=None)] * (len(scored) - 1), embedded]
        if tier1_heads is None or embedded.tier1_vectors is None:
            return tuple(level_output(part, level) for part, level in zip(parts, scored, strict=True))
        tier1 = [level.logits for level in tier1_heads(embedded.tier1_vectors)]
        return tuple(level_output(*made) for made in zip(parts, scored, tier1, strict=True))


def _check_arguments(num_classes: Sequence[int], towers: str, heads: str) -> None:
    if not num_classes:
        raise ParameterError("num_classes must hold the number of classes of every level, coarse first; found none.")
    for level, count in enumerate(num_classes):
        require_counts(**{f"num_classes[{level}]": count})
    if towers not in _TOWERS:
        raise ParameterError(f"towers must be one of {', '.join(_TOWERS)}, found {towers!r}.")
    if heads == "split" and towers != "shared":
        raise ParameterError(
            f"Split heads cut one vector between the levels: they need towers='shared', found {towers!r}."
        )
