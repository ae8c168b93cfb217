"""What a queue's callers are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockprovider.recipes.queue.contents import Message


@dataclass(frozen=True, slots=True)
class Receipt:
    """A message is in the queue; `again`: it had been put before (then `n` is 0 if it is not known which it was).

    >>> lockprovider.queue.create("memory://docs/backfill.json").put("mon")
    Receipt(n=1, again=False)
    """

    n: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class QueueStat:
    """A queue as one read showed it: how many messages wait (of those, for their time), are worked on, are dead.

    `bytes` are those in the queue's object; `segments` are the objects in which others wait.

    >>> queue = lockprovider.queue.create("memory://docs/backfill.json")
    >>> receipt = queue.put("mon", delay_s=3600)
    >>> queue.stat().ready, queue.stat().delayed
    (1, 1)
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
    """A message as `peek` and `dead` show it; `why` is of dead letters.

    >>> queue = lockprovider.queue.create("memory://docs/backfill.json")
    >>> receipt = queue.put("mon", key="ulm")
    >>> letter = queue.peek()[0]
    >>> letter.body, letter.key, letter.attempts
    ('mon', 'ulm', 0)
    """

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
    """What `work` came to.

    >>> queue = lockprovider.queue.create("memory://docs/backfill.json")
    >>> receipt = queue.put("mon")
    >>> queue.work(print, until_empty=True).failed
    <Job 1, attempt 1, claimed>
    0
    """

    acked: int = 0
    failed: int = 0
