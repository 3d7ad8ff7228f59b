"""One output per level of the class hierarchy, from one tower per level, one shared tower, or the finest only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from pams_mil.errors import ParameterError, require_choice, require_count
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.factory import create_model, model_kind
from pams_mil.models.core.factory import model_options as model_options_of
from pams_mil.models.core.heads import Scored, heads_of, make_level_heads
from pams_mil.models.core.inputs import as_batch
from pams_mil.models.core.mil_model import Embedded, LevelOutput, MILModel, level_output
from pams_mil.ops import at_least_float32, group_log_softmax


class HierarchicalModel(nn.Module):
    """A model for H levels; `forward` returns one `LevelOutput` per trained level, coarse first.

    >>> model = HierarchicalModel("abmil", in_features=4, num_classes=[3, 7], towers="shared", heads="normalized")
    >>> [tuple(level.logits.shape) for level in model(torch.zeros(5, 4))]
    [(1, 3), (1, 7)]

    Args:
        model: name or class of the model, as in `create_model`.
        in_features: feature width d.
        num_classes: number of classes of every level, coarse first.
        towers: "per_level": H independent models; "shared": one model, H heads; "finest": one model, finest level.
        heads: "linear", "normalized" or, for a shared tower, "split".
        hierarchy: the classes, for models that need more than their number: which are equally urgent, which belong
            together. A model with a head of its own serves coarser levels by the sums of its classes' probabilities.
        model_options: options of the model.
    """

    def __init__(
        self,
        model: str | Callable[..., Any],
        *,
        in_features: int,
        num_classes: Sequence[int],
        towers: str = "per_level",
        heads: str = "linear",
        hierarchy: ClassHierarchy | None = None,
        **model_options: Any,
    ) -> None:
        super().__init__()
        _check_arguments(num_classes, towers, heads)
        self.in_features = in_features
        kind = model_kind(model)
        self.coarse_sizes: list[list[int]] = []
        if sums_classes(kind, towers):
            self.coarse_sizes = _coarse_sizes(kind.__name__, num_classes, heads, hierarchy)
            towers = "finest"
        levels = range(len(num_classes)) if towers == "per_level" else [len(num_classes) - 1]
        own = heads if towers != "shared" else "linear"
        self.towers = nn.ModuleList(
            create_model(
                model, in_features=in_features, num_classes=num_classes[level], head=own,
                **_ranks(kind, hierarchy, level), **model_options,
            )
            for level in levels
        )  # fmt: skip
        # What holds of a model that is composed of these, as in `MILModel`.
        self.packs, self.judges_instances = (
            all(getattr(tower, fact) for tower in self.towers) for fact in ("packs", "judges_instances")
        )
        self.heads: nn.Module | None = None
        self.tier1_heads: nn.Module | None = None
        if towers == "shared":
            self._share(heads, num_classes)
        self.findings: nn.Linear | None = None
        if hierarchy is not None and hierarchy.findings == "several":
            # Beside the head of the most urgent finding, on the same vectors.
            width = cast("MILModel", self.towers[-1]).vector_features
            self.findings = nn.Linear(width, len(hierarchy.finding_classes))

    def _share(self, kind: str, num_classes: Sequence[int]) -> None:
        tower = cast("MILModel", self.towers[0])
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
        if self.heads is None and not self.coarse_sizes:
            outputs = tuple(tower(batch, attention=attention) for tower in self.towers)
        else:
            outputs = self._forward_shared(batch, attention)
        if self.findings is None:
            return outputs
        findings = self.findings(at_least_float32(outputs[-1].embedding))
        return (*outputs[:-1], replace(outputs[-1], findings=findings))

    def scores(self, tower: MILModel, embedded: Embedded) -> list[Scored]:
        """What is made of a tower's vectors for every level that it serves, coarse first."""
        if self.heads is not None:
            shared: list[Scored] = self.heads(embedded.vectors)
            return shared
        own = tower.score(embedded)
        coarse = [group_log_softmax(at_least_float32(own.logits), sizes) for sizes in self.coarse_sizes]
        return [*(Scored(logits, own.seen, None) for logits in coarse), own]

    def _forward_shared(self, batch: BagBatch, attention: bool) -> tuple[LevelOutput, ...]:
        tower = cast("MILModel", self.towers[0])
        tier1_heads = cast("Any", self.tier1_heads)
        # Instances are ranked once for all levels, by the finest.
        ranking = heads_of(tier1_heads)[-1] if tower.ranks_instances and tier1_heads is not None else None
        embedded = tower.embed(batch, attention=attention, tier1_head=ranking)
        scored = self.scores(tower, embedded)
        # What the tower adds to its loss speaks of its own classes, those of the finest level.
        parts = [*[replace(embedded, auxiliary=None)] * (len(scored) - 1), embedded]
        if tier1_heads is None or embedded.tier1_vectors is None:
            return tuple(level_output(vectors, level) for vectors, level in zip(parts, scored, strict=True))
        tier1 = [level.logits for level in tier1_heads(embedded.tier1_vectors)]
        return tuple(level_output(*inputs) for inputs in zip(parts, scored, tier1, strict=True))


def sums_classes(kind: Any, towers: str) -> bool:
    """Whether models of a class serve coarser levels by sums of their classes, rather than by heads or towers."""
    shared = getattr(kind, "own_head", False) and towers == "shared"
    return towers != "finest" and bool(shared or getattr(kind, "one_tower", False))


def _ranks(kind: Any, hierarchy: ClassHierarchy | None, level: int) -> dict[str, list[int]]:
    """The urgency of a level's classes, for a model that asks for it."""
    asked = "ranks" in (model_options_of(kind) or ())
    return {"ranks": hierarchy.ranks(level).tolist()} if asked and hierarchy is not None else {}


def _coarse_sizes(
    model: str, num_classes: Sequence[int], heads: str, hierarchy: ClassHierarchy | None
) -> list[list[int]]:
    """How many finest classes every class of each coarser level holds, coarsest level first."""
    if heads != "linear":
        raise ParameterError(
            f"The model {model!r} has a head of its own and sums its classes for coarser levels, so it cannot take "
            f"{heads} heads. Use linear heads, or a model with one vector per bag, such as 'abmil'."
        )
    if len(num_classes) == 1:
        return []
    if hierarchy is None:
        raise ParameterError(
            f"The model {model!r} sums its classes for coarser levels, so it needs the `hierarchy` that they form."
        )
    sizes = [np.bincount(hierarchy.groups(level)).tolist() for level in range(hierarchy.num_levels - 1)]
    if [*map(len, sizes), hierarchy.num_classes()] != list(num_classes):
        raise ParameterError(
            f"num_classes must be those of the hierarchy {hierarchy.name!r}, found {list(num_classes)}."
        )
    return sizes


def _check_arguments(num_classes: Sequence[int], towers: str, heads: str) -> None:
    if not num_classes:
        raise ParameterError("num_classes must hold the number of classes of every level, coarse first; found none.")
    for level, count in enumerate(num_classes):
        require_count(f"num_classes[{level}]", count, at_least=1)
    require_choice("towers", towers, ("finest", "shared", "per_level"))
    if heads == "split" and towers != "shared":
        raise ParameterError(
            f"Split heads cut one vector between the levels: they need towers='shared', found {towers!r}."
        )
