"""Sets of findings: against loops, permutations and the single-label quantities they extend."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from pams_mil import ClassHierarchy
from pams_mil.errors import HierarchyError, LabelError, ParameterError
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.predictions.findings import called_sets, headline_probabilities
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.scores import finding_scores
from pams_mil.hierarchy import hierarchy_from_json, hierarchy_to_json, parse
from pams_mil.metrics import ascc
from pams_mil.metrics.finding_sets import finding_reach, finding_weight, missed_share, set_ascc, sets_with_call
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.severity import metric_weight

NAMES = ["N", "UDH", "FEA", "ADH", "DCIS", "IC"]
TIED = ["N", "UDH", ["FEA", "ADH"], "DCIS", "IC"]
TREE = ClassHierarchy.flat(TIED, findings="several", nothing="N")
OPEN = ClassHierarchy.flat(TIED, findings="several")
seeds = st.integers(0, 2**32 - 1)


def sets_of(seed, n=20, k=5):
    draw = np.random.default_rng(seed)
    return draw.random((n, k)) < 0.4, draw.random((n, k)) < 0.4, draw.random((n, k))


def best_match(true, called, weight):
    """AsCC of one pair of sets by trying every pairing; of pairings with the least sum, any has the same sum of W."""
    nothing = len(weight) - 1
    left, right = list(np.flatnonzero(true)), list(np.flatnonzero(called))
    size = max(len(left), len(right), 1)
    left += [nothing] * (size - len(left))
    right += [nothing] * (size - len(right))
    least = min(sum(weight[t, r] for t, r in zip(left, order, strict=True)) for order in permutations(right))
    return {
        round(float(np.mean([1 / weight[t, r] for t, r in zip(left, order, strict=True)])), 12)
        for order in permutations(right)
        if abs(sum(weight[t, r] for t, r in zip(left, order, strict=True)) - least) < 1e-9
    }


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_set_ascc_is_a_least_cost_matching(seed):
    true, called, _ = sets_of(seed)
    for tree in (TREE, OPEN):
        k = len(tree.finding_classes)
        true_, called_ = (np.resize(sets, (8, k)) for sets in (true, called))
        for row, score in enumerate(set_ascc(true_, called_, tree)):
            assert round(float(score), 12) in best_match(true_[row], called_[row], finding_weight(tree))


def test_single_findings_have_the_single_label_quantities():
    single = ClassHierarchy.flat(TIED)
    weight = metric_weight(single)
    for t in range(6):
        for r in range(6):
            score = set_ascc(*(TREE.finding_matrix([NAMES[c]]) for c in (t, r)), TREE)[0]
            assert score == pytest.approx(1 / weight[t, r])
    names = np.array(NAMES)
    draw = np.random.default_rng(0)
    t, r = draw.integers(0, 6, 50), draw.integers(0, 6, 50)
    mean = set_ascc(TREE.finding_matrix(names[t]), TREE.finding_matrix(names[r]), TREE).mean()
    assert mean == pytest.approx(ascc(names[t].tolist(), names[r].tolist(), single))


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_called_sets_grow_and_losses_fall_with_kappa(seed):
    true, _, p = sets_of(seed)
    weights = np.random.default_rng(seed).uniform(0.5, 4, 5)
    tree = replace(TREE, weights=dict(zip(NAMES[1:], weights.tolist(), strict=True)))
    ranks, before, share = tree.ranks()[1:], np.zeros_like(true), np.full(len(p), 1.0)
    reach = finding_reach(p, tree)
    for kappa in (0.0, 0.1, 0.5, 1.0, 2.0, 9.0, 1e3, np.inf):
        called = reach <= kappa
        assert (called >= before).all()
        for i in range(len(p)):
            for k in range(5):
                assert called[i, k] == (p[i, k] >= 1 / (1 + kappa * weights[k]) or kappa == np.inf)
            missed = sum(weights[k] for k in range(5) if true[i, k] and not called[i, k])
            total = sum(weights[k] for k in range(5) if true[i, k])
            assert missed_share(true, called, weights)[i] == pytest.approx(missed / total if total else 0.0)
        now = missed_share(true, called, weights)
        assert (now <= share + 1e-12).all()
        for top in range(6):  # beside a call, all that is called and not beyond it, and the call itself
            beside = sets_with_call(p, np.full(len(p), top), kappa, tree)
            for i in range(len(p)):
                expected = {k for k in range(5) if called[i, k] and ranks[k] <= tree.ranks()[top]} | {top - 1} - {-1}
                assert set(np.flatnonzero(beside[i])) == expected
        before, share = called, now


def test_labels_name_sets():
    assert TREE.set_of("DCIS;UDH") == (1, 4)
    assert TREE.set_of(" UDH ; DCIS; UDH") == (1, 4)
    assert TREE.index("UDH; DCIS") == 4
    assert TREE.index("FEA; ADH") == 2  # equally urgent: the first
    assert TREE.digest != ClassHierarchy.flat(TIED).digest
    for weights, same in (({"UDH": 1}, True), ({"UDH": 2}, False)):
        tree = replace(TREE, weights=weights)
        assert (tree.digest == TREE.digest) == same
        assert hierarchy_from_json(hierarchy_to_json(tree)) == tree
    assert ClassHierarchy.flat(["a; b", "c"]).index("a; b") == 0  # one finding: labels are whole
    for label, match in (("N; UDH", "together with a finding"), ("UDH; XX", "'XX' is not a class"), (";", "names no")):
        with pytest.raises(LabelError, match=match):
            TREE.set_of(label)


def test_class_files_that_cannot_be_meant_are_refused():
    for options, match in (
        ({"nothing": "N"}, "belongs to 'findings: several'"),
        ({"findings": "several", "nothing": "UDH"}, "is less urgent"),
        ({"findings": "several", "nothing": "X"}, "not a class"),
        ({"findings": "many"}, "must be 'one'"),
        ({"weights": {"UDH": 2}}, "names 'weights', which belongs to 'findings: several'"),
        ({"findings": "several", "weights": {"XX": 2}}, "'XX', which is not a finding"),
        ({"findings": "several", "nothing": "N", "weights": {"N": 2}}, "'N', which is not a finding"),
        ({"findings": "several", "weights": {"UDH": 0}}, "weight of 'UDH'.*must be a number above 0"),
        ({"findings": "several", "weights": {"UDH": float("nan")}}, "found nan"),
    ):
        with pytest.raises(HierarchyError, match=match):
            ClassHierarchy.flat(NAMES, **options)
    with pytest.raises(HierarchyError, match="separates findings"):
        ClassHierarchy.flat(["a;b", "c"], findings="several")


def test_bad_probabilities_are_refused():
    for p in ([[0.5] * 4], [[0.5, 0.5, 0.5, 0.5, 1.1]], [[np.nan] * 5]):
        with pytest.raises(ParameterError):
            finding_reach(p, TREE)


def test_weights_are_in_the_class_file():
    text = "classes: [N, UDH, DCIS]\nfindings: several\nnothing: N\nweights: {DCIS: 2.5}"
    assert parse(text).finding_weights.tolist() == [1.0, 2.5]
    with pytest.raises(HierarchyError, match=r"weight of 'DCIS'.*number above 0.*found nan"):
        parse(text.replace("2.5", "grave"))
    with pytest.raises(HierarchyError, match="mapping from class"):
        parse(text.replace("{DCIS: 2.5}", "2"))


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_a_single_finding_is_called_as_a_single_label_is(seed):
    """With one finding besides nothing, set, decision path and headline are those of two classes."""
    tree = ClassHierarchy.flat(["N", "X"], findings="several", nothing="N")
    p = np.random.default_rng(seed).random(12)
    classes = headline_probabilities(p[:, None], tree)
    np.testing.assert_allclose(classes, np.stack([1 - p, p], axis=1), atol=1e-12)
    path = decision_path(np.stack([1 - p, p], axis=1), ClassHierarchy.flat(["N", "X"]))
    np.testing.assert_allclose(finding_reach(p[:, None], tree)[:, 0], path.reach[:, 1], rtol=1e-9)
    for kappa in (0.05, 0.4, 1.0, 3.0, 30.0):
        calls = path.calls(kappa)
        np.testing.assert_array_equal(sets_with_call(p[:, None], calls, kappa, tree)[:, 0], calls == 1)


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_the_headline_without_a_head_is_the_most_urgent_finding_of_the_set(seed):
    _, _, p = sets_of(seed)
    for tree in (TREE, replace(TREE, weights={"IC": 5.0, "UDH": 0.3})):
        path = decision_path(headline_probabilities(p, tree), tree)
        for kappa in (0.05, 0.4, 1.0, 3.0, 30.0):
            called = p >= 1 / (1 + kappa * tree.finding_weights)
            top = np.where(called, tree.ranks()[1:], 0).max(axis=1)
            np.testing.assert_array_equal(tree.ranks()[path.calls(kappa)], top)


def test_findings_of_calls_by_any_rule_are_audited():
    true, _, p = sets_of(3, n=40)
    top = headline_probabilities(p, TREE)
    target = np.array([TREE.finding_classes[row].max() if row.any() else 0 for row in map(np.flatnonzero, true)])
    for rule, kappa in (("risk with another cost", 1.0), ("kappa=3", 3.0), ("", 1.0)):
        model = Predictions(
            "m", TREE, [f"s{row}" for row in range(40)], target, top.argmax(1), top, finding_targets=true,
            finding_probabilities=p, decided_by=rule,
        )  # fmt: skip
        assert audit([model], resamples=0).models[0].findings.kappa == kappa


def test_scores_of_findings_against_loops_network_by_network():
    true, _, p = sets_of(3, n=120)
    ids, top = [f"s{row}" for row in range(60)], headline_probabilities(p, TREE)
    target = np.array(
        [TREE.finding_classes[row].max() if row.any() else 0 for row in [np.flatnonzero(r) for r in true]]
    )
    model = Predictions(
        "m", TREE, ids * 2, target, top.argmax(1), top, patient_ids=ids * 2, tags={"seed": ["0"] * 60 + ["1"] * 60},
        finding_targets=true, finding_probabilities=p,
    )  # fmt: skip
    found, called = finding_scores(model, resamples=100), called_sets(model)
    halves = (slice(0, 60), slice(60, 120))
    for k, one in enumerate(found.findings):
        assert one.slides == true[:, k].sum() // 2
        y, s = true[:, k], called[:, k]
        assert one.sensitivity.seeds == pytest.approx([s[half][y[half]].mean() for half in halves])
        assert one.specificity.seeds == pytest.approx([1 - s[half][~y[half]].mean() for half in halves])
        assert one.auc.seeds == pytest.approx([roc_auc_score(y[half], p[half, k]) for half in halves])
        assert one.auc.varied == "patients and networks"
        assert one.auc.interval[0] <= one.auc.value <= one.auc.interval[1]
    recall = 1 - missed_share(true, called, TREE.finding_weights)
    assert found.weighted_recall.seeds == pytest.approx([recall[half][true[half].any(1)].mean() for half in halves])
    assert found.set_ascc.seeds == pytest.approx([set_ascc(true, called, TREE)[half].mean() for half in halves])
