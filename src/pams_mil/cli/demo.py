"""`pams demo`: the two models of the paper's first figure, audited."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pams_mil.cli.console import errors, output, progress_bar

if TYPE_CHECKING:
    from pams_mil.evaluate.predictions import Predictions

FIGURE_1 = {
    "A": ((44, 5, 1), (6, 42, 2), (8, 1, 91)),
    "B": ((35, 12, 3), (1, 45, 4), (1, 4, 95)),
}
"""Confusion matrices of the paper's Figure 1: rows = true, columns = predicted; Benign, Atypical, Malignant."""


def demo(
    out: Path = typer.Option(Path("demo-report"), "--out", help="Folder for the predictions and the report."),
) -> None:
    """Audit the two models of the paper's Figure 1 and write the report.

    Example: pams demo --out demo-report
    """
    from pams_mil.cli.audit import show, write
    from pams_mil.evaluate.audit import audit
    from pams_mil.evaluate.predictions import write_predictions

    models = figure_1_models()
    for model in models:
        write_predictions(out / f"{model.name}.csv", model)
    with progress_bar() as progress:
        result = audit(models, progress=progress)
    write(result, out)
    show(result)
    a, b = (model.finest for model in result.models)
    output.print(
        f"\nB is the safer model although A is more accurate: A calls {a.values['severe_errors']:.0f} of {a.n} slides "
        f"less urgent than they are, B only {b.values['severe_errors']:.0f}; B errs towards caution. "
        "(The figure prints confusion matrices, not slides: who got which slide wrong is drawn at random here.)",
        highlight=False,
        markup=False,
    )
    errors.print(f"Report: {out / 'report.html'}", highlight=False, markup=False, soft_wrap=True)


def figure_1_models() -> list[Predictions]:
    """Predictions with exactly the figure's confusion matrices, models paired at random within each true class."""
    import numpy as np

    from pams_mil.evaluate.predictions import Predictions
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.seeding import numpy_generator

    tree = ClassHierarchy.flat(["Benign", "Atypical", "Malignant"], name="figure-1")
    target = np.repeat([0, 1, 2], [sum(row) for row in FIGURE_1["A"]])
    slides = [f"slide-{number + 1:03d}" for number in range(len(target))]
    models = []
    for name, matrix in FIGURE_1.items():
        rows = [np.repeat([0, 1, 2], counts) for counts in matrix]
        predicted = np.concatenate([numpy_generator(0, name, t).permutation(row) for t, row in enumerate(rows)])
        models.append(Predictions(name, tree, slides, target, predicted, layout="Figure 1"))
    return models
