"""Events, effects and states of the lease machine; `machine.step` has the transitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fsspec_cas import Condition, Version
from lockprovider.errors import Holder, LossReason
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.commit_log import Pending
from lockprovider.storage_lock.record import LockRecord

Purpose = Literal["take", "renew", "commit", "release"]
What = Literal["acquired", "renewed", "committed", "released", "not_written"]
Verdict = Literal["committed", "apply", "not_committed", "unknown"]


@dataclass(frozen=True, slots=True)
class Me:
    """Constants of one lock client."""

    owner: str
    settings: LockSettings
    host: str = ""
    pid: int = 0
    waiter_name: str = ""  # shared by clients of one process
    user: str = ""
    command: str = ""

    def holds_since(self, now_ms: int) -> Holder:
        """Return the holder to store in the record, for people."""
        return Holder(self.host, self.pid, now_ms, self.user, self.command)


@dataclass(frozen=True, slots=True)
class Moment:
    """Time of an event, and a fresh nonce for a resulting write."""

    now_ms: int
    monotonic_s: float
    nonce: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A write of the record with an unknown outcome.

    `nonce`: of the sent record. `version`: required of the stored one. `until_s`: until when (monotonic clock) its
    sender may apply what it decides.
    """

    nonce: str
    version: Version
    until_s: float


Became = Literal["there", "open", "over"]


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """Event: the record was read; None if absent."""

    record: LockRecord | None
    version: Version | None
    at: Moment


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Event: take the lock as it was read, if allowed, leaving these `waiters`.

    `keeps_log`: only publishes will change what the lock protects. `epoch`: the highest seen.
    """

    seen: RecordSeen
    waiters: tuple[str, ...] = ()
    keeps_log: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class PutWon:
    """Event: the write is stored at this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class PutFailed:
    """Event: the write was refused, or its outcome is unknown."""


@dataclass(frozen=True, slots=True)
class LostRace:
    """Event: the take was refused; it may be repeated even if it landed."""


@dataclass(frozen=True, slots=True)
class AppliedPending:
    """Event: all pending is applied, except those `set_aside`, which never will be."""

    set_aside: bool = False


@dataclass(frozen=True, slots=True)
class Renew:
    """Event: prolong the lease."""

    at: Moment


@dataclass(frozen=True, slots=True)
class Commit:
    """Event: pass the commit point of a publish."""

    pending: Pending
    at: Moment


@dataclass(frozen=True, slots=True)
class Release:
    """Event: release the lock; `again` adds this client to the waiters."""

    at: Moment
    again: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Event: read the record again to find its owner."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Event: time has passed."""

    monotonic_s: float


Event = TakeLock | RecordSeen | PutWon | PutFailed | LostRace | AppliedPending | Renew | Commit | Release | Look | Tick


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Effect: read the lock record."""


@dataclass(frozen=True, slots=True)
class PutRecord:
    """Effect: write the lock record under this condition."""

    record: LockRecord
    condition: Condition


@dataclass(frozen=True, slots=True)
class Apply:
    """Effect: create the pending object after the `earlier` ones; an equal digest is success."""

    pending: Pending
    earlier: tuple[Pending, ...] = ()


@dataclass(frozen=True, slots=True)
class Busy:
    """Result: another client has the lock; `owner` is empty if not read."""

    owner: str = ""
    valid_until_ms: int = 0
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Result of one step, returned to the caller."""

    what: What


@dataclass(frozen=True, slots=True)
class Ended:
    """Result: the lease is lost; notify the holder at once."""

    why: str
    reason: LossReason = LossReason.TAKEN_OVER


Effect = ReadRecord | PutRecord | Apply | Busy | Done | Ended


# -- states ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Idle:
    """State: not the holder. `released`: its last record, until another write is known."""

    released: tuple[LockRecord, Version] | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """State: the holder, until `deadline_s` on the monotonic clock.

    `clocks_ms`: wall clock minus monotonic clock at the acquisition.
    """

    record: LockRecord
    version: Version
    deadline_s: float
    clocks_ms: int


@dataclass(frozen=True, slots=True)
class Writing:
    """State: a write is under way. `before`: the lease when sent (None for a take)."""

    purpose: Purpose
    record: LockRecord
    sent_s: float
    clocks_ms: int
    before: Held | None
    then: What = "not_written"  # what the roll-forward under way completes
    applied: tuple[Pending, ...] = ()  # those of `before` known to be applied


@dataclass(frozen=True, slots=True)
class Checking:
    """State: `write` was refused or unanswered; the record will show."""

    write: Writing


@dataclass(frozen=True, slots=True)
class Rolling:
    """State: the holder, which must first apply a decided publish."""

    held: Held
    then: What


@dataclass(frozen=True, slots=True)
class Lost:
    """State: not the holder any more, without a release."""

    why: str


State = Idle | Held | Writing | Checking | Rolling | Lost
Step = tuple[State, Effect | None]


@dataclass(frozen=True, slots=True)
class Transition:
    """One past step of the lease machine."""

    before: State
    event: Event
    after: State
    effect: Effect | None
