"""The settings of a run and of a benchmark, checked before anything is read."""
