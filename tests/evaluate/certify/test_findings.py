"""The guarantee on missed findings: against loops, simulated over 2,000 calibrations, and under sabotage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.reference import findings as reference

from pams_mil.errors import CertificateError, ParameterError, PredictionsError
from pams_mil.evaluate.certify import Certificate, apply_certificate, bounds, certify, monitor
from pams_mil.evaluate.certify.bounds import Guarantee, smallest_kappa
from pams_mil.evaluate.certify.miss_losses import UNITS, FindingReach, rank_reach
from pams_mil.evaluate.predictions.findings import called_sets, headline_probabilities
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.finding_sets import finding_reach, missed_share

TREE = ClassHierarchy.flat(["N", ["UDH", "ADH"], "DCIS"], findings="several", nothing="N")
WEIGHTED = replace(TREE, weights={"ADH": 0.5, "DCIS": 4.0})
CALIBRATIONS = 2000


def model(patients: int, seed: int = 0, *, own_head: bool = True) -> Predictions:
    """Patients with 1 to 3 slides of up to three findings; the head of the most urgent one errs on its own."""
    rng = np.random.default_rng(seed)
    whose = np.repeat(np.arange(patients), rng.integers(1, 4, patients))
    hard = rng.random(patients)[whose]
    present = rng.random((len(whose), 3)) < np.array([0.4, 0.25, 0.3])
    logits = (1 - hard[:, None]) * 5 * (present - 0.5) + rng.normal(0, 1, (patients, 3))[whose]
    p = 1 / (1 + np.exp(-logits - rng.normal(0, 0.5, logits.shape)))
    top = headline_probabilities(p, TREE)
    if own_head:
        noise = np.exp(rng.normal(0, 0.7, top.shape))
        top = (top + 0.02) * noise
        top /= top.sum(1, keepdims=True)
    target = np.where(present.any(1), 3 - np.argmax(present[:, ::-1], axis=1), 0)
    target = np.where((target == 2) & present[:, 0], 1, target)  # of tied findings the first
    return Predictions(
        "m", TREE, [f"s{row}" for row in range(len(whose))], target, top.argmax(1), top, [f"p{one}" for one in whose],
        finding_targets=present, finding_probabilities=p,
    )  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("own_head", [True, False])
def test_losses_and_kappa_are_those_of_the_loops(unit, own_head):
    for seed in range(6):
        tree = (TREE, WEIGHTED)[seed % 2]
        predictions = replace(model(25, seed, own_head=own_head), hierarchy=tree)
        curve = FindingReach.of(predictions).miss_losses(unit)
        own = finding_reach(predictions.finding_probabilities, tree)
        headline = rank_reach(predictions.path)
        ranks = TREE.ranks()[TREE.finding_classes].tolist()
        patients, present = predictions.patient.tolist(), predictions.finding_targets
        weights = tree.finding_weights.tolist()
        for kappa in (0.0, 0.3, 1.0, 7.0, np.inf):
            expected = reference.finding_losses(own, headline, ranks, present, patients, kappa, unit, weights)
            np.testing.assert_allclose(curve.losses(kappa), expected, atol=1e-12)
        expected = reference.smallest_kappa(own, headline, ranks, present, patients, 0.2, unit, weights)
        assert smallest_kappa(curve, 0.2, Guarantee()) == expected
        assert certify(predictions, findings=0.2, unit=unit).kappa == expected


def test_what_is_called_misses_no_more_than_the_curve_says():
    """Called sets also hold the most urgent call itself, which a larger κ may replace: the curve leaves it out."""
    predictions = replace(model(60, 3), patient_ids=None, hierarchy=WEIGHTED)  # every slide a patient
    curve = FindingReach.of(predictions).miss_losses()
    gained = 0.0
    for kappa in (0.0, 0.2, 0.7, 1.0, 1.9, 6.0, 50.0, np.inf):
        sets = called_sets(predictions, kappa)
        real = missed_share(predictions.finding_targets, sets, predictions.hierarchy.finding_weights)
        assert (real <= curve.losses(kappa) + 1e-12).all()
        gained += (curve.losses(kappa) - real).sum()
    assert gained > 0
    totals = curve.total(np.linspace(0, 20, 300))
    assert (np.diff(totals) <= 0).all()


def test_single_findings_lose_what_the_most_urgent_one_does():
    """With one finding besides nothing, the share of missed findings is missed urgency."""
    tree = ClassHierarchy.flat(["N", "X"], findings="several", nothing="N")
    rng = np.random.default_rng(5)
    y, p = rng.integers(0, 2, 60), rng.random(60)
    predictions = Predictions("m", tree, [f"s{i}" for i in range(60)], y, (p > 0.5).astype(int),
                              np.stack([1 - p, p], 1), finding_targets=(y == 1)[:, None],
                              finding_probabilities=p[:, None])  # fmt: skip
    certificate = certify(predictions, alpha=0.1, findings=0.1)
    assert len({bound.kappa for bound in certificate.bounds}) == 1


def test_the_certificate_says_what_it_bounds_and_is_kept(tmp_path):
    predictions = model(80)
    certificate = certify(predictions, alpha=0.3, findings=0.15)
    whole, findings = certificate.bounds
    assert (findings.findings, findings.n, findings.alpha, certificate.leading) == (True, 80, 0.15, whole)
    assert certificate.kappa == max(whole.kappa, findings.kappa)
    assert "At most 15 % of the findings of a patient are missed, on average" in " ".join(certificate.sentences)
    certificate.write(tmp_path / "certificate.json")
    again = Certificate.load(tmp_path / "certificate.json")
    assert again.bounds == certificate.bounds
    assert again.covers(certificate)
    weighted = certify(replace(predictions, hierarchy=WEIGHTED), findings=0.15)
    assert "of the findings of a patient, counted by weight, are missed" in " ".join(weighted.sentences)
    assert not weighted.covers(certificate)
    only = certify(predictions, findings=0.15)
    assert certificate.covers(replace(only, created=certificate.created))
    assert not only.covers(certificate)  # of all patients' urgency it says nothing
    calls = apply_certificate(
        certificate, predictions.probabilities, predictions.patient_ids, findings=predictions.finding_probabilities
    )
    sets = calls.columns()["certified_findings"]
    for cell, call, patient in zip(sets, calls.columns()["certified"], predictions.patient_ids, strict=True):
        assert call in cell.split("; ")
        assert len({s for s, one in zip(sets, predictions.patient_ids, strict=True) if one == patient}) == 1


@pytest.mark.parametrize("unit", UNITS)
def test_monitoring_counts_what_the_certified_sets_miss(unit):
    """As a reader would who goes through the column `certified_findings`."""
    certificate, new = certify(model(80), findings=0.15, unit=unit), model(40, 9)
    new = replace(
        new, patient_ids=[f"new {one}" for one in new.patient_ids], slide_ids=[f"n{s}" for s in new.slide_ids]
    )
    calls = apply_certificate(certificate, new.probabilities, new.patient_ids, findings=new.finding_probabilities)
    by_patient: dict[str, list[tuple[set[str], set[str]]]] = {}
    for cell, marks, patient in zip(
        calls.columns()["certified_findings"], new.finding_targets, new.patient_ids, strict=True
    ):
        present = {TREE.classes[k + 1] for k in np.flatnonzero(marks)}
        by_patient.setdefault(patient, []).append((present, set(cell.split("; "))))
    losses = []
    for slides in by_patient.values():
        if unit == "case":
            slides = [(set().union(*(present for present, _ in slides)), slides[0][1])]
        losses.append(np.mean([len(present - called) / len(present) if present else 0.0 for present, called in slides]))
    assert monitor(certificate, new).checks[0].observed == pytest.approx(np.mean(losses))
    counted = FindingReach.of(new).miss_losses(unit).mean(certificate.kappa)
    assert np.mean(losses) < counted  # the bound counts the most urgent call only where its own probability calls it


def test_what_cannot_be_bounded_is_refused_in_words():
    predictions = model(30)
    with pytest.raises(ParameterError, match="findings must be a share above 0"):
        certify(predictions, findings=1.5)
    with pytest.raises(CertificateError, match=r"findings of all patients: 30 in the calibration set"):
        certify(predictions, findings=0.01)
    with pytest.raises(PredictionsError, match="no probabilities of single findings"):
        certify(replace(predictions, finding_probabilities=None), findings=0.2)
    with pytest.raises(ParameterError, match="for findings"):
        certify(predictions, alpha=0.2, findings=0.2, prevalence={"N": 0.25, "UDH": 0.25, "ADH": 0.25, "DCIS": 0.25})
    one = ClassHierarchy.flat(["N", "UDH", "ADH", "DCIS"])
    with pytest.raises(ParameterError, match="one per slide"):
        certify(replace(predictions, hierarchy=one, finding_targets=None, finding_probabilities=None), findings=0.2)


def test_new_patients_are_monitored_by_the_same_share():
    certificate = certify(model(80), alpha=0.2, findings=0.1)
    fine = monitor(certificate, replace(model(200, 7), slide_ids=[f"n{i}" for i in range(len(model(200, 7)))],
                                        patient_ids=[f"new {one}" for one in model(200, 7).patient_ids]))  # fmt: skip
    assert [check.state for check in fine.checks] == ["no evidence against it"] * 2
    worse = model(200, 8)
    blind = replace(worse, slide_ids=[f"n{i}" for i in range(len(worse))],
                    patient_ids=[f"new {one}" for one in worse.patient_ids],
                    finding_probabilities=worse.finding_probabilities * 0.02)  # fmt: skip
    checks = monitor(certificate, blind).checks
    assert checks[0].state == "no evidence against it"  # the most urgent call is as it was
    assert checks[1].state == "violated"
    assert checks[1].to_json()["findings"] is True


def realized(n: int, alpha: float, guarantee: Guarantee, unit: str, *, slides_as_patients: bool = False) -> np.ndarray:
    """True shares of missed findings of systems that were calibrated on n patients of one world."""
    world = FindingReach.of(model(20_000, 1))
    risk = world.miss_losses(unit)
    start = np.flatnonzero(np.diff(world.patient, prepend=-1))
    lengths = np.bincount(world.patient)
    rng, shares = np.random.default_rng(n), []
    for _ in range(CALIBRATIONS):
        chosen = rng.integers(0, len(start), n)
        whose = np.repeat(np.arange(n), lengths[chosen])
        rows = np.arange(len(whose)) - np.repeat(np.cumsum(lengths[chosen]) - lengths[chosen], lengths[chosen])
        rows += start[chosen][whose]
        whose = np.arange(len(rows)) if slides_as_patients else whose
        curve = FindingReach(world.reach[rows], world.present[rows], whose, world.weights).miss_losses(unit)
        kappa = smallest_kappa(curve, alpha, guarantee)
        shares.append(risk.mean(kappa))
    return np.asarray(shares)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_simulated_on_average_at_most_alpha_of_the_findings_are_missed(unit, monkeypatch):
    shares = realized(80, 0.1, Guarantee(), unit)
    error = 3 * shares.std() / np.sqrt(len(shares))
    assert 0.1 - 2.5 / 81 <= shares.mean() <= 0.1 + error
    # Sabotage: the next patient is forgotten.
    monkeypatch.setattr(bounds, "expected_bound", lambda total, curve: np.asarray(total) / curve.mass)
    forgotten = realized(80, 0.1, Guarantee(), unit)
    assert forgotten.mean() > 0.1 + 3 * forgotten.std() / np.sqrt(len(forgotten))


@pytest.mark.slow
def test_simulated_with_confidence_the_bound_is_rarely_exceeded(monkeypatch):
    shares = realized(80, 0.2, Guarantee(0.9), "case")
    limit = 0.1 + 3 * np.sqrt(0.09 / len(shares))
    assert (shares > 0.2).mean() <= limit
    # Sabotage: the mean of the calibration patients is taken for the risk.
    monkeypatch.setattr(bounds, "hoeffding_bentkus", lambda mean, n, alpha: np.where(np.asarray(mean) <= alpha, 0, 1))
    assert (realized(80, 0.2, Guarantee(0.9), "case") > 0.2).mean() > limit
