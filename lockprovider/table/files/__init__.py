"""Data files of a table, without lock and transaction: it also runs on executors and workers.

May import: convert, timeline, format and below.
"""
