"""Reads of a table: scans, row filters, reads at one moment, and changes."""
