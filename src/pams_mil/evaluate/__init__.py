"""Predictions in, honest scores out: reading predictions files, scoring every level, comparing models."""
