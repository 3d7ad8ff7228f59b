"""Another prevalence: the promise for all patients where urgent classes are rarer or more frequent than in calibration.

If only the shares of the classes change, and not how each class looks (label shift), patients of class y count

    v_y = π_new(y) / π_calibration(y)

times, and conformal risk control holds with those weights and the heaviest one for the next patient. π_calibration is
taken from the calibration patients themselves, so this is as exact as those shares are. Promises at a boundary
(`--at`) need no weights: they are about the patients at or above it, however many there are, as long as the mixture
of classes above it stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError, listing
from pams_mil.hierarchy import ClassHierarchy


def check_prevalence(prevalence: Mapping[str, float], hierarchy: ClassHierarchy) -> tuple[int, Array]:
    """The level whose classes are all named, and their shares, which sum to 1."""
    for level in range(hierarchy.num_levels - 1, -1, -1):
        names = hierarchy.names(level)
        if set(names) == set(prevalence):
            shares = np.asarray([float(prevalence[name]) for name in names])
            if not np.isfinite(shares).all() or (shares < 0).any() or not math.isclose(shares.sum(), 1, abs_tol=1e-6):
                raise ParameterError(f"The prevalence must be shares that sum to 1, found {shares.tolist()}.")
            return level, shares
    wanted = "; or ".join(listing(hierarchy.names(level), most=30) for level in range(hierarchy.num_levels))
    raise ParameterError(
        f"A prevalence names all classes of one level, {wanted}; found {listing(prevalence, most=30)}."
    )


def prevalence_weights(shares: Array, label: Ints, names: Sequence[str]) -> tuple[Array, float]:
    """The weights v [n] of patients with these labels, and the heaviest weight that the next patient can have.

    >>> weights, worst = prevalence_weights(np.array([0.9, 0.1]), np.array([0, 0, 1, 1]), ["benign", "malignant"])
    >>> weights.tolist(), worst
    ([1.8, 1.8, 0.2, 0.2], 1.8)
    """
    found = np.bincount(label, minlength=len(shares)) / len(label)
    absent = [name for name, seen, share in zip(names, found, shares, strict=True) if share > 0 and not seen]
    if absent:
        raise ParameterError(
            f"No calibration patient is {listing(absent)}, to which the prevalence gives a share; nothing is known "
            "about them."
        )
    weight = np.divide(shares, found, out=np.zeros_like(shares), where=found > 0)
    return weight[label], float(weight.max())
