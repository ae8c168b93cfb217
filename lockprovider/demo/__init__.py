"""Three PySpark pipelines share one table of real flights: the demonstration that runs end to end.

With `--merge-on-read` a compaction service runs next to them. `flights` is the story, `pipelines` the processes, `run`
the process that starts and follows them; `track` draws, `proof` compares, `serve` is an S3 server.
"""
