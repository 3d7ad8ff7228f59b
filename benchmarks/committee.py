"""What a committee costs: processor time of `pams cv` with AB-MIL and of the committee on the same folds.

    python benchmarks/committee.py [LABELS --classes CLASSES --features FEATURES] [--members N] [--epochs N]

AB-MIL trains with `training.batch=8` and otherwise its defaults, the committee with its file's settings and without a
reference. Both are the whole command, with splitting, reading, prediction and the report, one run at a time on one
thread, in user seconds of all processes. Without a table, bags of digits are made and trained for few epochs, which
checks the command and says little about a cohort.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from goals import Goals
from pams_mil.cohorts.cohort_writer import write_cohort
from pams_mil.cohorts.digits import Digits
from pams_mil.engine.tuning.recipes import load_committee

MOST = 6.0
"""Times the processor time of one AB-MIL that a committee may take."""


def main() -> int:
    """Run both commands and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path, nargs="?")
    parser.add_argument("--classes", default="digits")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--members", type=int, default=len(load_committee().recipes))
    parser.add_argument("--epochs", type=int, help="of both; default: each command's own")
    chosen = parser.parse_args()
    goals = Goals()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        labels, features, epochs = chosen.labels, chosen.features, chosen.epochs
        if labels is None:
            digits = Digits(train=56, val=28, test=28)
            write_cohort(place / "cohort", digits.slides(), total=len(digits))
            labels, features, epochs = place / "cohort/manifest.csv", place / "cohort/h5_files", epochs or 2
        usual = [str(labels), "--classes", chosen.classes, "--features", str(features or labels.parent)]
        usual += ["--workers", "1", "--resamples", "0", "accelerator=cpu"]
        usual += [] if epochs is None else ["--epochs", str(epochs)]
        # Tables that bring their folds keep them.
        usual += [] if "fold_0" in labels.read_text("utf-8").partition("\n")[0] else ["--folds", "5"]
        single = ["--method", "ce", "--model", "abmil", "training.batch=8"]
        arms = {
            "AB-MIL": seconds_of([*usual, *single, "--out", str(place / "abmil")]),
            f"committee of {chosen.members}": seconds_of(
                [*usual, "--members", str(chosen.members), "--reference", "0", "--out", str(place / "committee")]
            ),
        }
    first = arms["AB-MIL"]
    print(f"| {'model':<16} | user seconds | times AB-MIL |\n|{'-' * 18}|-------------:|-------------:|")
    for name, seconds in arms.items():
        print(f"| {name:<16} | {seconds:12.1f} | {seconds / first:12.1f} |")
    if chosen.labels is not None:
        goals.at_most("processor time of the committee over AB-MIL's", list(arms.values())[-1] / first, MOST)
    return goals.end()


def seconds_of(words: list[str]) -> float:
    """User seconds of one `pams cv` and of the processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pams_mil", "cv", *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"pams cv {' '.join(words)}\n{done.stdout}{done.stderr}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


if __name__ == "__main__":
    sys.exit(main())
