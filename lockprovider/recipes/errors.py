"""Errors of the recipes, grouped by what the caller does next. They are a second tree, next to `LockError`.

CoordinationError
├── Fenced               stop: a newer epoch has written; nothing of this call was written
├── StateLocked          another client edits: wait, or look at `owner`, `valid_until_ms`, `reason`
├── StateConflict        the state changed during the edit, nothing was written: edit again (`current` is its serial)
├── NestedUpdate         an update waits for itself: the function of an update must not start another one
├── NoRevision           no revision has this serial, or it was trimmed (a LookupError)
├── TermLost             stop: another candidate may lead now (`reason` says why)
├── NotElected           another candidate led until the timeout (`leader` is its name)
├── ClaimLost            stop: another consumer has the message, or the claim has ended
├── SequenceGap          the number is out of order: number messages and records in the order of the calls
├── NoQueue              the queue does not exist: create it (a LookupError)
├── QueueFull            messages with a key, or dead letters, fill the queue's object: take or redrive some first
├── NoLog                the log does not exist: create it (a LookupError)
├── Sealed               the log is sealed, nothing was appended: go on in its `successor`, if it names one
├── LogFull              every slot is kept for `reader`, or until a trim; nothing was appended
├── Trimmed              the position is no longer kept: go on at slot `first`, and know that records are missing
├── TooLarge             a message or record is too large: store it elsewhere and put its name
├── Overloaded           too many operations wait, this one was not taken: try later, or fewer at once
└── MalformedObject      the object is not of this recipe; it was not overwritten (a ValueError)

`fsspec_cas.OutcomeUnknown` means that a write's answer was lost and cannot be settled. Each error takes one sentence as
its first argument, and can be pickled.
"""

from __future__ import annotations

from lockprovider.errors import LossReason


class CoordinationError(Exception):
    """Root of the recipes' errors; built from one sentence."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Fenced(CoordinationError):
    """A newer epoch was found in the object; `epoch` is that epoch."""

    def __init__(self, message: str = "", epoch: int = 0) -> None:
        super().__init__(message, epoch)
        self.epoch = epoch


class StateLocked(CoordinationError):
    """Another client edits the state; `owner` and `valid_until_ms` (epoch ms) describe its lock, as last read."""

    def __init__(self, message: str = "", owner: str = "", valid_until_ms: int = 0, reason: str = "") -> None:
        super().__init__(message, owner, valid_until_ms, reason)
        self.owner = owner
        self.valid_until_ms = valid_until_ms
        self.reason = reason


class StateConflict(CoordinationError):
    """The state was changed while it was edited; `current` is its serial now."""

    def __init__(self, message: str = "", current: int = 0) -> None:
        super().__init__(message, current)
        self.current = current


class NestedUpdate(CoordinationError):
    """The function of an update asked for an update of the same state, which would wait for itself."""


class NoRevision(CoordinationError, LookupError):
    """The state has no revision of this serial, or has trimmed it."""


class TermLost(CoordinationError):
    """The term is over: it lapsed, another candidate was elected, or it was resigned."""

    def __init__(self, message: str = "", reason: LossReason = LossReason.TAKEN_OVER) -> None:
        super().__init__(message, reason)
        self.reason = reason


class NotElected(CoordinationError, TimeoutError):
    """Another candidate led until the timeout; `leader` is the name of the leader that was read last."""

    def __init__(self, message: str = "", leader: str = "") -> None:
        super().__init__(message, leader)
        self.leader = leader


class ClaimLost(CoordinationError):
    """The claim no longer counts: another consumer has the message, or it lapsed, or was acked, nacked or buried."""


class SequenceGap(CoordinationError):
    """The producer has already put a higher number, and this number is not a repeat."""


class NoQueue(CoordinationError, LookupError):
    """The path holds no queue."""


class QueueFull(CoordinationError):
    """The queue's object would exceed its largest size, by messages that cannot wait in segments."""


class NoLog(CoordinationError, LookupError):
    """The path holds no log."""


class Sealed(CoordinationError):
    """The log is sealed and takes no more records; `successor` is the log that goes on, empty if none was named."""

    def __init__(self, message: str = "", successor: str = "") -> None:
        super().__init__(message, successor)
        self.successor = successor


class LogFull(CoordinationError):
    """Every slot of the log is kept; `reader` is the slowest named reader, if there is any."""

    def __init__(self, message: str = "", reader: str = "") -> None:
        super().__init__(message, reader)
        self.reader = reader


class Trimmed(CoordinationError):
    """The requested records are gone; `first` is the first slot that is kept."""

    def __init__(self, message: str = "", first: int = 0) -> None:
        super().__init__(message, first)
        self.first = first


class TooLarge(CoordinationError):
    """A message or record exceeds its largest size."""


class Overloaded(CoordinationError):
    """The largest number of waiting operations is reached."""


class MalformedObject(CoordinationError, ValueError):
    """The object at the path is of another kind, or of a newer format; it was not overwritten."""
