"""Public names of `lockprovider.recipes.queue`.

Example: `queue = lockprovider.queue.create("s3://bucket/backfill.json")`.
"""

from lockprovider.recipes.errors import (
    ClaimLost,
    CoordinationError,
    Fenced,
    MalformedObject,
    NoQueue,
    Overloaded,
    QueueFull,
    SequenceGap,
    StateConflict,
    TooLarge,
)
from lockprovider.recipes.queue.contents import QueueSettings
from lockprovider.recipes.queue.job import Job, Letter, QueueStat, Receipt, Worked
from lockprovider.recipes.queue.queue import AsyncJob, AsyncQueue, Queue

create = Queue.create
open = Queue.open  # noqa: A001 - it reads as lockprovider.queue.open

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
