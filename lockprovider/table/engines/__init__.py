"""Engines: read and write a table's rows as pyarrow, Dask or Spark data, inside transactions."""
