"""The cost ratio that verdicts act by: recovered from simulated readers, equal to the pairwise formula, or refused."""

import logging
from collections import Counter

import numpy as np
import pytest
from scipy import optimize, special

from pams_mil import ClassHierarchy
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.decisions.reveal import Reveal, reveal, reveal_reviews
from pams_mil.metrics.kappa_path import decision_path

FOUR = ClassHierarchy.flat(["normal", "benign", "atypical", "malignant"])


def study(hierarchy, kappas, *, patients, seed, beta=8.0, pull=0.0, shown=1.0, sharp=1.0):
    """Simulated verdicts: reader j of every patient chooses by a conditional logit with its own κ_j."""
    draw, ranks = np.random.default_rng(seed), hierarchy.ranks()
    size = len(ranks)
    p = special.softmax(sharp * draw.normal(size=(patients, size)), axis=1)
    missed, alarms = p @ (ranks[:, None] > ranks), p @ (ranks[:, None] < ranks)  # of every call, [patients, size]
    cost = shown * missed + alarms
    calls = size - 1 - np.argmax((cost <= cost.min(axis=1, keepdims=True) + 1e-12)[:, ::-1], axis=1)
    verdicts = []
    for kappa in kappas:
        utility = -beta * (kappa * missed + alarms) + pull * (np.arange(size) == calls[:, None])
        # The largest of utilities with Gumbel noise is a draw from their softmax.
        verdicts.append(np.argmax(utility + draw.gumbel(size=utility.shape), axis=1))
    ids = [f"p{number}" for number in range(patients)] * len(kappas)
    return np.tile(p, (len(kappas), 1)), np.concatenate(verdicts), ids


def test_two_ranks_give_the_pairwise_logistic():
    two = ClassHierarchy.flat(["low", "high"])
    p, verdicts, _ = study(two, [4.0], patients=300, seed=1)
    result = reveal(p, verdicts, two, blind=np.ones(len(p), bool))

    def loss(theta):
        kappa, beta = np.exp(theta)
        total = 0.0
        for row, verdict in zip(p, verdicts, strict=True):
            sign = 1 if verdict == 1 else -1
            total -= np.log(special.expit(beta * sign * (kappa * row[1] - row[0])))
        return total

    best = optimize.minimize(
        loss, [1.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 5000}
    )
    assert result.overall.kappa == pytest.approx(np.exp(best.x[0]), rel=1e-4)
    assert result.overall.sharpness == pytest.approx(np.exp(best.x[1]), rel=1e-4)


def test_pull_of_the_shown_call_is_told_from_the_cost_ratio():
    p, verdicts, ids = study(FOUR, [5.0], patients=3000, seed=2, pull=1.5)
    result = reveal(p, verdicts, FOUR, patients=ids)
    assert result.overall.low < 5 < result.overall.high
    assert result.overall.pull == pytest.approx(1.5, abs=0.25)
    ignoring = reveal(p, verdicts, FOUR, patients=ids, blind=np.ones(len(p), bool))
    assert ignoring.overall.high < 5  # without η the shown calls (κ = 1) drag the estimate down


def test_what_would_change_is_counted_and_boundaries_are_told_apart():
    p, verdicts, ids = study(FOUR, [6.0], patients=1500, seed=3, beta=3.0)
    result = reveal(p, verdicts, FOUR, patients=ids, kappa=2.0)
    assert result.more_urgent > 0
    assert result.less_urgent == 0
    assert set(result.boundaries) | set(result.refused) == {"benign", "atypical", "malignant"}
    assert all(fit.low < 6 < fit.high for fit in result.boundaries.values())
    assert len(result.boundaries) >= 2
    assert "the model is set to 2" in result.sentence


def test_round_trip(tmp_path):
    p, verdicts, ids = study(FOUR, [3.0], patients=400, seed=4)
    result = reveal(p, verdicts, FOUR, patients=ids)
    result.write(tmp_path / "reveal.json")
    assert Reveal.read(tmp_path / "reveal.json") == result
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(PredictionsError, match="is not a file of 'pams reveal'"):
        Reveal.read(tmp_path / "other.json")


def test_refusals_in_words():
    p, verdicts, _ = study(FOUR, [3.0], patients=20, seed=5)
    with pytest.raises(PredictionsError, match=r"it takes 30.*more are needed"):
        reveal(p, verdicts, FOUR)
    p, _, _ = study(FOUR, [3.0], patients=200, seed=6)
    with pytest.raises(PredictionsError, match="always agree"):
        reveal(p, p.argmax(1), FOUR)
    with pytest.raises(PredictionsError, match="do not follow"):
        reveal(p, 3 - p.argmax(1), FOUR, blind=np.ones(200, bool))


@pytest.mark.slow
@pytest.mark.parametrize(("kappas", "estimand"), [([4.0], 4.0), ([2.0, 4.0, 8.0], None)])
def test_intervals_cover_at_their_level(kappas, estimand):
    """The κ of simulated studies lies in its 95 % interval in 93 to 97 % of them, also when readers differ."""
    if estimand is None:  # readers who differ: the κ that their verdicts act by together, at a size that has no noise
        p, verdicts, ids = study(FOUR, kappas, patients=60_000, seed=99)
        estimand = reveal(p, verdicts, FOUR, patients=ids).overall.kappa
    hits = fixed = runs = 0
    for seed in range(1000):
        p, verdicts, ids = study(FOUR, kappas, patients=200, seed=seed)
        fit = reveal(p, verdicts, FOUR, patients=ids).overall
        runs += 1
        hits += fit.low <= estimand <= fit.high
        middle = np.log(fit.kappa)
        half = (np.log(fit.high) - middle) / 2  # sabotage: an interval of half the width must be found out
        fixed += abs(np.log(estimand) - middle) <= half
    logging.info("readers %s: %.2f is in %.1f %% of the intervals", kappas, estimand, 100 * hits / runs)
    assert 0.93 <= hits / runs <= 0.97
    assert fixed / runs < 0.93


@pytest.mark.slow
def test_intervals_of_boundaries_cover_at_their_level():
    """Also next to boundaries that hardly any verdict is in doubt about: those are refused, not stated too surely."""
    hits, halves, runs = Counter(), Counter(), Counter()
    for seed in range(400):
        p, verdicts, ids = study(FOUR, [6.0], patients=600, seed=seed, beta=4.0 if seed % 2 else 8.0)
        for name, fit in reveal(p, verdicts, FOUR, patients=ids).boundaries.items():
            runs[name] += 1
            hits[name] += fit.low < 6 < fit.high
            halves[name] += abs(np.log(6 / fit.kappa)) < np.log(fit.high / fit.kappa) / 2
    logging.info("boundaries: %s of %s intervals hold 6", dict(hits), dict(runs))
    assert runs["malignant"] == 400
    for name, count in runs.items():
        assert hits[name] / count >= 0.95 - 3 * (0.05 * 0.95 / count) ** 0.5
    assert sum(halves.values()) / sum(runs.values()) < 0.85


def test_a_boundary_that_hardly_any_verdict_is_in_doubt_about_is_refused():
    """Sharp readers: of 1,500 verdicts next to none is about the choice between the two lowest."""
    p, verdicts, ids = study(FOUR, [6.0], patients=1500, seed=0)
    result = reveal(p, verdicts, FOUR, patients=ids)
    assert set(result.boundaries) == {"malignant"}
    assert "it takes 30" in result.refused["atypical"]
    assert "without any noise" in result.refused["benign"]


def test_reviews_are_joined_with_the_predictions_that_were_read(tmp_path):
    p, verdicts, _ = study(FOUR, [3.0], patients=300, seed=7)
    names = FOUR.names()
    rows = [["slide_id", "patient_id", "prediction", *(f"p_{name}" for name in names)]]
    rows += [[f"s{i}", f"p{i}", names[int(row.argmax())], *map(repr, row.tolist())] for i, row in enumerate(p)]
    (tmp_path / "predictions.csv").write_text("\n".join(",".join(row) for row in rows))
    lines = ["slide_id,reader_class,blind", *(f"s{i},{names[v]},no" for i, v in enumerate(verdicts)), "s0,,no"]
    (tmp_path / "reviews.csv").write_text("\n".join(lines))
    read = reveal_reviews([tmp_path / "reviews.csv"], tmp_path / "predictions.csv", FOUR)
    assert read.overall.kappa == pytest.approx(reveal(p, verdicts, FOUR).overall.kappa)
    (tmp_path / "other.csv").write_text("slide_id,reader_class\nunknown,normal\n")
    with pytest.raises(PredictionsError, match=r"1 slides that .* does not have, such as 'unknown'"):
        reveal_reviews([tmp_path / "other.csv"], tmp_path / "predictions.csv", FOUR)


def test_verdicts_are_read_by_the_kappa_of_the_call_that_was_on_the_screen(tmp_path):
    """The viewer's handle moves κ, and the call that pulls a reader is the one at that κ."""
    halves = [study(FOUR, [5.0], patients=1500, seed=seed, pull=1.5, shown=k) for seed, k in ((11, 1.0), (12, 8.0))]
    p, verdicts = (np.concatenate([half[part] for half in halves]) for part in (0, 1))
    kappas, names = np.repeat([1.0, 8.0], 1500), FOUR.names()
    result = reveal(p, verdicts, FOUR, kappa=kappas)
    assert result.overall.low < 5 < result.overall.high
    assert result.overall.pull == pytest.approx(1.5, abs=0.25)
    assert result.shown_kappas == (1.0, 8.0)
    assert "the calls were made at κ = 1 to 8, which is outside of it" in result.sentence
    assert not abs(reveal(p, verdicts, FOUR).overall.pull - 1.5) < 0.25  # all taken for calls at κ = 1

    rows = [["slide_id", "patient_id", "prediction", *(f"p_{name}" for name in names)]]
    rows += [[f"s{i}", f"p{i}", names[int(row.argmax())], *map(repr, row.tolist())] for i, row in enumerate(p)]
    (tmp_path / "predictions.csv").write_text("\n".join(",".join(row) for row in rows))
    calls = [int(decision_path(row[None], FOUR).calls(k)[0]) for row, k in zip(p, kappas, strict=True)]
    lines = [
        f"s{i},{names[call]},{'8.0' if k > 1 else ''},{names[v]},no"
        for i, (call, k, v) in enumerate(zip(calls, kappas, verdicts, strict=True))
    ]
    file = tmp_path / "reviews.csv"
    file.write_text("\n".join(["slide_id,model_call,kappa,reader_class,blind", *lines]))
    read = reveal_reviews([file], tmp_path / "predictions.csv", FOUR)
    assert (read.overall, read.shown_kappas) == (result.overall, result.shown_kappas)
    for change, message in (
        (lines[1500].replace("8.0", "0.2"), "calls on the screen are not those of the predictions at κ = 0.2"),
        (lines[1500].replace("8.0", "nan"), "kappa must be a number of at least 0 or empty, found 'nan'"),
    ):
        file.write_text("\n".join(["slide_id,model_call,kappa,reader_class,blind", *lines[:1500], change]))
        with pytest.raises(PredictionsError, match=message):
            reveal_reviews([file], tmp_path / "predictions.csv", FOUR)


def test_training_follows_the_revealed_cost_ratio(tmp_path):
    from pams_mil.engine import configure
    from pams_mil.engine.config.complete_config import complete, with_revealed_costs
    from pams_mil.errors import ConfigError
    from pams_mil.severity import implied_cost

    (tmp_path / "classes.yaml").write_text("name: four\nclasses: [normal, benign, atypical, malignant]\n")
    p, verdicts, ids = study(FOUR, [6.0], patients=1500, seed=13)
    result = reveal(p, verdicts, FOUR, patients=ids)
    result.write(tmp_path / "reveal.json")
    config = configure("labels.csv", classes=str(tmp_path / "classes.yaml"), method="msce")
    costs = complete(with_revealed_costs(config, tmp_path / "reveal.json")).method.options["costs"]
    assert implied_cost(costs[-1])[3, 2] == pytest.approx(result.boundaries["malignant"].kappa)
    with pytest.raises(ConfigError, match="other classes"):
        with_revealed_costs(configure("labels.csv", classes="bracs"), tmp_path / "reveal.json")
    with pytest.raises(ConfigError, match="found the method 'ce'"):
        with_revealed_costs(config.model_copy(update={"method": configure("l", classes="x", method="ce").method}),
                            tmp_path / "reveal.json")  # fmt: skip
