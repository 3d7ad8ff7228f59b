"""Decisions after training: which class to report for given probabilities, without touching the model.

| rule | decision for probabilities p |
|---|---|
| argmax | the most probable class |
| risk | conditional risk minimization, argmin_r Σ_t p_t C[t, r], for any cost `[true, predicted]` |
| ascc | the Bayes rule for AsCC, argmax_r Σ_t p_t / W[t, r] |
| kappa | a missed urgency costs κ false alarms, see `pams_mil.metrics.kappa_path` |

The last three trade some accuracy for milder mistakes, and are as good as the probabilities are calibrated. Among equal
values the least urgent class wins, as with numpy's argmax; with kappa the most urgent one, which keeps calls in step
with κ. So kappa=1 is argmax except where two classes have exactly the same probability.

An operating point may also be fixed before the test: κ is chosen on validation slides, and the test slides are decided
with it. A comparison at equal false alarms sets κ on the slides it scores and describes two curves. Here the
candidate's κ is the largest one with which it raises, on validation slides, no more false alarms than the reference's
calls do there:

    κ* = max {κ : mean_i [d_κ(i) above t_i] ≤ mean_i [reference's call above t_i]}

On the test slides the two then differ a little in false alarms, as they would in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError, PredictionsError, nearest
from pams_mil.evaluate.decisions.debias import TrainingBias
from pams_mil.evaluate.predictions.predictions import DECIDED, Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.metrics.operating import operating_curve
from pams_mil.metrics.probability import OrderedProbabilities, check_probabilities
from pams_mil.severity import PENALTY, check_cost, lca_cost, loss_weight, metric_weight

Rule = Literal["argmax", "risk", "ascc", "kappa"]
RULES: tuple[Rule, ...] = ("argmax", "risk", "ascc", "kappa")
NamedCost = Literal["severity", "lca"]


@dataclass(frozen=True)
class DecisionRule:
    """A rule as people write it and files say it: `argmax`, `ascc`, `risk`, or `kappa=3`.

    >>> DecisionRule.parse("kappa=3")
    DecisionRule(name='kappa', kappa=3.0)
    >>> str(DecisionRule.parse("kappa=3.0")), str(DecisionRule())
    ('kappa=3', 'argmax')
    """

    name: Rule = "argmax"
    kappa: float = 1.0

    @classmethod
    def parse(cls, text: str) -> DecisionRule:
        """The rule that a text names."""
        name, equals, number = text.strip().partition("=")
        try:
            kappa = float(number) if equals else 1.0
        except ValueError:
            kappa = float("nan")
        if name not in RULES or (name == "kappa") != bool(equals) or not kappa >= 0:
            raise ParameterError(
                "A decision must be argmax, ascc, risk, or kappa=K, where a missed urgency costs K false alarms (0 to "
                f"inf), e.g. kappa=3; found {text!r}.{nearest(name, RULES)}"
            )
        return cls(name, kappa)

    def __str__(self) -> str:
        # All digits: κ is often the very threshold of a slide, and a rounded one would call that slide otherwise.
        return f"kappa={float(self.kappa)!r}".removesuffix(".0") if self.name == "kappa" else self.name


def most_probable(probabilities: npt.ArrayLike) -> Ints:
    """argmax_r p_r; [n, c] -> [n].

    >>> most_probable([[0.5, 0.3, 0.2]]).tolist()
    [0]
    """
    decision: Ints = check_probabilities(probabilities).argmax(axis=1)
    return decision


def least_risk(probabilities: npt.ArrayLike, cost: npt.ArrayLike) -> Ints:
    """Conditional risk minimization, argmin_r Σ_t p_t C[t, r]; [n, c], [c, c] -> [n].

    The cost is 0 on its diagonal, so that only mistakes cost. The absolute distance |t − r| gives the median class.

    >>> missed_cancer = [[0, 1, 1], [3, 0, 1], [9, 3, 0]]
    >>> least_risk([[0.5, 0.3, 0.2]], missed_cancer).tolist()  # risks 2.7, 1.1 and 0.8
    [2]
    """
    p = check_probabilities(probabilities)
    decision: Ints = (p @ check_cost(cost, p.shape[1], zero_diagonal=True)).argmin(axis=1)
    return decision


def most_ascc(probabilities: npt.ArrayLike, weight: npt.ArrayLike) -> Ints:
    """The decision with the highest expected AsCC, argmax_r Σ_t p_t / W[t, r]; [n, c], [c, c] -> [n].

    >>> most_ascc([[0.4, 0.25, 0.35]], [[1, 2, 3], [4, 1, 2], [5, 4, 1]]).tolist()  # .5325, .5375 and .6083
    [2]
    """
    p = check_probabilities(probabilities)
    wheel = check_cost(weight, p.shape[1], zero_diagonal=False)
    if (wheel < 1).any():
        raise ParameterError(f"weight must hold numbers of at least 1, found {wheel.min():g}; see metric_weight.")
    decision: Ints = (p @ (1.0 / wheel)).argmax(axis=1)
    return decision


def decide(
    probabilities: npt.ArrayLike,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    rule: str | DecisionRule = "argmax",
    cost: NamedCost | npt.ArrayLike = "severity",
    penalty: float = PENALTY,
) -> Ints:
    """Class indices [n] for probabilities [n, c] at a level.

    Args:
        probabilities: Rows that sum to 1.
        hierarchy: Order and tree of the classes.
        level: The level that the probabilities are of.
        rule: "argmax", "risk", "ascc" or "kappa=3", see `DecisionRule`.
        cost: For "risk": "severity" for W − 1, "lca" for the height in the tree, or any matrix `[true, predicted]`.
        penalty: P of W, for "ascc" and the cost "severity".

    >>> hierarchy = ClassHierarchy.flat(["benign", "atypical", "malignant"])
    >>> [int(decide([[0.4, 0.25, 0.35]], hierarchy, rule=rule)[0]) for rule in ("argmax", "risk", "ascc", "kappa=3")]
    [0, 2, 2, 2]
    """
    p = check_probabilities(probabilities, hierarchy.num_classes(level))
    chosen = DecisionRule.parse(rule) if isinstance(rule, str) else rule
    if chosen.name == "ascc":
        return most_ascc(p, metric_weight(hierarchy, level, penalty=penalty))
    if chosen.name == "risk":
        return least_risk(p, _cost(cost, hierarchy, level, penalty))
    if chosen.name == "kappa":
        return decision_path(p, hierarchy, level=level).calls(chosen.kappa)
    return most_probable(p)


def redecide(
    predictions: Predictions,
    rule: str | DecisionRule = "argmax",
    *,
    cost: NamedCost | npt.ArrayLike = "severity",
    penalty: float = PENALTY,
    debias: bool | TrainingBias = False,
) -> Predictions:
    """The same predictions with the decision rule re-applied to their probabilities, e.g. `redecide(p, "kappa=3")`.

    Args:
        predictions: With probabilities.
        rule: "argmax", "ascc", "risk" or "kappa=3", see `DecisionRule`.
        cost: For "risk", as in `decide`.
        penalty: P of W, as in `decide`.
        debias: Undo first what training did to the probabilities, which the result then carries. True stands for MSCE
            with its default weight, no remix; a `TrainingBias` says what else is known.
    """
    if predictions.probabilities is None:
        raise PredictionsError(
            f"{predictions.name} has no probabilities, so no decision rule can be applied; "
            "export one probability column per class."
        )
    chosen = rule if isinstance(rule, DecisionRule) else DecisionRule.parse(rule)
    hierarchy, probabilities = predictions.hierarchy, predictions.probabilities
    notes = tuple(note for note in predictions.notes if not note.startswith(DECIDED))
    if debias is not False:
        bias = TrainingBias(severity=loss_weight(hierarchy)) if debias is True else debias
        probabilities = bias.remove(probabilities)
        notes = (*notes, f"Probabilities with the bias of training removed ({bias.describe()}).")
    calls = decide(probabilities, hierarchy, rule=chosen, cost=cost, penalty=penalty)
    usual = chosen.name != "risk" or (isinstance(cost, str) and cost == "severity")
    named = str(chosen) if usual else "risk with another cost"
    return replace(predictions, predicted=calls, probabilities=probabilities, notes=notes, decided_by=named)


def _cost(cost: NamedCost | npt.ArrayLike, hierarchy: ClassHierarchy, level: int, penalty: float) -> Array:
    if isinstance(cost, str):
        if cost == "severity":
            return metric_weight(hierarchy, level, penalty=penalty) - 1.0
        if cost == "lca":
            return lca_cost(hierarchy, level)
        raise ParameterError(f"cost must be 'severity', 'lca' or a matrix [true, predicted], found {cost!r}.")
    return np.asarray(cost, dtype=np.float64)


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
    return operating_curve(target, OrderedProbabilities(probabilities), hierarchy).kappa_at(float(alarms.mean()))


def at_fixed_kappa(predictions: Predictions, kappa: float, *, reference: str, split: str) -> Predictions:
    """The predictions decided with κ, named for what they are."""
    decided = redecide(predictions, DecisionRule("kappa", kappa))
    note = (
        f"Decided with κ = {kappa:.3g}, the largest that raised no more false alarms than {reference} on the slides of "
        f"{split!r}; the scored slides had no part in it."
    )
    name = f"{predictions.name}, κ = {kappa:.3g} from {split}"
    return replace(decided, name=name, notes=(*decided.notes, note))
