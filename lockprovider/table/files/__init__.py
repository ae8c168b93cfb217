"""Data files of a table, without lock and transaction; executors and workers run this code, too.

May import: convert, timeline, format and below.
"""
