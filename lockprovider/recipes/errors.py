"""Errors of the recipes, grouped by what the caller would do. They stand beside `LockError`.

CoordinationError
├── Fenced               stop: somebody with a newer epoch has written; nothing of this was written
├── StateLocked          an edit is being made: wait, or look at who (`owner`, `valid_until_ms`, `reason`)
├── StateConflict        it was changed during the edit, nothing was written: edit again (`current` is its serial)
├── NestedUpdate         an update of a state waits for itself: the function of an update must ask for none
├── NoRevision           there is none of that serial, or not any more (a LookupError)
├── TermLost             stop: another may lead now (`reason` says why)
├── NotElected           another led until the timeout (`leader` says who)
├── ClaimLost            stop: the message was given to another, or its claim has ended
├── SequenceGap          this number is out of order: number messages and records in the order of putting
├── NoQueue              there is no queue: create it (a LookupError)
├── QueueFull            messages with a key, or dead letters, fill the queue's object: take or redrive some first
├── NoLog                there is no log: create it (a LookupError)
├── Sealed               the log takes no more, nothing was appended: go on in its `successor`, if it names one
├── LogFull              every slot is kept for a reader (`reader`), or until a trim; nothing was appended
├── Trimmed              what was to be read is not kept any more: go on at slot `first`, and know that some is missing
├── TooLarge             one message or record is larger than is taken; keep it elsewhere and put its name
├── Overloaded           too much waits already, this was not taken: later, or fewer at once
└── MalformedObject      the object is not what it should be; nothing was overwritten (a ValueError)

A write whose answer is lost and cannot be settled is `fsspec_cas.OutcomeUnknown`. Each error is built from one sentence
and can be pickled.
"""

from __future__ import annotations

from lockprovider.errors import LossReason


class CoordinationError(Exception):
    """The root of the tree; built from one sentence."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Fenced(CoordinationError):
    """A newer epoch has been seen in the object; `epoch` is that one."""

    def __init__(self, message: str = "", epoch: int = 0) -> None:
        super().__init__(message, epoch)
        self.epoch = epoch


class StateLocked(CoordinationError):
    """Somebody edits the state; `owner` and `valid_until_ms` (epoch ms) are of the lock, as it was seen."""

    def __init__(self, message: str = "", owner: str = "", valid_until_ms: int = 0, reason: str = "") -> None:
        super().__init__(message, owner, valid_until_ms, reason)
        self.owner = owner
        self.valid_until_ms = valid_until_ms
        self.reason = reason


class StateConflict(CoordinationError):
    """The state was changed while it was edited; `current` is the serial that it has now."""

    def __init__(self, message: str = "", current: int = 0) -> None:
        super().__init__(message, current)
        self.current = current


class NestedUpdate(CoordinationError):
    """The function of an update has asked for an update of the same state, which would wait for it."""


class NoRevision(CoordinationError, LookupError):
    """There is no revision of this serial, or it was trimmed."""


class TermLost(CoordinationError):
    """The term is over: it lapsed, another was elected, or it was resigned."""

    def __init__(self, message: str = "", reason: LossReason = LossReason.TAKEN_OVER) -> None:
        super().__init__(message, reason)
        self.reason = reason


class NotElected(CoordinationError, TimeoutError):
    """Another led until the timeout; `leader` is the name of the one who was seen last."""

    def __init__(self, message: str = "", leader: str = "") -> None:
        super().__init__(message, leader)
        self.leader = leader


class ClaimLost(CoordinationError):
    """Another has the message, or it lapsed, was acked, nacked or buried; this claim counts no more."""


class SequenceGap(CoordinationError):
    """The producer has put a higher number, and this one is none that was put before."""


class NoQueue(CoordinationError, LookupError):
    """There is no queue at the path."""


class QueueFull(CoordinationError):
    """The queue's object would become larger than it may be, by what cannot wait in segments."""


class NoLog(CoordinationError, LookupError):
    """There is no log at the path."""


class Sealed(CoordinationError):
    """The log was sealed and takes no more; `successor` is the log that goes on, empty if none was named."""

    def __init__(self, message: str = "", successor: str = "") -> None:
        super().__init__(message, successor)
        self.successor = successor


class LogFull(CoordinationError):
    """Every slot of the log is kept; `reader` is the slowest that has a name, if there is one."""

    def __init__(self, message: str = "", reader: str = "") -> None:
        super().__init__(message, reader)
        self.reader = reader


class Trimmed(CoordinationError):
    """What was to be read is gone; `first` is the first slot that is kept."""

    def __init__(self, message: str = "", first: int = 0) -> None:
        super().__init__(message, first)
        self.first = first


class TooLarge(CoordinationError):
    """One message or record is larger than is taken."""


class Overloaded(CoordinationError):
    """As many operations wait already as may."""


class MalformedObject(CoordinationError, ValueError):
    """The object at the path is of another kind, or of a newer format; it was not written over."""
