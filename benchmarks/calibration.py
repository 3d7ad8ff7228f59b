"""What probability calibration is worth on slides it never saw: test scores of trained runs, mean over runs.

    python benchmarks/calibration.py runs/pams-fold0 runs/pams-fold1 ...

The runs' own tables say which slides are validation and test. Temperatures are fitted on validation slides alone, with
and without the closed forms of what training did; nothing is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.engine.prediction.calibrate import run_bias
from pams_mil.engine.prediction.predict import load
from pams_mil.engine.prediction.scored_runs import predict_to_score
from pams_mil.evaluate.decisions.debias import TrainingBias
from pams_mil.evaluate.decisions.probability_calibration import fit_probability_calibration
from pams_mil.metrics.proper import brier, nll, rps


def variants(p: Any, true: Any, hierarchy: Any, bias: TrainingBias) -> dict[str, Callable[[Any], Any]]:
    """What to do with probabilities, by name."""
    functions: dict[str, Callable[[Any], Any]] = {"as they are": lambda q: q}
    biases = {
        "": TrainingBias(),
        " + MSCE": TrainingBias(severity=bias.severity, detach_weight=bias.detach_weight),
    }
    biases |= {" + remix": TrainingBias(drift=bias.drift), " + both": bias}
    for name, one in biases.items():
        known = one.severity is not None or one.drift is not None
        if known or not name:
            functions["temperature" + name] = fit_probability_calibration(p, true, hierarchy, bias=one)
    if bias.severity is not None or bias.drift is not None:
        functions["closed form alone"] = bias.remove
    return functions


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    runs = parser.parse_args().runs
    rows: dict[str, list[list[float]]] = {}
    for run in runs:
        val, test = (predict_to_score([load(run)], split=split) for split in ("val", "test"))
        functions = variants(val.probabilities[-1], val.sample.target, val.hierarchy, run_bias(run))
        for name, apply in functions.items():
            q = apply(test.probabilities[-1])
            rows.setdefault(name, []).append(
                [score(test.sample.target, q, test.hierarchy) for score in (nll, brier, rps)]
            )
    print(f"{'mean over ' + str(len(runs)) + ' runs, finest level':<36} NLL    Brier  RPS")
    for name, scores in rows.items():
        print(f"{name:<36} " + "  ".join(f"{value:.3f}" for value in np.mean(scores, axis=0)))


if __name__ == "__main__":
    main()
