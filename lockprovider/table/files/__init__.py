"""Data files of a table.

May import: convert, timeline, format and below. It also runs on executors and workers, so it uses no lock and no
transaction.
"""
