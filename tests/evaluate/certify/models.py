"""Simulated models on simulated patients, with slides that resemble their patient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pams_mil import ClassHierarchy
from pams_mil.evaluate.predictions.predictions import Predictions

TREE = ClassHierarchy.load("bracs")
FLAT = ClassHierarchy.flat(["benign", "atypical", "malignant"])


def model(patients=60, *, seed=0, hierarchy=TREE, skill=1.5, most=3, shift=0.0, prior=None, name="model"):
    """Patients with 1 to `most` slides; a patient's slides share some of the noise."""
    rng = np.random.default_rng(seed)
    size = hierarchy.num_classes()
    slides = rng.integers(1, most + 1, patients)
    patient = np.repeat(np.arange(patients), slides)
    top = rng.choice(size, patients, p=prior)
    target = np.minimum(rng.integers(0, size, len(patient)), top[patient])
    target[np.cumsum(slides) - 1] = top  # at least one slide has the patient's label
    noise = rng.normal(0, 1, (patients, size))[patient] + rng.normal(0, 0.7, (len(patient), size))
    logits = -skill * np.abs(np.arange(size) - target[:, None]) + noise + shift * np.arange(size)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    unlike = f"{seed}-" if seed else ""  # patients of two seeds are different patients
    return Predictions(
        name, hierarchy, [f"s{unlike}{i}" for i in range(len(patient))], target, p.argmax(1), p,
        [f"p{unlike}{number}" for number in patient],
    )  # fmt: skip


def unseen(predictions, *weights):
    """Predictions of weights that have seen none of the patients."""
    return replace(predictions, weights=weights, roles=[frozenset()] * len(predictions), exposure_known=True)
