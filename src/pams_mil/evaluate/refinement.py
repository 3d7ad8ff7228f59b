"""How much probabilities know, whatever their operating point and however sure of themselves they are.

    refined NLL = min over 1/T >= 0 and β of  mean_i −ln q_i,t_i,     ln q_iy = ln p_iy / T + β · rank(y) + const

A model that merely leans toward urgency, or away from it, is forgiven by β, and one that is too sure by T; what is left
is what it cannot tell apart. So an epoch that is chosen by it cannot win by moving the operating point.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from pams_mil.arrays import Array
from pams_mil.errors import ParameterError
from pams_mil.evaluate import softmax_fit
from pams_mil.evaluate.debias import logarithm
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import Labels
from pams_mil.metrics.probability import labels_and_probabilities

PRIOR_SLIDES = 1.0
"""How many slides' worth of evidence says what the network says; it keeps the fit finite when every slide is right."""


def refined_nll(
    y_true: Labels,
    probabilities: npt.ArrayLike,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    prior_slides: float = PRIOR_SLIDES,
) -> float:
    """The negative log-likelihood after the best temperature and lean toward urgency; lower is better.

    Args:
        y_true: Class names or indices of `level`.
        probabilities: [n, c] of the classes at `level`.
        hierarchy: Order and ties of the classes.
        level: The level that labels and probabilities are of.
        prior_slides: How many slides' worth of evidence is added for what the network says, in the fit alone.

    >>> hierarchy = ClassHierarchy.flat(["benign", "malignant"])
    >>> timid = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.9, 0.1]]
    >>> round(refined_nll([0, 1, 1, 0], timid, hierarchy), 3) < 0.3  # the order is right, though nothing is called
    True
    >>> round(refined_nll([0, 1, 1, 0], [[0.5, 0.5]] * 4, hierarchy), 4)  # ln 2
    0.6931
    """
    true, p = labels_and_probabilities(y_true, probabilities, hierarchy, level)
    logits = logarithm(p)
    rank = np.unique(hierarchy.ranks(level), return_inverse=True)[1].astype(np.float64)
    # coefficients 1/T and β
    features = np.stack([logits, np.broadcast_to(rank, p.shape)], axis=2)
    truth = np.eye(p.shape[1])[true] + prior_slides / len(p) * p
    coefficients = _fit(features, truth)
    if coefficients[0] < 0:  # worse than knowing nothing: the best temperature that is one is infinite
        coefficients = np.concatenate([[0.0], softmax_fit.fit(features[:, :, 1:], truth, np.zeros(1)).theta])
    # The further slide took part in the fit alone; what is scored are the slides.
    q = log_softmax(features @ coefficients, axis=1)
    return float(-q[np.arange(len(true)), true].mean())


def _fit(features: Array, truth: Array) -> Array:
    """1/T and β; where all slides are right beyond doubt there is no best T, and the network's own will do."""
    as_it_is = np.array([1.0, 0.0])
    try:
        return softmax_fit.fit(features, truth, as_it_is).theta
    except ParameterError:
        return as_it_is
