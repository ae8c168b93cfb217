"""Message queue with many producers and workers, in one object: `lockprovider.queue`.

`contents.py` has the stored bytes, `operations.py` the operations (both pure); `writer.py` writes, `queue.py` has
`Queue`.
"""
