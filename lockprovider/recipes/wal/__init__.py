"""A log that many append to and many read, in a ring of objects: `lockprovider.wal`.

    log = lockprovider.wal.create("s3://bucket/orders")
    with log.appender("ingest-3") as out:
        out.append(b"...", seq=41)

`contents.py` is what is stored, `appending.py` what becomes of a batch, and how a broker is told of it (pure);
`objects.py` asks the store, also where the log ends, and reads; `writer.py` writes for all callers of a process, and
has `Appender`; `wal.py` has `Wal` and `AsyncWal`.
"""
