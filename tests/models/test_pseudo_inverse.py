"""The pseudo-inverse through eigenvectors is as exact as the recurrence."""

from __future__ import annotations

import pytest
import torch

from pams_mil.models.layers.nystrom_kernels import inverse_factor


def landmark_matrix(sharpness, m=96, width=16, seed=0):
    """A A^T / c of softmax attention between m landmarks."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(m, width, generator=generator, dtype=torch.float64) for _ in range(2))
    a = (sharpness * queries @ keys.T).softmax(-1)
    return a @ a.T / a.sum(0).max()


def published(s, y, steps=6):
    """g(S) Y by the recurrence itself."""
    one, r = torch.eye(len(s), dtype=s.dtype), s
    for _ in range(steps):
        q = (13 * one - 15 * r + 7 * r @ r - r @ r @ r) / 4
        y, r = q @ y, r @ q
    return y


@pytest.mark.parametrize("sharpness", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("width", [1, 16])
def test_the_pseudo_inverse_is_as_exact_as_the_published_recurrence(sharpness, width):
    for seed in range(4):
        s = landmark_matrix(sharpness, seed=seed).float()
        y = torch.randn(len(s), width, generator=torch.Generator().manual_seed(seed))
        truth = published(s.double(), y.double())
        ours = inverse_factor(s[None].requires_grad_(), y[None])[0]
        errors = [(found - truth).abs().max().item() for found in (ours.detach(), published(s, y))]
        assert errors[0] < 2 * errors[1]
