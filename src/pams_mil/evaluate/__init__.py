"""Predictions in, honest scores out: reading predictions files, scoring every level, comparing models."""

from pams_mil.metrics.kappa_path import DecisionPath, decision_path

__all__ = ["DecisionPath", "decision_path"]
