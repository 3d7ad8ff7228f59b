"""The folds of a cross-validation as one model: the mean of probabilities beside the normalized mean of logarithms.

    python benchmarks/fold_average.py COHORT --classes bethesda --out WORK

COHORT has labels.csv and h5_files. A quarter of the patients is held out, five folds are trained on the others, and
both means are scored on the held-out slides, for several choices of these patients.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pams_mil.data.manifest.manifest import Manifest
from pams_mil.data.splits import split_folds
from pams_mil.engine import configure, predict, train
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import confusion_matrix
from pams_mil.metrics.metric import LabelMetrics

FOLDS, SMALLEST = 5, 1e-12
SHOWN = ("acc", "ascc", "missed_rate", "false_alarm_rate")
Array = npt.NDArray[np.float64]


def main() -> None:
    """Train, average in both ways, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--classes", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--choices", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    hierarchy = ClassHierarchy.load(chosen.classes)
    for method in ("ce", "pams"):
        scores: dict[str, list[dict[str, float]]] = {"mean": [], "mean of logarithms": [], "single fold": []}
        for seed in range(chosen.choices):
            folds, target = fold_probabilities(chosen.cohort, chosen.classes, hierarchy, method, seed, chosen.out)
            logs = np.exp(np.log(np.clip(folds, SMALLEST, 1)).mean(0))
            scores["mean"].append(scored(folds.mean(0), target, hierarchy))
            scores["mean of logarithms"].append(scored(logs / logs.sum(1, keepdims=True), target, hierarchy))
            scores["single fold"] += [scored(fold, target, hierarchy) for fold in folds]
        for name, found in scores.items():
            means = {key: np.mean([row[key] for row in found]) for key in found[0]}
            print(f"{method:5} {name:19}", "  ".join(f"{key} {value:.3f}" for key, value in means.items()))


def fold_probabilities(
    cohort: Path, classes: str, hierarchy: ClassHierarchy, method: str, seed: int, out: Path
) -> tuple[Array, npt.NDArray[np.int64]]:
    """Probabilities [folds, n, c] of the held-out slides, and their classes [n]."""
    table = Manifest.read(cohort / "labels.csv")
    patients = sorted(table.patients)
    random.Random(seed).shuffle(patients)
    held = set(patients[: max(1, len(patients) // 4)])
    rest = replace(table, records=tuple(record for record in table if record.patient_id not in held))
    place = out / f"choice{seed}"
    replace(table, records=tuple(record for record in table if record.patient_id in held)).write(place / "held.csv")
    split = split_folds(rest, hierarchy, folds=FOLDS, seed=seed)
    rest.write(place / "rest.csv", columns={f"fold_{k}": list(names) for k, names in enumerate(split.folds)})
    model = {"name": "abmil", "embedding_features": 128, "attention_features": 64}
    found = []
    for fold in range(FOLDS):
        config = configure(
            place / "rest.csv", classes=classes, method=method, model=model, features=cohort / "h5_files", seed=seed,
            data={"fold": fold}, epochs=12, lr=5e-4, compute={"accelerator": "cpu", "threads": 1},
        )  # fmt: skip
        run = train(config, place / f"{method}-fold{fold}", resume=True)
        predicted = predict([run], place / "held.csv", features=cohort / "h5_files")
        found.append(predicted.probabilities[-1])
    return np.stack(found), predicted.sample.target


def scored(probabilities: Array, target: npt.NDArray[np.int64], hierarchy: ClassHierarchy) -> dict[str, float]:
    """Logarithmic and Brier score, and the scores of the most probable class."""
    true = probabilities[np.arange(len(target)), target]
    truth = np.eye(probabilities.shape[1])[target]
    counts = confusion_matrix(target, probabilities.argmax(1), hierarchy)
    values = LabelMetrics(hierarchy)(counts)
    proper = {"NLL": -np.log(np.clip(true, SMALLEST, 1)).mean(), "Brier": ((probabilities - truth) ** 2).sum(1).mean()}
    return {key: float(value) for key, value in (proper | {key: values[key] for key in SHOWN}).items()}


if __name__ == "__main__":
    main()
