"""Three PySpark pipelines share one table of real flights: `run` runs them, `proof` says what must come out."""
