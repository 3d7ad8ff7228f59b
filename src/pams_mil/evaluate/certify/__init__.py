"""Guarantees on missed urgency: how far the dial κ must be turned so that at most a share α is missed."""
