"""Rows in files: base files read, written and merged, keys, buckets; where a table is, and how a file of it is opened.

May import: timeline, format and below. Runs on executors and workers too: it knows no
lock, and nothing of transactions.
"""
