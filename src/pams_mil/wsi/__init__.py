"""Whole slides: tissue, tiles at an exact physical size, encoders, bags out, heatmaps back."""
