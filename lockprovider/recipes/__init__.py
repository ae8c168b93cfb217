"""Recipes on conditional writes: state files, queues, logs, elections. Each is imported on its first use.

The recipes may import `client`, the layers below it, and `fsspec_cas`. They do not know the lock's record, and not each
other. `batching.py`, `broker.py` and `errors.py` hold what they share.
"""
