"""`SeverityClassifier`: scikit-learn's own checks, and what is ours: κ, guarantees, patients that stay whole."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pams_mil as pams
from pams_mil.errors import CertificateError, ParameterError
from pams_mil.metrics.kappa_path import decision_path

ORDER = ["normal", "atypia", "cancer"]


@parametrize_with_checks([pams.SeverityClassifier(LogisticRegression())])
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


def test_what_is_wrong_is_said():
    X, y = data(60)
    with pytest.raises(ParameterError, match="not both"):
        pams.SeverityClassifier(LogisticRegression(), ORDER, kappa=2, alpha=0.1).fit(X, y)
    with pytest.raises(ParameterError, match="order of urgency"):
        pams.SeverityClassifier(LogisticRegression(), alpha=0.1).fit(X, y)
    with pytest.raises(ParameterError, match="kappa must be"):
        pams.SeverityClassifier(LogisticRegression(), ORDER, kappa=-1).fit(X, y)
    with pytest.raises(ParameterError, match="'cancer' is not a class"):
        pams.SeverityClassifier(LogisticRegression(), ["normal", "atypia"]).fit(X, y)
    with pytest.raises(CertificateError):
        pams.SeverityClassifier(LogisticRegression(), ORDER, alpha=0.001).fit(X, y)
