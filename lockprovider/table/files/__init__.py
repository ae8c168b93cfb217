"""Data files of a table, without lock and transaction.

May import: convert, timeline, format and below.
"""
