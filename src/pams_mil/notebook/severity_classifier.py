"""Any classifier with `predict_proba`, decided by the cost of a missed urgency or by a guarantee.

scikit-learn tunes one threshold of two classes; here the operating point κ orders the calls of any number of classes
(`pams_mil.metrics.kappa_path`), fixed beforehand or certified on patients that the classifier has not seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils import _safe_indexing, assert_all_finite, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from pams_mil.arrays import AnyArray, Array, Ints
from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.make import certify
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy, as_hierarchy
from pams_mil.metrics.confusion import class_indices
from pams_mil.metrics.kappa_path import decision_path


class SeverityClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose calls count a missed urgency as κ false alarms.

    With `kappa` the operating point is given. With `alpha` it is certified: a share of the patients is set aside, the
    classifier is fitted on the others, and κ is the smallest at which a row of a new patient is missed with a
    probability of at most alpha, on average over such calibrations. A `FrozenEstimator` is not fitted, and all
    patients calibrate.

    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.array([[0.0], [0.2], [0.4], [0.9], [0.6], [1.0], [1.2], [0.3]])
    >>> y = ["benign"] * 4 + ["malignant"] * 4
    >>> model = SeverityClassifier(LogisticRegression(C=100.0), ["benign", "malignant"], kappa=4).fit(X, y)
    >>> int((model.estimator_.predict(X) == "malignant").sum()), int((model.predict(X) == "malignant").sum())
    (4, 7)

    Args:
        estimator: Any classifier with `predict_proba`.
        hierarchy: Classes, least urgent first, as in `pams_mil.audit`. None: all classes of y are equally urgent.
        kappa: How many false alarms a missed urgency costs; 1, the default without `alpha`, is the most probable class.
        alpha: The largest share of missed urgency to certify instead of a `kappa`.
        calibration: The share of patients that is set aside for `alpha`.
        random_state: Of the patients that are set aside.

    Attributes:
        estimator_: The fitted classifier.
        classes_: As the estimator knows them; columns of `predict_proba` follow it.
        hierarchy_: The order of urgency.
        kappa_: The operating point.
        certificate_: The certificate, or None without `alpha`.
    """

    def __init__(
        self,
        estimator: Any,
        hierarchy: Any = None,
        *,
        kappa: float | None = None,
        alpha: float | None = None,
        calibration: float = 0.3,
        random_state: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.hierarchy = hierarchy
        self.kappa = kappa
        self.alpha = alpha
        self.calibration = calibration
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> SeverityClassifier:
        """Fit the classifier and set the operating point; `groups` are patients, one per row."""
        if self.kappa is not None and self.alpha is not None:
            raise ParameterError("Give kappa, or alpha from which it is certified, not both.")
        if self.kappa is not None and not (isinstance(self.kappa, (int, float, np.number)) and self.kappa >= 0):
            raise ParameterError(f"kappa must be a number from 0 to inf, found {self.kappa!r}.")
        if self.alpha is not None and not 0 < self.calibration < 1:
            raise ParameterError(
                f"calibration is the share of patients to set aside, above 0 and below 1, found {self.calibration!r}."
            )
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        check_consistent_length(X, labels, groups)
        if self.alpha is not None and self.hierarchy is None:
            raise ParameterError(
                "alpha bounds missed urgency; give the order of urgency as hierarchy=[least urgent, ...]."
            )
        frozen = isinstance(self.estimator, FrozenEstimator)
        patients = np.arange(len(labels)) if groups is None else column_or_1d(groups)
        fitted: Any = (X, labels, patients)
        calibrating: Any = fitted
        if self.alpha is not None and not frozen:
            train, held = self._parted(labels, patients, groups is not None)
            columns = indexable(X, labels, patients)
            fitted, calibrating = ([_safe_indexing(one, rows) for one in columns] for rows in (train, held))
        self.estimator_ = self.estimator if frozen else clone(self.estimator).fit(*fitted[:2])
        self._learn_classes(labels)
        self.kappa_, self.certificate_ = 1.0 if self.kappa is None else float(self.kappa), None
        if self.alpha is not None:
            self.certificate_ = self._certified(*calibrating)
            self.kappa_ = self.certificate_.kappa
        return self

    def predict_proba(self, X: Any) -> Array:
        """The classifier's own probabilities, columns as in `classes_`."""
        check_is_fitted(self, "estimator_")
        p: Array = self.estimator_.predict_proba(X)
        return p

    def predict(self, X: Any) -> AnyArray:
        """The calls at `kappa_`."""
        check_is_fitted(self, "estimator_")
        calls = decision_path(self._ordered(self.predict_proba(X)), self.hierarchy_).calls(self.kappa_)
        chosen: AnyArray = self._labels[calls]
        return chosen

    @property
    def n_features_in_(self) -> int:
        """Columns of X, as the classifier has seen them."""
        check_is_fitted(self, "estimator_")
        return int(self.estimator_.n_features_in_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def _learn_classes(self, labels: AnyArray) -> None:
        """`classes_`, the hierarchy, and how each of its classes is spelled in y."""
        self.classes_ = self.estimator_.classes_
        if self.hierarchy is None:
            names = [f"class {number}" for number in range(len(self.classes_))]
            # One class alone is not an order; a second one that is never called makes it one.
            padded = names if len(names) > 1 else [*names, "no other"]
            self.hierarchy_ = ClassHierarchy.flat([padded])
            self._index: Ints = np.arange(len(self.classes_))
            self._labels = self.classes_
            return
        self.hierarchy_ = as_hierarchy(self.hierarchy)
        self._index = class_indices(self.classes_, self.hierarchy_, what="y")
        spelled: list[Any] = list(
            self.hierarchy_.names() if labels.dtype.kind in "OUS" else range(len(self.hierarchy_))
        )
        for index, label in zip(self._index.tolist(), self.classes_.tolist(), strict=True):
            spelled[index] = label
        self._labels = np.array(spelled, dtype=object if labels.dtype.kind == "O" else None)

    def _ordered(self, p: Array) -> Array:
        """Probabilities in the order of the hierarchy; classes that training did not hold have none."""
        table = np.zeros((len(p), len(self.hierarchy_)))
        table[:, self._index] = p
        return table

    def _parted(self, labels: AnyArray, patients: AnyArray, grouped: bool) -> tuple[Ints, Ints]:
        """Rows to fit on and rows to calibrate on; patients stay whole."""
        settings: dict[str, Any] = {"n_splits": 1, "test_size": self.calibration, "random_state": self.random_state}
        if grouped:
            return next(GroupShuffleSplit(**settings).split(labels, labels, patients))  # type: ignore[no-any-return]
        kind = StratifiedShuffleSplit if np.unique(labels, return_counts=True)[1].min() > 1 else ShuffleSplit
        return next(kind(**settings).split(labels, labels))  # type: ignore[no-any-return]

    def _certified(self, X: Any, labels: AnyArray, patients: AnyArray) -> Certificate:
        target = class_indices(labels, self.hierarchy_, what="y")
        p = self._ordered(self.estimator_.predict_proba(X))
        ids = [f"row {row}" for row in range(len(target))]
        predictions = Predictions(
            type(self.estimator_).__name__, self.hierarchy_, ids, target, p.argmax(1), p, [str(one) for one in patients]
        )
        # Rows are called one by one, so the bound is on a row of a new patient, not on the patient's most urgent call.
        return certify(predictions, alpha=self.alpha, unit="slide")
