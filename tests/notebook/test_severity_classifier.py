"""`SeverityClassifier`: scikit-learn's own checks, and what is ours: κ, guarantees, patients that stay whole."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
from scipy.sparse import coo_array
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pams_mil as pams
from pams_mil.errors import CertificateError, ParameterError
from pams_mil.metrics.kappa_path import decision_path

ORDER = ["normal", "atypia", "cancer"]


NUMBERS = ["-1", "0", "1", "2", "3"]  # most checks use such labels
BY_DESIGN = {
    "check_classifiers_classes": "names that are not in the order of urgency are refused",
    "check_classifiers_train": "calls that count misses differently are not the most probable class",
}


@parametrize_with_checks(
    [
        pams.SeverityClassifier(LogisticRegression()),
        pams.SeverityClassifier(LogisticRegression(), kappa=2.0),
        pams.SeverityClassifier(LogisticRegression(), NUMBERS, kappa=1.5),
        pams.SeverityClassifier(LogisticRegression(), NUMBERS, alpha=0.26),
    ],
    expected_failed_checks=lambda estimator: BY_DESIGN if estimator.hierarchy else {},
)
def test_scikit_learn_has_no_complaints(estimator, check):
    assert check(estimator) is None


def data(n=300, seed=0):
    X, y = make_classification(n, 6, n_informative=4, n_redundant=0, n_classes=3, class_sep=0.8, random_state=seed)
    return X, np.array(ORDER)[y]


def test_it_calls_what_the_exact_path_calls():
    X, y = data()
    model = pams.SeverityClassifier(LogisticRegression(), ORDER, kappa=3.0).fit(X, y)
    assert list(model.classes_) == sorted(ORDER)  # not the order of urgency
    p = model.predict_proba(X)[:, [list(model.classes_).index(name) for name in ORDER]]
    calls = decision_path(p, pams.ClassHierarchy.of(ORDER)).calls(3.0)
    assert model.predict(X).tolist() == [ORDER[index] for index in calls]
    usual = pams.SeverityClassifier(LogisticRegression(), ORDER).fit(X, y)
    assert usual.predict(X).tolist() == usual.estimator_.predict(X).tolist()


def test_numbers_as_labels_and_classes_that_training_did_not_hold():
    X, y = data()
    numbers = np.array([ORDER.index(label) for label in y])
    model = pams.SeverityClassifier(LogisticRegression(), ORDER, kappa=2.0).fit(X, numbers)
    names = pams.SeverityClassifier(LogisticRegression(), ORDER, kappa=2.0).fit(X, y)
    assert [ORDER[index] for index in model.predict(X)] == names.predict(X).tolist()
    few = numbers < 2
    part = pams.SeverityClassifier(LogisticRegression(), ORDER, kappa=2.0).fit(X[few], y[few])
    assert part.predict_proba(X).shape == (300, 2)
    assert set(part.predict(X)) <= {"normal", "atypia"}


def test_a_guarantee_from_held_out_patients():
    X, y = data(600)
    groups = np.arange(600) // 2
    model = pams.SeverityClassifier(LogisticRegression(), ORDER, alpha=0.05, random_state=0).fit(X, y, groups=groups)
    assert model.certificate_.kappa == model.kappa_ > 1
    assert model.certificate_.n == 90  # 30 % of 300 patients, whole
    frozen = pams.SeverityClassifier(FrozenEstimator(model.estimator_), ORDER, alpha=0.05).fit(X, y, groups=groups)
    assert frozen.certificate_.n == 300
    assert frozen.estimator_.predict_proba(X).tolist() == model.predict_proba(X).tolist()


@pytest.mark.slow
def test_the_guarantee_holds_on_average_and_the_most_probable_class_breaks_it():
    missed, plain = [], []
    tree = pams.ClassHierarchy.of(ORDER)
    for seed in range(60):
        X, y = make_classification(2400, 6, n_informative=4, n_redundant=0, n_classes=3, class_sep=0.8, random_state=7)
        rows = np.random.default_rng(seed).permutation(2400)
        X, y = X[rows], np.array(ORDER)[y[rows]]
        model = pams.SeverityClassifier(LogisticRegression(), ORDER, alpha=0.1, random_state=seed).fit(X[:400], y[:400])
        missed.append(pams.metrics.missed_rate(list(y[400:]), list(model.predict(X[400:])), tree))
        plain.append(pams.metrics.missed_rate(list(y[400:]), list(model.estimator_.predict(X[400:])), tree))
    assert np.mean(missed) <= 0.1 + 2 * np.std(missed) / np.sqrt(60)
    assert np.mean(plain) > 0.12


def test_pipelines_and_cross_validation():
    X, y = data()
    wrapped = make_pipeline(
        StandardScaler(), pams.SeverityClassifier(RandomForestClassifier(20, random_state=0), ORDER, kappa=5)
    )
    scores = cross_val_score(wrapped, X, y, cv=3)
    assert len(scores) == 3
    assert np.isfinite(scores).all()
    around = pams.SeverityClassifier(make_pipeline(StandardScaler(), LogisticRegression()), ORDER, kappa=5)
    assert cross_val_score(around, X, y, cv=3).min() > 0.3
    assert clone(around).get_params()["kappa"] == 5


@pytest.mark.parametrize("rule", [{"kappa": 3.0}, {"alpha": 0.1, "random_state": 0}])
def test_both_rules_work_wherever_estimators_do(rule):
    X, y = data(600)
    groups = np.arange(600) // 2
    model = pams.SeverityClassifier(LogisticRegression(), ORDER, **rule)
    assert str(clone(model).get_params()) == str(model.get_params())
    pipe = make_pipeline(StandardScaler(), model).fit(X, y, severityclassifier__groups=groups)
    assert set(pipe.predict(X)) <= set(ORDER)
    if "alpha" in rule:
        assert pipe[-1].certificate_.n == 90  # patients stay whole inside a pipeline
    missed = make_scorer(
        lambda true, called: pams.metrics.missed_rate(true, called, pams.ClassHierarchy.of(ORDER)),
        greater_is_better=False,
    )
    name, choices = ("kappa", [1.0, 3.0, 9.0]) if "kappa" in rule else ("alpha", [0.3, 0.2, 0.1])
    search = GridSearchCV(model, {name: choices, "estimator__C": [0.1, 1.0]}, scoring=missed, cv=3).fit(X, y)
    assert search.best_params_[name] == choices[-1]  # the rule that misses least
    assert cross_val_score(search.best_estimator_, X, y, cv=3, scoring=missed).mean() > -0.15
    with config_context(enable_metadata_routing=True):
        routed = model.set_fit_request(groups=True)
        scores = cross_val_score(routed, X, y, cv=GroupKFold(3), params={"groups": groups})
        assert np.isfinite(scores).all()
    frame = pandas.DataFrame(X)
    assert model.fit(frame, pandas.Series(y)).predict(frame).tolist() == clone(model).fit(X, y).predict(X).tolist()
    lists = clone(model).fit(X.tolist(), y.tolist())
    assert lists.predict(X.tolist()).tolist() == model.predict(frame).tolist()
    sparse = clone(model).fit(coo_array(X), y)
    assert sparse.predict(coo_array(X)).tolist() == lists.predict(X).tolist()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        clone(model).fit(X[:-1], y)


def test_what_is_wrong_is_said():
    X, y = data(60)
    with pytest.raises(ParameterError, match="not both"):
        pams.SeverityClassifier(LogisticRegression(), ORDER, kappa=2, alpha=0.1).fit(X, y)
    with pytest.raises(ParameterError, match="order of urgency"):
        pams.SeverityClassifier(LogisticRegression(), alpha=0.1).fit(X, y)
    with pytest.raises(ParameterError, match="kappa must be"):
        pams.SeverityClassifier(LogisticRegression(), ORDER, kappa=-1).fit(X, y)
    with pytest.raises(ParameterError, match="kappa must be a number from 0 to inf, found '3'"):
        pams.SeverityClassifier(LogisticRegression(), ORDER, kappa="3").fit(X, y)
    with pytest.raises(ParameterError, match=r"calibration is the share of patients.*found 1.5"):
        pams.SeverityClassifier(LogisticRegression(), ORDER, alpha=0.1, calibration=1.5).fit(X, y)
    with pytest.raises(ParameterError, match="'cancer' is not a class"):
        pams.SeverityClassifier(LogisticRegression(), ["normal", "atypia"]).fit(X, y)
    with pytest.raises(CertificateError):
        pams.SeverityClassifier(LogisticRegression(), ORDER, alpha=0.001).fit(X, y)
