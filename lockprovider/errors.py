"""Errors of the lock. All are `LockError`s; `next_step` says what the caller can do, if anything."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from lockprovider.words import iso, until


@dataclass(frozen=True, slots=True)
class Holder:
    """Process that holds a lock; `since_ms`: when it acquired the lock (epoch ms).

    `command` lacks the arguments, which may be secrets.

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
        """Format `ship, pid 42, user ann, nightly.py`."""
        parts = [self.host, f"pid {self.pid}"]
        parts += [f"user {self.user}"] if self.user else []
        return ", ".join([*parts, self.command] if self.command else parts)


def held_by(owner: str, holder: Holder | None, valid_until_ms: int, now_ms: int) -> str:
    """Format `held by O (ship, pid 42, since …) until … (in 42.0 s)`."""
    who = f"{owner} ({holder}, since {iso(holder.since_ms)})" if holder else owner
    return f"held by {who} until {until(valid_until_ms, now_ms)}"


class LockError(Exception):
    """Base class of the lock's errors.

    Where known, `url` names the lock, `owner` and `holder` its holder, and `valid_until_ms` the lease's end (epoch ms).
    """

    next_step: str = ""

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
    """The lock was not free within the timeout; the attributes describe its last holder."""

    next_step = "wait longer (timeout=), or run `lockprovider status {url}`"


class LossReason(enum.Enum):
    """Why a lease, or a term, is over.

    >>> lease = lockprovider.lock("memory://docs/lock").acquire()
    >>> lease.release()
    >>> try:
    ...     lease.check()
    ... except lockprovider.LeaseLost as lost:
    ...     lost.reason
    <LossReason.RELEASED: 'released'>
    """

    LAPSED = "lapsed"  # not renewed: the process stood still, or the thread died
    UNREACHABLE = "unreachable"  # not renewed: the last renewal was not answered
    TAKEN_OVER = "taken_over"  # another client took the lock, or published under it
    BROKEN = "broken"  # an operator released it, or removed its record
    RELEASED = "released"  # this process released it, or may have
    FORKED = "forked"  # it is the parent process's lease


class LeaseLost(LockError):
    """The lease lapsed, was taken over, broken, or released: see `reason`; `why` is for people."""

    next_step = "stop the work and acquire the lock again; what was not published will never appear"

    def __init__(
        self, message: str = "", *, reason: LossReason = LossReason.TAKEN_OVER, why: str = "", **who: Any
    ) -> None:
        super().__init__(message, **who)
        self.reason = reason
        self.why = why


class PublishUnknown(LockError):
    """The publish may be applied, be applied later by another client, or never be."""

    next_step = "acquire the lock again, then read the path"


class Unappliable(LockError):
    """A decided publish cannot be applied, so no client can take the lock until `lockprovider break URL` sets it aside.

    `occupied`: other bytes are at its path.
    """

    next_step = "run `lockprovider break {url}`, then acquire the lock again"

    def __init__(self, message: str = "", *, occupied: bool = False, **who: Any) -> None:
        super().__init__(message, **who)
        self.occupied = occupied


class MalformedRecord(LockError, ValueError):
    """The object at the lock's path is no lock record."""


class NotPicklable(LockError, TypeError):
    """The object belongs to this process."""


class InvalidSettings(LockError, ValueError):
    """Settings are out of range or contradict each other."""
