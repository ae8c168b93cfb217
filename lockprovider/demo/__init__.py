"""Demo of three PySpark pipelines on one table."""
