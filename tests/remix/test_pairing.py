"""Who meets whom: strictly by urgency, reproducibly, and with the drift it causes said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pams_mil.errors import ConfigError, ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.remix.pairing import Pair, Pairing, rule_for

BRACS = ClassHierarchy.load("bracs")
targets_lists = st.lists(st.integers(0, BRACS.num_classes() - 1), min_size=1, max_size=40)


def pairing(targets, **options):
    return Pairing(BRACS, [f"s{i}" for i in range(len(targets))], targets, **options)


@given(targets=targets_lists, seed=st.integers(0, 99), epoch=st.integers(0, 5))
@settings(max_examples=40)
def test_urgent_label_pairs_are_strict_and_ordered_at_every_level(targets, seed, epoch):
    policy = pairing(targets, rule="urgent_label", probability=1.0, seed=seed)
    ranks = BRACS.ranks()[targets]
    for slide in range(len(targets)):
        pair = policy.draw(slide, epoch)
        if pair is None:
            assert len(set(ranks)) == 1
            continue
        assert slide in (pair.a, pair.b)
        assert ranks[pair.a] > ranks[pair.b]
        for level in range(BRACS.num_levels):
            lifted = BRACS.ranks(level)[BRACS.lift(targets, level)]
            assert lifted[pair.a] >= lifted[pair.b]


@given(targets=targets_lists, rule=st.sampled_from(["same_class", "any", "urgent_label"]))
@settings(max_examples=40)
def test_partners_are_exactly_those_the_rule_allows(targets, rule):
    policy = pairing(targets, rule=rule, probability=1.0)
    ranks = BRACS.ranks()[targets]
    for slide in range(len(targets)):
        allowed = {
            "same_class": [o for o in range(len(targets)) if targets[o] == targets[slide]],
            "any": [o for o in range(len(targets)) if o != slide],
            "urgent_label": [o for o in range(len(targets)) if ranks[o] != ranks[slide]],
        }[rule]
        assert sorted(policy.partners(slide)) == allowed
        pair = policy.draw(slide, 0)
        assert pair is None if not allowed else (pair.a if pair.b == slide else pair.b) in allowed
        if rule != "urgent_label" and pair is not None:
            assert pair.a == slide


@given(
    slides=st.lists(st.tuples(st.integers(0, BRACS.num_classes() - 1), st.integers(0, 9)), min_size=1, max_size=40),
    own_class=st.booleans(),
    epoch=st.integers(0, 5),
)
@settings(max_examples=60)
def test_keep_label_draws_less_urgent_or_own_class_of_another_patient(slides, own_class, epoch):
    targets, patients = [target for target, _ in slides], [f"p{number}" for _, number in slides]
    policy = pairing(targets, rule="keep_label", probability=1.0, patients=patients, own_class=own_class)
    ranks = BRACS.ranks()[targets]
    for slide in range(len(slides)):
        allowed = [
            other
            for other in range(len(slides))
            if ranks[other] < ranks[slide]
            or (own_class and targets[other] == targets[slide] and patients[other] != patients[slide])
        ]
        assert sorted(policy.partners(slide)) == allowed
        pair = policy.draw(slide, epoch)
        assert (pair is None) == (not allowed)
        assert pair is None or (pair.a == slide and pair.b in allowed)
        assert all(pair is None or pair.a == slide for pair in policy.steps(slide, epoch))
    before, after = policy.class_counts(epoch)
    assert before.tolist() == after.tolist()


def test_keep_label_remixes_every_class_alike_and_partners_uniformly():
    targets = [0] * 6 + [1] * 3 + [6]
    policy = pairing(targets, rule="keep_label", probability=0.4)
    draws = [[policy.draw(slide, epoch) for epoch in range(2000)] for slide in (0, 6, 9)]
    for drawn in draws:
        assert sum(pair is not None for pair in drawn) / 2000 == pytest.approx(0.4, abs=0.04)
    partners = np.bincount([pair.b for pair in draws[2] if pair is not None], minlength=10)
    assert partners / partners.sum() == pytest.approx([1 / 9] * 9 + [0], abs=0.04)


def test_without_own_class_the_least_urgent_stay_as_they_are():
    policy = pairing([0, 0, 0, 3], rule="keep_label", probability=1.0, own_class=False)
    assert [policy.draw(slide, 0) is None for slide in range(4)] == [True, True, True, False]
    alone = pairing([0, 0, 3], rule="keep_label", probability=1.0, patients=["p", "p", "q"])
    assert alone.partners(0) == []


@pytest.mark.parametrize("rule", ["urgent_label", "keep_label"])
def test_tied_classes_never_meet(rule):
    policy = pairing([BRACS.index("FEA"), BRACS.index("ADH")], probability=1.0, rule=rule)
    assert all(policy.draw(slide, epoch) is None for slide in range(2) for epoch in range(20))


def test_a_run_chooses_among_rules_by_urgency_only():
    assert rule_for("keep_label", None) == "keep_label"
    assert rule_for("keep_label", "urgent_label") == "urgent_label"
    assert rule_for("same_class", "same_class") == "same_class"
    with pytest.raises(ConfigError, match="'keep_label', 'urgent_label', found 'keep'"):
        rule_for("keep_label", "keep")
    with pytest.raises(ConfigError, match="whose rule is 'same_class'"):
        rule_for("same_class", "keep_label")


def test_draws_depend_on_seed_epoch_and_id_and_not_on_order():
    targets = list(np.arange(40) % 7)
    ids = [f"slide {i}" for i in range(40)]
    one = Pairing(BRACS, ids, targets, seed=3)
    again = Pairing(BRACS, ids, targets, seed=3)
    assert [one.draw(i, 2) for i in range(40)] == [again.draw(i, 2) for i in reversed(range(40))][::-1]
    other_seed = [Pairing(BRACS, ids, targets, seed=4).draw(i, 2) for i in range(40)]
    assert [one.draw(i, 2) for i in range(40)] != other_seed
    assert [one.draw(i, 2) for i in range(40)] != [one.draw(i, 3) for i in range(40)]
    assert one.generator(0, 1).initial_seed() == again.generator(0, 1).initial_seed()
    assert len({one.generator(i, e).initial_seed() for i in range(40) for e in range(5)}) == 200


def test_probability_is_met_and_partners_are_uniform():
    policy = pairing([0] * 4 + [1, 5, 6], rule="urgent_label", probability=0.3)
    draws = [policy.draw(0, epoch) for epoch in range(3000)]
    partners = [pair.a for pair in draws if pair is not None]
    assert len(partners) / 3000 == pytest.approx(0.3, abs=0.03)
    assert np.bincount(partners, minlength=7)[4:] / len(partners) == pytest.approx([1 / 3] * 3, abs=0.05)
    assert pairing([0, 6], probability=0.0).draw(0, 0) is None


def test_replace_and_add():
    targets = [0, 0, 3, 6]
    replace, add = (pairing(targets, rule="urgent_label", probability=1.0, mode=mode) for mode in ("replace", "add"))
    for slide in range(4):
        (only,) = replace.steps(slide, 0)
        first, second = add.steps(slide, 0)
        assert only == second
        assert only is not None
        assert first is None
    before, after = add.class_counts(0)
    assert after.sum() == 2 * before.sum()


def test_class_counts_stay_unless_the_urgent_label_is_taken():
    targets = list(np.arange(70) % 7)
    before, after = pairing(targets, probability=0.5).class_counts(epoch=1)
    assert after.tolist() == before.tolist()
    before, after = pairing(targets, rule="urgent_label", probability=0.5).class_counts(epoch=1)
    assert before.sum() == after.sum() == 70
    assert np.dot(after, np.arange(7)) > np.dot(before, np.arange(7))
    before, after = pairing([0, 0, 3, 6], rule="urgent_label", probability=1.0).class_counts(0)
    assert (before[0], after[0]) == (2, 0)  # the least urgent class is trained away


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"probability": 1.5}, "1.5"),
        ({"rule": "outrank"}, "urgent_label"),
        ({"mode": "swap"}, "swap"),
        ({"own_class": "yes"}, "'yes'"),
        ({"patients": ["p"]}, "1 patients for 2 slides"),
    ],
)
def test_bad_options_are_refused_in_words(options, found):
    with pytest.raises(ParameterError, match=found):
        pairing([0, 1], **options)


def test_ids_and_targets_must_fit():
    with pytest.raises(ParameterError, match="one unique id"):
        Pairing(BRACS, ["a", "a"], [0, 1])
    with pytest.raises(ParameterError, match="one unique id"):
        Pairing(BRACS, ["a", "b"], [0])
    with pytest.raises(ParameterError, match="from 0 to 6"):
        Pairing(BRACS, ["a"], [7])


def test_pairs_are_plain_values():
    assert Pair(1, 2) == Pair(1, 2)
    assert hash(Pair(1, 2)) == hash(Pair(1, 2))
