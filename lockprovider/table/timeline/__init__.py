"""Decisions from names and metadata alone: timeline, snapshots, conflicts, retention, archival. Pure: no requests.

May import: format and below.
"""
