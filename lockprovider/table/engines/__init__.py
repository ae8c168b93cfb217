"""Engines read and write rows as pyarrow, Dask or Spark data; the transaction protocol is not theirs.

May import: transaction, read and below. An engine imports no other engine; they share `scan`, `writer` and `changes`.
"""
