"""Bags of features: the files they come from, and the dataset that serves them."""
