"""Eigenvectors of landmark matrices: exact where one eigenvalue dominates, where none does, and at the edges."""

from __future__ import annotations

import pytest
import torch

import pams_mil.models.kernels.deflated_eigh as module
from pams_mil.models.kernels.deflated_eigh import deflated_eigh
from pams_mil.models.kernels.pseudo_inverse import inverse_factor


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


@pytest.fixture
def precisions(monkeypatch):
    """The kinds of number that matrices are decomposed in, in the order of the calls."""
    seen, eigh = [], torch.linalg.eigh

    def spy(matrix):
        seen.append(matrix.dtype)
        return eigh(matrix)

    monkeypatch.setattr(module.torch.linalg, "eigh", spy)
    return seen


@pytest.mark.parametrize(
    ("sharpness", "precision"), [(0.02, torch.float32), (0.1, torch.float32), (1.0, torch.float64)]
)
def test_eigenvectors_rebuild_the_matrix_and_are_orthonormal(precisions, sharpness, precision):
    s = landmark_matrix(sharpness)
    values, rows = deflated_eigh(s.float())
    assert precisions == [precision]
    assert values.dtype == rows.dtype == torch.float32
    assert (values[1:] >= values[:-1]).all()
    rows = rows.double()
    assert (rows @ rows.T - torch.eye(len(s))).abs().max() < 2e-6
    assert (rows.T @ (values.double()[:, None] * rows) - s).abs().max() < 1e-6 * s.max()


@pytest.mark.parametrize("sharpness", [0.02, 0.05, 0.1])
def test_small_eigenvalues_are_far_more_exact_than_single_precision_gives_them(precisions, sharpness):
    s = landmark_matrix(sharpness).float()
    exact = torch.linalg.eigvalsh(s.double())
    found, _ = deflated_eigh(s)
    plain = torch.linalg.eigvalsh(s)
    assert precisions == [torch.float32]
    assert (found - exact).abs().max() < (plain - exact).abs().max() / 4
    assert found[-1] == exact[-1].float()


@pytest.mark.parametrize("sharpness", [0.02, 0.05, 0.1])
def test_no_trace_of_the_largest_is_left_in_the_other_eigenvectors(sharpness):
    s = landmark_matrix(sharpness).float()
    _, columns = torch.linalg.eigh(s.double())
    _, rows = deflated_eigh(s)
    assert (rows[:-1].double() @ columns[:, -1]).norm() < 2e-7


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


@pytest.mark.parametrize(
    "s",
    [
        torch.zeros(4, 4),
        torch.full((4, 4), 0.25),
        torch.full((3, 3), 0.1) + torch.eye(3) * 1e-12,
        torch.eye(5),
        torch.ones(1, 1),
        torch.block_diag(torch.full((2, 2), 0.5), torch.full((2, 2), 0.5)),
    ],
    ids=["zero", "one eigenvalue", "nearly one", "identity", "number", "two equal"],
)
def test_matrices_without_others_or_without_a_largest_are_decomposed_in_double_precision(precisions, s):
    values, rows = deflated_eigh(s)
    assert precisions == [torch.float64]
    assert torch.allclose(rows @ rows.T, torch.eye(len(s)), atol=1e-6)
    assert torch.allclose(rows.T @ (values[:, None] * rows), s, atol=1e-6)


def test_double_precision_stays_double(precisions):
    s = landmark_matrix(0.1)
    values, rows = deflated_eigh(s)
    assert precisions == [torch.float64]
    assert torch.allclose(rows.T @ (values[:, None] * rows), s, atol=1e-15)
