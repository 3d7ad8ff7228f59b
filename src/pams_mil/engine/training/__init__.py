"""From settings to the best checkpoint: cohort, bags, loop, validation."""
