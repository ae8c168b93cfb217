"""A log that many append to and many read, in a ring of objects: `lockprovider.wal`.

    log = lockprovider.wal.create("s3://bucket/orders")
    with log.appender("ingest-3") as out:
        out.append(b"...", seq=41)

`slot.py` and `manifest.py` are what is stored, `appending.py` what becomes of a batch, and how a broker is told of it
(pure); `objects.py` asks the store, also where the log ends, `writer.py` writes for all callers of a process,
`readers.py` reads; `Wal`, `AsyncWal` and `Appender` are the front.
"""
