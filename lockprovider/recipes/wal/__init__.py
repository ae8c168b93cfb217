"""A log that many append to and many read, in a ring of objects: `lockprovider.wal`.

    log = lockprovider.wal.create("s3://bucket/orders")
    with log.appender("ingest-3") as out:
        out.append(b"...", seq=41)

`slot.py` and `manifest.py` are what is stored, `appending.py` what becomes of a batch, `seek.py` where the log ends
(pure); `objects.py` asks the store, `writer.py` writes for all callers of a process, `reading.py` and `readers.py`
read; `Wal`, `AsyncWal` and `Appender` are the front.
"""

from lockprovider.recipes.errors import (
    CoordinationError,
    Fenced,
    LogFull,
    MalformedObject,
    NoLog,
    Overloaded,
    SequenceGap,
    TooLarge,
    Trimmed,
)
from lockprovider.recipes.wal.aio import AsyncAppender, AsyncLogReader, AsyncWal
from lockprovider.recipes.wal.appender import Appender, Leader
from lockprovider.recipes.wal.readers import LogReader
from lockprovider.recipes.wal.reports import Appended, LogBatch, LogInfo, Position
from lockprovider.recipes.wal.wal import Wal

create = Wal.create
open = Wal.open  # noqa: A001 - it reads as lockprovider.wal.open

__all__ = [
    "Appended",
    "Appender",
    "AsyncAppender",
    "AsyncLogReader",
    "AsyncWal",
    "CoordinationError",
    "Fenced",
    "Leader",
    "LogBatch",
    "LogFull",
    "LogInfo",
    "LogReader",
    "MalformedObject",
    "NoLog",
    "Overloaded",
    "Position",
    "SequenceGap",
    "TooLarge",
    "Trimmed",
    "Wal",
    "create",
    "open",
]
