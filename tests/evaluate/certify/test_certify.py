"""Certificates: the right κ, for the right patients, refused where nothing can be certified, unchanged on disk."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluate.certify.models import FLAT, TREE, model
from tests.reference import certify as reference
from tests.strategies import predictions as any_predictions

from pams_mil import ClassHierarchy
from pams_mil.errors import CertificateError, ParameterError, PredictionsError
from pams_mil.evaluate.certify import Certificate, apply_certificate, certify, certify_subgroups, monitor
from pams_mil.evaluate.certify.bounds import Guarantee
from pams_mil.evaluate.certify.make import OUT_OF_FOLD_RESERVATION, largest_kappa_below, prevalence_weights, rates
from pams_mil.evaluate.certify.miss_losses import SlideReach, boundaries, boundary_rank, rank_reach
from pams_mil.evaluate.predictions.join import join_seeds
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.kappa_path import decision_path


@given(any_predictions(most_rows=25), st.sampled_from(["case", "slide"]), st.sampled_from([0.2, 0.4, 0.6]))
@settings(max_examples=60, deadline=None)
def test_kappa_is_the_loops(found, unit, alpha):
    reach = rank_reach(decision_path(found.probabilities, found.hierarchy)).tolist()
    ranks = found.hierarchy.ranks()[found.target].tolist()
    slow = reference.smallest_kappa_on_average(reach, ranks, found.patient.tolist(), alpha, unit=unit)
    if slow is None:
        with pytest.raises(CertificateError, match="more"):
            certify(found, alpha=alpha, unit=unit)
        return
    made = certify(found, alpha=alpha, unit=unit)
    at = [
        sum(loss for loss, _ in reference.patient_losses(reach, ranks, found.patient.tolist(), kappa, unit=unit))
        for kappa in (made.kappa, slow)
    ]
    assert at[0] == pytest.approx(at[1])
    assert made.kappa <= slow


@given(any_predictions(most_rows=30), st.floats(0, 20))
@settings(max_examples=60, deadline=None)
def test_reach_by_rank_says_when_the_call_is_at_least_so_urgent(found, kappa):
    path = decision_path(found.probabilities, found.hierarchy)
    ranks = found.hierarchy.ranks()
    reach = rank_reach(path)
    assert not np.isnan(reach).any()
    called = ranks[path.calls(kappa)]
    assert ((reach <= kappa).sum(1) - 1 == called).all()
    assert (ranks[path.calls(math.inf)] == ranks.max()).all()


def test_the_largest_kappa_wins_and_each_bound_keeps_its_own():
    made = certify(model(200), alpha=0.1, at={"Malignant": 0.05, "ADH": 0.1})
    assert [bound.at for bound in made.bounds] == [None, "Malignant", "ADH"]
    assert made.kappa == max(bound.kappa for bound in made.bounds)
    alone = [certify(model(200), alpha=0.1).kappa, certify(model(200), at={"Malignant": 0.05}).kappa]
    assert [bound.kappa for bound in made.bounds[:2]] == alone


def test_a_guarantee_is_about_one_model_and_labeled_patients():
    found = model(60)
    seeds = join_seeds("method", {"0": found, "1": model(60, skill=0.1)})
    with pytest.raises(CertificateError, match="2 seeds, and a guarantee is about one model"):
        certify(seeds, alpha=0.2)
    with pytest.raises(CertificateError, match="2 seeds"):
        monitor(certify(found, alpha=0.2), seeds)
    some = replace(found, target=np.where(np.arange(len(found)) < 3, -1, found.target))
    with pytest.raises(CertificateError, match=f"3 of {len(found)} rows have no label"):
        certify(some, alpha=0.2)


def test_networks_of_several_folds_are_a_reservation_also_without_a_sidecar():
    found = model(60)
    assert not certify(found, alpha=0.2).reservations
    folds = ["0" if number % 2 else "1" for number in found.patient]
    assert certify(replace(found, tags={"fold": folds}), alpha=0.2).reservations == (OUT_OF_FOLD_RESERVATION,)
    assert not certify(replace(found, tags={"fold": ["0"] * len(found)}), alpha=0.2).reservations


def test_boundaries_are_about_the_patients_at_or_above_them():
    found = model(80)
    made = certify(found, at={"Malignant": 0.2})
    slides = SlideReach.of(found).as_unit("case")
    rank = boundary_rank(TREE, "Malignant")
    above = slides.rank >= rank
    bound = made.bounds[0]
    assert bound.n == above.sum()
    missed = slides.called(made.kappa)[above] < rank
    assert bound.observed == pytest.approx(missed.mean())
    assert (missed.sum() + 1) / (above.sum() + 1) <= 0.2
    assert {b.name: b.n for b in made.boundaries} == {
        name: int((slides.rank >= r).sum()) for name, r in boundaries(TREE)
    }  # fmt: skip


def test_names_of_boundaries():
    assert boundary_rank(TREE, "FEA") == boundary_rank(TREE, "ADH")  # tied
    assert boundaries(FLAT) == [("atypical", 1), ("malignant", 2)]
    assert ("FEA or ADH", 3) in boundaries(TREE)
    with pytest.raises(ParameterError, match="Did you mean 'Malignant'"):
        certify(model(), at={"malignant": 0.1})
    with pytest.raises(ParameterError, match="nothing can be called below it"):
        certify(model(), at={"N": 0.1})


def test_slides_given_twice_change_nothing_under_case_and_something_under_slide():
    found = model(100, seed=3)
    rows = np.concatenate([np.arange(len(found)), np.flatnonzero(found.target != found.predicted)])
    doubled = replace(found.take(rows), slide_ids=[f"d{i}" for i in range(len(rows))])
    one, two = (certify(given, alpha=0.1) for given in (found, doubled))
    assert (one.kappa, one.n, one.leading.spread) == (two.kappa, two.n, two.leading.spread)
    assert certify(found, alpha=0.1, unit="slide").kappa != certify(doubled, alpha=0.1, unit="slide").kappa


def test_a_patient_in_two_spellings_is_one_patient():
    """Counted twice, a patient would tighten the bound, and the slides of one case would be called apart."""
    found = model(100, seed=3)
    other = [one if row % 2 else f" {one.upper()} " for row, one in enumerate(found.patient_ids)]
    spelled = replace(found, patient_ids=other)
    one, two = (certify(given, alpha=0.1) for given in (found, spelled))
    assert (one.kappa, one.n, one.leading.spread) == (two.kappa, two.n, two.leading.spread)
    calls = [apply_certificate(one, found.probabilities, given.patient_ids).call for given in (found, spelled)]
    assert (calls[0] == calls[1]).all()
    withheld = [apply_certificate(one, found.probabilities, ids, incomplete=["p3-0"]).withheld
                for ids in (found.patient_ids, other)]  # fmt: skip
    assert withheld[0] == withheld[1] != frozenset()


def test_too_few_patients_are_refused_with_how_many_more_for_each_boundary():
    with pytest.raises(CertificateError) as refused:
        certify(model(30, hierarchy=FLAT), alpha=0.01, at={"malignant": 0.02, "atypical": 0.5})
    text = str(refused.value)
    assert (
        "all patients: 30 in the calibration set, which can certify 3.23 % and more; 1 % takes 99, that is 69 more"
        in text
    )
    assert "patients at or above malignant" in text
    assert "atypical" not in text


def test_one_patient_and_no_urgent_patient():
    lone = model(1, hierarchy=FLAT)
    with pytest.raises(CertificateError, match="takes 19, that is 18 more"):
        certify(lone, alpha=0.05)
    assert certify(lone, alpha=0.5).n == 1
    calm = model(40, hierarchy=FLAT, prior=[1, 0, 0])
    with pytest.raises(CertificateError, match=r"patients at or above malignant: 0 in the calibration set, .* 19 more"):
        certify(calm, at={"malignant": 0.05})
    made = certify(calm, alpha=0.05)  # nothing can be missed, so any κ will do
    assert made.kappa == 0
    assert "least urgent call meets the bound" in made.words
    assert "All calibration patients are 'benign', the least urgent class" in made.reservations[0]
    assert certify(model(40, hierarchy=FLAT), alpha=0.05).reservations == ()


def test_kappa_infinity_is_said_in_words_and_survives_the_file(tmp_path):
    blind = Predictions("m", FLAT, [f"s{i}" for i in range(30)], np.full(30, 2), np.zeros(30, int), np.eye(3)[[0] * 30])
    made = certify(blind, alpha=0.05)
    assert made.kappa == math.inf
    assert "every case is called 'malignant'" in made.words
    assert made.certified_call.missed_rate == 0
    made.write(tmp_path / "certificate.json")
    again = Certificate.load(tmp_path / "certificate.json")
    assert again.kappa == math.inf
    assert (apply_certificate(again, blind.probabilities, blind.slide_ids).call == 2).all()


def test_ties_between_classes_are_no_misses():
    tied = ClassHierarchy.flat(["low", ["a", "b"]])
    p = np.tile([0.1, 0.8, 0.1], (25, 1))
    found = Predictions("m", tied, [f"s{i}" for i in range(25)], np.full(25, 2), p.argmax(1), p)
    made = certify(found, alpha=0.05)
    assert made.kappa == SlideReach.of(found).reach[0, 1] < 1  # calling `a` is as urgent as `b`
    assert made.own_call.missed_rate == 0


def test_what_is_not_a_number_is_refused():
    p = np.tile([0.2, 0.3, 0.5], (25, 1))
    p[3, 1] = math.nan
    bad = Predictions("m", FLAT, [f"s{i}" for i in range(25)], np.full(25, 2), np.zeros(25, int), p)
    with pytest.raises(ParameterError, match="row 3"):
        certify(bad, alpha=0.1)
    with pytest.raises(PredictionsError, match="no probabilities"):
        certify(replace(bad, probabilities=None), alpha=0.1)
    for alpha in (0, 1, -0.1, math.nan, 5):
        with pytest.raises(ParameterError, match="share above 0 and below 1"):
            certify(model(), alpha=alpha)
    with pytest.raises(ParameterError, match="nothing to bound"):
        certify(model())
    with pytest.raises(ParameterError, match="unit must be one of"):
        certify(model(), alpha=0.1, unit="patient")


def test_a_prevalence_is_the_loops():
    found = model(60, hierarchy=FLAT, seed=2)
    shares = np.array([0.7, 0.2, 0.1])
    made = certify(found, alpha=0.15, prevalence=dict(zip(FLAT.names(), shares, strict=True)))
    slides = SlideReach.of(found)
    label = slides.as_unit("case").rank
    weights, worst = prevalence_weights(shares, label, FLAT.names())
    by_rank = [float(weights[label == rank][0]) for rank in range(3)]
    slow = reference.smallest_kappa_by_prevalence(
        slides.reach.tolist(), slides.rank.tolist(), slides.patient.tolist(), 0.15, by_rank
    )
    assert worst == max(by_rank)
    assert made.kappa <= slow
    assert "re-weighted to another prevalence" in made.reservations[0]
    assert made.to_json()["is_guarantee"] is False
    assert rates(slides, made.kappa, "case") == rates(slides, slow, "case")
    same = np.bincount(label) / len(label)
    unchanged = certify(found, alpha=0.15, prevalence=dict(zip(FLAT.names(), same, strict=True)))
    assert unchanged.kappa == certify(found, alpha=0.15).kappa


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prevalence": {"benign": 1.0}}, "names all classes of one level"),
        ({"prevalence": {"benign": 0.9, "atypical": 0.2, "malignant": 0.1}}, "sum to 1"),
        ({"guarantee": 0.9}, "on average"),
        ({"unit": "slide"}, "by case"),
    ],
)
def test_a_prevalence_that_cannot_be_used(change, message):
    even = {"benign": 0.8, "atypical": 0.1, "malignant": 0.1}
    with pytest.raises(ParameterError, match=message):
        certify(model(60, hierarchy=FLAT), alpha=0.2, **{"prevalence": even, **change})
    with pytest.raises(ParameterError, match=r"patient is 'malignant', .* nothing is known about them"):
        certify(model(60, hierarchy=FLAT, prior=[0.5, 0.5, 0]), alpha=0.2, prevalence=even)


@given(
    st.integers(0, 50),
    st.sampled_from(["case", "slide"]),
    st.sampled_from([0.1, 0.25, 0.5]),
)
@settings(max_examples=60, deadline=None)
def test_the_lower_end_is_the_largest_kappa_with_few_false_alarms(seed, unit, alpha):
    slides = SlideReach.of(model(25, hierarchy=FLAT, seed=seed))
    found = largest_kappa_below(slides, alpha, Guarantee(), unit)
    counted = slides.as_unit(unit)
    weight = counted.weight

    def holds(kappa):
        alarms = weight[counted.called_before(kappa) > counted.rank].sum()
        return (alarms + 1) / (weight.sum() + 1) <= alpha + 1e-12

    tried = sorted({*counted.reach.ravel().tolist(), math.inf}, reverse=True)
    slow = next((kappa for kappa in tried if holds(kappa)), None)
    assert (found is None) == (slow is None)
    if found is not None:
        assert holds(found)
        assert weight[counted.called_before(found) > counted.rank].sum() == pytest.approx(
            weight[counted.called_before(slow) > counted.rank].sum()
        )


def test_the_lower_end_is_for_the_given_prevalence_too():
    """Where nearly all patients are benign, false alarms are as frequent as among benign patients."""
    found = model(300, hierarchy=FLAT, seed=2)
    shares = {"benign": 0.9, "atypical": 0.05, "malignant": 0.05}
    made = certify(found, alpha=0.15, at={"malignant": 0.05}, prevalence=shares)
    slides = SlideReach.of(found).as_unit("case")
    weights, worst = prevalence_weights(np.array(list(shares.values())), slides.rank, FLAT.names())
    alarms = weights[slides.called_before(made.kappa_low) > slides.rank].sum()
    assert made.kappa_low < made.kappa
    assert (alarms + worst) / (weights.sum() + worst) <= 0.15


def test_the_interval_lies_between_the_two_calls_and_covers_the_truth():
    calibration, new = model(400, hierarchy=FLAT, seed=1), model(4000, hierarchy=FLAT, seed=2)
    made = certify(calibration, alpha=0.1)
    calls = apply_certificate(made, new.probabilities, new.patient_ids)
    case = SlideReach.of(new).as_unit("case").rank[new.patient]
    first = np.unique(new.patient, return_index=True)[1]
    assert (calls.low <= calls.high).all()
    assert np.mean((case > calls.high)[first]) < 0.13
    assert np.mean((case < calls.low)[first]) < 0.13
    assert made.review == pytest.approx(np.mean((calls.low < calls.high)[first]), abs=0.08)


def test_columns_say_the_case_on_every_slide():
    found = model(40, seed=5)
    made = certify(found, alpha=0.1)
    columns = apply_certificate(made, found.probabilities, found.patient_ids).columns()
    assert list(columns) == ["certified", "certified_slide", "cannot_exclude", "interval_low", "interval_high"]
    names = list(TREE.names())
    for patient in set(found.patient_ids):
        rows = [row for row, whose in enumerate(found.patient_ids) if whose == patient]
        assert len({columns["certified"][row] for row in rows}) == 1
        own = max(names.index(columns["certified_slide"][row]) for row in rows)
        assert columns["certified"][rows[0]] == names[own]
    row = columns["certified"].index("DCIS")
    assert columns["cannot_exclude"][row] == "N; PB; UDH; FEA; ADH; DCIS"
    by_slide = certify(found, alpha=0.1, unit="slide")
    calls = apply_certificate(by_slide, found.probabilities, found.patient_ids)
    assert (calls.call == calls.slide).all()


def test_nothing_is_certified_for_a_patient_of_whom_a_slide_is_missing():
    """The slide that could not be read may be the most urgent one; without it a carcinoma is certified as normal."""
    p = np.array([[0.9, 0.05, 0.05], [0.9, 0.05, 0.05], [0.1, 0.1, 0.8]])
    made = certify(model(100, hierarchy=FLAT), alpha=0.3)
    calls = apply_certificate(made, p, ["a", "b", "b"], incomplete=["b", "c"])
    columns = calls.columns()
    assert columns.pop("certified_slide") == [FLAT.names()[call] for call in calls.slide[0]]
    assert all(cells[0] and cells[1:] == ["", ""] for cells in columns.values())
    assert calls.notes[0].startswith("Nothing is certified for 2 patients of whom a slide is missing")
    by_slide = certify(model(100, hierarchy=FLAT), alpha=0.3, unit="slide")
    assert apply_certificate(by_slide, p, ["a", "b", "b"], incomplete=["b"]).notes == ()
    assert apply_certificate(made, p, ["a", "b", "b"]).withheld == frozenset()


def test_at_kappa_itself_the_calls_are_those_that_were_certified():
    """κ̂ is a corner of some patient's path; applying it must land on the same side as certifying did."""
    for seed in range(5):
        found = model(120, seed=seed)
        made = certify(found, alpha=0.08)
        calls = apply_certificate(made, found.probabilities, found.patient_ids)
        case = SlideReach.of(found).as_unit("case")
        first = np.unique(found.patient, return_index=True)[1]
        assert np.mean(calls.high[first] < case.rank) == made.leading.observed


def test_a_smaller_bound_never_has_a_smaller_kappa():
    found = model(300, seed=4)
    for unit in ("case", "slide"):
        kappas = [certify(found, alpha=alpha, unit=unit).kappa for alpha in (0.5, 0.2, 0.1, 0.05)]
        assert kappas == sorted(kappas)
        assert certify(found, alpha=0.1, unit=unit, guarantee=0.9).kappa >= kappas[2]


def test_one_certificate_per_subgroup_and_small_ones_are_refused_with_how_many_are_missing():
    found = model(120, hierarchy=FLAT)
    scanner = ["new" if number < 90 else "old" for number in found.patient]
    made = certify_subgroups(found, scanner, alpha=0.1)
    assert list(made) == ["new", "old"]
    for name, one in made.items():
        rows = np.asarray(scanner) == name
        alone = certify(found.where(rows), alpha=0.1)
        assert (one.kappa, one.n, one.calibration) == (alone.kappa, alone.n, alone.calibration)
        assert f"subgroup '{name}'" in one.notes[-1]
    with pytest.raises(
        CertificateError, match=r"1 of 2 subgroups .*'old': all patients: 30 in .* takes 49, .* 19 more"
    ):
        certify_subgroups(found, scanner, alpha=0.02)
    with pytest.raises(ParameterError, match=r"in the subgroups '[ab]' and '[ab]'"):
        certify_subgroups(
            found,
            ["a"] * (len(found) - 1) + ["b"]
            if found.patient[-1] == found.patient[-2]
            else ["b", *["a"] * (len(found) - 1)],
            alpha=0.1,
        )
    with pytest.raises(ParameterError, match="a subgroup for each"):
        certify_subgroups(found, ["a"], alpha=0.1)
