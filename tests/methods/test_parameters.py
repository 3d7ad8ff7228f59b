"""Bad parameters are refused with the name, the allowed range and what was found."""

from __future__ import annotations

import re

import pytest
import torch

from pams_mil import discover, methods
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods import MSCELoss
from pams_mil.methods.severity_aware import Msce
from pams_mil.methods.terms import alignment_loss

THREE = ClassHierarchy.flat(["a", "b", "c"])
BRACS = ClassHierarchy.load("bracs")

BAD = [
    ("pams", {"alpha": 1.0}, "alpha must be a finite number above 1, found 1.0"),
    ("pams", {"alpha": float("nan")}, "alpha must be a finite number above 1, found nan"),
    ("pams", {"alpha": "1.6"}, "alpha must be a finite number above 1, found '1.6'"),
    ("pams", {"lambda_msce": -1}, "lambda_msce must be a finite number of at least 0, found -1"),
    ("pams", {"lambda_align": -0.5}, "lambda_align must be a finite number of at least 0, found -0.5"),
    ("pams", {"lambda_msce": 0, "lambda_align": 0}, "lambda_msce and lambda_align must not both be 0"),
    ("pams", {"distance": "square"}, "distance must be one of 'auto', 'product', 'power', 'rank', found 'square'"),
    ("pams", {"orientation": "other"}, "orientation must be one of 'intended', 'literal', found 'other'"),
    ("pams", {"detach": "both"}, "detach must be one of 'none', 'fine', 'coarse', found 'both'"),
    ("pams", {"towers": "finest"}, "towers must be one of 'per_level', 'shared', found 'finest'"),
    ("pams", {"costs": [[[1, -1], [1, 1]]]}, "cost must hold finite numbers of at least 0"),
    ("pams", {"remix": 3}, "remix must be the name of a remix or none, found 3"),
    ("pams", {"remix": None, "remix_options": {"top_k": 3}}, "remix_options need a remix, found {'top_k': 3}"),
    ("hong", {"lambda_align": -1}, "lambda_align must be a finite number of at least 0, found -1"),
    ("hong", {"detach": "x"}, "detach must be one of"),
    ("haf", {"margin": 0}, "margin must be a finite number above 0, found 0"),
    ("haf", {"memory": 0}, "memory must be a whole number of at least 1, found 0"),
    ("haf", {"memory": 2.5}, "memory must be a whole number of at least 1, found 2.5"),
    ("haf", {"lambda_geometry": -1}, "lambda_geometry must be a finite number of at least 0, found -1"),
    ("haf", {"towers": "per_level"}, "towers must be one of 'shared', found 'per_level'"),
    ("hxe", {"alpha": -0.1}, "alpha must be a finite number of at least 0, found -0.1"),
    ("soft_labels", {"beta": 0}, "beta must be a finite number above 0, found 0"),
    ("cdw_ce", {"alpha": 0}, "alpha must be a finite number above 0, found 0"),
    ("cdw_ce", {"alpha": True}, "alpha must be a finite number above 0, found True"),
    ("co2", {"delta": -1}, "delta must be a finite number of at least 0, found -1"),
    ("co2", {"lambda_margin": float("inf")}, "lambda_margin must be a finite number of at least 0, found inf"),
    ("oce", {"miss": 0}, "miss must be a finite number above 0, found 0"),
    ("oce", {"costs": 3}, "costs must be a list with one matrix or none per level, found 3"),
    ("sord", {"alpha": -2}, "alpha must be a finite number above 0, found -2"),
    ("weighted_ce", {"weights": "urgency"}, "weights must be 'priority' or a list of numbers above 0"),
    ("weighted_ce", {"weights": []}, "weights must be 'priority' or a list of numbers above 0, found []"),
    ("weighted_ce", {"weights": [1, 0, 2]}, "weights[1] must be a finite number above 0, found 0"),
]


@pytest.mark.parametrize(("name", "parameters", "message"), BAD)
def test_refused_at_construction(name, parameters, message):
    with pytest.raises(ParameterError, match=re.escape(message)):
        discover.load("methods", name)(**parameters)


def test_refused_when_the_tree_is_known():
    with pytest.raises(ParameterError, match=re.escape("weights must hold one number per class of the coarsest")):
        discover.load("methods", "weighted_ce")(weights=[1, 2]).objective(BRACS)
    with pytest.raises(ParameterError, match="costs must hold one entry per level, 2, found 1"):
        discover.load("methods", "pams")(costs=[None]).objective(BRACS)
    with pytest.raises(ParameterError, match=re.escape("cost must be a 3 x 3 matrix [true, predicted]")):
        discover.load("methods", "pams")(costs=[[[1, 1], [1, 1]], None]).objective(BRACS)
    with pytest.raises(ParameterError, match="nothing to minimize"):
        discover.load("methods", "pams")(lambda_msce=0).objective(THREE)


@pytest.mark.parametrize("name", sorted(name for name in methods.__all__ if name.endswith("Loss")))
def test_bad_input_of_losses(name):
    if name == "LevelLoss":
        return
    loss = getattr(methods, name)(THREE)
    good, target = torch.zeros(2, 3), torch.tensor([0, 1])
    for logits, labels, message in [
        (good, torch.tensor([0, 3]), "target must hold class indices from 0 to 2, found 0 to 3"),
        (good, torch.tensor([-1, 2]), "target must hold class indices from 0 to 2, found -1 to 2"),
        (good, torch.tensor([0]), "target must be one int64 class index per row of logits, [2], found [1]"),
        (good, torch.tensor([0.0, 1.0]), "found [2] of torch.float32"),
        (torch.zeros(2, 4), target, "logits must have one column per class of the level, 3, found 4"),
        (torch.zeros(3), target, "logits must be floating-point numbers [batch, classes], found [3]"),
        (torch.zeros(2, 3, dtype=torch.int64), target, "of torch.int64"),
    ]:
        with pytest.raises(ParameterError, match=re.escape(message)):
            loss(logits, labels)


def test_bad_arguments_of_losses():
    for arguments, message in [
        ({"level": 1}, "level must be a whole number from -1 to 0"),
        ({"level": "fine"}, "level must be a whole number from -1 to 0 for the hierarchy 'classes', found 'fine'"),
        ({"reduction": "average"}, "reduction must be one of 'mean', 'sum', 'none', found 'average'"),
        ({"alpah": 2.0}, "MSCELoss has no parameter 'alpah'. Did you mean 'alpha'?"),
        ({"remix": "sfr"}, "MSCELoss has no parameter 'remix'"),
        ({"alpha": 0.5}, "alpha must be a finite number above 1, found 0.5"),
        ({"costs": [[[1, 1], [1, 1]]]}, "cost must be a 3 x 3 matrix [true, predicted], found shape (2, 2)"),
        ({"costs": [[[1, 1, 1], [1, -1, 1], [1, 1, 1]]]}, "cost must hold finite numbers of at least 0"),
        ({"costs": [[[1, 1], [1]]]}, "cost must be a matrix [true, predicted] of numbers"),
        ({"costs": [5]}, "matrix [true, predicted], found shape ()"),
        ({"costs": 5}, "costs must be a list with one matrix or none per level, found 5"),
    ]:
        with pytest.raises(ParameterError, match=re.escape(message)):
            MSCELoss(THREE, **arguments)
    with pytest.raises(ParameterError, match="has no parameter 'towers'"):
        methods.CDWCELoss(THREE, towers="finest")


def test_alignment_needs_matching_groups():
    with pytest.raises(ParameterError, match=re.escape("sizes must name 3 groups of 7 classes, found [3, 4]")):
        alignment_loss(torch.zeros(1, 3), torch.zeros(1, 7), [3, 4])


def test_objectives_need_an_output_per_level():
    objective = discover.load("methods", "ce")().objective(BRACS)
    with pytest.raises(ParameterError, match=re.escape("needs outputs and targets of 2 level(s), found 1 and 2")):
        objective([None], [None, None])


def test_remix_options_keep_the_papers_values():
    pams = discover.load("methods", "pams")
    assert pams().remix_options == {"clusters": 11, "iterations": 6, "top_k": 6, "init": "quantile"}
    assert pams(remix_options={"top_k": 4}).remix_options["clusters"] == 11
    assert pams(remix=None).remix_options == {}
    assert pams(remix="randommix").remix_options == {}
    assert discover.load("methods", "hong")(remix_options={"tau": 15}).remix_options == {"tau": 15}


def test_costs_replace_severity_level_by_level():
    cost = [[1, 1, 1], [5, 1, 1], [9, 2, 1]]
    objective = discover.load("methods", "pams")(costs=[cost, None]).objective(BRACS)
    losses = objective.terms["msce"].losses
    assert losses["0"].severity.tolist() == cost
    assert losses["1"].severity[6, 0] == pytest.approx(9.6)
    assert Msce(costs=[cost]).severity(THREE).tolist() == cost
