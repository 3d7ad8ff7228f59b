"""The viewer: a worklist ordered by urgency, slides with heatmaps, and the reader's verdicts, in a local browser."""
