"""Three PySpark pipelines share one table of real flights: the demonstration that runs end to end.

With `--merge-on-read` a compaction service runs beside them.
"""
