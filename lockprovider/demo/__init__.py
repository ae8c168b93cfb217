"""Three PySpark pipelines share one table of real flights: the demonstration that runs end to end."""
