"""Building blocks against loops, at the edges, and in half precision."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import losses as reference

from pams_mil import ops

logits = st.lists(st.floats(-50, 50), min_size=2, max_size=8)


@given(logits)
def test_log_complement_equals_loops(z):
    log_p = reference.log_softmax(z)
    expected = [reference.log_sum([log_p[j] for j in range(len(z)) if j != c]) for c in range(len(z))]
    ours = ops.log_complement(torch.tensor(z, dtype=torch.float64).log_softmax(-1))
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)


def test_log_complement_where_one_minus_p_has_no_digits():
    log_p = torch.tensor([[200.0, 0.0, 0.0]]).log_softmax(-1).requires_grad_()
    complement = ops.log_complement(log_p)
    assert complement[0, 0].item() == pytest.approx(math.log(2) - 200)
    assert torch.log1p(-log_p[0, 0].exp()).isinf()  # what a direct formula gives
    complement.sum().backward()
    assert log_p.grad.isfinite().all()


def test_log_complement_of_equal_maxima():
    half = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    torch.testing.assert_close(ops.log_complement(half), half)


@given(logits, st.data())
def test_group_logsumexp_equals_sums(z, data):
    cut = data.draw(st.integers(1, len(z) - 1))
    log_p = torch.tensor(z, dtype=torch.float64).log_softmax(-1)
    p = log_p.exp()
    expected = torch.stack([p[:cut].sum(), p[cut:].sum()])
    torch.testing.assert_close(ops.group_logsumexp(log_p, [cut, len(z) - cut]).exp(), expected)


@given(logits, st.data(), st.sampled_from([0.0, 1e4, -1e4]))
def test_group_log_softmax_equals_two_steps(z, data, offset):
    cut = data.draw(st.integers(1, len(z) - 1))
    sizes = [cut, len(z) - cut]
    exact = ops.group_logsumexp(torch.tensor(z, dtype=torch.float64).log_softmax(-1), sizes)
    torch.testing.assert_close(
        ops.group_log_softmax(torch.tensor(z, dtype=torch.float64) + offset, sizes), exact, rtol=1e-9, atol=1e-9
    )
    rounded = torch.tensor(z).round()  # whole numbers survive the offset in float32
    single = ops.group_log_softmax(rounded + offset, sizes)
    double = ops.group_logsumexp(rounded.double().log_softmax(-1), sizes)
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5)


@given(logits, st.data())
def test_js_is_symmetric_and_bounded(z, data):
    other = data.draw(st.lists(st.floats(-50, 50), min_size=len(z), max_size=len(z)))
    p, q = (torch.tensor(values, dtype=torch.float64).log_softmax(-1) for values in (z, other))
    there, back = ops.js_divergence(p, q), ops.js_divergence(q, p)
    torch.testing.assert_close(there, back)
    assert -1e-12 <= there.item() <= math.log(2) + 1e-12
    assert there.item() == pytest.approx(reference.js(p.exp().tolist(), q.exp().tolist()), abs=1e-10)
    assert abs(ops.js_divergence(p, p).item()) < 1e-12


def test_js_of_distributions_without_overlap():
    p = torch.tensor([1.0, 0.0, 0.0], requires_grad=True)
    q = torch.tensor([0.0, 0.5, 0.5])
    log_p = p.log().detach().requires_grad_()
    js = ops.js_divergence(log_p, q.log())
    assert js.item() == pytest.approx(math.log(2))
    js.backward()
    assert log_p.grad.isfinite().all()


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float32),
     (torch.float64, torch.float64)],
)  # fmt: skip
def test_at_least_float32(given_dtype, expected):
    assert ops.at_least_float32(torch.zeros(1, dtype=given_dtype)).dtype == expected


def test_index_distance_follows_its_example():
    assert ops.index_distance(4, torch.zeros(1, dtype=torch.float64)).dtype == torch.float64
    assert ops.index_distance(4, torch.zeros(1))[3, 0] == 3
