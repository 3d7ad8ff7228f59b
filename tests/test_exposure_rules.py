"""Roles of patients as values: joined, stored, and enforced by the predictions themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pams_mil.data.exposure import FORMAT, MARK, VERSION, Exposure, admit, role_cell
from pams_mil.digests import sealed
from pams_mil.errors import ExposureError
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy


def test_scores_cannot_be_had_around_the_rule():
    """The object refuses, not the verb."""
    two = ClassHierarchy.flat(["benign", "malignant"])
    p = np.array([[0.9, 0.1], [0.2, 0.8]])
    model = Predictions(
        "m", two, ["s1", "s2"], np.array([0, 1]), p.argmax(1), p, ["p1", "p2"],
        roles=[frozenset(["train"]), frozenset()], exposure_known=True,
    )  # fmt: skip
    from pams_mil.evaluate.audit import audit

    with pytest.raises(ExposureError, match=r"1 of 2 patients trained the model \('p1'\)"):
        audit([model], resamples=0)
    marked = audit([model], resamples=0, seen_patients=True)
    assert marked.to_json()["files"][0]["seen_patients"] is True
    assert any(MARK in sentence for sentence in marked.cautions)
    with pytest.raises(ExposureError):
        admit("guarantee", None, ["p1"], by_weights=True)


def test_roles_are_joined_when_runs_are_averaged():
    one, two = Exposure.of([("s", "p", "train")]), Exposure.of([("t", "p", "tune"), ("u", "q", "select")])
    assert [role_cell(roles) for roles in (one | two).roles(["x", "x", "x"], ["p", "Q", "r"])] == [
        "train+tune", "select", "none"
    ]  # fmt: skip
    unknown = sealed({"patients": {"0" * 32: "train+later"}, "slides": {}, "features": {}}, FORMAT, VERSION)
    with pytest.raises(ExposureError, match=r"'train\+later' is not a list of roles"):
        Exposure.from_json(unknown, "memory")
    again = Exposure.from_json(json.loads(json.dumps((one | two).to_json())), "memory")
    assert again == one | two
