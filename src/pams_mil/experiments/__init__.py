"""The paper's tables and figures as experiments on any cohort; each is one file, found by its name."""
