"""What else conditional writes are enough for: state files, queues, logs. Each is imported only when it is used.

May import: `client` and what stands below, and `fsspec_cas`; it knows nothing of the lock's record. The recipes do not
know each other: what they share is `batching.py`, `broker.py` and `errors.py`.
"""
