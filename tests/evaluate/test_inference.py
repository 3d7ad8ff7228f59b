"""Resamples, swaps and variances of the one core, against plain loops over patients, seeds and folds."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluate.test_compare import two_models
from tests.strategies import predictions, random_predictions

from pams_mil import ClassHierarchy
from pams_mil.atomic import strict_json
from pams_mil.evaluate import contrasts, decision_path, estimate, join_seeds
from pams_mil.evaluate.compare import compare, with_matched
from pams_mil.evaluate.contrast import Contrast, adjusted, contrast_of
from pams_mil.evaluate.inference import Drawn, MethodPair, Networks, units_of
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.scores import score
from pams_mil.metrics import operating_curve, urgency_auc
from pams_mil.metrics.metric import LABEL_METRICS, METRICS, LabelMetrics
from pams_mil.metrics.slides import Curve, Slides

TREE = ClassHierarchy.load("bracs")


def once(key: str, slides: Slides) -> float:
    """A metric with every slide counted once."""
    return float(METRICS[key](slides)(np.ones((1, len(slides))))[0])


def values(model: Predictions) -> dict[str, float]:
    """Some metrics by their own functions."""
    found = {
        "urgency_auc": urgency_auc(model.target, model.probabilities, model.hierarchy),
        "missed_at_20": float(operating_curve(model.target, model.probabilities, model.hierarchy).missed_at(0.2)),
    }
    size = model.hierarchy.num_classes()
    counts = np.zeros((size, size), dtype=np.int64)
    np.add.at(counts, (model.target, model.predicted), 1)
    table = LabelMetrics(model.hierarchy)(counts)
    return {**found, **{key: float(table[key]) for key in ("missed_rate", "ascc", "cohen_kappa")}}


KEYS = ("urgency_auc", "missed_at_20", "missed_rate", "ascc", "cohen_kappa")


@settings(max_examples=30)
@given(predictions(most_rows=20), st.integers(0, 2**32 - 1))
def test_a_resample_is_the_file_with_those_patients(model: Predictions, seed: int):
    units, unit = units_of(model)
    weights = units.draws(seed, 3)
    assert (weights.sum(1) == model.num_patients).all()
    found = Networks(model, drawn=Drawn(unit, units, weights)).drawn([METRICS[key] for key in KEYS])
    for draw in range(3):
        repeated = model.take(np.repeat(np.arange(len(model)), weights[draw][unit].astype(int)))
        for key, value in values(repeated).items():
            assert found[key][0, draw] == pytest.approx(value, nan_ok=True, abs=1e-9)


def test_a_swap_exchanges_calls_and_ranks_of_whole_patients():
    """Ranks on each model's own curve: squeezing one model's probabilities changes nothing."""
    one, two = two_models(rows=60, patients=20)
    pair = MethodPair.of(one, two, resamples=0, swaps=30)
    found = pair.swapped([METRICS[key] for key in ("missed_rate", "urgency_auc")])
    for draw, coin in enumerate(pair.coins):
        side = coin[one.patient] == 1
        first = replace(one, predicted=np.where(side, two.predicted, one.predicted))
        second = replace(two, predicted=np.where(side, one.predicted, two.predicted))
        gap = values(second)["missed_rate"] - values(first)["missed_rate"]
        assert found["missed_rate"][draw] == pytest.approx(gap, abs=1e-12)
    flat = two.probabilities ** (1 / 3)  # a temperature of 3
    binary = ClassHierarchy.flat(["benign", "malignant"])
    rng = np.random.default_rng(0)
    p, q = rng.random(80), rng.random(80)
    target = (rng.random(80) < p).astype(int)
    slides = [f"s{n}" for n in range(80)]

    def model(name, score):
        return Predictions(name, binary, slides, target, (score > 0.5).astype(int), np.column_stack([1 - score, score]))

    def odds(score):
        return 1 / (1 + ((1 - score) / score) ** (1 / 3))

    plain = MethodPair.of(model("p", p), model("q", q), resamples=0, swaps=40)
    scaled = MethodPair.of(model("p", p), model("q", odds(q)), resamples=0, swaps=40)
    reading = [METRICS["urgency_auc"]]
    assert plain.swapped(reading)["urgency_auc"] == pytest.approx(scaled.swapped(reading)["urgency_auc"], abs=1e-12)
    assert flat.shape == two.probabilities.shape


def seeded(name: str, seeds: int, rng: np.random.Generator, *, rows: int = 60, folds: int = 1) -> Predictions:
    target, patient = np.arange(rows) % 7, np.arange(rows) // 2
    runs = {}
    for seed in range(seeds):
        run = random_predictions(TREE, rows, patients=rows // 2, rng=rng, name=name, target=target, patient=patient)
        if folds > 1:
            run = replace(run, tags={"fold": [str(p % folds) for p in patient]})
        runs[str(seed)] = run
    return join_seeds(name, runs)


def test_networks_are_a_source_of_variance_as_the_equations_say():
    rng = np.random.default_rng(3)
    a, b = seeded("a", 3, rng), seeded("b", 4, rng)
    key = "urgency_auc"
    found = contrasts(a, b, [METRICS[key]], resamples=400, seed=5)[key]
    units, _ = units_of(a, seed=5)
    weights = units.draws(5, 400)
    by_seed, drawn = {}, {}
    for model in (a, b):
        runs = [model.where(model.seed_number == seed) for seed in range(model.num_seeds)]
        by_seed[model.name] = [urgency_auc(run.target, run.probabilities, TREE) for run in runs]
        drawn[model.name] = [
            [urgency_auc(run.target, run.probabilities, TREE, weights=w[run.patient]) for w in weights] for run in runs
        ]
    means = {name: np.mean(scores) for name, scores in by_seed.items()}
    assert found.estimate == pytest.approx(means["b"] - means["a"])
    patients = np.var(np.mean(drawn["b"], axis=0) - np.mean(drawn["a"], axis=0), ddof=1)
    shared, parts = patients, []
    for name, scores in by_seed.items():
        count = len(scores)
        moved = np.array(drawn[name]) - np.array(scores)[:, None]
        tau = np.mean([np.var(moved[:, draw], ddof=1) for draw in range(400)])
        shared -= tau / count
        parts.append((np.var(scores, ddof=1) / count, count - 1))
    shared = max(0.0, shared)
    total = shared + sum(part for part, _ in parts)
    df = total**2 / (shared**2 / (len(units) - 1) + sum(part**2 / free for part, free in parts))
    assert found.standard_error == pytest.approx(math.sqrt(total))
    assert found.df == pytest.approx(df)
    assert found.p_value == pytest.approx(2 * scipy.stats.t.sf(abs(found.estimate) / math.sqrt(total), df))
    low, high = scipy.stats.t.interval(0.95, df, loc=found.estimate, scale=math.sqrt(total))
    assert found.interval == pytest.approx((low, high))
    assert found.varied == "patients and networks"


def test_without_anything_shared_between_networks_the_test_is_welchs():
    """If patients explain nothing that networks share, all that is left is Welch's t-test between seeds."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.7, 0.02, 5), rng.normal(0.75, 0.05, 4)
    noise = [scores[:, None] + rng.normal(0, 0.01, (len(scores), 4000)) for scores in (a, b)]
    found = contrast_of(METRICS["acc"], b, a, drawn=noise[1], drawn_reference=noise[0], units=100)
    welch = scipy.stats.ttest_ind(b, a, equal_var=False)
    assert found.p_value == pytest.approx(welch.pvalue, rel=0.02)
    assert found.df == pytest.approx(welch.df, rel=0.02)


def test_one_seed_each_is_about_these_networks_and_is_tested_by_swaps():
    one, two = two_models(rows=80, patients=12)
    comparison = compare(one, two, resamples=50)
    assert not comparison.about_methods
    assert "these two networks" in comparison.subject
    assert comparison.levels["class"]["acc"].varied == "patients"
    rng = np.random.default_rng(1)
    methods = compare(seeded("a", 2, rng), seeded("b", 3, rng), resamples=50)
    assert methods.about_methods
    assert methods.subject == "Chance: patients and networks (3 and 2 seeds)."
    assert methods.n == 60
    mixed = compare(seeded("a", 1, rng), seeded("b", 3, rng), resamples=50)
    assert mixed.levels["class"]["acc"].varied == "patients and networks"
    assert mixed.subject == (
        "Chance: patients and the 3 seeds of b; of a there is one, and other seeds of it may differ."
    )


def test_few_patients_are_swapped_in_every_way():
    one, two = two_models(rows=30, patients=5)
    pair = MethodPair.of(one, two, resamples=0, swaps=2000)
    assert len(pair.coins) == 2**5 - 1
    p = pair.contrasts([METRICS["acc"]])["acc"].p_value
    gaps = np.array([np.sum((two.predicted == two.target)[one.patient == k]) for k in range(5)], dtype=float)
    gaps -= [np.sum((one.predicted == one.target)[one.patient == k]) for k in range(5)]
    exact = scipy.stats.permutation_test(
        (gaps,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert p == pytest.approx(exact.pvalue)


def test_curves_are_per_network_and_a_fold_without_urgency_is_left_out_and_named():
    rng = np.random.default_rng(2)
    model = seeded("a", 2, rng, folds=3)
    parts = [model.where(model.network == one) for one in np.unique(model.network)]
    aucs = [urgency_auc(part.target, part.probabilities, TREE) for part in parts]
    sizes = [len(part) for part in parts]
    found = estimate(model, [METRICS["urgency_auc"]], resamples=0)["urgency_auc"]
    assert found.estimate == pytest.approx(np.average(aucs, weights=sizes))
    assert len(found.seeds) == 2
    target = np.where(np.array([fold == "1" for fold in model.folds]), 2, model.target)
    dull = replace(model, target=target)
    assert score(dull, resamples=0)[-1].left_out == ("seed 0, fold 1", "seed 1, fold 1")
    kept = [n for n, part in enumerate(parts) if part.folds[0] != "1"]
    found = estimate(dull, [METRICS["urgency_auc"]], resamples=20)["urgency_auc"]
    assert found.estimate == pytest.approx(np.average([aucs[n] for n in kept], weights=[sizes[n] for n in kept]))
    note = compare(dull, seeded_like(dull), resamples=20).notes[-1]
    assert "left out of its mean: 'seed 0, fold 1', 'seed 1, fold 1'" in note


def seeded_like(model: Predictions) -> Predictions:
    p = np.random.default_rng(9).dirichlet(np.ones(7), len(model))
    return replace(model, name="other", probabilities=p, predicted=p.argmax(1))


def test_patients_are_drawn_within_folds():
    model = seeded("a", 1, np.random.default_rng(0), folds=3)
    units, unit = units_of(model)
    weights = units.draws(0, 50)
    for fold in range(3):
        members = np.unique(unit[model.fold_number == fold])
        assert (weights[:, members].sum(1) == len(members)).all()


def test_the_matched_point_is_the_mean_of_both_and_the_same_from_either_side():
    one, two = two_models()
    ranks = TREE.ranks()
    own = [float(np.mean(ranks[m.predicted] > ranks[m.target])) for m in (one, two)]
    there, back = (compare(*pair, resamples=60).matched["class"] for pair in ((one, two), (two, one)))
    assert there.at_false_alarms == back.at_false_alarms == pytest.approx(np.mean(own))
    for model, value in ((one, there.missed.reference), (two, there.missed.candidate)):
        curve = operating_curve(model.target, model.probabilities, TREE)
        assert value == pytest.approx(float(curve.missed_at(np.mean(own))))
    assert back.missed.difference == pytest.approx(-there.missed.difference)
    assert back.missed.interval == pytest.approx([-x for x in there.missed.interval[::-1]])
    pair = MethodPair.of(one, two, resamples=0, swaps=10)
    _, found = with_matched(pair, METRICS.values())
    assert found.missed.reference == pytest.approx(there.missed.reference)
    assert np.isnan(found.missed.interval).all()


def test_another_operating_point_of_the_same_model_is_no_difference():
    one, _ = two_models(rows=300, patients=100)
    urgent = replace(one, name="urgent", predicted=decision_path(one.probabilities, TREE).calls(5.0))
    comparison = compare(one, urgent, resamples=100)
    found, contrasts = comparison.matched["class"], comparison.levels["class"]
    metrics = ("urgency_auc", "severity_auc", "cost_at_2", "cost_at_10")
    for gap in (found.missed, found.false_alarms, *(contrasts[key] for key in metrics)):
        assert gap.difference == 0
        assert gap.interval == (0, 0)
        assert gap.p_value == 1
    assert found.candidate_cheaper == ()


def test_a_better_model_is_better_at_equal_false_alarms():
    one, _ = two_models(rows=300, patients=150)
    sharper = 0.5 * one.probabilities + 0.5 * np.eye(7)[one.target] * np.random.default_rng(0).random((300, 1))
    better = replace(one, name="better", probabilities=sharper / sharper.sum(1, keepdims=True))
    comparison = compare(one, better, resamples=200)
    found = comparison.matched["class"]
    assert found.missed.difference < 0
    assert found.missed.interval[1] < 0
    assert found.missed.p_value == pytest.approx(1 / 501)
    assert found.false_alarms.difference < 0
    assert comparison.levels["class"]["urgency_auc"].difference > 0
    assert found.candidate_cheaper[0][0] <= 1 <= found.candidate_cheaper[-1][1]


def test_coarse_levels_are_those_of_the_one_answer():
    """At every κ the coarse curve counts the finest call, lifted; summed probabilities would call otherwise."""
    one, _ = two_models(rows=200, patients=60)
    path = decision_path(one.probabilities, TREE)
    points = score(one, resamples=0)[0].points
    ranks, lifted = TREE.ranks(0), TREE.lift(one.target, 0)
    for kappa in (0.3, 1.0, 2.0, 7.0):
        called = ranks[TREE.lift(path.calls(kappa), 0)]
        expected = np.mean(called < ranks[lifted]), np.mean(called > ranks[lifted])
        assert points.curve.at(kappa) == pytest.approx(expected)
    assert points.argmax == pytest.approx(points.curve.at(1.0))


def test_severity_auc_weighs_misses_by_their_distance():
    """Against a plain loop over all κ, and equal to urgency AUC (and AUC) for two classes."""
    one, _ = two_models(rows=80, patients=40)
    path, distance, ranks = decision_path(one.probabilities, TREE), TREE.distance(), TREE.ranks()
    kappas = np.unique(path.reach[np.isfinite(path.reach)])

    def point(calls):
        lost = [distance[t, r] if ranks[t] > ranks[r] else 0 for t, r in zip(one.target, calls, strict=True)]
        return np.mean(ranks[calls] > ranks[one.target]), np.mean(lost)

    curve = [point(np.zeros(80, int)), *(point(path.calls(k)) for k in kappas), point(path.calls(np.inf))]
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(curve))
    constants = [point(np.full(80, r)) for r in range(7) if r == 6 or ranks[r + 1] > ranks[r]]  # the last of ties
    hull = list(constants)
    for i, (x, y) in enumerate(constants):
        for a in constants[:i]:
            for b in constants[i + 1 :]:
                mix = a[1] + (b[1] - a[1]) * (x - a[0]) / (b[0] - a[0])
                hull[i] = (x, min(hull[i][1], mix, y))
    chance = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(hull))
    slides = Slides(TREE, one.target, one.predicted, one.probabilities)
    assert once("severity_auc", slides) == pytest.approx(1 - area / (2 * chance))
    binary = ClassHierarchy.flat(["benign", "malignant"])
    p = np.random.default_rng(0).random(50)
    target = np.arange(50) % 2
    slides = Slides(binary, target, (p > 0.5).astype(int), np.column_stack([1 - p, p]))
    both = {key: once(key, slides) for key in ("severity_auc", "urgency_auc", "auc")}
    assert both["severity_auc"] == pytest.approx(both["urgency_auc"]) == pytest.approx(both["auc"])


@pytest.mark.parametrize("key", sorted(METRICS))
def test_every_metric_is_a_function_of_weights_within_its_bounds(key: str):
    one, _ = two_models(rows=50, patients=20)
    slides = Slides(TREE, one.target, one.predicted, one.probabilities)
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 4, (4, 50))
    found = METRICS[key](slides)(weights)
    low, high = METRICS[key].bounds
    for row, value in zip(weights, found, strict=True):
        repeated = slides.take(np.repeat(np.arange(50), row))
        assert value == pytest.approx(once(key, repeated), nan_ok=True, abs=1e-9)
        assert low <= value <= high


def test_adjusted_intervals_stand_beside_adjusted_p_values():
    rng = np.random.default_rng(0)
    samples = rng.normal(1.0, 0.5, 4000)
    one = Contrast("acc", 1.0, (0.0, 2.0), "patients", 0.0, 1.0, p_value=0.04, samples=samples)
    found = adjusted([{"acc": one}, {"acc": replace(one, p_value=0.01)}, {"acc": replace(one, p_value=0.03)}])
    assert [family["acc"].p for family in found] == pytest.approx([0.06, 0.03, 0.06])
    assert found[0]["acc"].adjusted_interval == pytest.approx(np.percentile(samples, [100 / 120, 100 - 100 / 120]))
    tested = Contrast("acc", 1.0, (0.0, 2.0), "patients and networks", 0.0, 1.0, 0.04, standard_error=0.4, df=7.0)
    low, high = scipy.stats.t.interval(1 - 0.05 / 4, 7.0, loc=1.0, scale=0.4)
    assert tested.adjusted(0.1, 4).shown_interval == pytest.approx((low, high))


def test_more_patients_than_groups_are_drawn_and_swapped_in_groups():
    from pams_mil.metrics.resampling import Units

    stratum = np.arange(5000) % 3
    units = Units.of(5000, stratum, most=600)
    assert abs(len(units) - 600) <= 3
    assert (units.stratum[units.of_patient] == stratum).all()
    sizes = np.bincount(units.of_patient)
    assert sizes.max() - sizes.min() <= 1
    values = np.random.default_rng(1).normal(size=5000)
    by_unit = np.bincount(units.of_patient, values)
    spread = (units.draws(0, 4000) @ by_unit).std() / 5000
    assert spread == pytest.approx(values.std() / math.sqrt(5000), rel=0.1)


def test_bins_move_a_long_curve_by_less_than_a_twentieth_of_a_point():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(7), 20_000)
    target = np.array([rng.choice(7, p=row) for row in p[:20_000]])
    slides = Slides(TREE, target, p.argmax(1), p)
    exact, binned = (Curve(slides, bins) for bins in (None, 4096))
    first, second = (curve.view(curve.sums.once()) for curve in (exact, binned))
    assert abs(first.auc() - second.auc())[0] < 5e-5
    assert abs(first.weighed_auc() - second.weighed_auc())[0] < 5e-5
    for share in (0.05, 0.1, 0.2, 0.3):
        assert abs(first.missed_at(share) - second.missed_at(share))[0] < 5e-4


@pytest.mark.parametrize("rows", [1, 2])
def test_hardly_any_slides(rows):
    one, two = (model.take(np.arange(rows)) for model in two_models())
    assert compare(one, two, resamples=20).matched["class"] is not None
    assert score(one, resamples=20)[-1].n == rows


def test_only_one_class_is_undefined_and_said_as_such():
    one, two = (replace(model, target=np.full(len(model), 3)) for model in two_models())
    comparison = compare(one, two, resamples=20)
    area = comparison.levels["class"]["urgency_auc"]
    assert np.isnan(area.difference)
    assert area.p_value is None
    assert np.isnan(score(one, resamples=20)[-1].values["urgency_auc"])


def test_points_of_one_model():
    one, _ = two_models(rows=200, patients=60)
    scores = score(one, resamples=200)[-1]
    found, area = scores.points, scores.scores["urgency_auc"]
    assert area.value == pytest.approx(urgency_auc(one.target, one.probabilities, TREE))
    assert area.interval[0] < area.value < area.interval[1]
    decided = [scores.scores[key].value for key in ("missed_rate", "false_alarm_rate")]
    assert decided == pytest.approx(found.argmax, abs=0.02)  # ties: the file takes the milder class
    curve = operating_curve(one.target, one.probabilities, TREE)
    assert (found.band.low <= found.band.high).all()
    inside = curve.missed_at(found.band.false_alarms)
    assert np.mean((found.band.low <= inside) & (inside <= found.band.high)) > 0.9
    read = json.loads(strict_json(score(one, resamples=20)[-1].to_json()), parse_constant=pytest.fail)
    assert set(METRICS) <= set(read)
    assert set(read["ci"]) == set(METRICS)
    long, _ = two_models(rows=2000, patients=500)
    shown = score(long, resamples=0)[-1].points.to_json()["curve"]
    assert 900 < len(shown["kappa"]) < 1100
    assert 1.0 in shown["kappa"]
    assert {metric.key for metric in LABEL_METRICS} < set(METRICS)
