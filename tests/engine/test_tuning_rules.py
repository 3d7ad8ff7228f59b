"""The rules of tuning as pure functions: scores, the choice, the schedule, recipes and their simplicity."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import tuning as reference

from pams_mil.engine.config.run_config import configure
from pams_mil.engine.run.folder import read_json
from pams_mil.engine.tuning.choice import (
    RecipeScore,
    choose,
    score_recipes,
    survivors,
    validation_auc,
)
from pams_mil.engine.tuning.recipes import REFERENCE, in_words, load_space, parts_of, recipe, simplicity
from pams_mil.engine.tuning.schedule import ENOUGH, fewest_runs, halve, plan, runs_of, stages
from pams_mil.engine.tuning.tuning_folder import TuningFolder
from pams_mil.errors import ConfigError, RunError
from pams_mil.evaluate.predictions.predictions import Predictions, numbered
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import urgency_auc

THREE = ClassHierarchy.flat(["low", "middle", "high"])
SHARED = {"data": "any.csv", "classes": "any", "training": {"lr": 5e-4}}


def cohort(seed: int, recipes: int, rows: int = 24):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 3, rows)
    target[:3] = 0, 1, 2
    patient = numbered([str(number) for number in rng.integers(0, 8, rows)])
    p = {f"r{k}": rng.dirichlet(np.ones(3), rows) + k * 0.2 * np.eye(3)[target] for k in range(recipes)}
    return target, {name: value / value.sum(1, keepdims=True) for name, value in p.items()}, patient


def validated(target, p, patient):
    """The same as predictions of recipes."""
    slides, patients = [f"s{row}" for row in range(len(target))], [str(number) for number in patient]
    # Patients are numbered as they appear, in the reference too.
    return {
        name: Predictions(name, THREE, slides, target, value.argmax(1), value, patients) for name, value in p.items()
    }


@given(st.integers(0, 2**16), st.integers(1, 4))
@settings(max_examples=15)
def test_scores_are_those_of_slides_written_out_patient_by_patient(seed, recipes):
    target, p, patient = cohort(seed, recipes)
    found = {score.name: score for score in score_recipes(validated(target, p, patient), seed=seed, resamples=12)}
    drawn = {name: reference.drawn_aucs(target, p[name], patient, THREE, seed, 12) for name in p}
    kept = [k for k in range(12) if all(np.isfinite(values[k]) for values in drawn.values())]
    best = max(p, key=lambda name: urgency_auc(target, p[name], THREE, labels=THREE.names()))
    for name, score in found.items():
        assert score.urgency_auc == pytest.approx(urgency_auc(target, p[name], THREE, labels=THREE.names()))
        assert score.standard_error == pytest.approx(reference.deviation([drawn[name][k] for k in kept]))
        apart = [drawn[best][k] - drawn[name][k] for k in kept]
        assert score.behind == pytest.approx(found[best].urgency_auc - score.urgency_auc)
        assert score.behind_error == pytest.approx(reference.deviation(apart), abs=1e-12)
    assert [score.urgency_auc for score in score_recipes(validated(target, p, patient), resamples=2)] == sorted(
        (score.urgency_auc for score in found.values()), reverse=True
    )


def test_validation_is_scored_fold_by_fold():
    """Never at one threshold over folds, at which networks that lean differently look worse than each is."""
    target, p, patient = cohort(5, 1, rows=60)
    fold = np.arange(60) % 3
    model = replace(validated(target, p, patient)["r0"], tags={"fold": [str(number) for number in fold]})
    parts = [model.where(fold == number) for number in range(3)]
    areas = [urgency_auc(one.target, one.probabilities, THREE, labels=THREE.names()) for one in parts]
    assert validation_auc(model) == pytest.approx(np.mean(areas))
    assert score_recipes({"r0": model}, resamples=2)[0].urgency_auc == validation_auc(model)
    assert validation_auc(model) != pytest.approx(urgency_auc(target, p["r0"], THREE, labels=THREE.names()))


def test_slides_that_are_all_equally_urgent_cannot_choose():
    p = {"a": np.full((4, 3), 1 / 3)}
    with pytest.raises(RunError, match="equally urgent"):
        score_recipes(validated(np.zeros(4, np.int64), p, np.arange(4)), resamples=3)


several = st.lists(
    st.tuples(st.integers(50, 90), st.floats(0, 0.2)), min_size=2, max_size=8
)  # scores in hundredths, so that there are ties


@given(several, st.randoms(use_true_random=False), st.integers(2, 9))
def test_choice_and_survivors_are_those_of_plain_loops(given_, random, count):
    best = max(value for value, _ in given_) / 100
    scores = [
        RecipeScore(f"r{k}", value / 100, 0.0, best - value / 100, 0.0 if value / 100 == best else error)
        for k, (value, error) in enumerate(given_)
    ]
    names = [score.name for score in scores]
    order = random.sample(names, len(names))
    simple = {name: place for place, name in enumerate(order)}
    behind = {score.name: score.behind for score in scores}
    error = {score.name: score.behind_error for score in scores}
    choice = choose(scores, simple).name
    assert choice == reference.chosen(names, behind, error, order)
    expected = reference.going_on({s.name: s.urgency_auc for s in scores}, choice, "r0", order, count)
    assert survivors(scores, count, simple, "r0") == expected
    assert choice in expected  # the choice of a rung is never dropped before the next one


def test_one_standard_error_by_hand():
    scores = [
        RecipeScore("fancy", 0.80, 0.03, 0.0, 0.0),
        RecipeScore("near", 0.79, 0.03, 0.01, 0.01),  # exactly one standard error: still near
        RecipeScore("far", 0.77, 0.03, 0.03, 0.029),  # within its own error of .03, but not of the difference
    ]
    assert choose(scores, {"far": 0, "near": 1, "fancy": 2}).name == "near"
    assert choose(scores, {"far": 0, "near": 2, "fancy": 1}).name == "fancy"


@given(st.integers(2, 80), st.integers(3, 10), st.integers(1, 4), st.integers(0, 400))
def test_plans_fit_into_the_runs_that_can_be_afforded(recipes, folds, seeds, runs):
    rungs = plan(recipes, folds, seeds, runs)
    if not rungs:
        assert runs < fewest_runs(folds)
        return
    shapes = [(rung.recipes, rung.folds, rung.seeds) for rung in rungs]
    assert runs_of(rungs) == reference.runs_needed(shapes) <= runs
    assert rungs[0].recipes <= recipes
    assert all(2 <= late.recipes <= early.recipes for early, late in pairwise(rungs))
    assert rungs[-1].folds == folds
    more = runs_of(halve(min(recipes, rungs[0].recipes + 1), stages(folds, rungs[-1].seeds)))
    assert rungs[0].recipes == recipes or more > runs  # no recipe is left out that would have fitted
    if rungs[-1].seeds < seeds:  # fewer seeds only where more of them would leave too few recipes
        assert runs_of(halve(min(recipes, ENOUGH), stages(folds, rungs[-1].seeds + 1))) > runs


@given(st.integers(2, 30), st.integers(3, 8), st.integers(2, 4), st.integers(0, 200))
def test_a_plan_can_be_taken_up_half_way(entering, folds, seeds, runs):
    rungs = plan(entering, folds, seeds, runs, climbed=2)
    assert len(rungs) <= 1
    for rung in rungs:
        assert rung.folds == folds
        assert rung.recipes * folds * (rung.seeds - 1) <= runs
    if not rungs:
        assert runs < 2 * folds  # not even the reference and one other with a second seed


def test_every_space_is_complete_and_its_names_are_unlike():
    for name in ("default", "quick"):
        space = load_space(name)
        configs = {one.name: one.config({**SHARED, "training": dict(space.training)}) for one in space.recipes}
        assert space.recipes[0].name == REFERENCE
        assert len(configs) == len(space.recipes)
        assert parts_of(configs[REFERENCE]) == ()
        assert "abmil-pams" in configs
        assert all(config.training.select == "last" and config.training.average for config in configs.values())
    models = {config.model.name for config in configs.values()}
    assert {"mean_pool", "abmil", "clam_mb", "priority"} <= models


def test_a_recipe_says_what_it_sets():
    shared = {**SHARED, "training": {"epochs": 20}}
    config = recipe("smooth_max", loss="msce", remix=0.5, drop=0.7, lr=1e-3, length=0.25).config(shared)
    assert config.model.options == {"pooling": "smooth_max"}
    assert config.method.options["remix"] == "sfr"
    assert config.pairing == {"rule": "keep_label", "own_class": True, "probability": 0.5}
    assert (config.training.drop_instances, config.training.lr, config.training.epochs) == (0.7, 1e-3, 5)
    assert parts_of(config) == ("loss", "remix", "dropout")
    assert in_words(config) == (
        "priority (smooth_max), MSCE, SFR on 50 % of the bags, 70 % of the instances dropped, 5 epochs, lr 0.001"
    )
    paper = recipe("abmil", loss="pams").config(SHARED)
    assert (paper.pairing, paper.method.options) == ({}, {})


def test_a_length_multiplies_the_epochs_that_the_user_asks_for():
    shared = {**SHARED, "training": {"epochs": 20}}
    for length, changes, epochs in ((0.25, (), 5), (0.25, ("epochs=8",), 2), (0.01, (), 1), (2, ("epochs=3",), 6)):
        assert recipe("abmil", length=length).config(shared, changes).training.epochs == epochs
    assert recipe("abmil", length=2).name == "abmil-ce-length2"


def test_simpler_means_fewer_parts_then_a_simpler_pooling_then_less_of_each():
    order = [
        recipe("mean_pool"), recipe("abmil"), recipe("abmil", length=0.5), recipe("abmil", length=0.25),
        recipe("abmil", lr=1e-3), recipe("clam_mb"), recipe("priority"),
        recipe("dtfd"), recipe("mean_pool", drop=0.5), recipe("mean_pool", drop=0.7), recipe("abmil", remix=0.5),
        recipe("abmil", remix=1.0), recipe("abmil", drop=0.7), recipe("abmil", loss="msce", drop=0.5),
        recipe("abmil", loss="pams"),
    ]  # fmt: skip
    plain = recipe("abmil").config(SHARED)
    found = {one.name: simplicity(one.name, one.config(SHARED), plain) for one in order}
    assert sorted(found, key=found.__getitem__) == [one.name for one in order]
    other = configure("m.csv", classes="any", method="ce")
    assert simplicity("a", other, plain) != simplicity("b", other, plain)


def test_spaces_of_ones_own(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "training: {epochs: 3}\ntry:\n  - {pooling: [abmil, mean_pool], drop: [0, 0.5]}\n"
        "recipes:\n  wide: {model: {name: abmil, embedding_features: 1024}}\n"
    )
    space = load_space(file)
    by_name = {one.name: one for one in space.recipes}
    assert list(by_name) == [REFERENCE, "abmil-ce-drop0.5", "mean_pool-ce", "mean_pool-ce-drop0.5", "wide"]
    wide = by_name["wide"].config({**SHARED, "training": dict(space.training)}, ("lr=1e-2",))
    assert (wide.model.options, wide.training.epochs, wide.training.lr) == ({"embedding_features": 1024}, 3, 1e-2)
    for text, complaint in (
        ("try:\n  - {poling: abmil}\n", "Did you mean 'pooling'"),
        ("try:\n  - {loss: msc}\n", "There is no loss 'msc'. Did you mean 'msce'"),
        ("try:\n  - {drop: 1.5}\n", "less than 1"),
        ("try:\n  - {length: 0}\n", "greater than 0"),
        ("recipes:\n  a: {epochs: 3}\n", "A recipe may set 'model', 'method', 'pairing', 'training'"),
        ("recipes:\n  abmil-ce: {model: dtfd}\n", "choose another name"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=complaint.replace("(", r"\(")):
            load_space(file)
    with pytest.raises(ConfigError, match="Did you mean 'default'"):
        load_space("defaut")


def test_an_attempt_that_is_stopped_does_not_forget_the_choice_of_an_earlier_one(tmp_path):
    first = TuningFolder(tmp_path)
    first.open({"folds": 3})
    first.choice = {"recipe": "abmil-ce"}
    first.save()
    again = TuningFolder(tmp_path)
    again.open({"folds": 3})
    again.save()  # as after every run
    assert read_json(again.file)["choice"] == {"recipe": "abmil-ce"}
