"""Errors of the lock, grouped by what the caller would do.

LockError
├── NotAcquired          somebody else holds it: wait longer, or look at who (`owner`, `valid_until_ms`)
├── LeaseLost            stop: another may hold the lock now; what was not published never will be
├── PublishUnknown       the commit point may have been passed: settle it by `lease.settle()` or by reading
├── Unappliable          what was decided cannot be put there: `lockprovider break` sets it aside, then acquire again
├── MalformedRecord      the lock file is not a lock record; nothing was overwritten
├── NotPicklable         a lock that is held, or a lease, cannot go to another process (a TypeError)
└── InvalidSettings      two settings contradict each other, or one is out of range (a ValueError)
"""

from __future__ import annotations


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


class LeaseLost(LockError):
    """The lease lapsed, was taken over, or was broken."""


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
