"""Passes written by hand where autograd would cost more, each beside a reference implementation; one switch for all."""
