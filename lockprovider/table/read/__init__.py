"""Reads of a table: scans of files, reads at one moment, and changes between two moments.

May import: state and below.
"""
