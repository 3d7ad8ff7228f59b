"""Cohorts in which the class of every instance is known."""
