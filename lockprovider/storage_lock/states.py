"""Events, effects and states of the lease machine.

They are frozen, so that a state can be kept, compared and searched. `machine.step` has the transitions.
"""

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
    """What never changes about one lock client."""

    owner: str
    settings: LockSettings
    host: str = ""
    pid: int = 0
    waiter_name: str = ""  # its name among the waiters; clients of one process may share it
    user: str = ""
    command: str = ""

    def holds_since(self, now_ms: int) -> Holder:
        """Return the holder that the record names, for people."""
        return Holder(self.host, self.pid, now_ms, self.user, self.command)


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of an event, and a fresh nonce for a write that follows from it."""

    now_ms: int
    monotonic_s: float
    nonce: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A write of the record with an unknown outcome: it was not answered, or another copy of it was refused.

    Attributes:
        nonce: of the record that was sent.
        version: that the stored record must have for the write to land.
        until_s: until when its sender may apply what it decides, on the monotonic clock.
    """

    nonce: str
    version: Version
    until_s: float


Became = Literal["there", "open", "over"]


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The record was read; None if there is no record."""

    record: LockRecord | None
    version: Version | None
    at: Moment


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Take the lock as it was read, if it may be taken.

    `waiters`: the waiters from then on. `keeps_log`: only publishes will change what the lock protects. `epoch`: the
    highest that this client has seen, in case a foreign client dropped it.
    """

    seen: RecordSeen
    waiters: tuple[str, ...] = ()
    keeps_log: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class PutWon:
    """The write is in the store at this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class PutFailed:
    """The write was refused, or its outcome is not known."""


@dataclass(frozen=True, slots=True)
class LostRace:
    """The take was refused, so another client was faster. A take that landed all the same may be repeated."""


@dataclass(frozen=True, slots=True)
class AppliedPending:
    """The pending publish and all before it are applied, except those `set_aside`, which will never be published."""

    set_aside: bool = False


@dataclass(frozen=True, slots=True)
class Renew:
    """Prolong the lease."""

    at: Moment


@dataclass(frozen=True, slots=True)
class Commit:
    """Pass the commit point of a publish."""

    pending: Pending
    at: Moment


@dataclass(frozen=True, slots=True)
class Release:
    """Release the lock. `again`: this client will want it again, and joins the end of the waiters."""

    at: Moment
    again: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Read the record again to find its owner."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    monotonic_s: float


Event = TakeLock | RecordSeen | PutWon | PutFailed | LostRace | AppliedPending | Renew | Commit | Release | Look | Tick


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the lock record."""


@dataclass(frozen=True, slots=True)
class PutRecord:
    """Write the lock record under this condition."""

    record: LockRecord
    condition: Condition


@dataclass(frozen=True, slots=True)
class Apply:
    """Create the pending object, after the `earlier` ones; an object with the same digest counts as success."""

    pending: Pending
    earlier: tuple[Pending, ...] = ()


@dataclass(frozen=True, slots=True)
class Busy:
    """Another client has the lock; `owner` is empty if the record was not read."""

    owner: str = ""
    valid_until_ms: int = 0
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Result of one step, returned to the caller."""

    what: What


@dataclass(frozen=True, slots=True)
class Ended:
    """The lease is lost: notify the holder at once."""

    why: str
    reason: LossReason = LossReason.TAKEN_OVER


Effect = ReadRecord | PutRecord | Apply | Busy | Done | Ended


# -- states ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Idle:
    """Not the holder. `released`: its last record, while no other write is known."""

    released: tuple[LockRecord, Version] | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The holder, until `deadline_s` on the monotonic clock.

    `clocks_ms` is the wall clock minus the monotonic one at the acquisition.
    """

    record: LockRecord
    version: Version
    deadline_s: float
    clocks_ms: int


@dataclass(frozen=True, slots=True)
class Writing:
    """A write of the record is on its way. `before` is what was held when it was sent (None for a take)."""

    purpose: Purpose
    record: LockRecord
    sent_s: float
    clocks_ms: int
    before: Held | None
    then: What = "not_written"  # for a renewal during a roll-forward: what that completes
    applied: tuple[Pending, ...] = ()  # the pending publishes of `before` that are known to be applied


@dataclass(frozen=True, slots=True)
class Checking:
    """The answer to `write` was a refusal or did not come; the record will show the outcome."""

    write: Writing


@dataclass(frozen=True, slots=True)
class Rolling:
    """The holder, which must apply a decided publish before anything else."""

    held: Held
    then: What


@dataclass(frozen=True, slots=True)
class Lost:
    """Not the holder any more, without a release."""

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
