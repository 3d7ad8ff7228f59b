"""What trained models say of single instances, scored against the truth of every instance.

    pams bench experiments/cric-models.yaml --out BENCH
    python benchmarks/instance_truth.py BENCH --real cric

FOLDER holds h5_files/, labels.csv and instance_labels.csv. Every model is scored on the slides that it was tested on.

Within a slide, for those that hold other instances too: the AUC of telling the instances that carry the slide's label,
by attention, by evidence for that class (as `pams heatmap` draws it), and by the probability that the instance alone is
at least as urgent. Over all slides' instances together: the AUC of telling instances that are at least k, and their
mean probability less their share, averaged over boundaries k; only probabilities can be compared across slides. In
brackets half widths of 95 % intervals, patients resampled.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from pams_mil.data.tables import read_table
from pams_mil.engine.prediction.predict import load
from pams_mil.engine.prediction.tiles import at_least, each_alone, evidence
from pams_mil.models.core.batch import BagBatch
from truth.cohorts import TruthCohort, real

RESAMPLES = 500
WITHIN = ("attention", "evidence", "alone at least as urgent")


def look(cohort: TruthCohort, cell: Path, predictions: Path) -> dict[int, dict[str, np.ndarray]]:
    """Per tested slide, the rankings of its instances and their probabilities [n, boundaries]."""
    learner = load(cell).learner
    index = {slide: number for number, slide in enumerate(cohort.slide_ids)}
    ranks = cohort.hierarchy.ranks().tolist()
    rankings = {}
    for slide in read_table(predictions)["slide_id"]:
        number = index[slide]
        bag, target = cohort.bags[number], int(cohort.targets[number])
        attention = learner.predict(BagBatch.single(bag, slide), attention=True).attention[-1].double().numpy()
        *_, alone = each_alone(learner, bag, slide)[0]
        rankings[number] = {
            "attention": attention,
            "evidence": evidence(alone, attention)[:, target],
            "alone at least as urgent": alone[:, ranks.index(ranks[target]) :].sum(1),
            "boundaries": np.stack(list(at_least(alone, ranks).values()), axis=1),
        }
    return rankings


def within(cohort: TruthCohort, values: dict[int, np.ndarray]) -> dict[int, float]:
    """AUC of every slide where it is defined."""
    carriers = cohort.carriers
    usable = [number for number in values if 0 < carriers[number].sum() < len(carriers[number])]
    return {number: float(roc_auc_score(carriers[number], values[number])) for number in usable}


def across(cohort: TruthCohort, probabilities: dict[int, np.ndarray]) -> tuple[float, float]:
    """Over all instances: the mean AUC over boundaries, and the mean gap between probability and share."""
    ranks = cohort.hierarchy.ranks()
    p = np.concatenate(list(probabilities.values()))
    own = np.concatenate(
        [np.where(truth < 0, -1, ranks[truth]) for truth in (cohort.instances[n] for n in probabilities)]
    )
    steps = [(k, rank) for k, rank in enumerate(sorted(set(ranks.tolist()))[1:]) if 0 < (own >= rank).mean() < 1]
    aucs = [roc_auc_score(own >= rank, p[:, k]) for k, rank in steps]
    return float(np.mean(aucs)), float(np.mean([p[:, k].mean() - (own >= rank).mean() for k, rank in steps]))


def interval(cohort: TruthCohort, values: dict[int, float]) -> tuple[float, float]:
    """Ends of the 95 % interval of the mean over slides, patients resampled."""
    patients = np.array([cohort.patients[number] for number in values])
    numbers = np.array(list(values.values()))
    members = [np.flatnonzero(patients == one) for one in np.unique(patients)]
    random = np.random.default_rng(0)
    means = [
        numbers[np.concatenate([members[i] for i in random.integers(len(members), size=len(members))])].mean()
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def shown(cohort: TruthCohort, aucs: dict[int, float]) -> str:
    """The mean AUC within slides and the half width of its interval."""
    low, high = interval(cohort, aucs)
    return f"{np.mean(list(aucs.values())):.3f} ({(high - low) / 2:.3f})"


def gained(cohort: TruthCohort, own: dict[int, float], other: dict[int, float]) -> str:
    """The mean difference on the slides of both, with its interval."""
    paired = {number: own[number] - other[number] for number in own if number in other}
    low, high = interval(cohort, paired)
    return f"{np.mean(list(paired.values())):+.3f} ({low:+.3f} to {high:+.3f})"


def main() -> None:
    """Score every model of a benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", type=Path, help="folder of `pams bench`")
    parser.add_argument("--real", type=Path, required=True, help="h5_files/, labels.csv, instance_labels.csv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cohort = real(given.real)
    usable = [number for number, own in enumerate(cohort.carriers) if 0 < own.sum() < len(own)]
    print(f"{len(usable)} of {len(cohort.bags)} slides hold other instances than those of their label")
    arms: dict[str, list[dict[int, dict[str, np.ndarray]]]] = defaultdict(list)
    for cell in sorted((given.bench / "cells").iterdir()):
        for predictions in sorted(cell.glob("predictions/*test.csv")):
            model, method, seed = cell.name.replace("%25", "%").split("--")[:3]
            arms[f"{model}; {method}; {seed}"].append(look(cohort, cell, predictions))
    if not arms:
        raise SystemExit(f"{given.bench} holds no predictions of a test split; expected cells/*/predictions/*test.csv")
    print("| model; method; seed | slides | " + " | ".join(WITHIN) + " | all instances: AUC | probability − share |")
    print("|---|---|---|---|---|---|---|")
    found: dict[str, dict[str, dict[int, float]]] = {}
    for name, folds in arms.items():
        slides = {number: values for fold in folds for number, values in fold.items()}
        found[name] = {kind: within(cohort, {n: values[kind] for n, values in slides.items()}) for kind in WITHIN}
        cells = [shown(cohort, aucs) for aucs in found[name].values()]
        auc, gap = across(cohort, {number: values["boundaries"] for number, values in slides.items()})
        print(f"| {name} | {len(slides)} | {' | '.join(cells)} | {auc:.3f} | {gap:+.3f} |", flush=True)
    print("\nWithin slides, each arm's probabilities less AB-MIL's attention under the same method and seed:")
    for name, own in found.items():
        reference = found.get("; ".join(["abmil", *name.split("; ")[1:]]))
        if reference is not None:
            print(f"{name}: {gained(cohort, own[WITHIN[2]], reference['attention'])}")


if __name__ == "__main__":
    main()
