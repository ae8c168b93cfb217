"""Decisions from names and metadata alone. Pure: no requests.

May import: format and below.
"""
