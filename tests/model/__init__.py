"""Exhaustive search over the real machines, with wrong twins that must be caught."""
