"""What may be said about two models: safer at equal false alarms, no worse in both, or at another operating point."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.evaluate.test_compare import two_models

from pams_mil import ClassHierarchy
from pams_mil.evaluate.compare import compare
from pams_mil.evaluate.decisions.decide import redecide
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.verdict import verdict

TREE = ClassHierarchy.load("bracs")


def sharpened(model: Predictions, name: str, weight: float = 0.5) -> Predictions:
    """A model that knows more about every slide."""
    luck = np.random.default_rng(1).random((len(model), 1))
    p = (1 - weight) * model.probabilities + weight * luck * np.eye(7)[model.target]
    p /= p.sum(1, keepdims=True)
    return replace(model, name=name, probabilities=p, predicted=p.argmax(1))


def test_another_dial_of_the_same_model_is_never_safer():
    one, _ = two_models(rows=400, patients=200)
    urgent = replace(redecide(one, "kappa=1.5"), name="urgent")
    for pair in ((one, urgent), (urgent, one)):
        sentence = verdict(compare(*pair, resamples=60))
        assert sentence.startswith("urgent operates at a different point from one: it misses")
        assert (
            f"at equal false alarms their misses cannot be told apart ({pair[1].name} − {pair[0].name}: +0.0 points, "
            "95 % interval +0.0 to +0.0, p = 1)" in sentence
        )


def test_fewer_misses_at_equal_false_alarms_are_safer_whatever_the_dials():
    one, _ = two_models(rows=400, patients=200)
    better = sharpened(one, "better")
    careless = replace(redecide(better, "kappa=0.3"), name="better")  # misses more as decided
    for candidate in (better, careless):
        sentence = verdict(compare(one, candidate, resamples=60))
        assert sentence.startswith("better is safer than one: at ")
        assert "% false alarms of both it misses urgency in" in sentence
        assert "This is about these two networks" in sentence
    back = verdict(compare(better, one, resamples=60))
    assert back.startswith("better is safer than one: at ")


def test_no_worse_in_both_is_enough_without_probabilities():
    one, _ = two_models(rows=400, patients=200)
    better = replace(sharpened(one, "better", 0.8), probabilities=None)
    sentence = verdict(compare(one, better, resamples=60))
    assert sentence.startswith("better is safer than one: it misses urgency in")
    assert "fewer false alarms" in sentence


def test_fewer_misses_with_more_false_alarms_need_probabilities():
    one, _ = two_models(rows=400, patients=200)
    urgent = replace(redecide(one, "kappa=1.5"), name="urgent", probabilities=None)
    sentence = verdict(compare(one, urgent, resamples=40))
    assert "Without the probabilities of both, they cannot be compared at equal false alarms" in sentence
    assert "is safer than" not in sentence


def test_few_patients_are_said_first_and_settle_nothing():
    one, _ = two_models(rows=200, patients=4)
    sentence = verdict(compare(one, sharpened(one, "better"), resamples=40))
    assert sentence.startswith("Only 4 patients: too few to call either model safer.")
    assert "is safer than" not in sentence


def test_a_constant_call_is_not_compared():
    one, _ = two_models(rows=200, patients=100)
    constant = replace(one, name="constant", predicted=np.full(200, 6), probabilities=np.full((200, 7), 1 / 7))
    sentence = verdict(compare(one, constant, resamples=40))
    assert sentence == "one and constant are not compared: the calls of constant carry no information."


def test_all_right_and_two_slides_give_words():
    one, two = two_models(rows=200, patients=100)
    perfect = replace(one, predicted=one.target, probabilities=np.eye(7)[one.target])
    assert "equally safe on these 200 slides: both miss 0.0 % and over-call 0.0 %" in verdict(
        compare(perfect, replace(perfect, name="again"), resamples=20)
    )
    for rows in ([0, 1], [0], [2, 9]):
        pair = (model.take(np.asarray(rows)) for model in (one, two))
        assert verdict(compare(*pair, resamples=20)).startswith(("Only ", "one and two are not compared"))


def test_the_sentence_has_the_sign_and_the_interval_of_the_table():
    """Candidate − reference in both, whoever of the two is named as the safer one."""
    one, _ = two_models(rows=300, patients=60)
    rng, signs = np.random.default_rng(5), set()
    for kappa in (0.5, 0.7, 1.4, 2.0):
        p = one.probabilities + rng.random(one.probabilities.shape) * 0.3
        other = redecide(replace(one, name="other", probabilities=p / p.sum(1, keepdims=True)), f"kappa={kappa}")
        for pair in ((one, other), (other, one)):
            comparison = compare(*pair, resamples=40)
            shown = re.search(r"(\w+) − (\w+): (\S+) points, 95 % interval (\S+) to (\S+),", verdict(comparison))
            match = comparison.matched["class"].missed
            if shown is None:  # nothing is compared
                continue
            assert (shown[1], shown[2]) == (comparison.candidate, comparison.reference)
            numbers = [float(shown[at]) for at in (3, 4, 5)]
            tables = [match, comparison.levels["class"]["missed_rate"]]
            assert any(
                numbers == pytest.approx([100 * x for x in (row.difference, *row.shown_interval)], abs=0.051)
                for row in tables
            )
            signs.add(np.sign(numbers[0]))
    assert {-1.0, 1.0} <= signs


def test_a_p_between_the_two_bars_is_explained():
    one, _ = two_models(rows=400, patients=200)
    comparison = compare(one, sharpened(one, "better"), resamples=60)
    level = list(comparison.levels)[-1]
    as_decided = {
        **comparison.levels[level],
        "missed_rate": replace(comparison.levels[level]["missed_rate"], p_value=0.9),
    }
    for p, explained in ((0.02, False), (0.04, True), (0.2, False)):
        match = replace(comparison.matched[level], missed=replace(comparison.matched[level].missed, p_value=p))
        sentence = verdict(replace(comparison, matched={level: match}, levels={level: as_decided}))
        assert ("a verdict asks two questions and takes 0.025" in sentence) == explained
        assert sentence.startswith("better is safer") == (p == 0.02)
