"""Public names of `lockprovider.recipes.wal`.

Example: `log = lockprovider.wal.create("s3://bucket/orders")`.
"""

from lockprovider.recipes.errors import (
    CoordinationError,
    Fenced,
    LogFull,
    MalformedObject,
    NoLog,
    Overloaded,
    Sealed,
    SequenceGap,
    TooLarge,
    Trimmed,
)
from lockprovider.recipes.wal.contents import Appended, LogBatch, LogInfo, Position
from lockprovider.recipes.wal.objects import LogReader
from lockprovider.recipes.wal.wal import AsyncAppender, AsyncLogReader, AsyncWal, Wal
from lockprovider.recipes.wal.writer import Appender, Leader

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
    "Sealed",
    "SequenceGap",
    "TooLarge",
    "Trimmed",
    "Wal",
    "create",
    "open",
]
