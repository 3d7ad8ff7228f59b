"""Methods of the class tree: soft labels, HXE, HAF and Hong-style alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pams_mil.arrays import AnyArray, Array
from pams_mil.errors import Count, NotNegative, ParameterError, Positive
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.cross_entropy import CrossEntropy
from pams_mil.methods.method import FinestMethod, Heads, HierarchyLoss, Method, Towers
from pams_mil.methods.objective import LevelTerm, LossFunction, Objective, checked
from pams_mil.methods.terms import AlignmentTerm, Detach, MarginTerm, child_counts
from pams_mil.severity import lca_cost

if TYPE_CHECKING:
    from pams_mil.models.core.mil_model import LevelOutput

DISCOVER = {"soft_labels": "SoftLabels", "hxe": "Hxe", "haf": "Haf", "hong": "Hong"}


def soft_labels_loss(logits: Tensor, target: Tensor, soft_target: Tensor) -> Tensor:
    """−Σ_r s[t, r] log p[r]; `soft_target` is s, `[true, class]`, rows sum to 1.

    Shapes: logits [b, c], target [b], soft_target [c, c] -> [b]

    >>> import torch
    >>> soft = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    >>> soft_labels_loss(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([1]), soft)  # ln 2
    tensor([0.6931])
    """
    logits, target = checked(logits, target)
    return -(soft_target.to(logits)[target] * logits.log_softmax(-1)).sum(-1)


def soft_target(hierarchy: ClassHierarchy, level: int = -1, *, beta: float = 10.0) -> Array:
    """s, the share of the target that each class gets, `[true, class]`.

    >>> soft_target(ClassHierarchy.load("bracs"), beta=5).round(6)[6, [6, 5, 0]].tolist()
    [0.896238, 0.073568, 0.006039]
    """
    share = np.exp(-beta * lca_cost(hierarchy, level))
    normalized: Array = share / share.sum(axis=1, keepdims=True)
    return normalized


@dataclass(frozen=True, kw_only=True)
class SoftLabels(FinestMethod):
    """Soft labels (Bertinetto et al. 2020): classes near the true one in the tree get a share of the target.

        L = −Σ_r s[t, r] log p[r],   s[t, r] ∝ exp(−β d(t, r)),   Σ_r s[t, r] = 1

    d is the height of the lowest common ancestor over the height of the tree: 0 for the class itself, 1 across the
    root. A large β is cross-entropy.

    Paper's setting: β = 5 and β = 10, on the finest level.
    Deviations: cross-entropy against s, which has the gradient of the original's divergence; averaged over bags. The
    original also divides by the number of classes (`divide_by_classes`).
    License: written from the equations; the authors' code is CC BY-NC-SA 4.0 and was not used.

    Attributes:
        beta: β, how fast the share falls with the distance in the tree.
        divide_by_classes: Divide by the number of classes as the authors' code does.
    """

    beta: Positive = 10.0  # at 0 all classes would be equally right
    divide_by_classes: bool = False

    function: ClassVar[LossFunction] = staticmethod(soft_labels_loss)

    def matrices(self, hierarchy: ClassHierarchy, level: int) -> dict[str, AnyArray]:
        """The soft targets."""
        matrix = soft_target(hierarchy, level, beta=self.beta)
        return {"soft_target": matrix / len(matrix) if self.divide_by_classes else matrix}


SoftLabelsLoss = HierarchyLoss.of(SoftLabels, "SoftLabelsLoss")


def hxe_loss(logits: Tensor, target: Tensor, related: Tensor, node_weight: Tensor) -> Tensor:
    """−Σ_h v_h log p(n_h) with v_h = λ_h − λ_{h+1}: the sum over steps, collected by node.

    `related[h, t, r]` says if leaves t and r have the same ancestor at level h; `node_weight` is v, coarsest first.

    Shapes: logits [b, c], target [b], related [H, c, c], node_weight [H] -> [b]

    >>> hierarchy = ClassHierarchy.load("bracs")
    >>> related, node_weight = hxe_matrices(hierarchy, alpha=0.5)
    >>> logits = torch.tensor([[0.10, 0.15, 0.05, 0.20, 0.10, 0.25, 0.15]]).log()
    >>> hxe_loss(logits, torch.tensor([6]), torch.tensor(related), torch.tensor(node_weight))
    tensor([0.1699])
    """
    logits, target = checked(logits, target)
    log_p = logits.log_softmax(-1)
    loss = -node_weight[-1].to(logits) * log_p.gather(-1, target[:, None])[:, 0]
    for kin, weight in zip(related[:-1], node_weight[:-1], strict=True):
        # The true leaf is always among its kin, so the sum is never empty and never log 0.
        log_node = log_p.masked_fill(~kin[target], -torch.inf).logsumexp(-1)
        loss = loss - weight.to(logits) * log_node
    return loss


def hxe_matrices(
    hierarchy: ClassHierarchy, level: int = -1, *, alpha: float = 0.1, normalize: bool = True
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.bool_]], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """`related` and `node_weight` for the tree cut at `level`."""
    levels = range(hierarchy.level(level) + 1)
    ancestor = np.stack([hierarchy.groups(number, of_level=level) for number in levels])
    step = np.exp(-alpha * (np.arange(len(levels)) + 1.0))
    if normalize:
        step /= 1.0 + sum(hierarchy.num_classes(number) * np.exp(-alpha * (number + 1)) for number in levels)
    # log p(n_h) has the factor lambda_h as the end of a step and -lambda_{h+1} as the beginning of the next.
    return ancestor[:, :, None] == ancestor[:, None, :], step - np.append(step[1:], 0.0)


@dataclass(frozen=True, kw_only=True)
class Hxe(FinestMethod):
    """HXE: hierarchical cross-entropy (Bertinetto et al. 2020), the surprise at every step from the root to the leaf.

        L = −Σ_h λ_h log p(n_h | n_{h−1}),   λ_h = exp(−α h) / Z

    n_h is the true class's ancestor at level h = 1 (coarsest) to H, n_0 the root; p(n) sums the softmax over the leaves
    below n. Finer steps weigh less. Z = Σ exp(−α depth) over all nodes of the tree with its root, or 1.

    Paper's setting: α = 0.1 and α = 0.5, on the finest level.
    Deviations: none in the value. The original fails for a batch of one and skips steps whose probability underflows to
    0; computing in log space needs neither.
    License: written from the equations; the authors' code is CC BY-NC-SA 4.0 and was not used.

    Attributes:
        alpha: α, how fast finer steps lose weight; 0 without normalization is cross-entropy.
        normalize: Divide by Z as the authors' code does.
    """

    alpha: NotNegative = 0.1
    normalize: bool = True

    function: ClassVar[LossFunction] = staticmethod(hxe_loss)

    def matrices(self, hierarchy: ClassHierarchy, level: int) -> dict[str, AnyArray]:
        """Those of the tree cut at the level."""
        related, node_weight = hxe_matrices(hierarchy, level, alpha=self.alpha, normalize=self.normalize)
        return {"related": related, "node_weight": node_weight}


HXELoss = HierarchyLoss.of(Hxe, "HXELoss")


def geometry_loss(coarse_rows: Tensor, fine_rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """−mean_g cos(W_h[g], Σ_{c in g} W_{h+1}[c] / |W_{h+1}[c]|), one value for the whole level.

    Shapes: coarse_rows [g, e], fine_rows [c, e] -> []

    >>> rows = torch.eye(3)
    >>> geometry_loss(torch.stack([rows[0] + rows[1], rows[2]]), rows, [2, 1])  # parents point as their children
    tensor(-1.)
    """
    unit = nn.functional.normalize(fine_rows, dim=-1)
    toward = torch.stack([children.sum(0) for children in torch.split(unit, list(sizes))])
    return -nn.functional.cosine_similarity(coarse_rows, toward, dim=-1).mean()


class GeometryTerm(nn.Module):
    """Sum of the geometry losses of all neighboring levels; the same value for every bag."""

    def __init__(self, hierarchy: ClassHierarchy) -> None:
        super().__init__()
        self.sizes = [child_counts(hierarchy, level) for level in range(hierarchy.num_levels - 1)]

    def forward(
        self, outputs: Sequence[LevelOutput], targets: Sequence[Tensor], weights: Tensor | None = None
    ) -> Tensor:
        """[b]; the targets are not used."""
        rows = [output.weight for output in outputs if output.weight is not None]
        if len(rows) != len(outputs):
            raise ParameterError("HAF needs the weight rows of every head, but a LevelOutput has none.")
        pairs = zip(rows[:-1], rows[1:], self.sizes, strict=True)
        value = torch.stack([geometry_loss(coarse, fine, sizes) for coarse, fine, sizes in pairs]).sum()
        return value.expand(len(outputs[0].logits))


@dataclass(frozen=True, kw_only=True)
class Haf(Method):
    """HAF: hierarchy-aware features (Garg et al. 2022). One bag feature whose heads agree along the tree.

        L = −log p_H[t] + λ_a Σ_{h<H} JS(p_h, ṗ_{h+1}) − λ_g Σ_{h<H} mean_g cos(W_h[g], Σ_{c in g} W_{h+1}[c])
            + λ_m Σ_{h<H} mean over pairs (p, q) of unlike bags of ½ [relu(μ − KL(p ‖ m)) + relu(μ − KL(q ‖ m))]

    ṗ_{h+1} is the finer level's softmax summed into the coarser classes, W_h are unit rows of a level's head and
    m = ½(p + q). The last term pushes bags of unlike coarse classes apart. With the authors' margin μ = 3 > ln 2 the
    hinge never closes, so it is μ − JS.

    Paper's setting: all weights 1. With one level only the cross-entropy remains.
    Deviations: pairs need several bags, but a step may see one. So the last 256 bags' coarse predictions are remembered
    without gradient, as part of the objective's state, and each bag is compared with its successors in the row of batch
    mates and memories, about 256 comparisons per step; pairs of the same class are skipped. On DTFD-MIL the alignment
    also covers pseudo-bags; nothing else would train their coarse heads.
    License: written from the equations; the authors' code has no license and was not used.

    Attributes:
        margin: μ, the divergence beyond which unlike bags are left alone; above ln 2 they never are.
        memory: How many past bags are remembered for pairs.
        lambda_align: λ_a, the weight of the alignment; 0 leaves it out.
        lambda_geometry: λ_g, the weight of the heads' geometry; 0 leaves it out.
        lambda_margin: λ_m, the weight of the pairs; 0 leaves them out.
    """

    margin: Positive = 3.0
    memory: Count = 256
    lambda_align: NotNegative = 1.0
    lambda_geometry: NotNegative = 1.0
    lambda_margin: NotNegative = 1.0
    towers: Towers = "shared"

    heads: ClassVar[Heads] = "normalized"
    allowed_towers: ClassVar[tuple[Towers, ...]] = ("shared",)

    def objective(self, hierarchy: ClassHierarchy) -> Objective:
        """Terms "ce" (finest level only), "alignment", "geometry" and "margin"."""
        finest, several = hierarchy.num_levels - 1, float(hierarchy.num_levels > 1)
        terms: dict[str, tuple[float, nn.Module]] = {
            "ce": (1.0, LevelTerm({finest: CrossEntropy().level_loss(hierarchy, finest)})),
            "alignment": (several * self.lambda_align, AlignmentTerm(hierarchy, tier1=True)),
            "geometry": (several * self.lambda_geometry, GeometryTerm(hierarchy)),
            "margin": (several * self.lambda_margin, MarginTerm(hierarchy, margin=self.margin, memory=self.memory)),
        }
        return Objective(terms, num_outputs=hierarchy.num_levels)


@dataclass(frozen=True, kw_only=True)
class Hong(Method):
    """Hong-style (after Hong et al. 2025): remixed bags carry the more urgent label, neighboring levels are aligned.

        L = Σ_h −log p_h[t] + λ Σ_{h<H} JS(p_h, ṗ_{h+1})

    ṗ_{h+1} is the finer level's softmax summed into the coarser classes. RandomMix adds a random τ percent of the more
    urgent bag's instances to the less urgent bag.

    Paper's setting: τ = 10 and τ = 15 (`remix_options`), λ = 1. With one level only the cross-entropy remains.
    Deviations: this is our reading. Neither code nor full text could be obtained; the original's injection of the
    predicted coarse class into the bag and its second alignment loss are left out. Tables should say "Hong-style".
    License: written from the PAMS paper's description.

    Attributes:
        lambda_align: λ, the weight of the alignment; 0 leaves it out.
        detach: The side of the alignment that receives no gradient: none, fine or coarse.
    """

    lambda_align: NotNegative = 1.0
    detach: Detach = "none"
    remix: str | None = "randommix"

    allowed_towers: ClassVar[tuple[Towers, ...]] = ("per_level", "shared")
    paper_remix_options: ClassVar[Mapping[str, Any]] = {"tau": 10}

    def objective(self, hierarchy: ClassHierarchy) -> Objective:
        """Terms "ce" and "alignment"."""
        levels = range(hierarchy.num_levels)
        ce = LevelTerm({level: CrossEntropy().level_loss(hierarchy, level) for level in levels})
        align = self.lambda_align if len(levels) > 1 else 0.0
        return Objective(
            {"ce": (1.0, ce), "alignment": (align, AlignmentTerm(hierarchy, detach=self.detach))},
            num_outputs=len(levels),
        )
