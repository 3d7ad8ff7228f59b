"""Learning rate and epochs of every arm with the best mean validation AsCC, from the cells of `settings*.yaml`.

Run: python benchmarks/choose_settings.py results/settings-cric [5 10 20 40]
The rate is constant and weights are averaged as they will be, so a run of 40 epochs shows what 5, 10 and 20 give.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean


def main(folder: str, *lengths: str) -> None:
    """Print validation AsCC and urgency AUC in percent, mean over folds; a star marks the choice of an arm."""
    scores = defaultdict(list)
    for path in sorted(Path(folder).glob("cells/*/metrics.csv")):
        model, method, *_ = path.parent.name.split("--")
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for length in map(int, lengths or ("5", "10", "20", "40")):
            if length <= len(rows):
                row = rows[length - 1]
                scores[model, *method.split(", "), length].append((row["val_ascc"], row["val_urgency_auc"]))
    arms = defaultdict(dict)
    for (model, method, rate, length), values in scores.items():
        arms[model, method][rate, length] = [100 * mean(map(float, column)) for column in zip(*values, strict=True)]
    for (model, method), settings in arms.items():
        best = max(settings, key=lambda setting: settings[setting][0])
        for (rate, length), (ascc, area) in settings.items():
            star = "*" if (rate, length) == best else ""
            print(f"{model:10}{method:6}{rate:9}{length:3} epochs  AsCC {ascc:5.1f}  urgency AUC {area:5.1f} {star}")


if __name__ == "__main__":
    main(*sys.argv[1:])
