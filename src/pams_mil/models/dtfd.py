"""DTFD-MIL, double-tier feature distillation (Zhang et al., CVPR 2022).

    h_i = ReLU(W x_i)
    tier 1, per pseudo-bag g:  alpha = softmax_{i in g}(a1(h_i)),  f_g = sum_i alpha_i h_i,  u_g = C1 f_g + c1
    tier 2, over distilled d:  beta = softmax_d(a2(d)),            z = sum_d beta_d d,       logits = C2 z + c2

a1 and a2 are gated attention. Distilled features d: "afs" the f_g themselves; "max" the q instances of
each pseudo-bag that rank highest; "maxmin" these and the q lowest. The rank is softmax(C1 (alpha_i h_i)) at
one class. Not invariant to the order of instances: the random partition follows row numbers.
"""

from __future__ import annotations

import itertools
from typing import ClassVar, Literal, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from pams_mil.errors import Count, CountOrZero, ParameterError
from pams_mil.models.core.batch import BagBatch, joined
from pams_mil.models.core.heads import Head, make_head
from pams_mil.models.core.mil_model import Embedded, MILModel, Widths
from pams_mil.models.layers.attention_pool import (
    AttentionScores,
    Projection,
    attention_pool,
    merge_gates,
    spread_scores,
)
from pams_mil.models.layers.pseudo_bags import batch_groups, ranked_rows
from pams_mil.ops import at_least_float32

DISCOVER = {"dtfd": "DTFD"}

_LOWEST = torch.finfo(torch.float32).min


class ResidualBlock(nn.Module):
    """x + ReLU(W2 ReLU(W1 x)), both without bias."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, features, bias=False)
        self.second = nn.Linear(features, features, bias=False)

    def forward(self, instances: Tensor) -> Tensor:
        """Same shape as the input, [n, e]."""
        update: Tensor = self.second(self.first(instances).relu()).relu()
        return instances + update


class DTFD(MILModel):
    """Two tiers of gated attention.

    Args, beyond those of `MILModel`:
        attention_features: width of both attentions, 128.
        pseudo_bags: G; a bag of fewer instances gets as many groups as instances.
        distillation: "afs" (the paper), "max" or "maxmin".
        instances_per_pseudo_bag: q of "max" and "maxmin".
        cam_class: class that instances are ranked by: "last" (original code; the most urgent class of an
            urgency order), "predicted" (the pseudo-bag's own tier-1 class), or a class index.
        tier2_gradient: "detach": tier 1 learns from its own loss only, as the original; "joint": from both.
        splits: random partitions averaged in evaluation.
        residual_blocks: number of residual blocks after the projection.
    """

    packs = True  # pseudo-bags are groups already, whosever they are
    published_keys: ClassVar[dict[str, str]] = {
        r"dim_reduction\.fc1\.weight": "projection.weight",
        r"dim_reduction\.resBlocks\.(\d+)\.block\.0\.weight": r"residual.\1.first.weight",
        r"dim_reduction\.resBlocks\.(\d+)\.block\.2\.weight": r"residual.\1.second.weight",
        r"attention\.attention_(V|U)\.0\.(weight|bias)": r"tier1_scores.\1.\2",
        r"attention\.attention_weights\.(weight|bias)": r"tier1_scores.outer.\1",
        r"classifier\.fc\.(weight|bias)": r"tier1_head.\1",
        r"att_classifier\.attention\.attention_(V|U)\.0\.(weight|bias)": r"tier2_scores.\1.\2",
        r"att_classifier\.attention\.attention_weights\.(weight|bias)": r"tier2_scores.outer.\1",
        r"att_classifier\.classifier\.fc\.(weight|bias)": r"head.\1",
    }
    merge_published = staticmethod(merge_gates)

    def __init__(
        self,
        *,
        attention_features: Count = 128,
        pseudo_bags: Count = 4,
        distillation: Literal["afs", "max", "maxmin"] = "afs",
        instances_per_pseudo_bag: Count = 1,
        cam_class: str | int = "last",
        tier2_gradient: Literal["detach", "joint"] = "detach",
        splits: Count = 1,
        residual_blocks: CountOrZero = 0,
        **widths: Unpack[Widths],
    ) -> None:
        super().__init__(**widths)
        named = cam_class in ("last", "predicted")
        if not named and not (isinstance(cam_class, int) and 0 <= cam_class < self.num_classes):
            raise ParameterError(
                f"cam_class must be 'last', 'predicted' or a class index below {self.num_classes}, found {cam_class!r}."
            )
        self.pseudo_bags, self.splits, self.distillation = pseudo_bags, splits, distillation
        self.per_group, self.cam_class, self.tier2_gradient = instances_per_pseudo_bag, cam_class, tier2_gradient
        self.ranks_instances, self.graph_partitions = distillation != "afs", splits
        if self.ranks_instances:
            # Rows are chosen one pseudo-bag at a time, which a graph of any n cannot hold.
            self.graph_refusal = f"DTFD's distillation {distillation!r} ranks instances; only 'afs' does not"
        self.projection = Projection(self.in_features, self.embedding_features, bias=False)
        self.residual = nn.Sequential(*(ResidualBlock(self.embedding_features) for _ in range(residual_blocks)))
        self.tier1_scores = AttentionScores(self.embedding_features, attention_features)
        self.tier1_head = make_head(widths.get("head", "linear"), self.embedding_features, self.num_classes)
        self.tier2_scores = AttentionScores(self.embedding_features, attention_features)

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Tier-2 vectors [r * b, e] and tier-1 vectors [r * g, e] of all pseudo-bags."""
        results = [self._embed_pack(piece, tier1_head) for piece in batch.pieces()]
        repeats, bags, owners = len(results[0].partitions), 0, []
        for result in results:
            # Pseudo-bags stand partition by partition, so their owners repeat; bags are numbered on from pass to pass.
            owners.append(result.owners.repeat(repeats) + bags)
            bags += len(result.vectors) // repeats
        # Partition by partition, and within one bag by bag.
        vectors = [result.vectors.reshape(repeats, -1, self.embedding_features) for result in results]
        return Embedded(
            vectors=torch.cat(vectors, dim=1).flatten(0, 1),
            attention=joined([result.attention() for result in results]) if attention else None,
            tier1_vectors=joined([result.groups for result in results]),
            tier1_bag=joined(owners),
            repeats=repeats,
        )

    def trace(self, features: Tensor, groups: Tensor | None = None) -> Embedded:
        """Tier-2 vectors [r, e] for given partitions [r, n]; a pseudo-bag without instances has no weight."""
        if groups is None:
            raise ParameterError("A graph of DTFD takes the partition into pseudo-bags as its second input.")
        instances = self._project(features)
        member = groups[:, None, :] == torch.arange(self.pseudo_bags, device=groups.device)[:, None]
        # A finite lowest value: an empty pseudo-bag then has an even softmax instead of NaN, and beta leaves it out.
        alpha = torch.where(member, self.tier1_scores(instances), _LOWEST).softmax(-1)
        pooled = alpha @ instances
        scores = self.tier2_scores(pooled.flatten(0, 1)).reshape(-1, self.pseudo_bags)
        beta = torch.where(member.to(scores.dtype).amax(-1) > 0, scores, _LOWEST).softmax(-1)
        return Embedded((beta[:, None] @ pooled).squeeze(1), repeats=self.splits)

    def _project(self, features: Tensor) -> Tensor:
        instances: Tensor = self.residual(self.projection(features))
        return instances

    def _embed_pack(self, batch: BagBatch, tier1_head: Head | None) -> _Tiers:
        """Bags in one pass: the pseudo-bags of all of them are groups of the packed rows, numbered one bag on."""
        features, counts = batch.features, [min(self.pseudo_bags, size) for size in batch.sizes]
        owners = torch.repeat_interleave(torch.tensor(counts, device=features.device))
        parts = [
            batch_groups(batch, index, self.pseudo_bags, splits=self.splits, training=self.training) + first
            for index, first in enumerate(itertools.accumulate(counts[:-1], initial=0))
        ]
        partitions = torch.cat(parts, dim=1)
        if not self.ranks_instances:
            project = self._project if self.residual else self.projection
            groups, scores = attention_pool(features, project, self.tier1_scores, partitions, sum(counts))
            return self._tier2(groups, groups, None, scores, partitions, owners)
        instances = self._project(features)
        scores = at_least_float32(self.tier1_scores(instances))
        log_alpha = spread_scores(scores, partitions, sum(counts)).log_softmax(-1)
        groups = log_alpha.exp().to(instances.dtype) @ instances
        if tier1_head is None:
            raise ParameterError(f"The distillation {self.distillation!r} needs a tier-1 head to rank instances.")
        lowest = self.distillation == "maxmin"
        rows, of_group = ranked_rows(
            instances, log_alpha, groups, tier1_head, cam_class=self.cam_class, q=self.per_group, lowest=lowest
        )
        return self._tier2(groups, instances[rows], of_group, scores, partitions, owners)

    def _tier2(
        self, groups: Tensor, distilled: Tensor, of_group: Tensor | None, scores: Tensor, partitions: Tensor,
        owners: Tensor,
    ) -> _Tiers:  # fmt: skip
        """The second tier over distilled rows, each of the pseudo-bag `of_group`; None: row g is pseudo-bag g itself.

        All partitions cut a bag into chunks of the same sizes, so they have equally many distilled rows of every bag.
        """
        # In the published training tier 2's gradient comes after tier 1's step and is zeroed before the next one.
        seen = distilled.detach() if self.tier2_gradient == "detach" else distilled
        repeats, bags = len(partitions), int(owners[-1]) + 1
        rows = seen.reshape(repeats, -1, seen.shape[-1])
        attention = at_least_float32(self.tier2_scores(seen)).reshape(repeats, 1, -1)
        if bags > 1:
            # The rows of the first partition speak for all: row by row they belong to the same bags.
            of_row = owners if of_group is None else owners[of_group[: rows.shape[1]]]
            attention = torch.where(
                of_row == torch.arange(bags, device=owners.device)[:, None], attention, float("-inf")
            )
        beta = attention.softmax(-1)
        vectors = (beta.to(rows.dtype) @ rows).flatten(0, 1)
        # Every row has weight in its own bag alone, so the sum over bags is that weight.
        mass = beta.sum(1).flatten()
        if of_group is not None:
            mass = mass.new_zeros(len(groups)).index_add(0, of_group, mass)
        return _Tiers(vectors, groups, scores, partitions, mass, owners)


class _Tiers(NamedTuple):
    """Bags of one pass: vectors [r * b, e], pseudo-bags [r * g, e], scores [n], partitions [r, n], tier-2 mass [r * g].

    `owners` [g] is the bag of every pseudo-bag of a partition.
    """

    vectors: Tensor
    groups: Tensor
    scores: Tensor
    partitions: Tensor
    mass: Tensor
    owners: Tensor

    def attention(self) -> Tensor:
        """alpha_i beta_{g(i)}, averaged over the partitions, [n]."""
        count = len(self.groups) // len(self.partitions)
        alpha = spread_scores(self.scores, self.partitions, count).softmax(-1)
        return self.mass @ alpha / len(self.partitions)
