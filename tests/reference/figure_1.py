"""The two models of the paper's Figure 1."""

from __future__ import annotations

import numpy as np

from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.seeding import numpy_generator

FIGURE_1 = {
    "A": ((44, 5, 1), (6, 42, 2), (8, 1, 91)),
    "B": ((35, 12, 3), (1, 45, 4), (1, 4, 95)),
}
"""Confusion matrices: rows = true, columns = predicted; Benign, Atypical, Malignant."""


def figure_1_models() -> list[Predictions]:
    """Predictions with exactly the figure's confusion matrices, models paired at random within each true class."""
    hierarchy = ClassHierarchy.flat(["Benign", "Atypical", "Malignant"], name="figure-1")
    target = np.repeat([0, 1, 2], [sum(row) for row in FIGURE_1["A"]])
    slides = [f"slide-{number + 1:03d}" for number in range(len(target))]
    models = []
    for name, matrix in FIGURE_1.items():
        rows = [np.repeat([0, 1, 2], counts) for counts in matrix]
        predicted = np.concatenate([numpy_generator(0, name, t).permutation(row) for t, row in enumerate(rows)])
        models.append(Predictions(name, hierarchy, slides, target, predicted, layout="Figure 1"))
    return models
