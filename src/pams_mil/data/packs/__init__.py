"""Packs: a cohort's bags in a few large files, read by memory mapping."""
