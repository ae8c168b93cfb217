"""Demo of three PySpark pipelines on one table: `run` runs them, `proof` checks the result."""
