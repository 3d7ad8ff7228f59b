"""Does a better selection make PAMS safer? Trains PAMS (AB-MIL, two towers) with each remix, by folds of patients.

Run: python benchmarks/remix_training.py [--real FOLDER] [--epochs 20] [--seeds 3] [--folds 5] [--only NAMES]
Without a folder of real bags it trains one quick fold of the digits. Bags are packed in batches of 8; the last epoch
counts, so no choice is made on the scored bags. Differences are paired: same folds, same seeds, same first weights.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pams_mil import metrics, seeding
from pams_mil.methods.pams import Pams
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.hierarchical import HierarchicalModel
from pams_mil.remix import Pairing, create_remix, score_evidence
from pams_mil.remix.selection.evidence import patient_folds
from truth.cohorts import TruthCohort, cohorts, real

VARIANTS: dict[str, tuple[str, dict]] = {
    "none": ("none", {}),
    "randommix 10": ("randommix", {"tau": 10}),
    "sfr as printed": ("sfr", {"init": "uniform"}),
    "sfr quantile": ("sfr", {}),
    "sfr neighbors": ("sfr", {"selection": "neighbors"}),
    "sfr evidence .2": ("sfr", {"selection": "evidence", "level": 0.2}),
    "sfr evidence .1": ("sfr", {"selection": "evidence", "level": 0.1}),
}
MEASURES = ("accuracy", "ascc", "asmc", "missed_rate", "false_alarm_rate", "quadratic_kappa")


@dataclass(frozen=True)
class Setting:
    """One training run."""

    remix: str
    options: dict
    seed: int
    epochs: int
    batch: int = 8
    lr: float = 3e-4
    width: int = 128


def train(cohort: TruthCohort, train_rows: np.ndarray, setting: Setting) -> torch.nn.Module:
    """PAMS on the slides of `train_rows`."""
    hierarchy, torch_seed = cohort.hierarchy, seeding.derive(setting.seed, "weights")
    torch.manual_seed(torch_seed)
    model = HierarchicalModel(
        "abmil",
        in_features=cohort.bags[0].shape[1],
        num_classes=[len(level) for level in hierarchy.levels],
        embedding_features=setting.width,
        attention_features=setting.width // 2,
    )
    objective = Pams().objective(hierarchy)
    remix = create_remix(setting.remix, **setting.options)
    ids = [cohort.slide_ids[row] for row in train_rows]
    targets = cohort.targets[train_rows]
    pairing = Pairing(
        hierarchy,
        ids,
        targets.tolist(),
        rule=remix.partner,
        probability=0.0 if setting.remix == "none" else 0.5,
        seed=setting.seed,
    )
    bags = [cohort.bags[row] for row in train_rows]
    evidence = evidence_of(cohort, train_rows, remix, setting.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr, weight_decay=1e-4)
    for epoch in range(setting.epochs):
        model.train()
        order = seeding.numpy_generator(setting.seed, "order", epoch).permutation(len(train_rows))
        for first in range(0, len(order), setting.batch):
            features, labels = [], []
            for slide in order[first : first + setting.batch].tolist():
                pair = pairing.draw(slide, epoch)
                if pair is None:
                    features.append(bags[slide])
                    labels.append(targets[slide])
                else:
                    known = {} if evidence is None else {"evidence": evidence[pair.a]}
                    mixed = remix(bags[pair.a], bags[pair.b], pairing.generator(slide, epoch), **known)
                    features.append(mixed.features)
                    labels.append(targets[pair.a])
            levels = [torch.from_numpy(hierarchy.lift(labels, level)) for level in range(hierarchy.num_levels)]
            loss = sum(objective(model(BagBatch.pack(features)), levels).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def evidence_of(cohort: TruthCohort, rows: np.ndarray, remix, seed: int) -> list | None:
    """Evidence from the training slides' labels, where the strategy needs it."""
    if not getattr(remix, "needs_evidence", False):
        return None
    bags, ranks = [cohort.bags[row] for row in rows], [cohort.ranks[row] for row in rows]
    return score_evidence(bags.__getitem__, ranks, [cohort.patients[row] for row in rows], seed=seed)


@torch.inference_mode()
def predict(model: torch.nn.Module, cohort: TruthCohort, rows: np.ndarray) -> np.ndarray:
    """Most probable finest class of each slide."""
    return np.array([int(model(cohort.bags[row])[-1].logits.argmax()) for row in rows])


def run(cohort: TruthCohort, name: str, seed: int, folds: list[int], epochs: int) -> np.ndarray:
    """Predictions of all slides, each by a model that did not see its patient."""
    predicted = np.full(len(cohort.targets), -1)
    remix, options = VARIANTS[name]
    for fold in sorted(set(folds)):
        test = np.flatnonzero(np.asarray(folds) == fold)
        rows = np.flatnonzero(np.asarray(folds) != fold)
        predicted[test] = predict(train(cohort, rows, Setting(remix, options, seed, epochs)), cohort, test)
    return predicted


def table(cohort: TruthCohort, found: dict[str, list[np.ndarray]]) -> None:
    """Mean over seeds, and the paired difference to the paper's SFR with a patient bootstrap."""
    print(f"{'':20s}" + "".join(f"{measure:>18s}" for measure in MEASURES))
    for name, runs in found.items():
        values = [[score(cohort, measure, predicted) for predicted in runs] for measure in MEASURES]
        print(f"{name:20s}" + "".join(f"{np.mean(v):11.3f} ± {np.std(v):.3f}" for v in values))
    for name in found:
        if name != "sfr quantile" and "sfr quantile" in found:
            for measure in ("ascc", "asmc", "missed_rate"):
                low, mid, high = difference(cohort, measure, found[name], found["sfr quantile"])
                print(f"{name} minus sfr quantile, {measure}: {mid:+.3f} (95 % {low:+.3f} to {high:+.3f})")


def score(cohort: TruthCohort, measure: str, predicted: np.ndarray, rows: np.ndarray | None = None) -> float:
    """A measure on some slides."""
    rows = np.arange(len(predicted)) if rows is None else rows
    return getattr(metrics, measure)(cohort.targets[rows], predicted[rows], cohort.hierarchy)


def difference(cohort: TruthCohort, measure: str, ours: list, theirs: list, resamples: int = 300):
    """Paired difference of the seeds' mean, resampling patients."""
    names = sorted(set(cohort.patients))
    members = {name: np.flatnonzero(np.asarray(cohort.patients) == name) for name in names}
    random, samples = np.random.default_rng(0), []
    for _ in range(resamples):
        rows = np.concatenate([members[names[i]] for i in random.integers(len(names), size=len(names))])
        pairs = zip(ours, theirs, strict=True)
        samples.append(np.mean([score(cohort, measure, a, rows) - score(cohort, measure, b, rows) for a, b in pairs]))
    whole = np.mean([score(cohort, measure, a) - score(cohort, measure, b) for a, b in zip(ours, theirs, strict=True)])
    low, high = np.quantile(samples, [0.025, 0.975])
    return low, whole, high


def main() -> None:
    """Train, predict and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS))
    parser.add_argument("--save", type=Path, help="JSON file for the predictions")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.real is None:
        cohort, given.epochs, given.seeds, given.folds = cohorts(None)[0], 8, 1, 2
    else:
        cohort = real(given.real)
    folds = patient_folds(cohort.patients, given.folds, seed=0)
    found: dict[str, list[np.ndarray]] = {name: [] for name in given.only}
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for name in given.only:
            start = time.perf_counter()
            found[name].append(run(cohort, name, seed, folds, given.epochs))
            print(f"# {name}, seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
        if given.save:
            given.save.write_text(json.dumps({name: [p.tolist() for p in runs] for name, runs in found.items()}))
    table(cohort, found)


if __name__ == "__main__":
    main()
