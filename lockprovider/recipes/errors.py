"""Errors of the recipes: a second tree, next to `LockError`. Each can be pickled.

What to do: "Errors" in `lockprovider/recipes/README.md`.
"""

from __future__ import annotations

from lockprovider.errors import LossReason


class CoordinationError(Exception):
    """Root of the recipes' errors."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Fenced(CoordinationError):
    """A newer `epoch` or another client excludes this one, or the object was created anew. The call wrote nothing."""

    def __init__(self, message: str = "", epoch: int = 0) -> None:
        super().__init__(message, epoch)
        self.epoch = epoch


class StateLocked(CoordinationError):
    """Another client edits the state: wait. `owner`, `reason` and `valid_until_ms` (epoch ms) describe its lock."""

    def __init__(self, message: str = "", owner: str = "", valid_until_ms: int = 0, reason: str = "") -> None:
        super().__init__(message, owner, valid_until_ms, reason)
        self.owner = owner
        self.valid_until_ms = valid_until_ms
        self.reason = reason


class StateConflict(CoordinationError):
    """The stored state, queue or lock differs; nothing was written. `current`: serial, rev or 0."""

    def __init__(self, message: str = "", current: int = 0) -> None:
        super().__init__(message, current)
        self.current = current


class NestedUpdate(CoordinationError):
    """An update's function started this update, or ran beyond the timeout."""


class NoRevision(CoordinationError, LookupError):
    """The state has no revision of this serial, has trimmed it, or cannot roll back to it, as it has no value."""


class TermLost(CoordinationError):
    """The term is over, for `reason`, and another candidate may lead."""

    def __init__(self, message: str = "", reason: LossReason = LossReason.TAKEN_OVER) -> None:
        super().__init__(message, reason)
        self.reason = reason


class NotElected(CoordinationError, TimeoutError):
    """Another candidate, last `leader`, led until the timeout, or this one was stopped or does not lead."""

    def __init__(self, message: str = "", leader: str = "") -> None:
        super().__init__(message, leader)
        self.leader = leader


class ClaimLost(CoordinationError):
    """The claim has ended, or another consumer has the message."""


class SequenceGap(CoordinationError):
    """The number is out of order, and no repeat."""


class NoQueue(CoordinationError, LookupError):
    """The path holds no queue."""


class QueueFull(CoordinationError):
    """Dead letters, claims or messages with keys fill the queue's object."""


class NoLog(CoordinationError, LookupError):
    """The path holds no log."""


class Sealed(CoordinationError):
    """The log takes no more records; nothing was appended. `successor`: next log, if any."""

    def __init__(self, message: str = "", successor: str = "") -> None:
        super().__init__(message, successor)
        self.successor = successor


class LogFull(CoordinationError):
    """Every slot is kept, for `reader` or until a trim; nothing was appended."""

    def __init__(self, message: str = "", reader: str = "") -> None:
        super().__init__(message, reader)
        self.reader = reader


class Trimmed(CoordinationError):
    """The requested records are gone: go on at `first`, the first kept slot."""

    def __init__(self, message: str = "", first: int = 0) -> None:
        super().__init__(message, first)
        self.first = first


class TooLarge(CoordinationError):
    """The message or record is too large."""


class Overloaded(CoordinationError):
    """Too many operations wait; this one was not taken."""


class MalformedObject(CoordinationError, ValueError):
    """The object is of another kind or a newer format, and was not overwritten."""
