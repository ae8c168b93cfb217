"""Reads of a table: scans of files, row filters, reads at one moment, and changes between two moments."""
