"""Passes written by hand where autograd would cost more; each has a reference, and one switch turns them all off."""
