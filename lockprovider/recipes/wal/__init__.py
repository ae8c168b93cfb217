"""A log with many writers and many readers, in a ring of objects: `lockprovider.wal`.

    log = lockprovider.wal.create("s3://bucket/orders")
    with log.appender("ingest-3") as out:
        out.append(b"...", seq=41)

`contents.py` defines the stored bytes. `appending.py` decides the outcome of a batch, and has the wire form for a
broker. Both are pure. `objects.py` reads the store and finds the end of the log. `writer.py` writes for all callers of
a process, and has `Appender`. `wal.py` has `Wal` and `AsyncWal`.
"""
