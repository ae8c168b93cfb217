"""One client of a lock, as its leases and those who ask for the lock move it.

Lock        what users have; makes another client after a fork or a pickle
Client      this: asks, holds, renews, gives back
Publisher   its publishes
Driver      feeds the lease machine, and sends what that asks for
RecordFile  the lock record in the store
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import sys
import weakref
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import PurePath
from typing import TYPE_CHECKING

from fsspec_cas import CasError, Store, Version, Won, World
from fsspec_cas.waiting import Signal
from lockprovider.errors import LockError
from lockprovider.settings import GRACE_MS, HAND_OVER_S, LockSettings
from lockprovider.storage_lock.acquire import Fifo, FifoTurn, LookedAt, ProcessQueue, Wish
from lockprovider.storage_lock.committer import Committer
from lockprovider.storage_lock.driver import REQUEST_S, Answer, Driver, Known, RecordFile, final
from lockprovider.storage_lock.heartbeat import Pulse
from lockprovider.storage_lock.metrics import OnMetric, Recorder
from lockprovider.storage_lock.publisher import Publisher
from lockprovider.storage_lock.record import LockRecord
from lockprovider.storage_lock.states import (
    Apply,
    Busy,
    Checking,
    Done,
    Ended,
    Held,
    Idle,
    Look,
    Me,
    RecordSeen,
    Release,
    Renew,
    Rolling,
    TakeLock,
)
from lockprovider.storage_lock.status import telling

if TYPE_CHECKING:
    from lockprovider.storage_lock.audit_log import AuditLog
    from lockprovider.storage_lock.lease import Lease

_LONGEST = 60


def user() -> str:
    """The name of whom this process acts for; the number, where that has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def command() -> str:
    """The program's name: never its arguments, which may be secrets."""
    first = sys.argv[0] if getattr(sys, "argv", None) else ""
    path = PurePath(first)
    if path.name == "__main__.py":
        return f"python -m {path.parent.name}"[:_LONGEST]
    return (path.name if first not in ("", "-c") else "python")[:_LONGEST]


class Client:
    """Knows one owner id, holds at most one lease; its threads take turns."""

    def __init__(
        self,
        store: Store,
        path: str,
        settings: LockSettings,
        world: World,
        *,
        on_metric: OnMetric | None,
        audit: AuditLog | None,
    ) -> None:
        self.path = path
        self.where = f"{store.url.rstrip('/')}/{path}"
        self.settings = settings
        self.world = world
        self.metrics = Recorder(on_metric, world)
        self.queue = ProcessQueue.of(store, path, world)
        self.turn = Fifo()  # one thread at a time wants or has the lock
        self.pulse = Pulse()
        self.me = Me(world.new_id(), settings, socket.gethostname(), os.getpid(), self.queue.name, user(), command())
        self._lease: weakref.ref[Lease] | None = None  # so that one that is dropped is noticed
        self._ends: Signal | None = None  # that lease's own
        self._store = store
        asked_for_patience, metrics = Signal(), self.metrics

        def throttled() -> None:
            metrics.throttled()
            asked_for_patience.set()

        # A busy data path must not starve the renewals.
        self.records = store.isolated_connections().on_throttled(throttled)
        self._file = RecordFile(self.records, path, world)
        self._audit = audit
        self._driver = Driver(self.me, self._file, self.metrics, audit)
        self.publisher = Publisher(store, path, self.me, self._driver)
        threads = self.queue.fifo  # not the queue, which goes with its clients
        self.committer = Committer(
            store,
            self.records,
            path,
            self.me,
            world,
            asked_for=lambda: threads.taken,
            throttled=asked_for_patience.is_set,
            audit=audit,
        )
        self._took_s = 0.0

    @property
    def owner(self) -> str:
        """Its UUID, as it stands in the lock record."""
        return self.me.owner

    @property
    def lease(self) -> Lease | None:
        """The one that was acquired and not released, if anybody still has it."""
        return None if self._lease is None else self._lease()

    @lease.setter
    def lease(self, lease: Lease | None) -> None:
        self._lease, self._ends = (None, None) if lease is None else (weakref.ref(lease), lease.lost)

    @property
    def known(self) -> Known | None:
        """What it knows of the record."""
        return self._file.known

    def telling(self) -> contextlib.AbstractContextManager[None]:
        """Let the errors of the lock say which it is, who holds it as far as is known here, and what to do."""
        return telling(self.where, lambda: None if self.known is None else self.known.record, self.world.now_ms)

    # -- asking for the lock (`acquire`)

    def adopt(self, idle: Idle, known: Known | None) -> None:
        """What another client of this process has released, and knows, is as good as the own."""
        self._file.known = known or self._file.known
        state = self._driver.state
        if idle.released is not None:
            self._driver.state = idle
        elif isinstance(state, Idle) and state.released is not None and known is not None:
            self._driver.state = state if known.version == state.released[1] else Idle()

    def joined(self, there: LockRecord, version: Version, wish: Wish) -> bool:
        """Add this process to the line, under the version that was read."""
        with contextlib.suppress(CasError):  # politeness must not fail an acquisition
            left_s = wish.deadline_s - self.world.monotonic_s()
            return left_s > 0 and isinstance(self._file.put(there, version, min(REQUEST_S, left_s)), Won)
        return False

    def look(self, wish: Wish) -> LookedAt:
        """The record; without a request, once, if it is known to be as one of this process has released it."""
        driver = self._driver
        with driver.one_step, driver.answering_by(wish.deadline_s):
            # Also where an earlier release or acquisition that failed has left something else.
            state, driver.state = driver.state, Idle()
            if isinstance(state, Idle) and state.released is not None:
                return LookedAt(Known(*state.released, understood=True), asked=False)
            driver.read()
            return LookedAt(self.known, asked=True)

    def take(self, seen: Known | None, line: tuple[str, ...], wish: Wish) -> bool:
        """Take the lock as it was seen, with this line; False if somebody was faster."""
        driver = self._driver
        with driver.one_step, driver.answering_by(wish.deadline_s):
            at = driver.moment()
            there = RecordSeen(None, None, at) if seen is None else RecordSeen(seen.record, seen.version, at)
            try:
                answer = driver.feed(TakeLock(there, line, wish.keeps_log, self._file.highest_epoch))
                if isinstance(answer, Apply):  # there is no heartbeat yet that this could keep waiting
                    self.publisher.roll_forward(answer)
            except BaseException:
                self._back_out()
                raise
        return not isinstance(answer, Busy)

    def take_from(self, record: LockRecord, version: Version) -> bool:
        """Take the lock from whoever has it, finish what was decided, and give it back; False if the record is another.

        What cannot be applied is set aside.

        Raises:
            CasError: it may not be finished; whoever takes the lock next does that.
        """
        driver, publisher = self._driver, self.publisher
        publisher.breaks = True
        with driver.one_step:
            lapsed = record if record.given else replace(record, valid_until_ms=0)
            answer = driver.feed(TakeLock(RecordSeen(lapsed, version, driver.moment()), record.line))
        if isinstance(answer, Busy):
            return False
        try:
            if isinstance(answer, Apply):
                publisher.roll_forward(answer)
        finally:
            self.give_back()
        return True

    def got(self) -> None:
        """After the last try: the lock is held."""
        self.publisher.begin_lease()
        self._took_s = self.world.monotonic_s()

    def _back_out(self) -> None:
        """After a failed try; what landed, or lands yet, is recognised as ours at the next one."""
        if isinstance(self._driver.state, Rolling):
            self.release_quietly()  # taken, but not rolled forward: nobody shall wait for it to lapse
        self._driver.state = Idle()

    def end(self, lease: Lease, turn: FifoTurn | None) -> None:
        """The lease is over, one way or the other."""
        if self._ends is lease.lost and turn is not None:  # a reference may be gone, while it is being dropped
            self.lease = None
            self.leave(turn)

    def leave(self, turn: FifoTurn) -> None:
        """Let other threads of this client have their turn."""
        if self.turn.first() is turn:
            self.step_aside()
        turn.leave()

    def give_up(self) -> None:
        """After an interrupt of an acquisition: nobody shall wait until what was taken for nobody has lapsed."""
        with contextlib.suppress(CasError, LockError):
            if self.held() is None:
                seen = self.look(Wish(keeps_log=False, deadline_s=self.world.monotonic_s() + REQUEST_S)).known
                if seen is None or seen.record.owner != self.owner or seen.record.given:
                    return
                self.take(
                    seen, seen.record.line, Wish(keeps_log=False, deadline_s=self.world.monotonic_s() + REQUEST_S)
                )
            self.give_back()

    def step_aside(self) -> None:
        """Whatever we held is over: other clients of this process need not wait for us."""
        state = self._driver.state
        self.queue.freed(self.held, state if isinstance(state, Idle) else Idle(), self.known)

    # -- what a lease and its heartbeat ask for (`lease`)

    def held(self) -> Held | None:
        """What the machine believes we hold; does not wait for a request on its way."""
        return self._driver.held()

    def tick(self) -> Ended | None:
        """Tell the machine the time; the end of the lease if it lapsed. Does not wait for a request on its way."""
        return self._driver.tick()

    def note_end(self, *, held: bool) -> None:
        """Tell the audit, if there is one, that the lock was released, or is not held any more."""
        if self._audit is not None:
            self._audit.ended(self.world.now_ms(), held=held)

    def renew(self) -> Done | Ended | None:
        """Prolong the lease once. What could not be applied before is tried again, if nobody is at it."""
        driver = self._driver
        with driver.one_step:
            answer: Answer = None
            if isinstance(driver.state, Checking):
                answer = driver.feed(Look())
            elif isinstance(driver.state, (Held, Rolling)):
                answer = driver.feed(Renew(driver.moment()))
        if self.publisher.one_publish.acquire(blocking=False):
            try:
                self.publisher.apply_left(lambda: min(self.publisher.left_s(), self.settings.renew))
            finally:
                self.publisher.one_publish.release()
        return final(answer)

    def time_of(self, monotonic_s: float) -> datetime:
        """The wall clock's reading when the monotonic one shows this, if neither steps."""
        now_s = self.world.now_ms() / 1000
        return datetime.fromtimestamp(now_s + monotonic_s - self.world.monotonic_s(), timezone.utc)

    def give_back(self) -> None:
        """Release until it is known to be released, or not ours any more.

        Raises:
            CasError: the store could not be reached; the lease lapses by itself.
        """
        driver = self._driver
        at_ms = self.world.now_ms()
        with self.publisher.one_publish, driver.one_step:
            self.publisher.finish_in_flight()
            while isinstance(driver.state, (Held, Rolling)):
                driver.feed(Release(driver.moment(), self.queue.comes_again()))
                self.publisher.finish_in_flight()
            released = isinstance(driver.state, Idle) and driver.state.released is not None
        if self._audit is not None:
            self._audit.ended(at_ms, held=released)

    def release_quietly(self) -> None:
        """Best effort, when something else is already being raised."""
        with contextlib.suppress(CasError, LockError):
            self.give_back()

    def wait_for_late(self) -> None:
        """Return once nobody puts anything there any more that was handed over; see `Lock.wait_for_late`."""
        lease, held = self.lease, self.held()
        while lease is not None and held is not None and held.record.unapplied:
            lease.renew()  # while the record names it, whoever takes over puts it there again
            held = self.held()
        if held is not None and held.record.late_ms:
            late_s = HAND_OVER_S / 2 + GRACE_MS / 1000  # after a hand-over, which came before the own take
            self.world.sleep(max(0.0, self._took_s + late_s - self.world.monotonic_s()))
