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


class LockError(Exception):
    """The root of the tree; built from one sentence."""


class NotAcquired(LockError, TimeoutError):
    """The lock was not free within the timeout.

    `owner` and `valid_until_ms` (epoch ms) describe the holder that was seen last, if any.
    """

    def __init__(self, message: str = "", *, owner: str = "", valid_until_ms: int = 0) -> None:
        super().__init__(message)
        self.owner = owner
        self.valid_until_ms = valid_until_ms


class LossReason(enum.Enum):
    """Why a lease, or a turn, is over."""

    LAPSED = "lapsed"  # it was not renewed in time: the process or its machine stood still, or the thread died
    UNREACHABLE = "unreachable"  # it was not renewed in time: the last renewal was not answered
    TAKEN_OVER = "taken_over"  # another took the lock, or published under it
    BROKEN = "broken"  # an operator released it, or removed its record
    RELEASED = "released"  # this process gave it back, or may have: a hand-over was not answered
    FORKED = "forked"  # it belongs to the process that this one was forked from


class LeaseLost(LockError):
    """The lease lapsed, was taken over, broken, or released.

    `reason` is for programs; `why` says the same, and more, for people.
    """

    def __init__(self, message: str = "", *, reason: LossReason = LossReason.TAKEN_OVER, why: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.why = why


class PublishUnknown(LockError):
    """Neither the store nor the lock record could tell whether the commit point was passed."""


class Unappliable(LockError):
    """A decided publish cannot be put there, and its lock not be taken: `lockprovider break URL` sets it aside.

    `occupied`: other bytes are at its path, so it never can be, while they are there.
    """

    def __init__(self, message: str = "", *, occupied: bool = False) -> None:
        super().__init__(message)
        self.occupied = occupied


class MalformedRecord(LockError, ValueError):
    """The object at the lock's path is not a lock record."""


class NotPicklable(LockError, TypeError):
    """It belongs to the process that it was made in."""


class InvalidSettings(LockError, ValueError):
    """The settings cannot work together."""
