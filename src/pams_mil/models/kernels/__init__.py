"""Passes written by hand where autograd would cost more; each has a plain twin, and one switch turns them all off."""
