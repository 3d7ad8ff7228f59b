"""How much urgency certified systems really miss: 2,000 calibrations on simulated patients, for every unit and size.

    python benchmarks/guarantees.py

The same simulation, with its sabotaged versions, is in tests/evaluate/certify/test_simulations.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from tests.evaluate.certify.world import CALIBRATIONS, SIZES, alpha_for, realized

from pams_mil.evaluate.certify.bounds import Guarantee
from pams_mil.evaluate.certify.miss_losses import UNITS

HEADS = ("guarantee", "unit", "patients", "alpha", "mean", "5 %", "95 %", "above alpha")


def main() -> None:
    """Print one row per guarantee, unit and number of patients."""
    print(f"{CALIBRATIONS} calibrations each; realized miss rate of the calibrated systems, in %")
    print(" ".join(f"{head:>11}" for head in HEADS))
    for guarantee in (Guarantee(), Guarantee(0.9)):
        for unit in UNITS:
            for n in SIZES:
                alpha = alpha_for(guarantee)
                rates = 100 * realized(n, alpha, guarantee, unit)
                shares = [
                    100 * alpha,
                    rates.mean(),
                    *np.quantile(rates, [0.05, 0.95]),
                    100 * (rates > 100 * alpha).mean(),
                ]
                name = "mean" if guarantee.confidence is None else f"{guarantee.confidence:g}"
                print(" ".join(f"{cell:>11}" for cell in (name, unit, n, *(f"{share:.1f}" for share in shares))))


if __name__ == "__main__":
    main()
