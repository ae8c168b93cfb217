"""What the lease machine is fed, what it asks for, and what it can be in: events, effects and states.

Frozen, so that a state can be kept, compared and searched; see `machine` for what becomes of them.
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
    line_name: str = ""  # its name in the line; clients of one process may share it
    user: str = ""
    command: str = ""

    def holds_since(self, now_ms: int) -> Holder:
        """What the record says of it, for people."""
        return Holder(self.host, self.pid, now_ms, self.user, self.command)


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of an event, and a fresh nonce for the write that it may bring."""

    now_ms: int
    monotonic_s: float
    nonce: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A write of the record whose outcome is not known: it was not answered, or another copy of it was refused.

    Attributes:
        nonce: that of the record which it writes.
        version: at which the record must be for it to land.
        until_s: until when its sender may apply what it decides, on the monotonic clock.
    """

    nonce: str
    version: Version
    until_s: float


Became = Literal["there", "open", "over"]


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The record was read: None where there is none."""

    record: LockRecord | None
    version: Version | None
    at: Moment


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Take the lock as it was seen, if it may be taken.

    `line`: who waits for it from then on. `keeps_log`: only publishes will be done under it. `epoch`: the highest that
    this client has seen, should one that knows nothing of it have dropped it.
    """

    seen: RecordSeen
    line: tuple[str, ...] = ()
    keeps_log: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class PutWon:
    """The write is in the store at this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class PutFailed:
    """The write lost, or nobody knows."""


@dataclass(frozen=True, slots=True)
class LostRace:
    """The take was refused, so somebody else was faster. It is as well done again, should it be there all the same."""


@dataclass(frozen=True, slots=True)
class AppliedPending:
    """The pending publish is in the store, and all before it; but for what was `set_aside`, and so never was."""

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
    """Give the lock back. `again`: this client will come back, so it stays in the line, at its end."""

    at: Moment
    again: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Ask again whose record is there."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by."""

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
    """Create the pending object, after those before it; "exists with the same digest" is success."""

    pending: Pending
    earlier: tuple[Pending, ...] = ()


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else has it; nobody is named where that was not looked at."""

    owner: str = ""
    valid_until_ms: int = 0
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What happened, for the caller."""

    what: What


@dataclass(frozen=True, slots=True)
class Ended:
    """The lease is lost: tell the holder at once."""

    why: str
    reason: LossReason = LossReason.TAKEN_OVER


Effect = ReadRecord | PutRecord | Apply | Busy | Done | Ended


# -- states ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Idle:
    """Not the holder. `released` is the own last record, if nobody is known to have changed it."""

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
    """A record is on its way. `before` is what we held when it was sent (None when taking)."""

    purpose: Purpose
    record: LockRecord
    sent_s: float
    clocks_ms: int
    before: Held | None
    then: What = "not_written"  # of a renewal: what was being rolled forward, if anything was
    there: tuple[Pending, ...] = ()  # of what `before` names as pending: what is known to be applied


@dataclass(frozen=True, slots=True)
class Checking:
    """The answer to `write` was "lost" or none at all: whose record is there?"""

    write: Writing


@dataclass(frozen=True, slots=True)
class Rolling:
    """The lock is ours, and a decided publish must be applied before anything else."""

    held: Held
    then: What


@dataclass(frozen=True, slots=True)
class Lost:
    """Not the holder any more, without having released."""

    why: str


State = Idle | Held | Writing | Checking | Rolling | Lost
Step = tuple[State, Effect | None]


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of the lease machine, as it was."""

    before: State
    event: Event
    after: State
    effect: Effect | None
