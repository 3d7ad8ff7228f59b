"""Settings and epochs of every arm with the best mean validation AsCC, from the cells of `settings*.yaml`.

Run: python benchmarks/choose_settings.py results/settings-cric [results/settings-...] [5 10 20 40]
The rate is constant and weights are averaged as they will be, so a run of 40 epochs shows what 5, 10 and 20 give.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

METRICS = ("ascc", "urgency_auc", "acc")


def main(*arguments: str) -> None:
    """Print validation scores in percent, mean over folds and cohorts; a star marks the choice of an arm."""
    lengths = [int(argument) for argument in arguments if argument.isdigit()] or [5, 10, 20, 40]
    scores = defaultdict(list)
    for path in sorted(path for folder in arguments for path in Path(folder).glob("cells/*/metrics.csv")):
        model, method, *_ = path.parent.name.split("--")
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for length in lengths:
            if length <= len(rows):
                row = rows[length - 1]
                scores[model, *method.split(", "), length].append([row[f"val_{name}"] for name in METRICS])
    arms = defaultdict(dict)
    for (model, method, setting, length), values in scores.items():
        arms[model, method][setting, length] = [100 * mean(map(float, column)) for column in zip(*values, strict=True)]
    for (model, method), settings in arms.items():
        best = max(settings, key=lambda setting: settings[setting][0])
        for (setting, length), (ascc, area, accuracy) in settings.items():
            star = "*" if (setting, length) == best else ""
            print(
                f"{model:10}{method:6}{setting:16}{length:3} epochs  AsCC {ascc:5.1f}  urgency AUC {area:5.1f}  "
                f"accuracy {accuracy:5.1f} {star}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
