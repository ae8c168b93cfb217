"""Requests of a lease and its publishes, as `machine` asks for them.

See "Fenced publish" in `lockprovider/SPECIFICATION.md`. Not promised: that data is applied which takes longer to write
than a lease lives.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from fsspec_cas import (
    AlreadyExists,
    CasError,
    Condition,
    Content,
    Lost,
    ObjectNotFound,
    Outcome,
    Store,
    Unavailable,
    Unknown,
    Version,
    Won,
    World,
    check_bytes,
)
from fsspec_cas.outcome import won_or_lost
from lockprovider.errors import LockError, LossReason, MalformedRecord, PublishUnknown, Unappliable
from lockprovider.storage_lock import machine
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.metrics import Recorder
from lockprovider.storage_lock.record import (
    LARGEST_ENCLOSED,
    LockRecord,
    Me,
    Moment,
    Pending,
    Sent,
    became,
    digest,
    fields_of,
)


@dataclass(frozen=True, slots=True)
class KnownRecord:
    """Record known since `seen_s`. `understood`: encoding it gives the same bytes."""

    record: LockRecord
    version: Version
    understood: bool
    seen_s: float = field(default=0.0, compare=False)


class RecordFile:
    """Stored lock record, with a cache."""

    def __init__(self, store: Store, path: str, world: World) -> None:
        self.known: KnownRecord | None = None
        self._store = store
        self._path = path
        self.world = world
        self.highest_epoch = 0

    def read(self, timeout_s: float) -> KnownRecord | None:
        """Read the record (None: absent) by one request, without a body if unchanged, and cache it.

        Raises `MalformedRecord` and store errors.
        """
        try:
            if self.known is None:
                content: Content | None = self._store.read(self._path, timeout=timeout_s)
            else:
                content = self._store.read_if_changed(self._path, self.known.version, timeout=timeout_s)
        except ObjectNotFound:
            self.known = None
            return None
        if content is not None:
            record = LockRecord.decode(content.data, self._path)
            understood = record.nonce != "" and record.encode() == content.data
            self.known = KnownRecord(record, content.version, understood, self.world.monotonic_s())
        if self.known is not None:
            self.highest_epoch = max(self.highest_epoch, self.known.record.epoch)
        return self.known

    def put(self, record: LockRecord, condition: Condition, timeout_s: float) -> Outcome:
        """Write the record if the stored one has this version, or none is there; cache it if won.

        After a `CasError` it is not written.
        """
        data = record.encode()
        if isinstance(condition, Version):
            outcome = self._store.put_if_match(self._path, data, condition, timeout=timeout_s)
        else:
            outcome = self._store.put_if_absent(self._path, data, timeout=timeout_s)
        if isinstance(outcome, Won):
            self.known = KnownRecord(record, outcome.version, understood=True, seen_s=self.world.monotonic_s())
            self.highest_epoch = max(self.highest_epoch, record.epoch)
        return outcome


REQUEST_S = 20.0
LAST_S = 5.0
_AFTER_S = 8.5  # requests end this long after a deadline; with three more tries of `LEAST_S` each, 10 s
LEAST_S = 0.5
_LOG = logging.getLogger("lockprovider")

Answer = machine.Busy | machine.Done | machine.Ended | machine.Apply | None


def audits(audit: AuditLog | None) -> TypeGuard[AuditLog]:
    """Whether a new holder is audited: with `audit`, but not for a minute after its switch was read as off."""
    return audit is not None and audit.world.monotonic_s() >= audit.off_until_s


class Driver:
    """Runs one lease machine and its requests. Hold `step_guard` to feed it."""

    def __init__(self, me: Me, file: RecordFile, metrics: Recorder | None, audit: AuditLog | None) -> None:
        self.state: machine.State = machine.Idle()
        self.step_guard = threading.RLock()
        self._until_s = math.inf
        self._me = me
        self._file = file
        self.world = file.world
        self._metrics = metrics
        self._audit = audit

    def held(self) -> machine.Held | None:
        return machine.belief(self.state)

    def feed(self, event: machine.Event) -> Answer:
        """Step the lease machine by an event, send the requests that it asks for, and feed their answers.

        The caller holds `step_guard`, and carries out a returned `Apply`, then or after release. None: no effect.
        Request errors are raised.
        """
        while True:
            before = self.state
            self.state, effect = machine.step(self._me, before, event)
            if self._metrics is not None:
                self._metrics.stepped(self._me.owner, before, event, self.state, effect)
            match effect:
                case machine.ReadRecord():
                    event = self.read()
                case machine.PutRecord():
                    event = self._put(effect)
                case _:
                    self._note(effect)
                    return effect

    def tick(self) -> machine.Ended | None:
        """Return how the lease has lapsed, without a request or a wait; None if not, or already `Lost`.

        Marks the machine as `Lost`, unless a write is unanswered or another thread feeds it.
        """
        state = self.state
        after, effect = machine.step(self._me, state, machine.Tick(self.world.monotonic_s()))
        if after is not state and self.step_guard.acquire(blocking=False):
            try:
                self.state = after if self.state is state else self.state
            finally:
                self.step_guard.release()
        return effect if isinstance(effect, machine.Ended) else None

    @contextlib.contextmanager
    def answering_by(self, deadline_s: float) -> Iterator[None]:
        self._until_s = min(max(deadline_s, self.world.monotonic_s() + LAST_S), deadline_s + _AFTER_S)
        try:
            yield
        finally:
            self._until_s = math.inf

    def read(self) -> machine.RecordSeen:
        return self.seen(self._file.read(self._request_s()))

    def seen(self, known: KnownRecord | None) -> machine.RecordSeen:
        if known is None:
            return machine.RecordSeen(None, None, self.moment())
        return machine.RecordSeen(known.record, known.version, self.moment())

    def moment(self) -> Moment:
        # Monotonic first: a pause in between only shortens the lease.
        monotonic_s = self.world.monotonic_s()
        return Moment(self.world.now_ms(), monotonic_s, self.world.new_id())

    def _note(self, answer: Answer) -> None:
        """Log a step after which the lease is held, and audit one that acquired, renewed or committed."""
        held = self.held()
        if held is None or not isinstance(answer, machine.Done):
            return
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s of %s, epoch %d", answer.what, self._me.owner, held.record.epoch)
        audit = self._audit
        if answer.what == "acquired" and audits(audit):
            audit.taken(held.record)
        elif answer.what in ("renewed", "committed") and audit is not None and audit.open_page is not None:
            audit.renewed(held.record, self._me.settings.validity)

    def _put(self, effect: machine.PutRecord) -> machine.Event:
        """Write the record; return the outcome as the machine's next event.

        An unknown one is `PutFailed`, as is a refused one, except a take's. Errors are raised, and the machine then
        expects a read.
        """
        try:
            outcome = self._file.put(effect.record, effect.condition, self._request_s())
        except BaseException:
            self.state, _ = machine.step(self._me, self.state, machine.PutFailed())  # next call reads the record
            raise
        if self._metrics is not None:
            self._metrics.wrote(self.state, outcome)
        if isinstance(outcome, Won):
            return machine.PutWon(outcome.version)
        if isinstance(outcome, Unknown):
            return machine.PutFailed()
        return machine.refused(self.state)

    def _request_s(self) -> float:
        state = self.state.write if isinstance(self.state, machine.Checking) else self.state
        if not isinstance(state, machine.Writing) or state.purpose != "renew" or state.before is None:
            return min(REQUEST_S, max(self._until_s - self.world.monotonic_s(), LEAST_S))
        left_s = state.before.deadline_s - self.world.monotonic_s()
        return min(REQUEST_S, max(left_s, self._me.settings.margin_s / 2))


_ENDED_BEFORE = machine.Ended("it had already ended", LossReason.LAPSED)
_OBJECT_S = 60.0
_ENCLOSED = 6144  # bytes, deflated

Left = Callable[[], float]


class Publisher:
    """Publishes under its client's lease. The publishing thread holds `publish_guard` throughout.

    `breaks`: also set aside publishes whose bytes are unusable. `set_aside`: details objects, by the publish's path.
    """

    def __init__(self, store: Store, path: str, me: Me, driver: Driver) -> None:
        self.publish_guard = threading.RLock()  # renewals do not wait for it
        self._store = store
        self._folder = path.rpartition("/")[0]
        self._me = me
        self._driver = driver
        self._world = driver.world
        self._sent: set[Pending] = set()  # begun to apply, and may yet arrive
        self._commits: dict[Pending, Sent] = {}
        self.breaks = False
        self.set_aside: dict[str, str] = {}

    def begin_lease(self) -> None:
        self._commits = {}

    def stage(self, path: str, data: bytes, *, unshared: bool = False) -> Pending:
        """Return the handle of a publish: small `data` is enclosed, larger is written to a new object in `staged/`.

        Writes nothing at `path`. `unshared`: no other publish does.
        """
        data = check_bytes(path, data)
        enclosed = Pending(path, "", digest(data), data, unshared)
        if len(data) <= LARGEST_ENCLOSED and len(zlib.compress(data)) <= _ENCLOSED:
            return enclosed
        staged = f"{self._folder}/staged/{self._world.new_id()}".removeprefix("/")
        self._store.put_if_absent(staged, data, create_once=True).unwrap()
        return replace(enclosed, staged=staged, data=None)

    def unstage(self, pending: Pending) -> None:
        """Read the record, and delete the staged copy, if any.

        Raises `LockError` if a publish that is pending, or may be, needs it.
        """
        if pending.staged:
            with self._driver.step_guard:
                seen = self._driver.read()
            all_pending = () if seen.record is None else seen.record.all_pending
            tries = self._commits.items()
            may_be = [tried for tried, sent in tries if became(sent, seen.record, seen.version) == "open"]
            if any(named.staged == pending.staged for named in (*all_pending, *may_be)):
                raise LockError(
                    f"a publish that was or may be decided needs the bytes staged at {pending.staged!r}: "
                    "acquire the lock again, then remove them"
                )
        self.discard(pending)

    def discard(self, pending: Pending) -> None:
        if pending.staged:
            self._store.delete(pending.staged)

    def commit(
        self, pending: Pending, data: bytes | None, *, new: bool, over: Callable[[], machine.Ended | None]
    ) -> machine.Ended | None:
        """Send the commit and apply the publish; None if published, else how the lease ended before that was known.

        Takes `publish_guard`; first applies left publishes. Errors pass. `over` returns how it has ended, or None.
        `new`: nothing is at the path, so with `data` nothing is read before.
        """
        data_is_ready = new and data is not None
        with self.publish_guard:
            ended = over()  # the machine may be a later lease's
            while True:
                step, answer = self._advance(pending, ended, data_is_ready=data_is_ready)
                match step, answer:
                    case _, machine.Ended():
                        ended = answer
                    case "send", machine.Apply():
                        self._apply_own(answer, data)
                        return None
                    case "send", machine.Done("committed"):
                        return None
                    case "send", None:
                        data, data_is_ready = prepare(self._store, pending, data, self.left_s), True
                    case "send", _:
                        ended = over()
                    case "look", _:
                        pass
                    case "roll_forward", _:
                        self.apply_left(self.left_s)
                    case _:
                        return ended or _ENDED_BEFORE

    def _advance(
        self, pending: Pending, ended: machine.Ended | None, *, data_is_ready: bool
    ) -> tuple[machine.PublishStep, Answer]:
        """Choose the publish's next step, and send a read to settle a write, or a ready commit, noted as tried.

        Returns the step, and the machine's answer if it sent one.
        """
        driver = self._driver
        with driver.step_guard:
            state = driver.state
            step = machine.publish_next(state, tried=self.tried(pending), ended=ended is not None, record_is_seen=False)
            if step == "look":
                return step, driver.feed(machine.Look())
            if step == "send" and data_is_ready and isinstance(state, machine.Held):
                at = driver.moment()
                self._commits[pending] = Sent(at.nonce, state.version, state.deadline_s)
                return step, driver.feed(machine.Commit(pending, at))
            return step, None

    def _apply_own(self, decision: machine.Apply, data: bytes | None) -> None:
        """Apply what this client just decided, from `data` if given; in time, it no longer counts as tried.

        Raises `PublishUnknown` if perhaps too late. If it was set aside, renews a held record without it, and raises
        `AlreadyExists` or `Unappliable`.
        """
        pending, began_s = decision.pending, self._world.monotonic_s()
        self.set_aside.pop(pending.path, None)
        self._apply(decision, data)
        if self.left_s() <= 0:
            self._must_not_be_too_late(pending, began_s)
        self._commits.pop(pending, None)
        if pending.path in self.set_aside:
            self._drop_set_aside(pending)

    def _must_not_be_too_late(self, pending: Pending, began_s: float) -> None:
        """Read the record; raise `PublishUnknown` if a JVM writer may have held the lock since `began_s`.

        Also if the read fails, but never if the record names the publish.
        """
        since_ms = self._world.now_ms() - round((self._world.monotonic_s() - began_s) * 1000)
        try:
            with self._driver.step_guard:
                record = self._driver.read().record
        except (CasError, MalformedRecord) as error:
            message = f"{pending.path!r} was written after the lease had ended, and the lock record could not be read"
            raise PublishUnknown(message) from error
        log = None if record is None else record.log
        is_named = record is not None and (pending in record.all_pending or (log is not None and log.has(pending)))
        if not (is_named or machine.only_ours_since(record, since_ms)):
            raise PublishUnknown(
                f"{pending.path!r} was written after the lease had ended; a JVM writer may have held the lock before"
            )

    def _drop_set_aside(self, pending: Pending) -> None:
        """Renew the record without a publish set aside.

        Always raises: `AlreadyExists` if the renewal is stored, else `Unappliable`.
        """
        details_path = self.set_aside[pending.path]
        message = f"{pending.path!r} already exists with other bytes; the publish was set aside, see {details_path!r}"
        with self._driver.step_guard:
            held = isinstance(self._driver.state, machine.Held)
            if held and self._driver.feed(machine.Renew(self._driver.moment())) == machine.Done("renewed"):
                raise AlreadyExists(message, path=pending.path)
        raise Unappliable(message, occupied=True)

    def tried(self, pending: Pending) -> bool:
        return pending in self._commits

    def settle(self, pending: Pending, epoch: int, *, tried: bool) -> machine.Verdict:
        """Read the record, then the path, to settle a commit under the ended lease of `epoch`.

        "apply": the next holder will. Without `tried`, reads nothing: "not_committed". Errors pass. Read `tried` before
        any thread learns of the end.
        """
        driver, seen = self._driver, None
        while True:
            match machine.publish_next(driver.state, tried=tried, ended=True, record_is_seen=seen is not None):
                case "read_record":
                    with driver.step_guard:
                        seen = driver.read()
                case "read_path":
                    record = None if seen is None else seen.record
                    stored_digest = digest_at(self._store, pending.path)
                    verdict = machine.settle_commit(pending, self._me.owner, epoch, record, stored_digest)
                    # A JVM writer that drops `pending` stops no sent write.
                    return "unknown" if verdict == "not_committed" and pending in self._sent else verdict
                case _:
                    return "not_committed"

    def finish_in_flight(self) -> None:
        if isinstance(self._driver.state, machine.Checking):
            self._driver.feed(machine.Look())

    def apply_left(self, left_s: Left) -> None:
        state = self._driver.state
        if isinstance(state, machine.Rolling) and state.held.record.pending is not None:
            self._apply(machine.Apply(state.held.record.pending, state.held.record.pending_before), left_s=left_s)

    def _apply(self, decision: machine.Apply, data: bytes | None = None, left_s: Left | None = None) -> None:
        left_s = left_s or self.left_s
        are_applied = [self._is_applied(earlier, None, left_s) for earlier in decision.earlier]
        self._sent.add(decision.pending)
        are_applied.append(self._is_applied(decision.pending, data, left_s))
        self._sent.discard(decision.pending)
        self._note_applied(decision.pending, set_aside=not all(are_applied))

    def _is_applied(self, pending: Pending, data: bytes | None, left_s: Left) -> bool:
        """Apply one publish, from `data` (None: enclosed or staged bytes); True if it counts as applied.

        If `apply` finds other bytes at its path (`self.breaks`: or its own unusable), log a warning, return False.
        Writes details to `set_aside/` then, and their path to `self.set_aside`. Raises other errors.
        """
        try:
            apply(self._store, pending, data, left_s)
        except Unappliable as error:
            if not (error.occupied or self.breaks):  # missing bytes may still exist
                raise
            name = digest(repr((pending.path, pending.digest)).encode())
            details_path = f"{self._folder}/set_aside/{name}.json".removeprefix("/")
            details = {**fields_of(pending, enclosed=True), "why": str(error)}
            won_or_lost(self._store.put_if_absent(details_path, json.dumps(details).encode(), timeout=_OBJECT_S))
            self.set_aside[pending.path] = details_path
            _LOG.warning("%s; the publish was set aside in %r", error, details_path)
            return False
        return True

    def roll_forward(self, decision: machine.Apply) -> None:
        all_pending = (*decision.earlier, decision.pending)
        many = bool(decision.earlier) and all(pending.unshared for pending in all_pending)
        if many and all_exist(self._store, [pending.path for pending in all_pending]):
            self._note_applied(decision.pending)
        else:
            self._apply(decision)

    def _note_applied(self, pending: Pending, *, set_aside: bool = False) -> None:
        driver = self._driver
        with driver.step_guard:
            held = driver.held()
            kinds = machine.Rolling if set_aside else (machine.Rolling, machine.Checking)
            if isinstance(driver.state, kinds) and held is not None and held.record.pending == pending:
                driver.feed(machine.AppliedPending(set_aside))

    def left_s(self) -> float:
        held = self._driver.held()
        return 0.0 if held is None else held.deadline_s - self._world.monotonic_s()


def digest_at(store: Store, path: str, timeout_s: float = _OBJECT_S) -> str | None:
    content = store.read_or_none(path, timeout=timeout_s)
    return None if content is None else digest(content.data)


def prepare(store: Store, pending: Pending, data: bytes | None, left_s: Left) -> bytes:
    """Check before the commit point that the publish can be applied; return `data` or the bytes read.

    `left_s`, if positive, bounds each read.

    Raises:
        AlreadyExists: another object is at the path.
        LockError: the staged copy is gone, or bytes have another digest.
    """
    stored_digest = digest_at(store, pending.path, _look_s(left_s))
    if stored_digest not in (None, pending.digest):
        raise AlreadyExists(
            f"{pending.path!r} already exists with other bytes (digest {stored_digest}); nothing was published",
            path=pending.path,
        )
    try:
        path = pending.path if stored_digest else pending.staged
        data = store.read(path, timeout=_look_s(left_s)).data if data is None else data
    except ObjectNotFound:
        raise LockError(f"no object is staged at {pending.staged!r} for {pending.path!r}: stage it again") from None
    must_match(pending, data)
    return data


def must_match(pending: Pending, data: bytes) -> bytes:
    checked = check_bytes(pending.path, data)
    if digest(checked) != pending.digest:
        where = f"staged at {pending.staged!r}" if pending.staged else "given"
        message = f"the bytes {where} for {pending.path!r} do not have the digest {pending.digest}"
        raise LockError(f"{message}: stage them again")
    return checked


def apply(store: Store, pending: Pending, data: bytes | None, left_s: Left) -> None:
    """Create the pending object, after its `first`, from `data`, enclosed bytes or the staged copy. May be repeated.

    Without `data`, an `unshared` publish counts as applied with any object at its path, or with none if its bytes are
    gone.

    Raises:
        Unappliable: another object is at the path, or the bytes are gone or changed.
        Unavailable: the lease ended first; nothing was written after that.
        OutcomeUnknown, StoreError: try again.
    """
    trusts = data is None and pending.unshared
    if trusts:
        with contextlib.suppress(ObjectNotFound):
            store.head(pending.path, timeout=_timeout_s(pending.path, left_s))
            return  # most likely applied
    is_new = data is not None
    data = _bytes_of(store, pending, left_s) if data is None else data
    if data is None:
        _must_be(pending, digest_at(store, pending.path, _look_s(left_s)))
        return
    if pending.first is not None:
        apply(store, pending.first, pending.first.data if is_new else None, left_s)
    timeout_s = _timeout_s(pending.path, left_s)
    outcome = store.put_if_absent(pending.path, data, create_once=True, timeout=timeout_s)
    match outcome:
        case Won():
            return
        case Lost() if trusts:
            return
        case Lost():
            _must_be(pending, digest_at(store, pending.path, _look_s(left_s)))
        case Unknown() if digest_at(store, pending.path, _look_s(left_s)) != pending.digest:
            outcome.unwrap()
        case Unknown():
            return  # an identical copy counts


def _bytes_of(store: Store, pending: Pending, left_s: Left) -> bytes | None:
    """Return the enclosed bytes, or read the staged copy; None if that is gone.

    Raises `Unappliable` if they have another digest, `Unavailable` if no time is left to read.
    """
    data = pending.data
    if data is None:
        content = store.read_or_none(pending.staged, timeout=_timeout_s(pending.path, left_s))
        if content is None:
            return None
        data = content.data
    if digest(data) != pending.digest:
        where = f"staged at {pending.staged!r}" if pending.staged else "enclosed"
        raise Unappliable(f"the bytes {where} for {pending.path!r} do not have the digest {pending.digest}; {_CURE}")
    return data


def _look_s(left_s: Left) -> float:
    seconds = left_s()
    return min(_OBJECT_S, seconds) if seconds > 0 else _OBJECT_S


def _timeout_s(path: str, left_s: Left) -> float:
    seconds = left_s()
    if seconds <= 0:
        raise Unavailable(f"{path!r} was not written: the lease has ended", path=path)
    return min(_OBJECT_S, seconds)


def all_exist(store: Store, paths: Sequence[str]) -> bool:
    """Return whether all paths have objects, by one listing a folder, between their names; True for none."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        folders.setdefault(f"{path.rpartition('/')[0]}/".removeprefix("/"), set()).add(path)
    return all(
        expected
        <= {entry.path for entry in store.list(folder, start_after=min(expected)[:-1], stop_at=f"{max(expected)}~")}
        for folder, expected in folders.items()
    )


def _must_be(pending: Pending, stored_digest: str | None) -> None:
    """Raise `Unappliable` unless the object has the publish's digest, or is absent and `unshared`."""
    if stored_digest == pending.digest:
        return
    if stored_digest is None and pending.unshared:
        return
    reason = "its bytes are gone" if stored_digest is None else f"its path holds an object with digest {stored_digest}"
    raise Unappliable(
        f"the decided publish of {pending.path!r} (digest {pending.digest}) cannot be applied: {reason}; "
        f"a program changed it outside the lock; {_CURE}",
        occupied=stored_digest is not None,
    )


_CURE = "`lockprovider break` sets it aside"
