"""What a queue's callers are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockprovider.recipes.queue.contents import Message


@dataclass(frozen=True, slots=True)
class Receipt:
    """A message is in the queue; `again`: it had been put before (then `n` is 0 if it is not known which it was)."""

    n: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class QueueStat:
    """A queue as one read showed it: how many messages wait (of those, for their time), are worked on, are dead.

    `bytes` are those in the queue's object; `segments` are the objects in which others wait.
    """

    ready: int
    delayed: int
    claimed: int
    dead: int
    put: int
    bytes: int
    rev: int
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Letter:
    """A message as `peek` and `dead` show it; `why` is of dead letters."""

    n: int
    body: Any
    key: str
    priority: int
    attempts: int
    error: str
    why: str = ""

    @classmethod
    def of(cls, message: Message, why: str = "") -> Letter:
        """The message as it is."""
        kept = message
        return cls(kept.n, kept.given(), kept.key, kept.priority, kept.attempts, kept.error, why)


@dataclass(slots=True)
class Worked:
    """What `work` came to."""

    acked: int = 0
    failed: int = 0
