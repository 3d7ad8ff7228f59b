"""Does a certificate's bound hold on real predictions? Patients are divided at random again and again.

    python benchmarks/certificate_partitions.py calib.csv test.csv --classes bethesda --alpha 0.2 --unit slide

All files are read together; their patients must not have trained the model. In every partition one half calibrates
and the others are called with the certified κ. `--patient slide_id` takes every slide for a patient while the partition
still follows the column patient_id: what happens when slides that belong together are counted as patients.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import numpy as np

from pams_mil import ClassHierarchy
from pams_mil.evaluate.certify import certify
from pams_mil.evaluate.certify.make import rates
from pams_mil.evaluate.certify.miss_losses import SlideReach
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions


def together(files: list[str], hierarchy: ClassHierarchy) -> Predictions:
    """All rows of all files."""
    parts = [read_predictions(file, hierarchy) for file in files]
    return Predictions(
        "all", hierarchy, [s for p in parts for s in p.slide_ids], np.concatenate([p.target for p in parts]),
        np.concatenate([p.predicted for p in parts]), np.concatenate([p.probabilities for p in parts]),
        [s for p in parts for s in p.patient_ids],
    )  # fmt: skip


def main() -> None:
    """Print what certified systems miss on the patients that did not calibrate them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--classes", required=True)
    parser.add_argument("--alpha", type=float, required=True)
    parser.add_argument("--unit", default="case")
    parser.add_argument("--patient", default="patient_id", choices=["patient_id", "slide_id"])
    parser.add_argument("--partitions", type=int, default=500)
    given = parser.parse_args()
    model = together(given.files, ClassHierarchy.load(given.classes))
    group, rng, found = model.patient, np.random.default_rng(0), []
    if given.patient == "slide_id":
        model = replace(model, patient_ids=None)
    for _ in range(given.partitions):
        chosen = rng.permutation(group.max() + 1)[: math.ceil((group.max() + 1) / 2)]
        inside = np.isin(group, chosen)
        made = certify(model.where(inside), alpha=given.alpha, unit=given.unit)
        rest = SlideReach.of(model.where(~inside))
        own, new = rates(rest, 1.0, given.unit), rates(rest, made.kappa, given.unit)
        found.append([own.missed_rate, own.false_alarm_rate, new.missed_rate, new.false_alarm_rate, made.review or 0.0])
    table = 100 * np.asarray(found)
    print(f"{group.max() + 1} patients in halves, {given.partitions} times; at most {100 * given.alpha:g} %")
    print(f"own call: missed {table[:, 0].mean():.1f} %, false alarms {table[:, 1].mean():.1f} %")
    low, high = np.quantile(table[:, 2], [0.05, 0.95])
    print(f"certified: missed {table[:, 2].mean():.1f} % (5 to 95 %: {low:.1f} to {high:.1f}), false alarms "
          f"{table[:, 3].mean():.1f} %, more than one rank {table[:, 4].mean():.0f} %")  # fmt: skip


if __name__ == "__main__":
    main()
