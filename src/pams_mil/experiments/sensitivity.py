"""How much the hyper-parameters matter: (λ₁, λ₂) x α, L x k, and T, on the validation split only.

The test split is not looked at here: choosing on it would spend it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pams_mil import atomic
from pams_mil.engine.grid.grid import GridRun
from pams_mil.engine.run.folder import RunFolder
from pams_mil.experiments.arms import Arm, cluster_arms, loss_weight_arms
from pams_mil.experiments.study import Section, Setting, Table, run_arms
from pams_mil.experiments.study_figures import drawing, look
from pams_mil.metrics.metric import METRICS
from pams_mil.report.bench import SeedSpread
from pams_mil.tables import read_table

DISCOVER = "run"
TITLE = "Sensitivity to the hyper-parameters (validation split)"
NAME = "sensitivity"
SCORES = ("acc", "ascc", "asmc")


def run(setting: Setting) -> Section:
    """Train PAMS over the two grids and report validation scores of the chosen epochs."""
    losses = loss_weight_arms((1.2, 1.6) if setting.quick else (1.2, 1.6, 2.0))
    clusters = cluster_arms((5, 11) if setting.quick else (5, 8, 11), (2, 6) if setting.quick else (2, 4, 6, 8))
    done = run_arms(setting, [*losses, *clusters])
    scores = validation_scores(done)
    folder = setting.folder(NAME)
    for name, arms in (("loss-weights", losses), ("clusters", clusters)):
        draw(folder, name, arms, scores)
    rows = [(*key, *(_text(value, ".6f", "") for value in values)) for key, values in scores.items()]
    head = ("model", "setting", *SCORES)
    atomic.write_csv(folder / "validation.csv", head, rows)
    shown = tuple((*key, *(_text(100 * value, ".1f", "–") for value in values)) for key, values in scores.items())
    labels = ("model", "setting", *(METRICS[metric].label for metric in SCORES))
    caption = "Validation scores in percent at the chosen epoch, mean over seeds and folds."
    return Section(
        NAME,
        TITLE,
        tables=(Table(caption, labels, shown),),
        figures=(
            ("loss-weights", "Validation scores over the weights of the loss and α."),
            ("clusters", "Validation scores over clusters L, chosen clusters k and iterations T."),
        ),
        files=("validation.csv",),
    )


def validation_scores(done: GridRun) -> dict[tuple[str, str], list[float]]:
    """(model, arm) -> mean of each metric over runs, at the epoch that each run chose."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for cell in done.finished:
        folder = RunFolder(done.out / cell.key)
        log = read_table(folder.metrics_file)
        row = log["epoch"].index(str(folder.status()["best_epoch"]))
        values = [float(log[f"val_{metric}"][row] or "nan") for metric in SCORES]  # empty: not finite
        found.setdefault((cell.model, cell.method), []).append(values)
    return {key: [SeedSpread.of(column).mean for column in zip(*rows, strict=True)] for key, rows in found.items()}


def draw(folder: Path, name: str, arms: Sequence[Arm], scores: dict[tuple[str, str], list[float]]) -> None:
    """One line per metric over the settings, one panel per model."""
    models = list(dict.fromkeys(model for model, _ in scores))
    labels = [arm.label for arm in arms]
    with drawing(folder, name, width=7, height=2.8 * len(models), nrows=len(models), squeeze=False) as (_, axes):
        for ax, model in zip(axes[:, 0], models, strict=True):
            for number, metric in enumerate(SCORES):
                values = [
                    100 * scores[model, label][number] if (model, label) in scores else math.nan for label in labels
                ]
                ax.plot(
                    range(len(labels)), values, label=METRICS[metric].label, linewidth=1, markersize=4, **look(number)
                )
            ax.set_xticks(range(len(labels)), labels, rotation=35, ha="right")
            ax.set(title=model, ylabel="validation (%)")
        axes[0][0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _text(value: float, form: str, undefined: str) -> str:
    return undefined if math.isnan(value) else format(value, form)
