"""Queues: `lockprovider.recipes.queue` by its public name.

queue = lockprovider.queue.create("s3://bucket/backfill.json")
"""

from lockprovider.recipes.queue import (
    AsyncJob,
    AsyncQueue,
    ClaimLost,
    CoordinationError,
    Fenced,
    Job,
    Letter,
    MalformedObject,
    NoQueue,
    Overloaded,
    Queue,
    QueueFull,
    QueueSettings,
    QueueStat,
    Receipt,
    SequenceGap,
    StateConflict,
    TooLarge,
    Worked,
    create,
    open,  # noqa: A004 - it reads as lockprovider.queue.open
)

__all__ = [
    "AsyncJob",
    "AsyncQueue",
    "ClaimLost",
    "CoordinationError",
    "Fenced",
    "Job",
    "Letter",
    "MalformedObject",
    "NoQueue",
    "Overloaded",
    "Queue",
    "QueueFull",
    "QueueSettings",
    "QueueStat",
    "Receipt",
    "SequenceGap",
    "StateConflict",
    "TooLarge",
    "Worked",
    "create",
    "open",
]
