"""Decisions from names and metadata alone: timeline, snapshot view, conflicts, retention, archival.

May import: format and below. Pure: no requests.
"""
