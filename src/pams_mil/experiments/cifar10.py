"""The natural-image study: five losses on CIFAR-10 in the paper's order of classes, one level, no bags.

Reads a local copy of CIFAR-10 given with --manifest (the folder of the python batches, or of class folders).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from pams_mil import atomic
from pams_mil.cohorts.cifar10_bags import Cifar10
from pams_mil.engine.config.run_config import build
from pams_mil.errors import ConfigError
from pams_mil.evaluate.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions import Predictions, write_predictions
from pams_mil.experiments.arms import Arm
from pams_mil.experiments.bench_section import bench_tables, printed_table, verdict_lines
from pams_mil.experiments.image_study import Budget, ImageSet, train_and_predict
from pams_mil.experiments.networks import resnet18, small_network
from pams_mil.experiments.study import Section, Setting, Table
from pams_mil.experiments.study_figures import drawing, look
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods import losses
from pams_mil.metrics.probability import expected_class_of_errors
from pams_mil.report.bench import Bench, Entry, summarize
from pams_mil.report.bench_page import write_tables

DISCOVER = "run"
TITLE = "Natural images: what each loss does to the direction of mistakes"
NAME = "cifar10"
ARMS = (
    Arm("CE", printed="ce"),
    Arm("Weighted CE (1:10)", printed="weighted_ce"),
    Arm("CO2", printed="co2"),
    Arm("CDW-CE", printed="cdw_ce"),
    Arm("MSCE", printed="msce"),
)
LOSSES = {
    "CE": losses.CELoss,
    "Weighted CE (1:10)": losses.WeightedCELoss,
    "CO2": losses.CO2Loss,
    "CDW-CE": losses.CDWCELoss,
    "MSCE": losses.MSCELoss,
}


def run(setting: Setting) -> Section:
    """Train one network per loss and seed; report the table and the expected class of the misclassified."""
    images, hierarchy = _images(setting), ClassHierarchy.load("cifar10")
    entries = [Entry("ResNet-18" if not setting.quick else "small network", arm.label, {}) for arm in ARMS]
    jobs = [(entry, seed) for seed in setting.seeds for entry in entries]
    for number, (entry, seed) in enumerate(jobs):
        entry.runs[f"seed {seed}"] = _predictions(setting, hierarchy, images, entry.method, seed)
        setting.tell((number + 1) / len(jobs), f"{entry.method}, seed {seed}: done")
    bench = summarize(entries, reference="MSCE", resamples=setting.resamples)
    files = write_tables(bench, setting.folder(NAME))
    expected = expected_classes(entries)
    draw(setting, hierarchy, expected)
    return Section(
        NAME,
        TITLE,
        lines=verdict_lines(bench),
        tables=(*_tables(bench, hierarchy, expected), *printed_table("cifar10", "cifar10", ARMS)),
        figures=(("expected-class", "Expected class of misclassified images per true class; higher is safer."),),
        files=files,
    )


def expected_classes(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """Per loss, the expected class (1-based) of the misclassified of each true class, mean over seeds."""
    found = {}
    for entry in entries:
        per_seed = [
            expected_class_of_errors(p.target, p.predicted, p.probabilities)
            for p in entry.runs.values()
            if p.probabilities is not None
        ]
        # A loss without mistakes in a class has no mean there; the other seeds still count.
        known = ~np.isnan(per_seed)
        sums = np.where(known, per_seed, 0.0).sum(0)
        found[entry.method] = [float(s / n) if n else float("nan") for s, n in zip(sums, known.sum(0), strict=True)]
    return found


def draw(setting: Setting, hierarchy: ClassHierarchy, expected: Mapping[str, Sequence[float]]) -> None:
    """One line per loss over the true classes; the diagonal is where an unbiased mistake would point."""
    names = hierarchy.names()
    with drawing(setting.folder(NAME), "expected-class", width=5.5, height=3.2) as (_, ax):
        ax.plot(range(len(names)), range(1, len(names) + 1), color="#888888", linestyle=":", label="true class")
        for number, (label, values) in enumerate(expected.items()):
            ax.plot(range(len(names)), values, label=label, linewidth=1, markersize=4, **look(number))
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        ax.set(xlabel="true class, least urgent first", ylabel="expected class of mistakes")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _tables(bench: Bench, hierarchy: ClassHierarchy, expected: Mapping[str, Sequence[float]]) -> tuple[Table, ...]:
    rows = tuple((label, *(f"{value:.2f}" for value in values)) for label, values in expected.items())
    caption = "Expected class (1 to 10) of misclassified images by true class, mean over seeds."
    return (*bench_tables(bench), Table(caption, ("loss", *hierarchy.names()), rows))


def _predictions(
    setting: Setting, hierarchy: ClassHierarchy, images: tuple[ImageSet, ImageSet], label: str, seed: int
) -> Predictions:
    """Predictions of one run, read back when an earlier run of the same images, classes and budget left them."""
    train, test = images
    budget = build(Budget, {"epochs": 8 if setting.quick else 30, **setting.training}, where="cifar10")
    folder = setting.folder(NAME) / "runs" / f"{LOSSES[label].__name__}-seed{seed}"
    settings = {
        "budget": budget.model_dump(), "quick": setting.quick, "seed": seed, "loss": label, "classes": hierarchy.digest,
        "images": {"train": train.digest, "test": test.digest},
    }  # fmt: skip
    marker = folder / "settings.json"
    if marker.exists() and marker.read_text("utf-8") == atomic.strict_json(settings) + "\n":
        return read_predictions(folder / "predictions.csv", hierarchy, name=label)
    network = partial(small_network if setting.quick else resnet18, hierarchy.num_classes())
    found = train_and_predict(
        label, network, LOSSES[label](hierarchy), train, test, hierarchy, budget=budget, seed=seed
    )
    write_predictions(folder / "predictions.csv", found)
    # After the predictions: what the marker says is there is there.
    atomic.write_json(marker, settings)
    return found


def _images(setting: Setting) -> tuple[ImageSet, ImageSet]:
    """Training and test images of the local copy."""
    if setting.manifest is None:
        raise ConfigError("cifar10 needs a local copy: --manifest FOLDER with the python batches or class folders.")
    sizes = {"train": 4000, "val": 1, "test": 1000} if setting.quick else {"train": 50_000, "val": 1, "test": 10_000}
    sizes.update({key: int(value) for key, value in setting.data.items() if key in sizes})
    cohort = Cifar10(source=setting.manifest, **sizes)
    return ImageSet(*cohort.images("train")), ImageSet(*cohort.images("test"))
