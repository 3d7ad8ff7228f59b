"""PAMS as a scikit-learn classifier: bags in, probabilities out, for grid searches and cross-validation there.

    PamsClassifier(["benign", "malignant"]).fit(bags, labels, groups=patients).predict_proba(bags)

A bag is an array [n_i, d]; a plain table [n, d] is n bags of one row, which is how scikit-learn's own checks see it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag, Fingerprint
from pams_mil.data.bags.dataset import BagDataset, BagSample
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.run_config import RunConfig, configure
from pams_mil.engine.inference_loop import infer
from pams_mil.engine.learner import Learner
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.spec import RunSpec
from pams_mil.engine.training.loop import take_step
from pams_mil.engine.training.one_process import OneProcess
from pams_mil.engine.training.optimize import make_optimizer, set_learning_rate
from pams_mil.engine.training.run_cohort import Cohort
from pams_mil.engine.training.train import initial_learner, refuse_missing_init, training_bags
from pams_mil.errors import LabelError, PamsError, ParameterError, RunError
from pams_mil.hierarchy import ClassHierarchy, as_hierarchy
from pams_mil.metrics.kappa_path import decision_path


class PamsClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of bags that knows which class is more urgent.

    Columns of `predict_proba` follow `classes_`, which is sorted as scikit-learn's tools expect and spells every class
    as y does; the order of urgency is in `hierarchy_`. The same settings, bags and order of bags give the same weights
    bit for bit. There is no validation split here: all epochs are trained and the last weights kept. `pams_mil.train`
    chooses an epoch, resumes, and keeps the record that a study needs. `cross_val_predict(method="predict_proba")`
    hands labels over as numbers of sorted classes, which no hierarchy of names knows; collect `predict_proba` fold by
    fold instead.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> labels = ["benign", "malignant"] * 8
    >>> bags = [random.normal(3.0 * (label == "malignant"), 1.0, (random.integers(4, 9), 5)) for label in labels]
    >>> model = PamsClassifier(["benign", "malignant"], epochs=8, lr=1e-2).fit(bags, labels, groups=range(16))
    >>> model.predict_proba(bags).shape, list(model.predict(bags)) == labels
    ((16, 2), True)

    Args:
        hierarchy: Classes, least urgent first, a `ClassHierarchy`, a preset or a class file. None: the labels as they
            come, all equally urgent; no order is ever guessed, so no mistake counts more than another.
        method: As in `pams train --method`, a name or {"name": ..., options}.
        model: As in `pams train --model`.
        epochs: Passes over the bags.
        lr: Learning rate.
        batch: Bags per step of the optimizer, packed into one pass where the model can.
        weight_decay: Of Adam.
        seed: Of everything random.
    """

    n_features_in_: int
    classes_: AnyArray

    def __init__(
        self,
        hierarchy: ClassHierarchy | Sequence[str] | str | None = None,
        *,
        method: str | Mapping[str, Any] = "pams",
        model: str | Mapping[str, Any] = "abmil",
        epochs: int = 20,
        lr: float = 1e-3,
        batch: int = 1,
        weight_decay: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.hierarchy = hierarchy
        self.method = method
        self.model = model
        self.epochs = epochs
        self.lr = lr
        self.batch = batch
        self.weight_decay = weight_decay
        self.seed = seed

    def fit(self, X: Any, y: Any, groups: Any = None) -> PamsClassifier:
        """Train on bags and their labels.

        Args:
            X: A list of arrays [n_i, d], or a table [n, d] of bags with one row each.
            y: One label per bag.
            groups: One patient per bag: remix pairs slides of different patients; None: every bag is one.
        """
        bags = self._bags(X, y, reset=True)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        if len(labels) != len(bags):
            raise ParameterError(f"X has {len(bags)} bags and y {len(labels)} labels; expected one label per bag.")
        hierarchy, names = self._classes(labels)
        self.hierarchy_, self._names = hierarchy, names
        patients = [str(i) for i in range(len(bags))] if groups is None else [str(group) for group in groups]
        if len(patients) != len(bags):
            raise ParameterError(f"groups has {len(patients)} patients for {len(bags)} bags; expected one per bag.")
        config = configure(
            "memory", classes="memory", method=self.method, model=self.model, seed=self.seed, epochs=self.epochs,
            lr=self.lr, batch=self.batch, weight_decay=self.weight_decay,
        )  # fmt: skip
        called = [names[label] for label in labels.tolist()]
        self.learner_, self.spec_ = fit_in_memory(bags, called, patients, hierarchy, config)
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities [n, c] of every bag, one column per entry of `classes_`."""
        check_is_fitted(self, "learner_")
        bags = self._bags(X, reset=False)
        columns = [self.hierarchy_.index(self._names[label]) for label in self.classes_.tolist()]
        table: npt.NDArray[np.float64] = probabilities_in_memory(self.learner_, bags)[:, columns]
        return table

    def predict(self, X: Any, *, kappa: float | None = None) -> AnyArray:
        """The most probable class of every bag, or the call when a missed urgency costs `kappa` false alarms."""
        p = self.predict_proba(X)
        chosen: AnyArray
        if kappa is None:
            chosen = self.classes_[p.argmax(1)]
            return chosen
        order = [self.hierarchy_.index(self._names[label]) for label in self.classes_.tolist()]
        # Columns back into the order of urgency, and the calls back into the order of `classes_`.
        calls = decision_path(p[:, np.argsort(order)], self.hierarchy_).calls(kappa)
        chosen = self.classes_[np.argsort(order)[calls]]
        return chosen

    def save(self, path: Path | str) -> None:
        """Write a checkpoint `<name>.safetensors` that `pams_mil.load`, `predict` and `pams predict` take.

        Its classes are those of the hierarchy, in order of urgency.
        """
        check_is_fitted(self, "learner_")
        if Path(path).suffix != ".safetensors":
            raise ParameterError(f"A saved classifier is a file that ends in .safetensors, found {str(path)!r}.")
        state = {"spec": self.spec_.to_json()}
        checkpoint.save(Path(path), checkpoint.Checkpoint(dict(self.learner_.state_dict()), state))

    def _classes(self, labels: AnyArray) -> tuple[ClassHierarchy, dict[Any, str]]:
        """The hierarchy, and the name in it of every label; sets `classes_`."""
        distinct = np.unique(labels)
        if len(distinct) < 2 and self.hierarchy is None:
            raise ParameterError(f"A classifier needs at least 2 classes; the labels are all of one class, {distinct}.")
        if self.hierarchy is None:
            self.classes_ = distinct
            names = {label: str(number) for number, label in enumerate(distinct.tolist())}
            return ClassHierarchy.flat([list(names.values())]), names
        hierarchy = as_hierarchy(self.hierarchy)
        known = hierarchy.names()
        try:
            names = {label: known[hierarchy.index(str(label))] for label in distinct.tolist()}
        except LabelError as error:
            raise ParameterError(f"y: {error}") from error
        # One entry per class, or it would have two columns. Of several spellings the first in sorted order is taken.
        spelled = {name: label for label, name in reversed(names.items())}
        self.classes_ = np.unique([spelled.get(name, name) for name in known])
        return hierarchy, {**{name: name for name in known}, **names}

    def _bags(self, X: Any, y: Any = None, *, reset: bool) -> list[AnyArray]:
        if not _holds_bags(X):
            shown: dict[str, Any] = {"dtype": np.float32, "reset": reset}
            table = validate_data(self, X, **shown) if y is None else validate_data(self, X, y, **shown)[0]
            return [row[None] for row in np.ascontiguousarray(table)]
        checked = (check_array(bag, dtype=np.float32, input_name=f"bag {number}") for number, bag in enumerate(X))
        bags = [np.ascontiguousarray(bag) for bag in checked]
        expected = bags[0].shape[1] if reset else self.n_features_in_
        odd = [number for number, bag in enumerate(bags) if bag.shape[1] != expected]
        if odd:
            raise ParameterError(
                f"Bag {odd[0]} has {bags[odd[0]].shape[1]} features per instance, and {expected} are expected: all "
                "bags must be of one encoder."
            )
        self.n_features_in_ = expected
        return bags


def _holds_bags(X: Any) -> bool:
    """Whether X is a sequence of bags rather than a table.

    >>> _holds_bags([np.zeros((3, 2))]), _holds_bags(np.zeros((3, 2))), _holds_bags([[0.0, 1.0]])
    (True, False, False)
    """
    if isinstance(X, np.ndarray) and X.dtype != object:
        return X.ndim == 3
    return isinstance(X, (list, tuple, np.ndarray)) and len(X) > 0 and np.ndim(X[0]) == 2


@dataclass(frozen=True)
class MemoryStore:
    """Bags by slide id, as a folder or a pack would give them."""

    bags: dict[str, AnyArray]

    def read(self, record: SlideRecord, *, verify: bool = True) -> Bag:
        """The bag of a slide."""
        return Bag(self.bags[record.slide_id])

    def fingerprint(self, record: SlideRecord) -> Fingerprint:
        """What is in memory has no file to change."""
        return Fingerprint("", record.slide_id)

    def identity(self, record: SlideRecord) -> None:
        """Arrays can be changed in place, and nothing would tell."""


def fit_in_memory(
    bags: Sequence[AnyArray],
    labels: Sequence[str],
    patients: Sequence[str],
    hierarchy: ClassHierarchy,
    config: RunConfig,
) -> tuple[Learner, RunSpec]:
    """A learner trained for all epochs on bags [n_i, d], and its spec; the caller's random state is left as it was."""
    config = complete(config, hierarchy)
    refuse_missing_init(config)
    cohort = _cohort(bags, labels, patients, hierarchy)
    spec = cohort.spec(config)
    steps = training_bags(config, cohort, spec.method)
    learner, _ = initial_learner(spec, config)
    optimizer, here = make_optimizer(learner, config.training), OneProcess()
    learner.train()
    # Every step seeds torch's global generator; in a notebook it belongs to someone else.
    with torch.random.fork_rng(devices=[]):
        for epoch in range(config.training.epochs):
            set_learning_rate(optimizer, config.training, epoch)
            keys = steps.epoch_keys(epoch)
            waiting = map(steps.__getitem__, keys)
            for start in range(0, len(keys), config.training.batch):
                group = min(config.training.batch, len(keys) - start)
                for pack, terms in take_step(here, learner, learner, optimizer, config.training, waiting, group):
                    if not all(map(math.isfinite, terms.values())):
                        raise RunError(f"The loss is not finite on bag {pack[0].name!r}, epoch {epoch + 1}; lower lr.")
    return learner.eval(), spec


def probabilities_in_memory(learner: Learner, bags: Sequence[AnyArray]) -> npt.NDArray[np.float64]:
    """Probabilities [b, c] of the finest level, in the order of the hierarchy."""
    samples = [BagSample(torch.from_numpy(bag), -1, str(number), "") for number, bag in enumerate(bags)]
    rows = []
    # One bag per pass: whatever bags come along, a bag's probabilities have the same bits.
    for _, _, outcome in infer([learner], samples, most=1):
        if isinstance(outcome, PamsError):
            raise outcome
        rows.append(outcome[0].probabilities[-1])
    table: npt.NDArray[np.float64] = torch.cat(rows).numpy()
    return table


def _cohort(
    bags: Sequence[AnyArray], labels: Sequence[str], patients: Sequence[str], hierarchy: ClassHierarchy
) -> Cohort:
    names = [str(number) for number in range(len(bags))]
    records = (SlideRecord(*row, split="train") for row in zip(names, patients, labels, strict=True))
    manifest = Manifest(tuple(records))
    store = MemoryStore(dict(zip(names, bags, strict=True)))
    train, width = BagDataset(manifest, hierarchy, store), int(bags[0].shape[1])
    return Cohort(manifest, hierarchy, store, train, train, {"width": width})
