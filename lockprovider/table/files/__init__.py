"""Rows in data files: read, write and merge base and log files, and open the files of a table.

May import: timeline, format and below. It also runs on executors and workers, so it uses no lock and no transaction.
"""
