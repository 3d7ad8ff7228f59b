"""Hypothesis profiles: derandomized and short by default, so that a failure on one machine fails on all."""

from __future__ import annotations

import os

import hypothesis

hypothesis.settings.register_profile("ci", derandomize=True, max_examples=60, deadline=None)
hypothesis.settings.register_profile("nightly", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
