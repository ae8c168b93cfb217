"""A queue of messages with many producers and many workers, in one object: `lockprovider.queue`.

`contents.py` defines the stored bytes. `operations.py` has the operations, decides which claims have lapsed, and
encodes operations for a broker; both are pure. `writer.py` writes for all callers of a process. `queue.py`, `aio.py`
and `job.py` have the public classes `Queue`, `AsyncQueue` and `Job`.
"""
