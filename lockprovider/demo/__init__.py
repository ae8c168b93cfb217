"""Demo of three PySpark pipelines that share one table of real flights: `run` runs them, `proof` checks the result."""
