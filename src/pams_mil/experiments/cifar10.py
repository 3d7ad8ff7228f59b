"""The natural-image study: five losses on CIFAR-10 in the paper's order of classes, one level, no bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from markupsafe import Markup
from pydantic import Field

from pams_mil import atomic, methods
from pams_mil.cohorts.cifar10_bags import Cifar10
from pams_mil.engine.config.run_config import Strict, build, with_overrides
from pams_mil.engine.config.yaml_file import read_yaml
from pams_mil.errors import ConfigError
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions
from pams_mil.experiments.image_study import Budget, ImageSet, resnet18, small_network, train_and_predict
from pams_mil.experiments.paper import FOLDER, Study, paper_table
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.probability import expected_class_of_errors
from pams_mil.report import svg
from pams_mil.report.bench import Entry, summarize
from pams_mil.report.bench_page import Further
from pams_mil.report.page import ReportTable

LOSSES = {
    "CE": methods.CELoss,
    "Weighted CE (1:10)": methods.WeightedCELoss,
    "CO2": methods.CO2Loss,
    "CDW-CE": methods.CDWCELoss,
    "MSCE": methods.MSCELoss,
}
REFERENCE = "MSCE"
Loss = Literal["CE", "Weighted CE (1:10)", "CO2", "CDW-CE", "MSCE"]


class ImageGrid(Strict):
    """The settings of the study."""

    source: Path
    """The folder of the python batches, or of class folders."""
    train: int = Field(50_000, ge=1)
    test: int = Field(10_000, ge=1)
    network: Literal["resnet18", "small"] = "resnet18"
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    losses: tuple[Loss, ...] = Field(get_args(Loss), min_length=1)
    training: Budget = Budget()


def cifar10_study(
    changes: Sequence[str], out: Path, *, resamples: int, progress: Callable[[float, str], None]
) -> Study:
    """Train one network per loss and seed; compare them, with the expected class of the misclassified."""
    content = with_overrides(read_yaml(FOLDER / "grids" / "cifar10.yaml"), changes, kind=ImageGrid)
    if content["source"] is None:
        raise ConfigError("paper:cifar10 needs a local copy: source=FOLDER with the python batches or class folders.")
    grid = build(ImageGrid, content, where="paper:cifar10")
    cohort = Cifar10(source=grid.source, train=grid.train, val=1, test=grid.test)
    images = ImageSet(*cohort.images("train")), ImageSet(*cohort.images("test"))
    hierarchy = ClassHierarchy.load("cifar10")
    entries = [Entry("ResNet-18" if grid.network == "resnet18" else "small network", loss, {}) for loss in grid.losses]
    jobs = [(entry, seed) for seed in grid.seeds for entry in entries]
    for number, (entry, seed) in enumerate(jobs, 1):
        entry.runs[f"seed {seed}"] = _predictions(grid, out, hierarchy, images, entry.method, seed)
        progress(number / len(jobs), f"{entry.method}, seed {seed}: done")
    reference = REFERENCE if REFERENCE in grid.losses else grid.losses[0]
    expected = expected_classes(entries)
    rows = [[loss, *(f"{value:.2f}" for value in values)] for loss, values in expected.items()]
    caption = "Expected class (1 to 10) of misclassified images by true class, mean over seeds; higher is safer."
    table = ReportTable(["loss", *hierarchy.names()], rows, caption=caption)
    return Study(
        "Natural images: what each loss does to the direction of mistakes",
        Further((table, *paper_table("cifar10", grid.losses, "cifar10")), {"expected-class.svg": draw(expected)}),
        summarize(entries, reference=reference, resamples=resamples),
    )


def expected_classes(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """Per loss, the expected class (1-based) of the misclassified of each true class, mean over seeds."""
    means = {}
    for entry in entries:
        per_seed = [
            expected_class_of_errors(run.target, run.predicted, run.probabilities)
            for run in entry.runs.values()
            if run.probabilities is not None
        ]
        # A loss without mistakes in a class has no mean there; the other seeds still count.
        known = ~np.isnan(per_seed)
        sums = np.where(known, per_seed, 0.0).sum(0)
        means[entry.method] = [float(s / n) if n else float("nan") for s, n in zip(sums, known.sum(0), strict=True)]
    return means


def draw(expected: Mapping[str, Sequence[float]]) -> Markup:
    """One line per loss over the true classes, least urgent first."""
    count = len(next(iter(expected.values())))
    numbers = range(1, count + 1)
    plane = svg.Plane(520, 340, list(numbers), [number / 100 for number in numbers])  # its y axis is in percent
    parts = plane.axes(("true class", "expected class of mistakes"), x_scale=1)
    for number, (loss, values) in enumerate(expected.items()):
        places = [plane.at(true, value / 100) for true, value in enumerate(values, 1) if not np.isnan(value)]
        parts.append(svg.polyline(places, f"curve {svg.series(number)}", loss))
    return svg.picture(520, 340, "expected class of misclassified images", parts)


def _predictions(
    grid: ImageGrid, out: Path, hierarchy: ClassHierarchy, images: tuple[ImageSet, ImageSet], label: str, seed: int
) -> Predictions:
    """Predictions of one run, read back when an earlier run of the same images, classes and budget left them."""
    train, test = images
    quick = grid.network == "small"
    folder = out / "cifar10" / "runs" / f"{LOSSES[label].__name__}-seed{seed}"
    settings = {
        "budget": grid.training.model_dump(), "quick": quick, "seed": seed, "loss": label, "classes": hierarchy.digest,
        "images": {"train": train.digest, "test": test.digest},
    }  # fmt: skip
    marker = folder / "settings.json"
    if marker.exists() and marker.read_text("utf-8") == atomic.strict_json(settings) + "\n":
        return read_predictions(folder / "predictions.csv", hierarchy, name=label)
    network = partial(small_network if quick else resnet18, hierarchy.num_classes())
    predictions = train_and_predict(
        label, network, LOSSES[label](hierarchy), train, test, hierarchy, budget=grid.training, seed=seed
    )
    write_predictions(folder / "predictions.csv", predictions)
    # After the predictions: what the marker says is there is there.
    atomic.write_json(marker, settings)
    return predictions
