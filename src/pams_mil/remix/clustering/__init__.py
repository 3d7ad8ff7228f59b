"""Clusters of a bag's instances: first guess, refinement, prototypes."""
