"""Decisions from names and metadata alone. Pure: no requests."""
