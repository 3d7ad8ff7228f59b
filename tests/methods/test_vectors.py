"""Numbers worked out by hand or printed in the decisions: each to 1e-6."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pams_mil import ops
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods import (
    CDWCELoss,
    CO2Loss,
    EMDLoss,
    HXELoss,
    MSCELoss,
    OCELoss,
    SoftLabelsLoss,
    SORDLoss,
    WeightedCELoss,
)
from pams_mil.methods.cross_entropy import WeightedCrossEntropy
from pams_mil.methods.ordinal import corn_log_probabilities, corn_loss
from pams_mil.methods.severity_aware import Msce
from pams_mil.methods.tree import hxe_matrices, soft_target

THREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])
BRACS = ClassHierarchy.load("bracs")
P3 = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).log()
P7 = torch.tensor([[0.10, 0.15, 0.05, 0.20, 0.10, 0.25, 0.15]], dtype=torch.float64).log()


def close(value, expected):
    assert float(value) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("target", "expected"), [(0, 0.3566749), (1, 2.2854018), (2, 6.1248763)])
def test_msce_intended(target, expected):
    close(MSCELoss(THREE)(P3, torch.tensor([target])), expected)


@pytest.mark.parametrize(("target", "expected"), [(0, 0.4779444), (1, 1.7060042), (2, 2.3025851)])
def test_msce_literal(target, expected):
    close(MSCELoss(THREE, orientation="literal")(P3, torch.tensor([target])), expected)


def test_msce_rows_of_the_most_urgent_class():
    strict = ClassHierarchy.flat(BRACS.names())
    np.testing.assert_allclose(Msce().severity(strict)[6], [9.6, 8, 6.4, 4.8, 3.2, 1.6, 1])
    power = Msce(distance="power").severity(strict)[6]
    np.testing.assert_allclose(power, [16.78, 10.49, 6.55, 4.10, 2.56, 1.6, 1], atol=0.005)
    np.testing.assert_allclose(Msce().severity(BRACS, 0), [[1, 1, 1], [1.6, 1, 1], [3.2, 1.6, 1]])


def test_msce_ties_are_not_severe():
    M = Msce().severity(BRACS)
    fea, adh = BRACS.index("FEA"), BRACS.index("ADH")
    assert M[adh, fea] == M[fea, adh] == 1.0
    assert M[adh, 0] == pytest.approx(1.6 * 4)


@pytest.mark.parametrize(
    ("alpha", "normalize", "expected"),
    [(0.1, True, 0.1727920), (0.5, True, 0.1699033), (0.1, False, 1.6321292), (0.5, False, 0.9165853)],
)
def test_hxe(alpha, normalize, expected):
    close(HXELoss(BRACS, alpha=alpha, normalize=normalize)(P7, torch.tensor([6])), expected)


@pytest.mark.parametrize(("alpha", "coarse", "fine"), [(0.1, 0.095794, 0.086678), (0.5, 0.112430, 0.068192)])
def test_hxe_step_weights(alpha, coarse, fine):
    _, node_weight = hxe_matrices(BRACS, alpha=alpha)
    np.testing.assert_allclose([node_weight.sum(), node_weight[1]], [coarse, fine], atol=1e-6)


@pytest.mark.parametrize(
    ("beta", "true", "own", "sibling", "other"),
    [
        (5, 6, 0.896238, 0.073568, 0.006039),
        (5, 0, 0.839545, 0.068914, 0.005657),
        (10, 6, 0.993083, 0.006691, 4.51e-5),
        (10, 0, 0.986527, 0.006647, 4.48e-5),
    ],
)
def test_soft_labels(beta, true, own, sibling, other):
    row = soft_target(BRACS, beta=beta)[true]
    near, far = (5, 0) if true == 6 else (1, 6)
    np.testing.assert_allclose(row[[true, near, far]], [own, sibling, other], atol=1e-6)
    expected = -float((torch.tensor(row) * P7[0]).sum())
    close(SoftLabelsLoss(BRACS, beta=beta)(P7, torch.tensor([true])), expected)
    close(SoftLabelsLoss(BRACS, beta=beta, divide_by_classes=True)(P7, torch.tensor([true])), expected / 7)


def test_cdw_ce():
    # -(1 * ln 0.8 + 4 * ln 0.9) for true 0; -(1 * ln 0.3 + 1 * ln 0.9) for true 1
    close(CDWCELoss(THREE)(P3, torch.tensor([0])), 0.6445856)
    close(CDWCELoss(THREE)(P3, torch.tensor([1])), 1.3093333)
    close(CDWCELoss(THREE, alpha=1.0)(P3, torch.tensor([0])), 0.4338645)


def test_oce():
    # true 1, over mild to urgent: −ln 0.2 − 2 ln(1 − 0.7) − 1 ln(1 − 0.1); a miss of one step costs 2 alarms of one
    close(OCELoss(THREE)(P3, torch.tensor([1])), 4.1227440)
    close(OCELoss(THREE, miss=1.0)(P3, torch.tensor([0])), 0.3566749 + 0.2231436 + 2 * 0.1053605)
    # Costs of 0 beside the diagonal are cross-entropy.
    close(OCELoss(THREE, costs=[np.eye(3).tolist()])(P3, torch.tensor([2])), 2.3025851)


def test_co2():
    # true 1: -ln 0.2 + λ (k=0 < t: 0.05 + 0.7 - 0.2; k=1 >= t: relu(0.05 + 0.1 - 0.2) = 0)
    close(CO2Loss(THREE)(P3, torch.tensor([1])), 1.6094379 + 0.01 * 0.55)
    close(CO2Loss(THREE, lambda_margin=1.0)(P3, torch.tensor([0])), 0.3566749)
    # At the peak itself only its fall is asked for; the printed k <= t would add 0.05 + 0.7 - 0.2 here.
    close(CO2Loss(THREE, lambda_margin=1.0, delta=0.0)(P3, torch.tensor([0])), 0.3566749)


def test_emd():
    close(EMDLoss(THREE)(P3, torch.tensor([0])), 0.3**2 + 0.1**2)
    close(EMDLoss(THREE)(P3, torch.tensor([2])), 0.7**2 + 0.9**2)


def test_sord():
    # softmax(0, -1, -2) = 0.665241, 0.244728, 0.090031
    close(SORDLoss(THREE)(P3, torch.tensor([0])), 0.665241 * 0.3566749 + 0.244728 * 1.6094379 + 0.090031 * 2.3025851)


def test_corn():
    z = torch.tensor([[1.0, -1.0, 123.0]], dtype=torch.float64)
    yes = 0.7310585786
    expected = [1 - yes, yes * yes, yes * (1 - yes)]  # σ(-1) = 1 - σ(1)
    np.testing.assert_allclose(corn_log_probabilities(z).exp()[0], expected, atol=1e-9)
    for target, p in enumerate(expected):
        close(corn_loss(z, torch.tensor([target])), -np.log(p))


@pytest.mark.parametrize(("ratios", "fine"), [((2, 3, 5), [2, 2, 2, 3, 3, 5, 5]), ((1, 2, 7), [1, 1, 1, 2, 2, 7, 7])])
def test_weighted_ce_is_inherited(ratios, fine):
    weight = WeightedCrossEntropy(weights=ratios).class_weight(BRACS)
    np.testing.assert_allclose(weight, np.asarray(fine) / np.mean(fine))
    loss = WeightedCELoss(BRACS, weights=ratios)
    close(loss(P7, torch.tensor([6])), weight[6] * -np.log(0.15))


def test_weighted_ce_by_priority():
    flat = ClassHierarchy.load("cifar10")
    np.testing.assert_allclose(WeightedCrossEntropy().class_weight(flat) * 5.5, np.arange(1, 11))
    tied = WeightedCrossEntropy().class_weight(BRACS)
    assert tied[3] == tied[4] < tied[5]


def test_jensen_shannon():
    p, q = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    close(ops.js_divergence(p.log(), q.log()), 0.1251006)
