"""Tuning: which recipe suits a cohort, decided on validation slides within a budget of time."""
