"""Status of a lock for people: its record, changes, and complete errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fsspec_cas import Version
from lockprovider.errors import LockError, held_by
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, LockRecord
from lockprovider.words import count, distance, moment, span

RecordState = Literal["absent", "released", "held", "lapsed"]
ChangeKind = Literal[
    "absent", "held", "lapsed", "acquired", "renewed", "decided", "waiting", "released", "removed", "rewritten"
]

_CLOCKS_DIFFER_MS = 2000  # the store's clock is read to a whole second


@dataclass(frozen=True, slots=True)
class LockStatus:
    """The lock record with its version; None if absent.

    `now_ms` is the store's clock if `by_store`, else this machine's (`own_ms`).

    >>> status = lockprovider.lock("memory://docs/lock").status()
    >>> status.state, status.record
    ('absent', None)
    """

    record: LockRecord | None
    version: Version | None
    now_ms: int
    by_store: bool
    own_ms: int

    @property
    def state(self) -> RecordState:
        """Whether a client holds the lock, by the clock of `now_ms`."""
        return state_at(self.record, self.now_ms)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the record."""

    what: ChangeKind
    record: LockRecord | None


def state_at(record: LockRecord | None, now_ms: int) -> RecordState:
    """Return the record's state at `now_ms`."""
    if record is None:
        return "absent"
    if record.is_free:
        return "released"
    return "lapsed" if record.lapsed_at(now_ms) else "held"


def changes_between(before: LockRecord | None, after: LockRecord | None) -> list[Change]:
    """Return the changes between two reads, not those undone in between."""
    if after is None:
        return [] if before is None else [Change("removed", None)]
    if before is not None and before == after:
        return []
    kind = _change(before, after)
    changes = [Change(kind, after)]
    if after.pending is not None and (before is None or before.pending != after.pending):
        changes.append(Change("decided", after))
    return changes


def _change(before: LockRecord | None, after: LockRecord) -> ChangeKind:
    if before is not None and before.without_waiters() == after.without_waiters():
        return "waiting"
    same = before is not None and (before.owner, before.epoch) == (after.owner, after.epoch)
    if after.is_free:
        return "rewritten" if same and before is not None and before.is_free else "released"
    if not same or before is None or before.is_free:
        return "acquired"
    return "renewed" if after.valid_until_ms != before.valid_until_ms else "rewritten"


# A JVM writer does not record what it does.
JVM_HOLDS = (
    "a JVM writer with hoodie.write.auto.upgrade=true can hold the lock while it waits for all writes, even its own; "
    "if it holds the lock for minutes, stop it and set the key to false"
)
JVM_STARVES = (
    "a JVM writer cannot add itself to the waiters, so fast writers may keep it from the lock; raise its "
    "hoodie.write.lock.wait_time_ms and hoodie.write.lock.client.num_retries, or pause the other writers"
)


def who(record: LockRecord) -> str:
    """Format the holder."""
    if record.holder is None:
        return f"{record.owner} (a JVM writer, or another that records no host)"
    return f"{record.owner} ({record.holder})"


def status_fields(status: LockStatus) -> dict[str, Any]:
    """Return the status as JSON fields."""
    ahead_ms = status.own_ms - status.now_ms if status.by_store else None
    return {
        "state": status.state,
        **record_fields(status.record),
        "version": None if status.version is None else str(status.version),
        "now_ms": status.now_ms,
        "clock": "store" if status.by_store else "own",
        "own_clock_ahead_ms": ahead_ms,
    }


def record_fields(record: LockRecord | None) -> dict[str, Any]:
    """Return the record as JSON fields, all null if there is no record."""
    holder = record and record.holder
    pending = record and record.pending
    return {
        "owner": record and record.owner,
        "host": holder and holder.host,
        "pid": holder and holder.pid,
        "user": holder and (holder.user or None),
        "command": holder and (holder.command or None),
        "since_ms": holder and holder.since_ms,
        "valid_until_ms": record and record.valid_until_ms,
        "epoch": record and record.epoch,
        "waiting": len(record.waiters) if record else 0,
        "pending": pending and {"path": pending.path, "staged": pending.staged, "digest": pending.digest},
    }


def lines(status: LockStatus) -> list[str]:
    """Format the status, one line a fact."""
    record, now_ms = status.record, status.now_ms
    if record is None:
        return ["state    absent: no client has ever acquired this lock"]
    named = [("state", _state_words(status, record)), ("owner", record.owner)]
    if record.holder is not None:
        since_ms = record.holder.since_ms
        named.append(("holder", str(record.holder)))
        named.append(("since", f"{moment(since_ms)} ({span(now_ms - since_ms)} ago)"))
    if not record.is_free:
        named.append(("until", f"{moment(record.valid_until_ms)} ({distance(record.valid_until_ms - now_ms)})"))
    named.append(("epoch", str(record.epoch) if record.epoch else "none (written by JVM Hudi)"))
    if record.waiters:
        named.append(("waiting", count(len(record.waiters), "client")))
    if record.holder is None and not record.is_free:
        named.append(("note", JVM_HOLDS))
    if record.foreign_seen_ms and record.waiters:
        named.append(("note", JVM_STARVES))
    if record.all_pending:
        paths = ", ".join(pending.path for pending in record.all_pending)
        named.append(("pending", f"{paths}; decided, and the next holder applies it first"))
    named.append(("clock", _clock_words(status)))
    return [f"{name:<8} {words}" for name, words in named]


def _state_words(status: LockStatus, record: LockRecord) -> str:
    """Format the state of an existing record, and how long ago a lease lapsed."""
    match status.state:
        case "held":
            return "held"
        case "lapsed":
            late_ms = status.now_ms - record.valid_until_ms
            return f"lapsed {span(late_ms)} ago without a release: the next client that asks gets it"
        case "released" | "absent":
            return "released: the next client that asks gets it"


def _clock_words(status: LockStatus) -> str:
    """Format whose clock judged the status, and how far this machine's clock differs, from two seconds on."""
    if not status.by_store:
        return "this machine's; the store does not report its time"
    ahead_ms = status.own_ms - status.now_ms
    if abs(ahead_ms) < _CLOCKS_DIFFER_MS:
        return "the store's"
    side = "ahead of" if ahead_ms > 0 else "behind"
    return f"the store's; this machine's is {span(abs(ahead_ms))} {side} it"


def describe(change: Change) -> str:
    """Format a change in one line."""
    record = change.record
    if record is None:
        return (
            "removed: the lock record was deleted" if change.what == "removed" else "absent: no lock record exists yet"
        )
    until = f"until {moment(record.valid_until_ms)}"
    match change.what:
        case "acquired" | "held":
            words = f"by {who(record)}, epoch {record.epoch}, {until}"
        case "renewed":
            words = f"by {record.owner}, {until}"
        case "decided":
            words = f"to publish {record.pending.path if record.pending else 'nothing'}"
        case "waiting":
            words = f"for it: {count(len(record.waiters), 'client')}"
        case "lapsed":
            words = f"without a release by {who(record)}, {until}"
        case "released" | "rewritten" | "absent" | "removed":
            words = f"by {who(record)}"
    return f"{change.what} {words}"


@contextlib.contextmanager
def detailed_errors(url: str, record: Callable[[], LockRecord | None], now_ms: Callable[[], int]) -> Iterator[None]:
    """Add the lock's details to this block's `LockError`; `record` must send no request."""
    try:
        yield
    except LockError as error:
        if not error.url:
            add_details(error, url, record(), now_ms())
        raise


def add_details(error: LockError, url: str, record: LockRecord | None, now_ms: int) -> None:
    """Change the error: set URL and holder attributes where missing, and extend its message.

    It gets URL, holder and next step, unless it has them.
    """
    message, more = str(error), [] if url in str(error) else [f"the lock is {url}"]
    error.url = url
    if record is not None and not record.is_free:
        error.holder = error.holder or record.holder
        error.owner, error.valid_until_ms = error.owner or record.owner, error.valid_until_ms or record.valid_until_ms
        more += [] if "held by" in message else [held_by(record.owner, record.holder, record.valid_until_ms, now_ms)]
    step = error.next_step.format(url=_place(url))
    ends = [", ".join(more)] if more else []
    ends += [step] if step and step not in message else []
    error.args = ("; ".join([message, *ends]), *error.args[1:])


def _place(url: str) -> str:
    if url.endswith(f"/{HUDI_LOCK_PATH}"):
        return url.removesuffix(f"/{HUDI_LOCK_PATH}")
    folder, _, name = url.rpartition("/")
    return f"{folder} --on {name}" if folder else url
