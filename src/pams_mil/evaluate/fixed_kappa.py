"""An operating point fixed before the test: κ chosen on validation slides, the test slides decided with it.

A comparison at equal false alarms sets κ on the slides it scores and describes two curves. Here the candidate's κ is
the largest one with which it raises, on validation slides, no more false alarms than the reference's calls do there:

    κ* = max {κ : mean_i [d_κ(i) above t_i] ≤ mean_i [reference's call above t_i]}

On the test slides the two then differ a little in false alarms, as they would in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pams_mil.errors import PredictionsError
from pams_mil.evaluate.decide import DecisionRule, redecide
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics.operating import operating_curve


def matching_kappa(reference: Sequence[Predictions], candidate: Sequence[Predictions]) -> float:
    """κ* of the candidate on validation slides, which may come in parts (the folds of a cross-validation).

    >>> from pams_mil import ClassHierarchy
    >>> two = ClassHierarchy.flat(["benign", "malignant"])
    >>> p = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    >>> ids, true = tuple("abcd"), np.array([0, 0, 1, 1])
    >>> bold = Predictions("bold", two, ids, true, predicted=np.array([0, 1, 1, 1]))
    >>> shy = Predictions("shy", two, ids, true, predicted=p.argmax(1), probabilities=p)
    >>> kappa = matching_kappa([bold], [shy])  # bold raises one false alarm in four; shy may raise as many
    >>> redecide(shy, f"kappa={kappa!r}").predicted.tolist()
    [0, 1, 1, 1]
    """
    for model in candidate:
        if model.probabilities is None:
            raise PredictionsError(f"{model.name} has no probabilities, so it has no operating point to set.")
    hierarchy = reference[0].hierarchy
    ranks = hierarchy.ranks()
    alarms = np.concatenate([ranks[model.predicted] > ranks[model.target] for model in reference])
    probabilities = np.concatenate([model.probabilities for model in candidate if model.probabilities is not None])
    target = np.concatenate([model.target for model in candidate])
    return operating_curve(target, probabilities, hierarchy).kappa_at(float(alarms.mean()))


def at_fixed_kappa(predictions: Predictions, kappa: float, *, reference: str, split: str) -> Predictions:
    """The predictions decided with κ, named for what they are."""
    decided = redecide(predictions, DecisionRule("kappa", kappa))
    note = (
        f"Decided with κ = {kappa:.3g}, the largest that raised no more false alarms than {reference} on the slides of "
        f"{split!r}; the scored slides had no part in it."
    )
    name = f"{predictions.name}, κ = {kappa:.3g} from {split}"
    return replace(decided, name=name, notes=(*decided.notes, note))
