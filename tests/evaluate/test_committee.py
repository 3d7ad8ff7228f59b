"""What a committee is worth: members alone, the committee without each, and the sentences about both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from pams_mil import ClassHierarchy
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.committee import audit_committee, average
from pams_mil.evaluate.contrast import contrast_of
from pams_mil.evaluate.predictions.join import join_seeds
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.operating import OperatingCurve, operating_curve, urgency_auc

TREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])
N = 90


def model(name: str, skill: float, seed: int) -> Predictions:
    rng = np.random.default_rng(seed)
    target = np.arange(N) % 3
    logits = skill * np.eye(3)[target] + rng.normal(size=(N, 3))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    slides = [f"s{number}" for number in range(N)]
    return Predictions(
        name, TREE, slides, target, p.argmax(1), p, patient_ids=[f"p{number // 3}" for number in range(N)]
    )


MEMBERS = {"a": model("a", 1.0, 0), "b": model("b", 1.5, 1), "c": model("c", 0.1, 2)}


def test_the_mean_and_every_share_by_hand() -> None:
    whole = average("committee", list(MEMBERS.values()))
    for row in range(N):
        for label in range(3):
            mean = sum(one.probabilities[row, label] for one in MEMBERS.values()) / 3
            assert whole.probabilities[row, label] == pytest.approx(mean)
        assert whole.predicted[row] == max(range(3), key=lambda k, row=row: whole.probabilities[row, k])
    found = audit_committee(whole, MEMBERS, resamples=50)
    assert [share.name for share in found.members] == ["a", "b", "c"]
    rate, key = found.false_alarms, found.missed_key
    over = sum(int(p > t) for p, t in zip(whole.predicted, whole.target, strict=True)) / N
    assert rate == min((0.05, 0.1, 0.2, 0.3), key=lambda share: abs(share - over))

    def curve(one: Predictions) -> OperatingCurve:
        return operating_curve(one.target, one.probabilities, TREE)

    def area(one: Predictions) -> float:
        return urgency_auc(one.target, one.probabilities, TREE)

    for share in found.members:
        others = [one for name, one in MEMBERS.items() if name != share.name]
        without = replace(whole, probabilities=(others[0].probabilities + others[1].probabilities) / 2)
        for contrast, one in ((share.alone, MEMBERS[share.name]), (share.without, without), (found.scores, whole)):
            assert contrast["urgency_auc"].value == pytest.approx(area(one))
            assert contrast[key].value == pytest.approx(float(curve(one).missed_at(rate)))
        gain = share.adds["urgency_auc"]
        assert gain.difference == pytest.approx(area(whole) - area(without))
        assert gain.family == 3
        assert gain.interval[0] <= gain.difference <= gain.interval[1]
        low, high = gain.shown_interval
        assert low <= gain.interval[0] <= gain.interval[1] <= high


def test_the_sentences_name_references_and_members_and_the_json_has_all() -> None:
    committee = average("committee of 3", list(MEMBERS.values()))
    seeds = {str(number): model("plain", 0.3, 10 + number) for number in range(3)}
    single = join_seeds("plain", seeds)
    averaged = average("plain, 3 averaged", list(seeds.values()))
    result = audit([committee, single, averaged], candidate=0, resamples=50)
    assert [(one.reference, one.candidate) for one in result.comparisons] == [
        ("plain", "committee of 3"), ("plain, 3 averaged", "committee of 3"),
    ]  # fmt: skip
    found = audit_committee(
        committee, MEMBERS, recipes={"a": "in words"}, reference=single, comparisons=result.comparisons, resamples=50
    )
    first, second, last = found.sentences
    assert first.startswith("Against plain (3 networks trained alike, each by itself): urgency AUC ")
    assert "for 2 comparisons" in first
    assert "adjusted p = " in first
    assert second.startswith("Against plain, 3 averaged: urgency AUC ")
    gap = result.comparisons[0].levels["class"]["urgency_auc"]
    values = (100 * gap.candidate, 100 * gap.reference, 100 * gap.difference)
    assert "{:.1f} % against {:.1f} % ({:+.1f} points".format(*values) in first
    assert gap.varied == "patients and networks"
    assert "the best, known only afterward, is b with" in last
    most = max(found.members, key=lambda share: share.adds["urgency_auc"].difference)
    assert f"Without {most.name} it would be" in last
    content = replace(result, committee=found).to_json()["committee"]
    assert content["members"][0]["recipe"] == "in words"
    assert content["members"][0]["adds"]["missed_rate"]["family"] == 3
    assert content["at_false_alarms"] == found.false_alarms


def test_models_of_other_slides_are_not_averaged() -> None:
    first, second = MEMBERS["a"], MEMBERS["b"]
    for other in (second.take(np.arange(N)[::-1]), replace(second, probabilities=None)):
        with pytest.raises(PredictionsError, match="same slides in the same order"):
            average("mean", [first, other])


def test_one_network_against_several_takes_the_several_as_chance() -> None:
    rng = np.random.default_rng(2)
    scores, fixed, draws = rng.normal(0.7, 0.04, 4), np.array([0.8]), 3000
    shared = rng.normal(0, 0.02, draws)
    own = [[score + shared[b] + rng.normal(0, 0.01) for b in range(draws)] for score in scores]
    other = [[fixed[0] + shared[b] + rng.normal(0, 0.03) for b in range(draws)]]
    found = contrast_of(METRICS["acc"], fixed, scores, drawn=np.array(other), drawn_reference=np.array(own), units=60)
    mean = [sum(own[s][b] for s in range(4)) / 4 for b in range(draws)]
    gaps = [other[0][b] - mean[b] for b in range(draws)]
    explained = []
    for b in range(draws):
        errors = [own[s][b] - scores[s] for s in range(4)]
        explained.append(sum((e - sum(errors) / 4) ** 2 for e in errors) / 3)
    networks = sum((s - scores.mean()) ** 2 for s in scores) / 3 / 4
    patients = sum((g - sum(gaps) / draws) ** 2 for g in gaps) / (draws - 1) - sum(explained) / draws / 4
    assert found.standard_error == pytest.approx(np.sqrt(patients + networks))
    df = (patients + networks) ** 2 / (patients**2 / 59 + networks**2 / 3)
    assert found.df == pytest.approx(df)
    t = abs(0.8 - scores.mean()) / np.sqrt(patients + networks)
    assert found.p_value == pytest.approx(2 * scipy.stats.t.sf(t, df))
