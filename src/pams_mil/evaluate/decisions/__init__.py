"""From probabilities to decisions: calibration, training bias undone, decision rules and the order of a worklist."""
