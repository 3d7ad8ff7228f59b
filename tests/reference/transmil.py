"""TransMIL from its equations: tokens, landmarks and softmax rows one by one, in float64."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def softmax(row: Array) -> Array:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    return np.stack([(t - t.mean()) / math.sqrt(t.var() + 1e-5) * weight + bias for t in x])


def pseudo_inverses(matrices: list[Array], steps: int) -> list[Array]:
    """Six steps per head; the start is scaled by maxima over all heads of the bag."""
    rows = max(np.abs(a).sum(1).max() for a in matrices)
    columns = max(np.abs(a).sum(0).max() for a in matrices)
    results = []
    for a in matrices:
        z, one = a.T / (rows * columns), np.eye(len(a))
        for _ in range(steps):
            az = a @ z
            z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
        results.append(z)
    return results


def nystrom(x: Array, state: dict[str, Array], name: str, *, heads: int, landmarks: int) -> Array:
    n, e = x.shape
    length = math.ceil(n / landmarks)
    pad = landmarks * length - n
    padded = np.concatenate([np.zeros((pad, e)), x])
    qkv = padded @ state[f"{name}.qkv.weight"].T
    taps = state[f"{name}.taps"]
    width = e // heads
    q, k, v = ([qkv[:, part * e + h * width : part * e + (h + 1) * width] for h in range(heads)] for part in range(3))
    q = [part / math.sqrt(width) for part in q]
    groups = [range(j * length, (j + 1) * length) for j in range(landmarks)]
    kernels, pieces = [], []
    for h in range(heads):
        q_mean = np.stack([sum(q[h][i] for i in group) / len(group) for group in groups])
        k_mean = np.stack([sum(k[h][i] for i in group) / len(group) for group in groups])
        a1 = np.stack([softmax(k_mean @ q[h][i]) for i in range(len(padded))])
        a3 = np.stack([softmax(k[h] @ landmark) for landmark in q_mean])
        kernels.append(np.stack([softmax(k_mean @ landmark) for landmark in q_mean]))
        pieces.append((a1, a3 @ v[h]))
    merged = []
    for h, inverse in enumerate(pseudo_inverses(kernels, 6)):
        a1, distilled = pieces[h]
        out = a1 @ inverse @ distilled
        for i in range(len(padded)):
            for t, tap in enumerate(taps[h]):
                j = i + t - taps.shape[1] // 2
                if 0 <= j < len(padded):
                    out[i] += tap * v[h][j]
        merged.append(out)
    return (np.concatenate(merged, 1) @ state[f"{name}.out.weight"].T + state[f"{name}.out.bias"])[pad:]


def ppeg(x: Array, state: dict[str, Array]) -> Array:
    side = math.isqrt(len(x))
    square = x.reshape(side, side, -1)
    out = square.copy()
    for size in (7, 5, 3):
        kernel, bias = state[f"position.conv{size}.weight"][:, 0], state[f"position.conv{size}.bias"]
        around = np.pad(square, ((size // 2, size // 2), (size // 2, size // 2), (0, 0)))
        out = out + bias
        for dy in range(size):
            for dx in range(size):
                out = out + kernel[:, dy, dx] * around[dy : dy + side, dx : dx + side]
    return out.reshape(len(x), -1)


def transmil(bag: Array, state: dict[str, Array], *, heads: int, landmarks: int) -> Array:
    """Logits [c] of one bag [n, d] for the weights of our model."""
    h = np.maximum(bag @ state["projection.weight"].T + state["projection.bias"], 0)
    side = math.ceil(math.sqrt(len(h)))
    h = np.concatenate([h, h[: side * side - len(h)]])
    x = np.concatenate([state["class_token"], h])
    for layer in ("layer1", "layer2"):
        normed = layer_norm(x, state[f"{layer}.norm.weight"], state[f"{layer}.norm.bias"])
        x = x + nystrom(normed, state, f"{layer}.attention", heads=heads, landmarks=landmarks)
        if layer == "layer1":
            x = np.concatenate([x[:1], ppeg(x[1:], state)])
    z = layer_norm(x[:1], state["norm.weight"], state["norm.bias"])[0]
    return state["head.weight"] @ z + state["head.bias"]
