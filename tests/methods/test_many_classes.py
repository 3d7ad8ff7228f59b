"""MSCE by ranks: equal to the matrix form, bounded, and usable with hundreds of classes; costs that follow readers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.strategies import trees

from pams_mil import ClassHierarchy
from pams_mil.errors import ParameterError
from pams_mil.methods.severity_aware import Msce, Pams, msce_loss, rank_msce_loss
from pams_mil.severity import boundary_costs, implied_cost, loss_weight, scaled_ranks


@settings(max_examples=25, deadline=None)
@given(trees())
def test_rank_form_equals_the_matrix_form(hierarchy):
    for level in range(hierarchy.num_levels):
        size = hierarchy.num_classes(level)
        if size < 2:
            continue
        draw = torch.Generator().manual_seed(size)
        logits = torch.randn(7, size, generator=draw, dtype=torch.float64)
        target = torch.randint(size, (7,), generator=draw)
        M = torch.tensor(loss_weight(hierarchy, level, alpha=1.6, distance="rank"))
        fast = rank_msce_loss(logits, target, torch.tensor(scaled_ranks(hierarchy, level))[None], alpha=1.6)
        torch.testing.assert_close(fast, msce_loss(logits, target, M))
        module = Msce(distance="rank").level_loss(hierarchy, level)
        torch.testing.assert_close(module(logits, target), fast)


def test_the_weight_does_not_grow_with_the_number_of_classes():
    for size in (3, 30, 419):
        many = ClassHierarchy.flat([f"c{i}" for i in range(size)])
        logits = torch.full((1, size), -20.0)
        logits[0, 0] = 20.0  # sure of the least urgent class
        loss = Msce(distance="rank").level_loss(many)(logits, torch.tensor([size - 1]))
        assert float(loss) / 40 == pytest.approx(2.6, rel=1e-4)


def test_many_classes_take_ranks_by_themselves_and_hold_no_matrix():
    """At each level by itself: 419 classes by rank, their 3 groups with the paper's product."""
    many = ClassHierarchy.of(
        {group: [f"{group}{i}" for i in range(size)] for group, size in zip("abc", (9, 10, 400), strict=True)}
    )
    for method in (Msce(), Pams(), Msce(distance="rank")):
        buffers = dict(method.level_loss(many).named_buffers())
        assert sum(buffer.numel() for buffer in buffers.values()) == 419
    assert loss_weight(many).max() == pytest.approx(2.6)
    assert loss_weight(many, 0).tolist() == [[1.0, 1.0, 1.0], [1.6, 1.0, 1.0], [3.2, 1.6, 1.0]]
    few = ClassHierarchy.flat([f"c{i}" for i in range(30)])
    assert loss_weight(few)[29, 0] == pytest.approx(1.6 * 29)


def test_costs_of_boundaries_imply_their_kappa_and_keep_the_order():
    tree = ClassHierarchy.of({"benign": ["N", "PB"], "atypical": [["FEA", "ADH"]], "malignant": ["DCIS", "IC"]})
    kappas = {"FEA": 4.0, "DCIS": 9.0, "IC": 0.2}
    coarse, fine = (np.array(matrix) for matrix in boundary_costs(tree, kappas, 2.0))
    neighbors = implied_cost(fine)
    assert neighbors[2, 1] == pytest.approx(4.0)  # FEA called PB
    assert neighbors[4, 3] == pytest.approx(9.0)  # DCIS called ADH
    assert fine[5, 4] == 1  # a ratio below 1 never makes a miss cost less than a false alarm
    outranks = tree.outranks()
    assert (fine[~outranks] == 1).all()
    for r in range(6):
        column = [fine[t, r] for t in range(6) if outranks[t, r]]
        assert column == sorted(column)
    assert coarse[2, 1] == pytest.approx(fine[4, 3])
    with pytest.raises(ParameterError, match="not a class"):
        boundary_costs(tree, {"X": 2.0}, 2.0)
