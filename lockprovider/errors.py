"""Errors of the lock, grouped by what the caller would do.

LockError
├── NotAcquired          somebody else holds it: wait longer, or look at who (`owner`, `valid_until_ms`)
├── LeaseLost            stop: another may hold the lock now (`reason` says why); what was not published never will be
├── PublishUnknown       it may have been decided: acquire the lock again, then read the path
├── Unappliable          what was decided cannot be put there: `lockprovider break` sets it aside, then acquire again
├── MalformedRecord      the lock file is not a lock record; nothing was overwritten
├── NotPicklable         a lock that is held, or a lease, cannot go to another process (a TypeError)
└── InvalidSettings      two settings contradict each other, or one is out of range (a ValueError)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, ClassVar

from lockprovider.words import iso, until


@dataclass(frozen=True, slots=True)
class Holder:
    """Who to ask. `command` is a program's name without its arguments, which may be secrets.

    >>> with lockprovider.lock("memory://docs/lock") as lease:
    ...     holder = lease.record.holder
    >>> import os
    >>> holder.pid == os.getpid()
    True
    """

    host: str
    pid: int
    since_ms: int
    user: str = ""
    command: str = ""

    def __str__(self) -> str:
        """`ship, pid 42, user ann, nightly.py`."""
        parts = [self.host, f"pid {self.pid}"]
        parts += [f"user {self.user}"] if self.user else []
        return ", ".join([*parts, self.command] if self.command else parts)


def held_by(owner: str, holder: Holder | None, valid_until_ms: int, now_ms: int) -> str:
    """`held by O (ship, pid 42, since …) until … (in 42.0 s)`."""
    who = f"{owner} ({holder}, since {iso(holder.since_ms)})" if holder else owner
    return f"held by {who} until {until(valid_until_ms, now_ms)}"


class LockError(Exception):
    """The root of the tree.

    Where it is known, `url` is the lock's, `owner` and `holder` say who has it (host, pid, user, command, since when),
    and `valid_until_ms` until when that was promised (epoch ms); the message says the same.
    """

    next_step: ClassVar[str] = ""

    def __init__(
        self,
        message: str = "",
        *,
        url: str = "",
        owner: str = "",
        holder: Holder | None = None,
        valid_until_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.url = url
        self.owner = owner
        self.holder = holder
        self.valid_until_ms = valid_until_ms


class NotAcquired(LockError, TimeoutError):
    """The lock was not free within the timeout.

    `owner`, `holder` and `valid_until_ms` describe the holder that was seen last, if any.
    """

    next_step = "wait longer (timeout=), or see `lockprovider status {url}`"


class LossReason(enum.Enum):
    """Why a lease, or a turn, is over.

    >>> lease = lockprovider.lock("memory://docs/lock").acquire()
    >>> lease.release()
    >>> try:
    ...     lease.check()
    ... except lockprovider.LeaseLost as lost:
    ...     lost.reason
    <LossReason.RELEASED: 'released'>
    """

    LAPSED = "lapsed"  # it was not renewed in time: the process or its machine stood still, or the thread died
    UNREACHABLE = "unreachable"  # it was not renewed in time: the last renewal was not answered
    TAKEN_OVER = "taken_over"  # another took the lock, or published under it
    BROKEN = "broken"  # an operator released it, or removed its record
    RELEASED = "released"  # this process gave it back, or may have: that was not answered
    FORKED = "forked"  # it belongs to the process that this one was forked from


class LeaseLost(LockError):
    """The lease lapsed, was taken over, broken, or released.

    `reason` is for programs; `why` says the same, and more, for people.
    """

    next_step = "stop, and acquire it again: what was not published never will be"

    def __init__(
        self, message: str = "", *, reason: LossReason = LossReason.TAKEN_OVER, why: str = "", **who: Any
    ) -> None:
        super().__init__(message, **who)
        self.reason = reason
        self.why = why


class PublishUnknown(LockError):
    """Neither the store nor the lock record could tell whether the commit point was passed."""

    next_step = "acquire the lock again, then read the path"


class Unappliable(LockError):
    """A decided publish cannot be put there, and its lock not be taken: `lockprovider break URL` sets it aside.

    `occupied`: other bytes are at its path, so it never can be, while they are there.
    """

    next_step = "`lockprovider break {url}`, then acquire again"

    def __init__(self, message: str = "", *, occupied: bool = False, **who: Any) -> None:
        super().__init__(message, **who)
        self.occupied = occupied


class MalformedRecord(LockError, ValueError):
    """The object at the lock's path is not a lock record."""


class NotPicklable(LockError, TypeError):
    """It belongs to the process that it was made in."""


class InvalidSettings(LockError, ValueError):
    """The settings cannot work together."""
