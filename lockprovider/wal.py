"""Logs: `lockprovider.recipes.wal` by its public name.

log = lockprovider.wal.create("s3://bucket/orders")
"""

from lockprovider.recipes.wal import (
    Appended,
    Appender,
    AsyncAppender,
    AsyncLogReader,
    AsyncWal,
    CoordinationError,
    Fenced,
    Leader,
    LogBatch,
    LogFull,
    LogInfo,
    LogReader,
    MalformedObject,
    NoLog,
    Overloaded,
    Position,
    SequenceGap,
    TooLarge,
    Trimmed,
    Wal,
    create,
    open,  # noqa: A004 - it reads as lockprovider.wal.open
)

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
