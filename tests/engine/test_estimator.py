"""The scikit-learn face: its own checks, bags of many rows, patients, urgency, and what is refused in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator
from tests.engine.cohort import CLASSES, NAMES, run, settings, weights

from pams_mil import ClassHierarchy, PamsClassifier, load
from pams_mil.data import Bag, write_bag
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine.estimator import fit_in_memory, probabilities_in_memory
from pams_mil.errors import PamsError

TINY = {"name": "abmil", "embedding_features": 16, "attention_features": 4}
QUICK = (
    "check_dont_overwrite_attributes", "check_n_features_in", "check_estimators_unfitted",
    "check_classifiers_one_label", "check_no_attributes_set_in_init",
    "check_parameters_default_constructible", "check_get_params_invariance",
    "check_do_not_raise_errors_in_init_or_set_param",
)  # fmt: skip
"""Of scikit-learn's checks those that take no long training; `make test-slow` runs all of them."""


MIXING = PamsClassifier(
    ["low", "mid", "high"], method={"name": "pams", "remix": "randommix"}, model=TINY, epochs=6, lr=2e-2
)


def of_vectors(**changes):
    """On scikit-learn's tables every bag is one row, which cannot be remixed."""
    return PamsClassifier(**{"method": {"name": "pams", "remix": None}, "model": TINY, "epochs": 1, **changes})


def cohort(count=18, seed=0):
    random = np.random.default_rng(seed)
    names = ["low", "mid", "high"]
    labels = [names[number % 3] for number in range(count)]
    bags = [random.standard_normal((int(random.integers(4, 9)), 5)) for _ in labels]
    for bag, label in zip(bags, labels, strict=True):
        bag[:, names.index(label)] += 3
    return bags, labels, [f"p{number // 2}" for number in range(count)]


QUICK_CHECKS = [
    pytest.param(estimator, check, id=getattr(check, "func", check).__name__)
    for estimator, check in estimator_checks_generator(of_vectors())
    if getattr(check, "func", check).__name__ in QUICK
]


@pytest.mark.parametrize(("estimator", "check"), QUICK_CHECKS)
def test_scikit_learns_quick_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_all_of_scikit_learns_checks():
    results = check_estimator(of_vectors(epochs=20, lr=2e-2, batch=8), on_fail=None, on_skip=None)
    assert [row["check_name"] for row in results if row["status"] not in ("passed", "skipped")] == []
    assert sum(row["status"] == "passed" for row in results) >= 50


def test_bags_with_an_order_of_urgency_and_patients():
    bags, labels, patients = cohort()
    model = clone(MIXING).fit(bags, labels, groups=patients)
    assert model.classes_.tolist() == ["high", "low", "mid"]
    assert model.hierarchy_.names() == ("low", "mid", "high")
    shares = model.predict_proba(bags)
    assert shares.shape == (18, 3)
    assert np.allclose(shares.sum(1), 1)
    assert (model.predict(bags) == np.array(labels)).mean() > 0.8
    again = clone(model).fit(bags, labels, groups=patients)
    assert np.array_equal(again.predict_proba(bags), shares)


def test_patients_reach_the_pairing():
    bags, labels, _ = cohort()
    fitted = [clone(MIXING).fit(bags, labels, groups=who) for who in (None, [str(number) for number in range(18)])]
    assert np.array_equal(*(one.predict_proba(bags) for one in fitted))


def test_without_an_order_no_mistake_counts_more_than_another():
    bags, labels, _ = cohort()
    model = PamsClassifier(method={"name": "pams", "remix": None}, model=TINY, epochs=1).fit(bags, labels)
    assert set(model.hierarchy_.ranks().tolist()) == {0}
    plain = PamsClassifier(method="ce", model=TINY, epochs=1).fit(bags, labels)
    assert model.classes_.tolist() == plain.classes_.tolist() == ["high", "low", "mid"]


def test_cross_validation_by_patient():
    bags, labels, patients = cohort()
    bags = np.array([bag[:4] for bag in bags])
    found = cross_val_predict(MIXING, bags, labels, groups=patients, cv=GroupKFold(3))
    assert set(found) <= {"low", "mid", "high"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda bags, labels: ([bag[:1] for bag in bags], labels), "hold one row each"),
        (lambda bags, labels: ([*bags[:-1], bags[-1][:, :4]], labels), "Bag 17 has 4 features"),
        (lambda bags, labels: (bags, labels[:-1]), "18 bags and y 17 labels"),
        (lambda bags, labels: (bags, ["high", "higher", *labels[2:]]), "'higher'"),
    ],
)
def test_what_cannot_be_is_refused_in_words(change, message):
    bags, labels, _ = cohort()
    with pytest.raises(PamsError, match=message):
        PamsClassifier(ClassHierarchy.flat(["low", "mid", "high"]), model=TINY, epochs=1).fit(*change(bags, labels))


@pytest.mark.parametrize("also_by_name", [False, True])
def test_a_class_that_y_calls_by_an_alias_has_one_column(also_by_name):
    bags, labels, _ = cohort()
    hierarchy = replace(ClassHierarchy.flat(["low", "mid", "high"]), aliases={"low": ("L",)})
    spelled = ["L" if label == "low" and (number or not also_by_name) else label for number, label in enumerate(labels)]
    model = PamsClassifier(hierarchy, method="ce", model=TINY, epochs=6, lr=2e-2).fit(bags, spelled)
    assert model.classes_.tolist() == ["L", "high", "mid"]
    assert np.allclose(model.predict_proba(bags).sum(1), 1)
    assert set(model.predict(bags)) == {"L", "high", "mid"}


def test_numbers_stay_numbers():
    bags, labels, _ = cohort()
    numbers = [["low", "mid", "high"].index(label) for label in labels]
    model = PamsClassifier(["0", "1", "2"], method="ce", model=TINY, epochs=6, lr=2e-2).fit(bags, numbers)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(bags, numbers) > 0.8


@pytest.mark.parametrize("batch", [1, 3])
def test_steps_in_memory_are_those_of_a_run(tmp_path, batch):
    """Also where a bag is too large to share a pass."""
    random = np.random.default_rng(0)
    sizes = [5, 6, 70_000, 8, 5, 6, 4, 9]
    bags = [random.standard_normal((size, 8)).astype(np.float32) for size in sizes]
    parts = ["train"] * 6 + ["val"] * 2
    for number, bag in enumerate(bags):
        write_bag(tmp_path / f"bags/{number}.h5", Bag(bag))
    records = [SlideRecord(str(number), f"p{number}", NAMES[number % 4], part) for number, part in enumerate(parts)]
    Manifest(tuple(records)).write(tmp_path / "manifest.csv")
    (tmp_path / "classes.yaml").write_text(CLASSES)
    config = settings(tmp_path, epochs=2, batch=batch, select="last", method={"name": "pams", "remix": None})
    trained = weights(run(config, tmp_path / "run") / "best.safetensors")
    hierarchy = ClassHierarchy.load(str(tmp_path / "classes.yaml"))
    patients = [record.patient_id for record in records]
    in_memory, _ = fit_in_memory(bags[:6], [record.label for record in records[:6]], patients[:6], hierarchy, config)
    assert all(torch.equal(trained[name], tensor) for name, tensor in in_memory.state_dict().items())


def test_predict_at_an_operating_point_follows_the_exact_path():
    from pams_mil.metrics.kappa_path import decision_path

    names = ["normal", "hyperplasia", "atypia"]  # sorted: atypia first
    random = np.random.default_rng(0)
    labels = [names[number % 3] for number in range(30)]
    bags = [random.normal(names.index(label), 1.5, (6, 4)) for label in labels]
    model = PamsClassifier(names, method="ce", epochs=2).fit(bags, labels)
    p = model.predict_proba(bags)[:, [list(model.classes_).index(name) for name in names]]
    for kappa in (0.0, 0.5, 3.0, float("inf")):
        calls = decision_path(p, model.hierarchy_).calls(kappa)
        assert model.predict(bags, kappa=kappa).tolist() == [names[index] for index in calls]
    assert set(model.predict(bags, kappa=float("inf"))) == {"atypia"}


def test_a_saved_classifier_predicts_the_same(tmp_path):
    random = np.random.default_rng(0)
    bags = [random.standard_normal((5, 6)).astype(np.float32) for _ in range(12)]
    fitted = PamsClassifier(["b", "a", "c"], model=TINY, epochs=1).fit(bags, list("bac") * 4)
    with pytest.raises(PamsError, match=r"ends in \.safetensors, found"):
        fitted.save(tmp_path / "mine.pkl")
    fitted.save(tmp_path / "mine.safetensors")
    loaded = load(tmp_path / "mine.safetensors")
    assert list(loaded.spec.hierarchy.names()) == ["b", "a", "c"]
    columns = [list(fitted.classes_).index(name) for name in "bac"]
    expected = fitted.predict_proba(bags)[:, columns]
    np.testing.assert_array_equal(probabilities_in_memory(loaded.learner, bags), expected)
