"""Reads: scans of files, reads of one moment, changes between two.

May import: state and below.
"""
