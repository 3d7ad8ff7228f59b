"""Time and peak memory of reading, scoring and comparing 1,000,000-row predictions files.

Run: python benchmarks/audit_memory.py. Each step runs in a process of its own on CSV files of 1,000,000 slides of
100,000 patients with 7 probabilities. Memory does not depend on the number of resamples, so AUC is resampled a few
times only; label metrics are resampled 2000 times. Exits with 1 when a step needs 2 GiB or more.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from goals import Goals
from pams_mil import ClassHierarchy
from pams_mil.evaluate.compare import compare
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.scores import score, severe_errors

ROWS, PATIENTS, AUC_RESAMPLES, RESAMPLES = 1_000_000, 100_000, 5, 2000
LIMIT_MIB = 2048.0
TREE = ClassHierarchy.load("bracs")
STEPS = ("read", "score", "score all rows at 2000 resamples without AUC", "compare two models")


def write_files(folder: Path) -> None:
    """Two models' predictions on the same slides, as plain CSV text."""
    rng = np.random.default_rng(0)
    names = np.array(TREE.names())
    true, patient = rng.integers(0, 7, ROWS), rng.integers(0, PATIENTS, ROWS)
    for model in ("a", "b"):
        scores = rng.dirichlet(np.ones(7) * 0.5, ROWS) * 0.6 + 0.4 * np.eye(7)[true]
        with (folder / f"{model}.csv").open("w", encoding="utf-8") as file:
            file.write("slide_id,patient_id,split,target," + ",".join(f"p_{name}" for name in names) + "\n")
            for row in range(ROWS):
                values = ",".join(f"{value:.9f}" for value in scores[row])
                file.write(f"TCGA-{row:07d}-01Z-00-DX1,P{patient[row]:06d},test,{names[true[row]]},{values}\n")


def unscored(predictions: Predictions) -> Predictions:
    """The labels alone."""
    return replace(predictions, probabilities=None)


def run(step: str, folder: Path) -> None:
    """One step; prints its seconds and the peak memory of this process."""
    start = time.perf_counter()
    first = read_predictions(folder / "a.csv", TREE)
    if step == STEPS[1]:
        score(first, resamples=AUC_RESAMPLES)
        severe_errors(first)
    elif step == STEPS[2]:
        score(unscored(first), resamples=RESAMPLES)
    elif step == STEPS[3]:
        second = read_predictions(folder / "b.csv", TREE)
        compare(first, second, resamples=AUC_RESAMPLES)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{step:46} {time.perf_counter() - start:8.1f} {peak:10.0f}")
    goals = Goals()
    goals.at_most(f"peak memory of {step!r}, MiB", peak, LIMIT_MIB)
    sys.exit(goals.end())


def main() -> int:
    """Write the files once, then run every step in a fresh process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", choices=STEPS)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.step:
        run(options.step, options.folder)
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        size = (Path(folder) / "a.csv").stat().st_size / 2**20
        print(f"{ROWS:,} rows of {PATIENTS:,} patients, {size:.0f} MiB a file; limit {LIMIT_MIB:.0f} MiB")
        print(f"{'step':46} {'seconds':>8} {'peak MiB':>10}", flush=True)
        command = [sys.executable, __file__, "--folder", folder, "--step"]
        return max(subprocess.run([*command, step], check=False).returncode for step in STEPS)


if __name__ == "__main__":
    sys.exit(main())
