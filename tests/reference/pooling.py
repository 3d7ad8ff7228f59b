"""Attention pooling, CLAM and DTFD from their equations, instance by instance, in float64."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def softmax(row: Array) -> Array:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def relu_project(bag: Array, state: dict[str, Array]) -> Array:
    bias = state.get("projection.bias", 0.0)
    return np.stack([np.maximum(state["projection.weight"] @ x + bias, 0) for x in bag])


def attention_scores(rows: Array, state: dict[str, Array], name: str, *, gated: bool = True, branch: int = 0) -> Array:
    scores = []
    for h in rows:
        inner = state[f"{name}.inner.weight"] @ h + state[f"{name}.inner.bias"]
        if gated:
            half = len(inner) // 2
            inner = np.array(
                [math.tanh(v) / (1 + math.exp(-u)) for v, u in zip(inner[:half], inner[half:], strict=True)]
            )
        else:
            inner = np.tanh(inner)
        scores.append(float(state[f"{name}.outer.weight"][branch] @ inner + state[f"{name}.outer.bias"][branch]))
    return np.array(scores)


def attention_pool(bag: Array, state: dict[str, Array], *, gated: bool = True) -> tuple[Array, Array]:
    """Logits and attention of AB-MIL or CLAM-SB."""
    rows = relu_project(bag, state)
    alpha = softmax(attention_scores(rows, state, "scores", gated=gated))
    z = sum(a * h for a, h in zip(alpha, rows, strict=True))
    return state["head.weight"] @ z + state["head.bias"], alpha


def clam_mb(bag: Array, state: dict[str, Array], classes: int) -> tuple[Array, Array]:
    """Logits and attention of CLAM-MB: every class pools by its own attention; shown by the classes' probabilities."""
    rows = relu_project(bag, state)
    alphas = [softmax(attention_scores(rows, state, "scores", branch=k)) for k in range(classes)]
    logits = []
    for k, alpha in enumerate(alphas):
        z = sum(a * h for a, h in zip(alpha, rows, strict=True))
        logits.append(float(state["head.weight"][k] @ z + state["head.bias"][k]))
    p = softmax(np.array(logits))
    return np.array(logits), sum(share * alpha for share, alpha in zip(p, alphas, strict=True))


def dtfd(
    bag: Array, groups: Array, state: dict[str, Array], *, distillation: str, q: int, cam_class: str
) -> tuple[Array, Array, Array]:
    """Slide logits, tier-1 logits [g, c] and attention [n], for the group of every instance."""
    rows = relu_project(bag, state)
    scores = attention_scores(rows, state, "tier1_scores")
    distilled, owners, tier1 = [], [], []
    alpha = np.zeros(len(bag))
    for g in range(groups.max() + 1):
        members = np.flatnonzero(groups == g)
        alpha[members] = softmax(scores[members])
        f = sum(alpha[i] * rows[i] for i in members)
        tier1.append(state["tier1_head.weight"] @ f + state["tier1_head.bias"])
        chosen = [f]
        if distillation != "afs":
            activation = {i: softmax(state["tier1_head.weight"] @ (alpha[i] * rows[i])) for i in members}
            label = int(np.argmax(tier1[-1])) if cam_class == "predicted" else len(tier1[-1]) - 1
            order = sorted(members, key=lambda i: -activation[i][label])
            chosen = [rows[i] for i in order[:q]]
            if distillation == "maxmin":
                chosen += [rows[i] for i in order[-q:]]
        distilled += chosen
        owners += [g] * len(chosen)
    beta = softmax(attention_scores(np.stack(distilled), state, "tier2_scores"))
    z = sum(b * d for b, d in zip(beta, distilled, strict=True))
    mass = np.array([sum(b for b, owner in zip(beta, owners, strict=True) if owner == g) for g in groups])
    return state["head.weight"] @ z + state["head.bias"], np.stack(tier1), alpha * mass


def clam_instance_loss(
    bag: Array,
    state: dict[str, Array],
    true: int,
    *,
    samples: int,
    classes: int,
    subtyping: bool,
    several: bool,
) -> float:
    """CLAM's clustering constraint of one bag: cross-entropy of "is evidence" for the most and least attended.

    With several branches a class's head judges what the class's own branch attends to.
    """
    rows = relu_project(bag, state)
    count = min(samples, len(bag))

    def order(head: int) -> list[int]:
        alpha = softmax(attention_scores(rows, state, "scores", branch=head if several else 0))
        return sorted(range(len(bag)), key=lambda i: (-alpha[i], i))

    def mean_loss(head: int, cases: list[tuple[int, int]]) -> float:
        total = 0.0
        for instance, label in cases:
            logits = state[f"instance_heads.{head}.weight"] @ rows[instance] + state[f"instance_heads.{head}.bias"]
            total -= math.log(softmax(logits)[label])
        return total / len(cases)

    evidence = [(i, 1) for i in order(true)[:count]] + [(i, 0) for i in order(true)[-count:]]
    loss = mean_loss(true, evidence)
    if not subtyping:
        return loss
    others = [mean_loss(head, [(i, 0) for i in order(head)[:count]]) for head in range(classes) if head != true]
    return (loss + sum(others)) / classes
