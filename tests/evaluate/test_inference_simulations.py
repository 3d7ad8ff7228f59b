"""What the core claims, by simulation: size, coverage, symmetry and power, each beside what breaks it.

Networks of one method share how hard a patient is, err by themselves on single patients, and differ in skill by
`deviation`; every fold leans towards urgency in its own way. Figures are in docs/inference.md; by hand:

    python -m tests.evaluate.test_inference_simulations
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

from pams_mil import ClassHierarchy
from pams_mil.evaluate.committee import average
from pams_mil.evaluate.inference import MethodPair
from pams_mil.evaluate.predictions.join import join_seeds
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.operating import operating_curve
from pams_mil.metrics.resampling import Units, swap_p_value

TREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])
KEYS = ("urgency_auc", "missed_rate", "missed_at_20")
RUNS, RESAMPLES, FOLDS = 1000, 300, 3
SCENARIOS = (  # patients, seeds, deviation between networks in steps of skill, lean of the folds
    (50, 1, 0.0, 0.0), (100, 1, 0.0, 0.6), (400, 1, 0.0, 0.0),
    (50, 3, 0.0, 0.6), (100, 3, 0.08, 0.0), (400, 3, 0.3, 0.6), (50, 3, 0.3, 0.0),
    (50, 5, 0.08, 0.0), (100, 5, 0.3, 0.6), (400, 5, 0.0, 0.0),
)  # fmt: skip
"""Deviations of 0.08 and 0.3 are about 1.5 and 5.6 points of urgency AUC."""


def method(name, rng, target, hard, seeds, deviation, lean, skill):
    """Predictions of a method's networks on these patients, one slide each."""
    n = len(target)
    fold = np.arange(n) % FOLDS
    runs = {}
    for seed in range(seeds):
        own = skill + deviation * rng.normal()
        logits = own * np.eye(3)[target] + hard + 0.7 * rng.normal(size=(n, 3))
        leans = lean * rng.normal(size=FOLDS) if np.isscalar(lean) else lean
        logits += leans[fold][:, None] * np.arange(3)
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        tags = {"fold": [str(number) for number in fold]} if np.any(lean) else {}
        runs[str(seed)] = Predictions(name, TREE, [f"s{k}" for k in range(n)], target, p.argmax(1), p, tags=tags)
    return runs["0"] if seeds == 1 else join_seeds(name, runs)


def pair_of(rng, n, seeds, deviation, lean, better=0.0):
    target, hard = cohort(rng, n)
    return [
        method(name, rng, target, hard, seeds, deviation, lean, skill)
        for name, skill in (("a", 1.2), ("b", 1.2 + better))
    ]


def simulate(n, seeds, deviation, lean, *, better=0.0, runs=RUNS):
    """{key: estimates, low, high, p, p without networks} over the runs, [5, runs] each."""
    rng = np.random.default_rng([n, seeds, int(100 * deviation), int(10 * lean), int(100 * better)])
    readings = [METRICS[key] for key in KEYS]
    found = {key: np.empty((5, runs)) for key in KEYS}
    for run in range(runs):
        pair = MethodPair.of(*pair_of(rng, n, seeds, deviation, lean, better), seed=run, resamples=RESAMPLES, swaps=400)
        for key, one in pair.contrasts(readings).items():
            finite = one.samples[np.isfinite(one.samples)]
            t = abs(one.estimate) / max(finite.std(ddof=1), 1e-12)
            found[key][:, run] = (one.estimate, *one.interval, one.p_value, 2 * _normal_tail(t))
    return found


def _normal_tail(t):
    return float(ndtr(-t))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_method_against_itself_is_called_different_in_at_most_five_percent(scenario):
    found, (_, seeds, _, lean) = simulate(*scenario), scenario
    for key in KEYS:
        if key == "missed_rate" and seeds == 1 and lean:
            continue  # two networks that lean by themselves do call differently: see the next test
        assert np.mean(found[key][3] <= 0.05) <= 0.065, key
        covered = np.mean((found[key][1] <= 0) & (found[key][2] >= 0))
        # 93 to 97 %, and what 1,000 runs may be off by; few seeds err on the side of caution
        assert 0.93 - 0.014 <= covered <= 0.985, key


def leaning(same, n=100, runs=RUNS):
    """{p, covered}: missed rates of two networks whose folds lean, all alike or each by itself; n = 100 patients.

    What each misses by its leans is known from many patients, and so is by how much the two differ.
    """
    rng, reading = np.random.default_rng(11), [METRICS["missed_rate"]]
    target, hard = cohort(rng, 60_000)
    logits = 1.2 * np.eye(3)[target] + hard + 0.7 * rng.normal(size=(len(target), 3))
    grid = np.linspace(-3, 3, 61)
    missed = [np.mean((logits + lean * np.arange(3)).argmax(1) < target) for lean in grid]
    results = np.empty((2, runs))
    for run in range(runs):
        leans = 0.6 * rng.normal(size=(2, FOLDS))
        leans[1] = leans[0] if same else leans[1]
        target, hard = cohort(rng, n)
        pair = [method(name, rng, target, hard, 1, 0.0, own, 1.2) for name, own in zip("ab", leans, strict=True)]
        one = MethodPair.of(*pair, seed=run, resamples=RESAMPLES, swaps=400).contrasts(reading)["missed_rate"]
        first, second = (np.average(np.interp(own, grid, missed), weights=[34, 33, 33]) for own in leans)
        results[:, run] = one.p_value, one.interval[0] <= second - first <= one.interval[1]
    return results


@pytest.mark.slow
def test_two_networks_that_lean_alike_are_a_null_and_others_are_not():
    alike, apart = leaning(same=True), leaning(same=False)
    assert np.mean(alike[0] <= 0.05) <= 0.065
    assert np.mean(apart[0] <= 0.05) > 0.15  # a real difference between these two networks
    for results in (alike, apart):
        assert 0.93 - 0.014 <= np.mean(results[1]) <= 0.97 + 0.014


@pytest.mark.slow
def test_sabotage_networks_left_out_of_the_variance():
    found = simulate(400, 3, 0.3, 0.6)
    assert np.mean(found["urgency_auc"][4] <= 0.05) > 0.2


def against_one(n=100, seeds=4, deviation=0.3, runs=RUNS):
    """p of a model as good as a method is on average, with the method's networks as chance, and with patients alone."""
    rng = np.random.default_rng(7)
    readings, p = [METRICS["urgency_auc"]], np.empty((2, runs))
    for run in range(runs):
        target, hard = cohort(rng, n)
        several = method("a", rng, target, hard, seeds, deviation, 0.0, 1.2)
        one = method("b", rng, target, hard, 1, 0.0, 0.0, 1.2)
        found = MethodPair.of(several, one, seed=run, resamples=RESAMPLES).contrasts(readings)["urgency_auc"]
        t = abs(found.estimate) / found.samples[np.isfinite(found.samples)].std(ddof=1)
        p[:, run] = found.p_value, 2 * _normal_tail(t)
    return p


@pytest.mark.slow
def test_one_model_against_the_networks_of_a_method_keeps_its_size_and_without_networks_does_not():
    p = against_one()
    assert np.mean(p[0] <= 0.05) <= 0.065
    assert np.mean(p[1] <= 0.05) > 0.1


@pytest.mark.slow
def test_intervals_cover_a_real_difference():
    for seeds in (1, 3):
        found = simulate(100, seeds, 0.0 if seeds == 1 else 0.08, 0.0, better=0.5)
        for key in KEYS:
            truth = found[key][0].mean()
            covered = np.mean((found[key][1] <= truth) & (found[key][2] >= truth))
            assert 0.93 - 0.014 <= covered <= 0.985, key


def cohort(rng, n):
    """True classes of patients, and how hard each is for all networks."""
    target = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    target[:6] = [0, 1, 2, 0, 1, 2]
    return target, 0.9 * rng.normal(size=(n, 3))


def networks(name, target, logits):
    """One sample of seeds with these logits; a seed is the network of its number."""
    runs, slides = {}, [f"s{k}" for k in range(len(target))]
    for seed, z in enumerate(logits):
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        runs[str(seed)] = Predictions(name, TREE, slides, target, p.argmax(1), p, weights=(f"network {seed}",))
    return runs


def derived(n, seeds, own, *, better=0.0, runs=RUNS):
    """{key: p in pairs, p as of other networks, p of patients alone, interval} of two uses of the same networks.

    Networks differ by 0.3 steps of skill, and by `own` in what the second use makes of them.
    """
    rng, readings = np.random.default_rng([n, seeds, int(100 * better)]), [METRICS[key] for key in KEYS]
    values = {key: np.empty((5, runs)) for key in KEYS}
    for run in range(runs):
        target, hard = cohort(rng, n)
        truth = np.eye(3)[target]
        common = [(1.2 + 0.3 * rng.normal()) * truth + hard + 0.7 * rng.normal(size=(n, 3)) for _ in range(seeds)]
        first = [z + 0.3 * rng.normal(size=(n, 3)) for z in common]
        second = [z + (better + own * rng.normal()) * truth + 0.3 * rng.normal(size=(n, 3)) for z in common]
        both = (join_seeds(name, networks(name, target, logits)) for name, logits in (("a", first), ("b", second)))
        pair = MethodPair.of(*both, seed=run, resamples=RESAMPLES)
        apart = replace(pair, common=np.zeros_like(pair.common)).contrasts(readings)
        for key, one in pair.contrasts(readings).items():
            t = abs(one.estimate) / max(one.samples[np.isfinite(one.samples)].std(ddof=1), 1e-12)
            values[key][:, run] = one.p_value, apart[key].p_value, 2 * _normal_tail(t), *one.interval
    return values


@pytest.mark.slow
def test_two_uses_of_the_same_networks_keep_their_size_in_pairs():
    values = derived(100, 3, 0.15)
    for key in KEYS:
        in_pairs, _, _, low, high = values[key]
        assert np.mean(in_pairs <= 0.05) <= 0.065, key
        assert 0.93 - 0.014 <= np.mean((low <= 0) & (high >= 0)) <= 0.985, key
    assert np.mean(values["urgency_auc"][2] <= 0.05) > 0.2  # sabotage: patients alone


@pytest.mark.slow
def test_pairs_find_what_networks_taken_as_strangers_do_not():
    values = derived(100, 5, 0.05, better=0.15)
    in_pairs, apart = (np.mean(values["urgency_auc"][row] <= 0.05) for row in (0, 1))
    assert in_pairs > apart + 0.5


def against_its_members(n=100, skills=(0.8, 1.1, 1.3, 1.6), runs=RUNS):
    """Coverage and mean width of the interval of a mean − these networks: as it is, and with networks as chance."""
    rng, reading = np.random.default_rng(5), [METRICS["urgency_auc"]]
    values = np.empty((5, runs))
    for run in range(runs):
        target, hard = cohort(rng, n)
        logits = [skill * np.eye(3)[target] + hard + 0.7 * rng.normal(size=(n, 3)) for skill in skills]
        members = networks("single", target, logits)
        pair = MethodPair.of(
            join_seeds("single", members), average("mean", list(members.values())), seed=run, resamples=RESAMPLES
        )
        apart = replace(pair, common=np.zeros_like(pair.common)).contrasts(reading)["urgency_auc"]
        one = pair.contrasts(reading)["urgency_auc"]
        values[:, run] = one.estimate, *one.interval, *apart.interval
    center = values[0].mean()
    return [
        (float(np.mean((low <= center) & (high >= center))), float(np.mean(high - low)))
        for low, high in (values[1:3], values[3:5])
    ]


@pytest.mark.slow
def test_a_mean_of_networks_against_these_networks_is_about_them():
    (covered, width), (apart, wide) = against_its_members()
    assert 0.93 - 0.014 <= covered <= 0.985
    assert apart > 0.99  # sabotage: its own members as chance
    assert wide > 2 * width


def matched_gaps(runs, symmetric, n=50):
    """Observed difference in misses at equal false alarms of two alike networks, in points."""
    rng, gaps = np.random.default_rng(0), []
    for _ in range(runs):
        a, b = pair_of(rng, n, 1, 0.0, 0.0)
        own = [float(np.mean(model.predicted > model.target)) for model in (a, b)]
        at = np.mean(own) if symmetric else own[0]
        missed = [float(operating_curve(m.target, m.probabilities, TREE).missed_at(at)) for m in (a, b)]
        gaps.append(100 * (missed[1] - missed[0]))
    return np.array(gaps)


@pytest.mark.slow
def test_the_matched_difference_is_without_bias_and_the_references_own_point_is_not():
    gaps, lopsided = matched_gaps(6000, True), matched_gaps(6000, False)
    error = gaps.std() / np.sqrt(len(gaps))
    assert abs(gaps.mean()) < 0.2 + 2 * error
    assert lopsided.mean() > 0.4


def powers(runs=RUNS, n=100):
    """Share of p <= 0.05: both models on one scale, one at T = 3 swapped by rank, and one at T = 3 swapped raw."""
    rng, tree = np.random.default_rng(1), ClassHierarchy.flat(["benign", "malignant"])
    reading, rejected = [METRICS["urgency_auc"]], np.zeros(3)
    slides = [f"s{k}" for k in range(n)]
    for run in range(runs):
        target = rng.integers(0, 2, n)
        hard = 0.7 * rng.normal(size=n)
        logits = [skill * (target - 0.5) + hard + 0.7 * rng.normal(size=n) for skill in (1.0, 1.9)]

        def model(name, z, target=target):
            p = 1 / (1 + np.exp(-z))
            return Predictions(name, tree, slides, target, (p > 0.5).astype(int), np.column_stack([1 - p, p]))

        for place, scale in ((0, 1.0), (1, 3.0)):
            pair = MethodPair.of(model("a", logits[0]), model("b", logits[1] / scale), seed=run, resamples=0, swaps=400)
            rejected[place] += pair.contrasts(reading)["urgency_auc"].p_value <= 0.05
        rejected[2] += _raw_swap_p(target, logits[0], logits[1] / 3, run) <= 0.05
    return rejected / runs


def _raw_swap_p(target, a, b, seed):
    """The test that swaps scores as they are."""
    coins = Units.of(len(target)).coins(seed, 400).astype(bool)

    def aucs(scores):
        ranks = scores.argsort(axis=-1).argsort(axis=-1) + 1.0
        m = target.sum()
        return (ranks[..., target == 1].sum(-1) - m * (m + 1) / 2) / (m * (len(target) - m))

    first, second = np.where(coins, b, a), np.where(coins, a, b)
    return swap_p_value(float(aucs(b) - aucs(a)), aucs(second) - aucs(first))


@pytest.mark.slow
def test_another_temperature_costs_no_power_unless_scores_are_swapped_as_they_are():
    oracle, ranked, raw = powers()
    assert abs(oracle - ranked) <= 0.03
    assert raw < oracle - 0.03


def figures():
    """Lines for docs/inference.md."""
    for scenario in SCENARIOS:
        result = simulate(*scenario)
        for key in KEYS:
            size, left_out = (100 * np.mean(result[key][row] <= 0.05) for row in (3, 4))
            covered = 100 * np.mean((result[key][1] <= 0) & (result[key][2] >= 0))
            yield f"{scenario} {key}: size {size:.1f}, without networks {left_out:.1f}, coverage {covered:.1f}"
    for same in (True, False):
        p, inside = leaning(same)
        yield f"leaning alike {same}: p <= 0.05 {100 * np.mean(p <= 0.05):.1f}, coverage {100 * np.mean(inside):.1f}"
    for seeds, deviation in ((1, 0.0), (3, 0.08)):
        result = simulate(100, seeds, deviation, 0.0, better=0.5)
        for key in KEYS:
            center = result[key][0].mean()
            inside = np.mean((result[key][1] <= center) & (result[key][2] >= center))
            yield f"{seeds} seeds, difference {100 * center:.2f} {key}: coverage {100 * inside:.1f}"
    for symmetric in (True, False):
        gaps = matched_gaps(6000, symmetric)
        yield f"matched, symmetric {symmetric}: {gaps.mean():.2f}, error {gaps.std() / len(gaps) ** 0.5:.2f}"
    yield f"power {powers()}"
    for settings in ({"seeds": 3, "own": 0.15}, {"seeds": 5, "own": 0.05, "better": 0.15}):
        for key, (in_pairs, apart, patients, low, high) in derived(100, **settings).items():
            sizes = ", ".join(f"{100 * np.mean(p <= 0.05):.1f}" for p in (in_pairs, apart, patients))
            covered = 100 * np.mean((low <= 0) & (high >= 0))
            yield f"same networks {settings} {key}: in pairs, apart, patients alone {sizes}; covers 0: {covered:.1f}"
    yield f"a mean against its members, coverage and width, and with networks as chance: {against_its_members()}"


if __name__ == "__main__":
    for line in figures():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
