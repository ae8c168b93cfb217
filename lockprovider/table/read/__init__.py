"""Reads of a table."""
