"""Status of a lock, for operators, without acquiring it; and `break_lock`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fsspec_cas import ABSENT, Lost, ObjectNotFound, Outcome, Store, Unknown, Version, Won, World
from fsspec_cas.outcome import Write
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.client import Client
from lockprovider.storage_lock.machine import Apply, Busy, Idle, RecordSeen, TakeLock
from lockprovider.storage_lock.record import LockRecord, Pending
from lockprovider.words import count, distance, moment, span

RecordState = Literal["absent", "released", "held", "lapsed"]
ChangeKind = Literal[
    "absent", "held", "lapsed", "acquired", "renewed", "decided", "waiting", "released", "removed", "rewritten"
]

_CLOCKS_DIFFER_MS = 2000  # the store's clock is read to a whole second
_REQUEST_S = 30.0
_SETTINGS = LockSettings(validity=60.0, renew=6.0)
_TRIES = 20  # each new waiter may cost one


@dataclass(frozen=True, slots=True)
class LockStatus:
    """Lock record with its version; None if absent.

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
        """Whether a client holds the lock, at `now_ms`."""
        return state_at(self.record, self.now_ms)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the record."""

    what: ChangeKind
    record: LockRecord | None


def state_at(record: LockRecord | None, now_ms: int) -> RecordState:
    if record is None:
        return "absent"
    if record.is_free:
        return "released"
    return "lapsed" if record.lapsed_at(now_ms) else "held"


def look(store: Store, path: str, world: World, *, timeout_s: float = _REQUEST_S) -> LockStatus:
    """Read the record (None: absent) and, with `Store.head`, the store's time, else this machine's.

    May raise `MalformedRecord`.
    """
    try:
        content = store.read(path, timeout=timeout_s)
        store_ms = store.head(path, timeout=timeout_s).answered_ms
    except ObjectNotFound:
        return LockStatus(None, None, world.now_ms(), by_store=False, own_ms=world.now_ms())
    own_ms = world.now_ms()
    now_ms = own_ms if store_ms is None else store_ms
    record = LockRecord.decode(content.data, path)
    return LockStatus(record, content.version, now_ms, by_store=store_ms is not None, own_ms=own_ms)


def changes_between(before: LockRecord | None, after: LockRecord | None) -> list[Change]:
    """Return the changes between two reads of the record (None: absent): "removed" or that of `_change`.

    "decided" follows for a new pending publish. Equal reads give none.
    """
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
    """Classify a changed record: "waiting" if only the waiters differ.

    Without `before`, or with another owner, epoch or `is_free`: "released" if free, else "acquired". Otherwise
    "renewed" if held with another validity, or "rewritten".
    """
    if before is not None and before.without_waiters() == after.without_waiters():
        return "waiting"
    same = before is not None and (before.owner, before.epoch) == (after.owner, after.epoch)
    if after.is_free:
        return "rewritten" if same and before is not None and before.is_free else "released"
    if not same or before is None or before.is_free:
        return "acquired"
    return "renewed" if after.valid_until_ms != before.valid_until_ms else "rewritten"


JVM_HOLDS = (
    "a JVM writer with hoodie.write.auto.upgrade=true can hold the lock while it waits for all writes, even its own; "
    "if it holds the lock for minutes, stop it and set the key to false"
)
JVM_STARVES = (
    "a JVM writer cannot add itself to the waiters, so fast writers may keep it from the lock; raise its "
    "hoodie.write.lock.wait_time_ms and hoodie.write.lock.client.num_retries, or pause the other writers"
)


def who(record: LockRecord) -> str:
    if record.holder is None:
        return f"{record.owner} (a JVM writer, or another that records no host)"
    return f"{record.owner} ({record.holder})"


def status_fields(status: LockStatus) -> dict[str, Any]:
    """Return the status as JSON fields; `own_clock_ahead_ms` is None without the store's clock."""
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
    """Return the record as JSON fields; for None they are None, 0 or [].

    `pending` is the last pending publish, `pending_before` the earlier ones.
    """
    holder = record and record.holder
    pending = [_pending_fields(each) for each in record.all_pending] if record else []
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
        "pending_before": pending[:-1],
        "pending": pending[-1] if pending else None,
    }


def _pending_fields(pending: Pending) -> dict[str, str]:
    return {"path": pending.path, "staged": pending.staged, "digest": pending.digest}


def lines(status: LockStatus) -> list[str]:
    """Format the status for people, a line per fact that applies."""
    record, now_ms = status.record, status.now_ms
    if record is None:
        return ["state    absent: there is no lock record, and the next client that asks gets the lock"]
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
        appliers = "the holder, or else the next one," if status.state == "held" else "the next holder"
        named.append(("pending", f"{paths}; decided, and {appliers} applies it first"))
    named.append(("clock", _clock_words(status)))
    return [f"{name:<8} {words}" for name, words in named]


def _state_words(status: LockStatus, record: LockRecord) -> str:
    """Describe the state for people: held, released, or lapsed since when."""
    match status.state:
        case "held":
            return "held"
        case "lapsed":
            late_ms = status.now_ms - record.valid_until_ms
            return f"lapsed {span(late_ms)} ago without a release: the next client that asks gets it"
        case "released" | "absent":
            return "released: the next client that asks gets it"


def _clock_words(status: LockStatus) -> str:
    """Describe which clock judged the status, and this machine's difference of two seconds or more."""
    if not status.by_store:
        return "this machine's; the store does not report its time"
    ahead_ms = status.own_ms - status.now_ms
    if abs(ahead_ms) < _CLOCKS_DIFFER_MS:
        return "the store's"
    side = "ahead of" if ahead_ms > 0 else "behind"
    return f"the store's; this machine's is {span(abs(ahead_ms))} {side} it"


def describe(change: Change) -> str:
    """Format a change as a line for people: kind and holder, validity, path or number of waiters."""
    record = change.record
    if record is None:
        return "removed: the lock record was deleted" if change.what == "removed" else "absent: there is no lock record"
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


@dataclass(frozen=True, slots=True)
class Broken:
    """Result of a break.

    Attributes:
        outcome: Won: the lock is free. Lost: the record had changed. Unknown: read it again.
        finished: paths of publishes applied now.
        set_aside: paths of unappliable publishes, and their details objects.
    """

    outcome: Outcome
    finished: tuple[str, ...] = ()
    set_aside: Mapping[str, str] = field(default_factory=dict)


def break_lock(store: Store, path: str, status: LockStatus, world: World, *, timeout_s: float = _REQUEST_S) -> Broken:
    """Release the lock in `status` if its record is unchanged but for waiters; else the outcome is Lost.

    A later release with pending publishes counts as unchanged. The holder works on until its next renewal, but its
    publishes are refused. Decided publishes are first applied or set aside, under the lock, for at most a minute.

    Raises:
        ValueError: `status` has no record.
        CasError: the store failed; decided publishes may still be pending.
    """
    if status.record is None or status.version is None:
        raise ValueError(f"no lock record exists at {path!r}, so there is no lock to break")
    record, version, nonce = status.record, status.version, world.new_id()
    for _ in range(_TRIES):
        if record.all_pending:
            result = _finish_pending(store, path, record, version, world)
        else:
            freed_ms = status.own_ms if record.waiters else 0
            broken = replace(record, expired=True, nonce=nonce, freed_ms=freed_ms)
            result = Broken(store.put_if_match(path, broken.encode(), version, timeout=timeout_s))
        content = store.read_or_none(path, timeout=timeout_s) if isinstance(result.outcome, Lost) else None
        if content is None:
            break
        current = LockRecord.decode(content.data, path)
        if current.nonce == nonce:  # a proxy sent it twice
            return Broken(Won(content.version))
        # Released since `status`: apply pending publishes all the same.
        handed_over = current.is_free and current.all_pending
        if current.without_waiters() != record.without_waiters() and not handed_over:
            break
        record, version = current, content.version
    return result


def _finish_pending(store: Store, path: str, record: LockRecord, version: Version, world: World) -> Broken:
    """Take the lock from its holder, apply or set aside what is pending, and release it; then raise store errors.

    The outcome is Lost if the record had changed, Unknown if another client changed it before the release.
    """
    client = Client(store, path, _SETTINGS, world, on_metric=None, audit=None)
    driver, publisher = client.driver, client.publisher
    publisher.breaks = True
    with driver.step_guard:
        lapsed = record if record.is_free else replace(record, valid_until_ms=0)
        answer = driver.feed(TakeLock(RecordSeen(lapsed, version, driver.moment()), record.waiters))
    if isinstance(answer, Busy):
        return Broken(Lost(path, version, ABSENT))
    try:
        if isinstance(answer, Apply):
            publisher.roll_forward(answer)
    finally:
        client.give_back()
    finished = tuple(pending.path for pending in record.all_pending if pending.path not in publisher.set_aside)
    match driver.state:
        case Idle(released=(_, freed)):
            outcome: Outcome = Won(freed)
        case _:
            why = "another client changed the lock record before its release was confirmed"
            outcome = Unknown(Write(path, version, world.new_id()), why)
    return Broken(outcome, finished, publisher.set_aside)
