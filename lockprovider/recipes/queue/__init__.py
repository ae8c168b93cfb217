"""A queue of messages with many producers and many workers, in one object: `lockprovider.queue`.

`contents.py` defines the stored bytes. `operations.py` has the operations, the lapse of claims, and the wire form for a
broker. Both are pure. `writer.py` writes for all callers of a process. `queue.py`, `aio.py` and `job.py` have `Queue`,
`AsyncQueue` and `Job`.
"""
