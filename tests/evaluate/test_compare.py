"""Comparisons of two models: paired, fair, corrected, and the verdict in words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from tests.metrics.test_reference import FIGURE_A, FIGURE_B, FIGURE_TREE
from tests.reference import metrics as reference
from tests.strategies import labels_of, predictions, random_predictions

from pams_mil import ClassHierarchy
from pams_mil.atomic import strict_json
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.compare import compare, compare_all, paired
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.verdict import verdict
from pams_mil.metrics.metric import METRICS

TREE = ClassHierarchy.load("bracs")


def figure_models() -> tuple[Predictions, Predictions]:
    """Figure 1's two models on 200 slides, paired by true class."""
    (true, a), (other, b) = labels_of(FIGURE_A), labels_of(FIGURE_B)
    assert (true == other).all()
    slides = [f"s{n}" for n in range(len(true))]
    return Predictions("A", FIGURE_TREE, slides, true, a), Predictions("B", FIGURE_TREE, slides, true, b)


def two_models(seed: int = 0, rows: int = 120, patients: int = 40) -> tuple[Predictions, Predictions]:
    """Two models of the same quality on the same slides."""
    rng = np.random.default_rng(seed)
    target, patient = rng.integers(0, 7, rows), rng.integers(0, patients, rows)
    made = [
        random_predictions(TREE, rows, patients=patients, rng=rng, name=name, target=target, patient=patient)
        for name in ("one", "two")
    ]
    return made[0], made[1]


def test_figure_1_has_no_probabilities_so_neither_model_can_be_called_safer():
    comparison = compare(*figure_models())
    found = comparison.levels["class"]
    assert found["ascc"].difference == pytest.approx(0.92725 - 0.9209167, abs=1e-6)
    assert found["severe_errors"].difference == -9
    assert found["acc"].difference == pytest.approx(-0.01)
    sentence = verdict(comparison)
    assert sentence.startswith(
        "B operates at a different point from A: it misses 4.5 points less (3.0 % against 7.5 %)"
    )
    assert "over-calls 5.5 points more (9.5 % against 4.0 %)" in sentence
    assert "cannot be compared at equal false alarms, so neither can be called safer" in sentence
    assert verdict(compare(*figure_models()[::-1])) == sentence


@settings(max_examples=10)
@given(predictions(most_rows=25))
def test_a_model_does_not_differ_from_itself(model: Predictions):
    comparison = compare(model, replace(model, name="again"), resamples=20)
    for differences in comparison.levels.values():
        for metric, d in differences.items():
            if not np.isnan(d.difference):
                assert (d.difference, d.interval) == (0, (0, 0)) or np.isnan(d.interval[0]), metric
                assert d.p_value in (1.0, None)
                assert d.better is None
    assert "equally safe" in verdict(comparison) or "are not compared" in verdict(comparison)


def test_reversing_the_pair_reverses_the_signs():
    forward, back = compare(*two_models(), resamples=300), compare(*two_models()[::-1], resamples=300)
    for level, differences in forward.levels.items():
        for metric, d in differences.items():
            mirrored = back.levels[level][metric]
            assert mirrored.difference == -d.difference
            assert (mirrored.reference, mirrored.candidate) == (d.candidate, d.reference)
            if d.p_value is not None:
                assert mirrored.p_value == pytest.approx(d.p_value, abs=0.03)


def test_a_permutation_p_value_is_small_for_a_real_difference_and_honest_for_none():
    good, _ = two_models(rows=200, patients=100)
    bad = replace(good, name="bad", predicted=np.maximum(good.predicted - 2, 0), probabilities=None)
    clear = compare(good, bad, resamples=300).levels["class"]
    assert clear["missed_rate"].p_value == 1 / 501
    assert clear["missed_rate"].better is False
    assert clear["missed_rate"].p_value > 0  # the observed labelling is one of the permutations


def test_p_values_are_uniform_when_the_models_are_alike(monkeypatch: pytest.MonkeyPatch):
    """120 comparisons of equally good models: about 5 % may fall below 0.05, and the mean is about a half."""
    from pams_mil.evaluate import compare as module

    monkeypatch.setattr(module, "SWAPS", 400)
    p_values = []
    for seed in range(120):
        one, two = (replace(model, probabilities=None) for model in two_models(seed, rows=90, patients=30))
        p_values.append(compare(one, two, resamples=2).levels["class"]["ascc"].p_value)
    assert 0.4 < np.mean(p_values) < 0.6
    assert np.mean(np.array(p_values) < 0.05) < 0.12


def test_a_swap_of_whole_patients_respects_the_clusters():
    """One patient with many slides is one coin flip: the difference cannot be significant, however many slides."""
    true, slides = np.zeros(500, dtype=int), [f"s{n}" for n in range(500)]
    patients = ["only"] * 500
    right = Predictions("right", FIGURE_TREE, slides, true, true, None, patients)
    wrong = Predictions("wrong", FIGURE_TREE, slides, true, true + 1, None, patients)
    assert compare(right, wrong, resamples=50).levels["class"]["acc"].p_value == 1.0


def test_intervals_of_differences_are_paired():
    """A candidate that only repairs a few mistakes has a narrow interval, though each model's own is wide."""
    reference, _ = two_models(rows=300, patients=300)
    reference = replace(reference, probabilities=None)
    predicted = reference.predicted.copy()
    wrong = np.flatnonzero(predicted != reference.target)[:15]
    predicted[wrong] = reference.target[wrong]
    d = compare(reference, replace(reference, name="repaired", predicted=predicted)).levels["class"]["acc"]
    assert d.difference == pytest.approx(15 / 300)
    assert d.better is True
    assert d.interval[1] - d.interval[0] < 0.06
    assert d.interval[0] > 0


def test_auc_differences_have_intervals_and_p_values():
    d = compare(*two_models(), resamples=100).levels["group"]["auc"]
    assert 0 < d.p_value <= 1
    assert d.interval[0] < d.difference < d.interval[1]


def test_holm_over_several_models():
    models = [*two_models(0), two_models(3)[0], two_models(4)[0]]
    models = [
        replace(model, name=f"m{n}", target=models[0].target, patient_ids=models[0].patient_ids, probabilities=None)
        for n, model in enumerate(models)
    ]
    found = compare_all(models, resamples=50)
    assert [c.candidate for c in found] == ["m1", "m2", "m3"]
    for metric in ("ascc", "acc", "missed_rate"):
        raw = [c.levels["class"][metric].p_value for c in found]
        corrected = [c.levels["class"][metric].adjusted_p for c in found]
        assert corrected == pytest.approx(reference.holm(raw))
    assert [c.reference for c in compare_all(models, reference=2, resamples=5)] == ["m2"] * 3
    assert compare_all(models[:1]) == []


def test_only_shared_slides_are_compared_whatever_their_order():
    one, two = two_models()
    order = np.random.default_rng(9).permutation(len(two))[:100]
    a, b, notes = paired(one, two.take(order))
    assert list(a.slide_ids) == list(b.slide_ids)
    assert (a.target == b.target).all()
    assert len(a) == 100
    assert notes == ("Compared on the 100 slides that both predict; 20 of one and 0 of two are left out.",)
    whole = compare(one.take(np.sort(order)), two.take(np.sort(order)), resamples=20)
    assert compare(one, two.take(order), resamples=20).levels == whole.levels


def test_either_file_may_know_the_patients():
    one, two = two_models()
    unknown = replace(one, patient_ids=None)
    assert compare(unknown, two, resamples=20).levels == compare(one, two, resamples=20).levels
    assert compare(one, replace(two, patient_ids=None), resamples=20).levels == compare(one, two, resamples=20).levels


def test_files_that_disagree_on_patients_are_told_apart_from_other_names_for_them():
    one, two = two_models()
    renamed = replace(two, patient_ids=[f"case {patient}" for patient in two.patient_ids])
    assert compare(one, renamed, resamples=20).notes == ()
    assert compare(one, renamed, resamples=20).levels == compare(one, two, resamples=20).levels
    merged = replace(two, patient_ids=["everybody"] * len(two))
    found = compare(one, merged, resamples=20)
    assert "put slides together as patients in different ways; those of one are used" in found.notes[0]
    assert found.levels == compare(one, two, resamples=20).levels


def test_the_verdict_does_not_claim_what_the_slides_do_not_show():
    one, two = (replace(model, probabilities=None) for model in two_models(rows=12, patients=12))
    sentence = verdict(compare(one, two, resamples=200))
    assert "is safer than" not in sentence


def verdict_on(true, *predicted):
    """What is said of a model A and a model B on slides of the paper's first figure."""
    slides = [f"s{n}" for n in range(len(true))]
    models = [Predictions(name, FIGURE_TREE, slides, true, p) for name, p in zip("AB", predicted, strict=True)]
    return verdict(compare(*models, resamples=300))


def test_the_verdict_says_when_the_fewer_mistakes_are_graver():
    """Fewer but longer misses: the model that misses less is named, and the contradiction with it."""
    true = np.full(400, 2)
    often, rarely = true.copy(), true.copy()
    often[:80], rarely[:40] = 1, 0
    sentence = verdict_on(true, often, rarely)
    assert sentence.startswith("B looks safer than A, but these slides do not settle it")
    assert "but its mistakes are graver" in sentence


def test_the_verdict_calls_mistakes_milder_only_on_evidence():
    """Misses are far rarer, but one grave miss does not show that the others' mistakes are graver."""
    true = np.full(200, 2)
    often, rarely = true.copy(), true.copy()
    often[:60], often[60], rarely[:6] = 1, 0, 1
    sentence = verdict_on(true, often, rarely)
    assert sentence.startswith("B is safer than A")
    assert "its mistakes look milder" in sentence


def test_models_that_cannot_be_compared():
    one, two = two_models()
    with pytest.raises(PredictionsError, match=r"share no slide ids.*'slide 0', 'slide 1'.*'x0'"):
        compare(one, replace(two, slide_ids=[f"x{n}" for n in range(len(two))]))
    with pytest.raises(PredictionsError, match=r"disagree on the true class of 120 slides.*labelled differently"):
        compare(one, replace(two, target=(two.target + 1) % 7))
    flat = ClassHierarchy.flat(TREE.names())
    with pytest.raises(PredictionsError, match="different class hierarchies"):
        compare(one, replace(two, hierarchy=flat))


def test_the_verdict_needs_evidence_that_it_can_show():
    """Eight false alarms against none: nobody misses urgency, so nobody is safer."""
    true = np.repeat([0, 2], 50)
    alarms = true.copy()
    alarms[:8] = 1
    sentence = verdict_on(true, alarms, true)
    assert sentence.startswith("A and B miss urgency equally often, in 0.0 % of the slides; B over-calls less")
    assert "-0.0" not in sentence


def test_without_resamples_there_are_tests_but_no_intervals():
    one, _ = two_models()
    perfect = replace(one, name="perfect", predicted=one.target)
    comparison = compare(one, perfect, resamples=0)
    missed = comparison.levels["class"]["missed_rate"]
    assert np.isnan(missed.interval).all()
    assert missed.p_value is not None
    assert verdict(comparison).startswith("perfect is safer than one")
    assert "interval" not in verdict(comparison)


def test_json_of_a_comparison_is_strict():
    one, _ = two_models()
    perfect = replace(one, name="perfect", predicted=one.target)
    read = json.loads(strict_json(compare_all([one, perfect], resamples=20)[0].to_json()), parse_constant=pytest.fail)
    assert (read["reference"], read["candidate"], read["n"]) == ("one", "perfect", 120)
    assert set(read["levels"]["class"]) <= {*METRICS, "matched"}
    asmc = read["levels"]["class"]["asmc"]
    assert asmc["candidate"] is None  # no errors
    assert asmc["difference"] is None


def test_progress_of_several_comparisons_grows_to_one():
    models = [*two_models(), replace(two_models()[1], name="three")]
    seen: list[float] = []
    compare_all(models, resamples=10, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_the_verdict_about_a_model_without_errors():
    one, _ = two_models()
    perfect = replace(one, name="perfect", predicted=one.target, probabilities=None)
    sentence = verdict(compare(one, perfect, resamples=100))
    assert sentence.startswith("perfect is safer than one: it misses urgency in 0.0 % of the slides")
    assert "AsMC" not in sentence  # how mild no mistakes are is not a number
    assert "inf" not in sentence
    assert "nan" not in sentence
