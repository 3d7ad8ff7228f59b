"""The rows of the paper's tables: which method with which settings, under which label.

An arm is a name for people, a method with options as a run config takes it, and the key under which the paper
prints its numbers. Settings that the paper states are taken from it; all arms share everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class Arm:
    """One row: what it is called, what it trains, and where the paper prints it."""

    label: str
    method: dict[str, Any] = field(default_factory=dict)
    printed: str = ""


def main_arms(hierarchy: ClassHierarchy) -> list[Arm]:
    """All methods of the paper's main table, PAMS last."""
    groups = hierarchy.num_classes(0)
    return [
        Arm("CE", {"name": "ce"}, "ce"),
        Arm("Weighted CE (2:3:5)", {"name": "weighted_ce", "weights": stretch((2, 3, 5), groups)}, "weighted_ce 2:3:5"),
        Arm("Weighted CE (1:2:7)", {"name": "weighted_ce", "weights": stretch((1, 2, 7), groups)}, "weighted_ce 1:2:7"),
        Arm("Chang et al.", {"name": "chang"}, "chang"),
        Arm("HXE (α = 0.1)", {"name": "hxe", "alpha": 0.1}, "hxe 0.1"),
        Arm("HXE (α = 0.5)", {"name": "hxe", "alpha": 0.5}, "hxe 0.5"),
        Arm("Soft labels (β = 5)", {"name": "soft_labels", "beta": 5.0}, "soft_labels 5"),
        Arm("Soft labels (β = 10)", {"name": "soft_labels", "beta": 10.0}, "soft_labels 10"),
        Arm("HAF", {"name": "haf"}, "haf"),
        Arm("Hong-style (τ = 10)", {"name": "hong", "remix_options": {"tau": 10}}, "hong 10"),
        Arm("Hong-style (τ = 15)", {"name": "hong", "remix_options": {"tau": 15}}, "hong 15"),
        Arm("CDW-CE", {"name": "cdw_ce"}, "cdw_ce"),
        Arm("PAMS", {"name": "pams"}, "pams"),
    ]


def ablation_arms() -> list[Arm]:
    """PAMS and PAMS without each of its parts; every ablation is a parameter value."""
    full: dict[str, Any] = {"name": "pams"}
    without_remix: dict[str, Any] = {"remix": None, "remix_options": {}}
    return [
        Arm("PAMS", full),
        Arm("without MSCE", {**full, "alpha": None}, "without MSCE"),
        Arm("without alignment", {**full, "lambda_align": 0.0}, "without alignment"),
        Arm("without SFR", {**full, **without_remix}, "without SFR"),
        Arm("all ablated", {**full, "alpha": None, "lambda_align": 0.0, **without_remix}, "all ablated"),
    ]


def remix_arms() -> list[Arm]:
    """Cross-entropy at the finest level with each remix, SFR last."""
    names = {"none": "no remix", "remix": "ReMix", "pseudomix": "PseudoMix", "randommix": "RandomMix", "sfr": "SFR"}
    return [
        Arm(label, {"name": "ce", "towers": "finest", "remix": None if name == "none" else name}, name)
        for name, label in names.items()
    ]


def loss_weight_arms(alphas: Sequence[float] = (1.2, 1.6, 2.0)) -> list[Arm]:
    """(λ₁, λ₂) x α."""
    pairs = ((1.0, 1.0), (1.0, 2.0), (2.0, 1.0))
    return [
        Arm(f"λ = ({a:g}, {b:g}), α = {alpha:g}", {"name": "pams", "lambda_msce": a, "lambda_align": b, "alpha": alpha})
        for a, b in pairs
        for alpha in alphas
    ]


def cluster_arms(sizes: Sequence[int] = (5, 8, 11), iterations: Sequence[int] = (2, 4, 6, 8)) -> list[Arm]:
    """L x k at T = 6 (k a third, half and three quarters of L), then T at (L, k) = (11, 6)."""
    # 0.55 rather than a half: it gives the k = 6 of L = 11 that PAMS has by default.
    grid = [(L, max(1, round(share * L)), 6) for L in sizes for share in (0.33, 0.55, 0.75)]
    grid += [(11, 6, T) for T in iterations]
    return [
        Arm(
            f"L = {L}, k = {k}, T = {T}",
            {"name": "pams", "remix_options": {"clusters": L, "top_k": k, "iterations": T}},
        )
        for L, k, T in dict.fromkeys(grid)
    ]


def stretch(ratio: Sequence[float], groups: int) -> list[float]:
    """The paper's three weights as given, or interpolated over another number of groups.

    >>> stretch((2, 3, 5), 3), stretch((2, 3, 5), 5)
    ([2.0, 3.0, 5.0], [2.0, 2.5, 3.0, 4.0, 5.0])
    """
    places = np.linspace(0, len(ratio) - 1, groups) if groups > 1 else np.zeros(1)
    return [float(weight) for weight in np.interp(places, np.arange(len(ratio)), ratio)]
