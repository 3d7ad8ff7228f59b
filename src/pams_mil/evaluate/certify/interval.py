"""The other end: how far the dial may be turned back before more than a share α of patients is called too high.

The certified call at κ̂ is at least the truth, up to a share α of patients. The same reasoning from the other side gives
a smaller κ whose call is at most the truth, up to a share α. Between the two calls lie the classes that remain: the
truth is above them in at most α and below them in at most α of patients. Where they differ a person should look.

False alarms grow with κ, and a slide is one from κ = e on, e included. So the lower call is taken just below κ:

    κ_low = sup{ κ : the bound on Σ 1[e_p < κ] certifies α },       lower call = d_κ just below κ_low
"""

from __future__ import annotations

import numpy as np

from pams_mil.arrays import Array
from pams_mil.evaluate.certify.calls import Dial
from pams_mil.evaluate.certify.miss_losses import Unit, unit_losses
from pams_mil.evaluate.certify.promise import Guarantee, smallest_kappa


def largest_kappa_below(
    dial: Dial,
    alpha: float,
    guarantee: Guarantee,
    unit: Unit,
    *,
    most_slides: int | None = None,
    weighting: tuple[Array, float] | None = None,
) -> float | None:
    """κ_low, or None when so few patients cannot certify α.

    `most_slides` is as in `miss_losses`; `weighting` holds the weights of the patients and of the next one where the
    promise is re-weighted to another prevalence.

    >>> reach = np.array([[0.0, k] for k in np.linspace(0.1, 1.0, 10)])
    >>> dial = Dial(reach, np.zeros(10, dtype=np.int64), np.arange(10))  # ten patients without urgency
    >>> largest_kappa_below(dial, 0.2, Guarantee(), "case")  # one of ten may be called too high: the first, at 0.1
    0.2
    """
    counted = dial.as_unit(unit)
    # Nothing is called above the highest rank: one more column that is never reached.
    beyond = np.concatenate([counted.reach, np.full((len(counted.reach), 1), np.inf)], axis=1)
    exceed = beyond[np.arange(len(beyond)), counted.rank + 1]
    # A dial that counts the distinct values from above: turning it to j takes the alarms at the j largest away.
    values = np.unique(exceed[np.isfinite(exceed)])[::-1]
    position = np.where(np.isfinite(exceed), len(values) - np.searchsorted(values[::-1], exceed), 0).astype(np.float64)
    curve = unit_losses(position, counted.patient, unit=unit, most_slides=most_slides)
    chosen = smallest_kappa(curve if weighting is None else curve.weighted(*weighting), alpha, guarantee)
    if chosen is None:
        return None
    return np.inf if chosen == 0 else float(values[int(min(chosen, len(values))) - 1])
