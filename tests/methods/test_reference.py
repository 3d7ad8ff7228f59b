"""Every loss equals its equation: loops over floats, random trees, ties, logits up to 50."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.strategies import samples, trees
from tests.reference import losses as reference

from pams_mil import methods
from pams_mil.methods.cross_entropy import WeightedCrossEntropy, ce_loss, weighted_ce_loss
from pams_mil.methods.ordinal import cdw_ce_loss, co2_loss, corn_loss, emd_loss, sord_loss
from pams_mil.methods.severity_aware import Oce, msce_loss, oce_loss
from pams_mil.methods.terms import alignment_loss, child_counts, margin_values
from pams_mil.methods.tree import geometry_loss, hxe_loss, hxe_matrices, soft_labels_loss, soft_target
from pams_mil.severity import loss_weight


def ours_and_loops(name, hierarchy, level, logits):
    """(our loss as a function of logits and target, the loop for one row)."""
    if name == "msce" or name.startswith("msce-"):
        options = {"alpha": 2.5, "distance": "power"} if name == "msce-power" else {}
        orientation = "literal" if name == "msce-literal" else "intended"
        M = torch.tensor(loss_weight(hierarchy, level, orientation=orientation, **options))
        literal = {"literal": orientation == "literal", **options}
        return lambda z, t: msce_loss(z, t, M), lambda z, t: reference.msce(z, t, hierarchy, level, **literal)
    if name.startswith("hxe"):
        options = {"alpha": 0.5, "normalize": name == "hxe"}
        related, weight = (torch.tensor(matrix) for matrix in hxe_matrices(hierarchy, level, **options))
        return lambda z, t: hxe_loss(z, t, related, weight), lambda z, t: reference.hxe(
            z, t, hierarchy, level, **options
        )
    if name == "soft_labels":
        soft = torch.tensor(soft_target(hierarchy, level, beta=5))
        return (
            lambda z, t: soft_labels_loss(z, t, soft),
            lambda z, t: reference.soft_labels(z, t, hierarchy, level, beta=5),
        )
    if name == "oce":
        cost = torch.tensor(Oce(miss=3.5).cost(hierarchy, level))
        return lambda z, t: oce_loss(z, t, cost), lambda z, t: reference.oce(z, t, hierarchy, level, miss=3.5)
    if name == "weighted_ce":
        given_weights = [float(number * number + 1) for number in range(hierarchy.num_classes(0))]
        weight = torch.tensor(WeightedCrossEntropy(weights=given_weights).class_weight(hierarchy, level))
        inherited = [
            given_weights[reference.ancestors(hierarchy, level, c)[0]] for c in range(hierarchy.num_classes(level))
        ]
        return lambda z, t: weighted_ce_loss(z, t, weight), lambda z, t: reference.weighted_ce(z, t, inherited)
    return {
        "ce": (ce_loss, reference.ce),
        "cdw_ce": (lambda z, t: cdw_ce_loss(z, t, alpha=1.5), lambda z, t: reference.cdw_ce(z, t, alpha=1.5)),
        "co2": (
            lambda z, t: co2_loss(z, t, lambda_margin=0.5),
            lambda z, t: reference.co2(z, t, delta=0.05, lambda_margin=0.5),
        ),
        "emd": (emd_loss, reference.emd),
        "sord": (lambda z, t: sord_loss(z, t, alpha=0.7), lambda z, t: reference.sord(z, t, alpha=0.7)),
        "corn": (corn_loss, reference.corn),
    }[name]


NAMES = [
    "ce", "weighted_ce", "msce", "msce-power", "msce-literal", "hxe", "hxe-plain", "soft_labels", "cdw_ce", "oce",
    "co2", "emd", "sord", "corn",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.data())
def test_loss_equals_loops(name, data):
    hierarchy = data.draw(trees())
    level = data.draw(st.integers(0, hierarchy.num_levels - 1))
    logits, target = data.draw(samples(hierarchy.num_classes(level)))
    ours, loops = ours_and_loops(name, hierarchy, level, logits)
    expected = torch.tensor(
        [loops(row.tolist(), int(t)) for row, t in zip(logits, target, strict=True)], dtype=torch.float64
    )
    torch.testing.assert_close(ours(logits, target), expected, rtol=1e-10, atol=1e-10)
    single = ours(logits.float(), target)
    again = torch.tensor([loops(row.tolist(), int(t)) for row, t in zip(logits.float(), target, strict=True)])
    torch.testing.assert_close(single, again, rtol=1e-5, atol=1e-5)


@given(data=st.data(), detach=st.sampled_from(["none", "fine", "coarse"]))
def test_alignment_equals_loops(data, detach):
    hierarchy = data.draw(trees().filter(lambda hierarchy: hierarchy.num_levels > 1))
    level = data.draw(st.integers(0, hierarchy.num_levels - 2))
    coarse, _ = data.draw(samples(hierarchy.num_classes(level)))
    fine, _ = data.draw(samples(hierarchy.num_classes(level + 1)))
    ours = alignment_loss(coarse, fine, child_counts(hierarchy, level), detach=detach)
    parents = hierarchy.parents(level + 1).tolist()
    loops = [reference.alignment(c.tolist(), f.tolist(), parents) for c, f in zip(coarse, fine, strict=True)]
    torch.testing.assert_close(ours, torch.tensor(loops, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    assert ours.max() <= math.log(2) + 1e-12


@given(data=st.data(), mu=st.sampled_from([0.1, 0.4, 3.0]))
def test_margin_equals_loops(data, mu):
    p, target = data.draw(samples(3, scale=10.0))
    q, row_target = data.draw(samples(3, scale=10.0, batch=5))
    row_target[2] = -1
    ours = margin_values(
        p.log_softmax(-1),
        target,
        q.log_softmax(-1).expand(4, 5, 3),
        row_target.expand(4, 5),
        margin=mu,
    )
    for i in range(4):
        pairs = [j for j in range(5) if row_target[j] != -1 and row_target[j] != target[i]]
        values = [
            reference.margin(reference.softmax(p[i].tolist()), reference.softmax(q[j].tolist()), mu=mu) for j in pairs
        ]
        expected = math.fsum(values) / len(values) if values else 0.0
        assert ours[i].item() == pytest.approx(expected, abs=1e-10)


def test_geometry_equals_loops():
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    fine = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    ours = geometry_loss(coarse, fine, (3, 2, 2)).item()
    assert ours == pytest.approx(reference.geometry(coarse.tolist(), fine.tolist(), [0, 0, 0, 1, 1, 2, 2]), abs=1e-12)


def test_every_public_loss_is_compared():
    covered = {name.split("-")[0].replace("_", "") for name in NAMES}
    public = {name.removesuffix("Loss").lower() for name in methods.__all__ if name.endswith("Loss")} - {"level"}
    assert public == covered
