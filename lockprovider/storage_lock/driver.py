"""Requests for the lock record: `RecordFile` reads and writes it, `Driver` does so as the lease machine asks."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from fsspec_cas import Condition, Content, ObjectNotFound, Outcome, Store, Unknown, Version, Won, World
from lockprovider.storage_lock import machine
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.metrics import Recorder
from lockprovider.storage_lock.record import LockRecord


@dataclass(frozen=True, slots=True)
class KnownRecord:
    """Record as known since `seen_s`. `understood`: encoding it gives the same bytes."""

    record: LockRecord
    version: Version
    understood: bool
    seen_s: float = field(default=0.0, compare=False)


class RecordFile:
    """Stored lock record, with a cache of it."""

    def __init__(self, store: Store, path: str, world: World) -> None:
        self.known: KnownRecord | None = None
        self._store = store
        self._path = path
        self.world = world
        self.highest_epoch = 0

    def read(self, timeout_s: float) -> KnownRecord | None:
        """Read the record (None: absent) by one request, without a body if unchanged, and cache it.

        May raise `MalformedRecord`; store errors are raised.
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
        """Write the record if the stored one has this version, or none is there, and cache it if that is won.

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
LEAST_S = 0.5
_LOG = logging.getLogger("lockprovider")

Answer = machine.Busy | machine.Done | machine.Ended | machine.Apply | None


def audits(audit: AuditLog | None) -> TypeGuard[AuditLog]:
    """Return whether a new holder is audited: not for a minute after the audit's switch was read as off."""
    return audit is not None and audit.world.monotonic_s() >= audit.off_until_s


class Driver:
    """Runs one lease machine and its requests. Hold `step_guard` to feed it."""

    def __init__(self, me: machine.Me, file: RecordFile, metrics: Recorder | None, audit: AuditLog | None) -> None:
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

        The caller holds `step_guard`, and carries out a returned `Apply`. None: no effect. Request errors are raised.
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
        """Return how the lease has lapsed by now, None if not, without a request or a wait.

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
        self._until_s = max(deadline_s, self.world.monotonic_s() + LAST_S)
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

    def moment(self) -> machine.Moment:
        # Monotonic first: a pause in between only shortens the lease.
        monotonic_s = self.world.monotonic_s()
        return machine.Moment(self.world.now_ms(), monotonic_s, self.world.new_id())

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
        """Write the record, and return the outcome as the machine's next event; an unknown one is `PutFailed`.

        Errors are raised, and the machine then expects a read.
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
