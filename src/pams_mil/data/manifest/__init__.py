"""The cohort table: reading it, and everything that can be wrong with it."""
