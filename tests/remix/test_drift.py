"""The closed form of the remix's drift against every possible meeting, the pairing policy itself, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import calibration as reference

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.remix.drift import coarser_drift, prior_drift
from pams_mil.remix.pairing import Pairing

CRIC = [59, 101, 165, 30, 24, 21]


@st.composite
def cohorts(draw):
    """Slides per class and ranks that may tie; every class has slides."""
    counts = draw(st.lists(st.integers(1, 6), min_size=2, max_size=6))
    steps = draw(st.lists(st.booleans(), min_size=len(counts) - 1, max_size=len(counts) - 1))
    ranks = np.concatenate([[0], np.cumsum(steps)]).tolist()
    return counts, ranks


@given(cohorts(), st.floats(0, 1), st.sampled_from(["replace", "add"]))
def test_equals_letting_every_slide_meet_every_partner(cohort, probability, mode):
    counts, ranks = cohort
    targets = [label for label, count in enumerate(counts) for _ in range(count)]
    labels = np.asarray(reference.trained_on(targets, ranks, probability, mode))
    expected = (labels / labels.sum()) / (np.asarray(counts) / sum(counts))
    found = prior_drift(counts, ranks, rule="urgent_label", probability=probability, mode=mode)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert (found * counts).sum() == pytest.approx(sum(counts))


@pytest.mark.parametrize("mode", ["replace", "add"])
def test_is_what_the_pairing_policy_counts_over_many_epochs(mode):
    counts = [6, 9, 4, 3]
    tree = ClassHierarchy.flat(["a", ["b", "c"], "d"])
    targets = [label for label, count in enumerate(counts) for _ in range(count)]
    ids = [f"s{number}" for number in range(len(targets))]
    pairing = Pairing(tree, ids, targets, rule="urgent_label", probability=0.6, mode=mode, seed=3)
    trained = np.sum([pairing.class_counts(epoch)[1] for epoch in range(600)], axis=0)
    share = trained / trained.sum() / (np.asarray(counts) / sum(counts))
    expected = prior_drift(counts, tree.ranks(), rule="urgent_label", probability=0.6, mode=mode)
    np.testing.assert_allclose(share, expected, atol=0.03)  # 13,200 draws: at most 0.012 standard errors
    assert np.abs(expected - 1).max() > 0.2


def test_the_cervical_cohort_by_hand():
    """The first class loses all its remixed steps; the logits move by up to 1.21."""
    drift = prior_drift(CRIC, range(6), rule="urgent_label")
    np.testing.assert_allclose(drift, [0.50, 0.69, 1.10, 1.55, 1.62, 1.68], atol=0.005)
    assert np.log(drift[-1] / drift[0]) == pytest.approx(1.21, abs=0.005)
    two = prior_drift([3, 1], [0, 1], rule="urgent_label", probability=1.0)  # all become urgent
    assert two.tolist() == [0.0, 4.0]


@pytest.mark.parametrize("rule", ["same_class", "any", "keep_label"])
def test_rules_that_keep_the_label_do_not_drift(rule):
    tree = ClassHierarchy.flat("abc")
    targets = [0, 0, 0, 1, 1, 2]
    pairing = Pairing(tree, list("uvwxyz"), targets, rule=rule, probability=0.8)
    before, after = pairing.class_counts(epoch=0)
    assert before.tolist() == after.tolist()
    assert prior_drift(before, tree.ranks(), rule=rule, probability=0.8).tolist() == [1.0, 1.0, 1.0]


@given(cohorts(), st.floats(0, 1), st.booleans())
def test_added_bags_that_keep_their_label_count_the_slides_that_have_partners(cohort, probability, own_class):
    counts, ranks = cohort
    targets = [label for label, count in enumerate(counts) for _ in range(count)]
    labels = np.asarray(reference.trained_on_keeping_labels(targets, ranks, probability, own_class))
    expected = (labels / labels.sum()) / (np.asarray(counts) / sum(counts))
    options = {"rule": "keep_label", "probability": probability, "own_class": own_class}
    np.testing.assert_allclose(prior_drift(counts, ranks, mode="add", **options), expected, rtol=1e-12)
    assert prior_drift(counts, ranks, mode="replace", **options).tolist() == [1.0] * len(counts)


def test_without_two_ranks_nobody_meets():
    assert prior_drift([4, 5], [0, 0], rule="urgent_label").tolist() == [1.0, 1.0]
    assert prior_drift([4, 0], [0, 1], rule="urgent_label").tolist() == [1.0, 1.0]


@given(cohorts(), st.data())
def test_coarser_levels_count_the_labels_of_their_classes(cohort, data):
    counts, ranks = cohort
    cuts = data.draw(st.lists(st.booleans(), min_size=len(counts) - 1, max_size=len(counts) - 1))
    groups = np.concatenate([[0], np.cumsum(cuts)])
    targets = [label for label, count in enumerate(counts) for _ in range(count)]
    labels = np.asarray(reference.trained_on(targets, ranks, 0.5, "replace"))
    expected = np.bincount(groups, weights=labels) / np.bincount(groups, weights=counts)
    found = coarser_drift(prior_drift(counts, ranks, rule="urgent_label"), counts, groups)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_group_without_slides_takes_the_mean():
    assert coarser_drift([1.0, 2.0, 4.0], [5, 0, 0], [0, 1, 1]).tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1, 2], [0]), {}, "the rank of every class"),
        (([0, 0], [0, 1]), {}, "at least one slide"),
        (([1, -1], [0, 1]), {}, "at least one slide"),
        (([1, 1], [0, 1]), {"rule": "upward"}, "drift of the rule 'upward' is not known"),
        (([1, 1], [0, 1]), {"mode": "both"}, "found 'both' and 0.5"),
        (([1, 1], [0, 1]), {"probability": 1.5}, "found 'replace' and 1.5"),
    ],
)
def test_refusals(arguments, options, message):
    with pytest.raises(ParameterError, match=message):
        prior_drift(*arguments, **options)
