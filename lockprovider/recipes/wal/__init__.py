"""A log that many append to and many read, in a ring of objects: `lockprovider.wal`.

    log = lockprovider.wal.create("s3://bucket/orders")
    with log.appender("ingest-3") as out:
        out.append(b"...", seq=41)

`slot.py` and `manifest.py` are what is stored, `appending.py` what becomes of a batch, `seek.py` where the log ends
(pure); `objects.py` asks the store, `wire.py` tells operations to a broker (pure), `writer.py` writes for all callers
of a process, `reading.py` and `readers.py` read; `Wal`, `AsyncWal` and `Appender` are the front.
"""
