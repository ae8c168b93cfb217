"""One client of a lock: driver, publisher, committer; and the heartbeat of leases and terms."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

from fsspec_cas import CasError, Machine, Store, Version, Won, World
from fsspec_cas.machine import Signal, Worker
from lockprovider.errors import LockError, held_by
from lockprovider.settings import GRACE_MS, HAND_OVER_S, LockSettings
from lockprovider.storage_lock import machine
from lockprovider.storage_lock.acquire import Fifo, FifoTurn, ProcessQueue, Wish
from lockprovider.storage_lock.committer import Committer
from lockprovider.storage_lock.driver import LEAST_S, REQUEST_S, Answer, Driver, KnownRecord, Publisher, RecordFile
from lockprovider.storage_lock.metrics import OnMetric, Recorder
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, LockRecord, Me
from lockprovider.words import storable

if TYPE_CHECKING:
    from lockprovider.storage_lock.audit_log import AuditLog
    from lockprovider.storage_lock.lease import Lease

_LOG = logging.getLogger("lockprovider")
_LONGEST = 60
_RETRY_S = 1.0
_LOOKS = 2  # an interval
_BEATS, _PARKED = "lease-heartbeat", "parked-heartbeat"


def user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def command() -> str:
    first = sys.argv[0] if getattr(sys, "argv", None) else ""
    path = PurePath(first)
    if path.name == "__main__.py":
        return f"python -m {path.parent.name}"[:_LONGEST]
    return (path.name if first not in ("", "-c") else "python")[:_LONGEST]


def run_callbacks(calls: Iterable[Callable[[], object]]) -> None:
    """Call each, in order; an exception is only logged."""
    for call in calls:
        try:
            call()
        except Exception:  # noqa: BLE001
            _LOG.exception("the callback %r of a lost lease or term failed", call)


class Beating(Protocol):
    """Lease that a heartbeat renews."""

    thread: threading.Thread
    lost: Signal

    def renew(self) -> bool:
        """Prolong the lease once; False while the outcome is unknown."""

    def abandon(self, why: str) -> None:
        """Mark the lease as lost, without a release."""


class Heartbeat:
    """Calls `renew` every `interval_s` seconds, sooner after a failure, until stopped.

    Abandons a lease whose thread or `max_hold` has ended. Without `keeps` an unreferenced lease is collected, and
    released.
    """

    def __init__(
        self,
        lease: Beating,
        interval_s: float,
        pulse: Pulse | None = None,
        *,
        keeps: bool = True,
        max_hold: float | None = None,
        world: World | None = None,
    ) -> None:
        self.interval_s = interval_s
        self._lease: Callable[[], Beating | None] = (lambda: lease) if keeps else weakref.ref(lease)
        self._world, self._most_s = world or Machine(), max_hold
        self._began_s = self._world.monotonic_s()
        self._pulse = pulse or Pulse()
        self._stopped = False
        self._beating = threading.Lock()

    def start(self) -> None:
        self._pulse.begin(self)

    def stop(self) -> None:
        """Stop, and wait for a beat under way, whose answer must not follow the release."""
        self._stopped = True
        self._pulse.leave(self)
        if self._thread is not threading.current_thread():
            with self._beating:
                pass

    def beat(self) -> float | None:
        """Renew the lease once; mark it as lost if it must end, or at an unexpected error, also raised.

        Returns seconds until the next beat, fewer after a failed renewal; None: none.
        """
        with self._beating:
            lease = self._lease()
            if self._stopped or lease is None:
                return None
            why: str | None = "its heartbeat failed"
            try:
                why, wait_s = self._beat(lease)
            finally:
                if why is not None and not self._stopped:
                    lease.abandon(why)
            return wait_s if why is None else None

    @property
    def _thread(self) -> threading.Thread | None:
        return self._pulse.thread

    def _beat(self, lease: Beating) -> tuple[str | None, float]:
        """Call `renew` unless the lease, its acquiring thread or `max_hold` has ended.

        Ignores store and lock errors. Returns the reason to end, or None, and the pause in seconds.
        """
        if lease.lost.is_set():
            return "it has ended", 0.0
        if not lease.thread.is_alive():
            return f"the thread that acquired it ({lease.thread.name}) has ended", 0.0
        if self._most_s is not None and self._world.monotonic_s() - self._began_s >= self._most_s:
            return f"it was held for max_hold={self._most_s:g} s and is no longer renewed", 0.0
        wait_s = self.interval_s if _renewed(lease) else min(_RETRY_S, self.interval_s)
        return ("it has ended" if lease.lost.is_set() else None), wait_s


def _renewed(lease: Beating) -> bool:
    try:
        return lease.renew()
    except (CasError, LockError):
        return False  # the deadline decides


class Pulse:
    """Thread of a client's successive heartbeats, parked between the later ones, as starting one is slow."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._end = Signal()
        self._now: Heartbeat | None = None
        self._begun = 0

    def begin(self, heartbeat: Heartbeat) -> None:
        """Beat for this heartbeat from now on, instead of an earlier one; start a thread unless one runs.

        Raises RuntimeError if no thread can start.
        """
        with self._guard:
            self._begun += 1
            self._now = heartbeat
            if self.thread is not None and self.thread.is_alive() and not self._end.is_set():
                self.thread.name = _BEATS
                return
            self._end = Signal()
            run = partial(self._run, self._end, heartbeat)
            self.thread = Worker(run, _BEATS)
            self.thread.start()

    def leave(self, heartbeat: Heartbeat) -> None:
        with self._guard:
            if self._now is heartbeat and self.thread is not None:
                self._now, self.thread.name = None, _PARKED
            if self._begun == 1:
                self._end.set()

    def _run(self, end: Signal, first: Heartbeat) -> None:
        try:
            self._beat_until(end, first)
        finally:
            end.set()

    def _beat_until(self, end: Signal, last: Heartbeat | None) -> None:
        """On the thread, look twice an interval for the current heartbeat; let one seen twice beat.

        `last`: the first heartbeat. Drops a heartbeat that has ended; if no other ever began, sets `end`. Ends
        once `end` is set, also by two looks without a heartbeat.
        """
        slice_s = 0.0 if last is None else last.interval_s / _LOOKS
        pause_s, looks = slice_s, 0
        while not end.wait(pause_s):
            pause_s = slice_s
            current = self._wanted(end, last)
            looks = looks + 1 if current is last else 1
            last = current
            if current is not None and looks >= _LOOKS:
                next_s = current.beat()
                looks = 0
                if next_s is None:
                    self.leave(current)
                elif next_s < current.interval_s:
                    pause_s, looks = next_s, _LOOKS - 1

    def _wanted(self, end: Signal, last: Heartbeat | None) -> Heartbeat | None:
        with self._guard:
            if self._now is None and last is None:
                end.set()
            return self._now


class Client:
    """One client of a lock."""

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
        self.metrics = None if on_metric is None else Recorder(on_metric, world)
        self.pulse = Pulse()
        self.queue = ProcessQueue.of(store, path, world)
        self.turn = Fifo()
        host, name, program = map(storable, (socket.gethostname(), user(), command()))
        self.me = Me(world.new_id(), settings, host, os.getpid(), self.queue.name, name, program)
        self.owner = self.me.owner
        self._lease: weakref.ref[Lease] | None = None  # a dropped lease must be collected
        asked_for_patience, metrics = Signal(), self.metrics

        def throttled() -> None:
            if metrics is not None:
                metrics.throttled()
            asked_for_patience.set()

        # A busy data path on shared connections could starve renewals.
        self.records = store.isolated_connections().on_throttled(throttled)
        self._file = RecordFile(self.records, path, world)
        self._audit = audit
        if audit is not None:
            audit.begin_if_forked()
        self.driver = Driver(self.me, self._file, self.metrics, audit)
        self.publisher = Publisher(store, path, self.me, self.driver)
        threads = self.queue.fifo  # the queue must be collected
        self.committer = Committer(
            store,
            self.records,
            path,
            self.me,
            world,
            wants_hold=lambda: threads.taken,
            throttled=asked_for_patience.is_set,
            audit=audit,
        )
        self._took_s = 0.0

    @property
    def lease(self) -> Lease | None:
        lease = self._lease  # read once: other threads change it
        return None if lease is None else lease()

    @lease.setter
    def lease(self, lease: Lease | None) -> None:
        self._lease = None if lease is None else weakref.ref(lease)

    @property
    def known(self) -> KnownRecord | None:
        return self._file.known

    @contextlib.contextmanager
    def detailed_errors(self) -> Iterator[None]:
        """Add the lock's URL, last known holder and next step to a block's `LockError` without URL."""
        try:
            yield
        except LockError as error:
            if not error.url:
                known = self.known
                add_details(error, self.where, None if known is None else known.record, self.world.now_ms())
            raise

    def measured(self, *, holds: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.metrics is None else self.metrics.acquisition(holds=holds)

    def adopt(self, idle: machine.Idle, known: KnownRecord | None) -> None:
        self._file.known = known or self._file.known
        state = self.driver.state
        if idle.released is not None:
            self.driver.state = idle
        elif isinstance(state, machine.Idle) and state.released is not None and known is not None:
            self.driver.state = state if known.version == state.released[1] else machine.Idle()

    def join(self, record: LockRecord, version: Version, wish: Wish) -> bool:
        with contextlib.suppress(CasError):
            left_s = wish.deadline_s - self.world.monotonic_s()
            return left_s > 0 and isinstance(self._file.put(record, version, min(REQUEST_S, left_s)), Won)
        return False

    def look(self, wish: Wish) -> tuple[KnownRecord | None, bool]:
        """Forget the lease machine's state, and read the lock record (None: absent).

        Returns it, and whether a request was sent: what this process released is returned once without one.
        """
        driver = self.driver
        with driver.step_guard, driver.answering_by(wish.deadline_s):
            state, driver.state = driver.state, machine.Idle()
            if isinstance(state, machine.Idle) and state.released is not None:
                return KnownRecord(*state.released, understood=True), False
            driver.read()
            return self.known, True

    def take(self, latest: KnownRecord | None, waiters: tuple[str, ...], wish: Wish) -> bool:
        """Take the lock over the record `latest` (None: absent), and apply pending publishes.

        False if refused or held by another client. `waiters` remain in the record. Errors pass, once the take is
        released or forgotten.
        """
        driver = self.driver
        with driver.step_guard, driver.answering_by(wish.deadline_s):
            seen = driver.seen(latest)
            try:
                answer = driver.feed(machine.TakeLock(seen, waiters, wish.keeps_log, self._file.highest_epoch))
                if isinstance(answer, machine.Apply):
                    self.publisher.roll_forward(answer)
            except BaseException:
                if isinstance(driver.state, machine.Rolling):  # others need not wait for a lapse
                    with contextlib.suppress(CasError, LockError):
                        self.give_back()
                driver.state = machine.Idle()
                raise
        if isinstance(answer, machine.Busy):
            return False
        self.publisher.begin_lease()
        self._took_s = self.world.monotonic_s()
        return True

    def end(self, turn: FifoTurn | None) -> None:
        if turn is not None:
            if self.turn.first() is turn:
                self.lease = None
            self.leave(turn)

    def leave(self, turn: FifoTurn) -> None:
        if self.turn.first() is turn:
            self.free_queue()
        turn.leave()

    def give_up(self) -> None:
        """Release the lock if an interrupted acquisition took it, reading the record if unsure.

        Ignores store and lock errors.
        """
        with contextlib.suppress(CasError, LockError):
            if self.driver.held() is None:
                wish = Wish(keeps_log=False, deadline_s=self.world.monotonic_s() + REQUEST_S)
                latest, _ = self.look(wish)
                if latest is None or latest.record.owner != self.owner or latest.record.is_free:
                    return
                self.take(latest, latest.record.waiters, wish)
            self.give_back()

    def free_queue(self) -> None:
        state = self.driver.state
        idle = state if isinstance(state, machine.Idle) else machine.Idle()
        self.queue.note_freed(self.driver.held, idle, self.known)

    def note_loss(self) -> None:
        if self._audit is not None and self._audit.open_page is not None:
            self._audit.ended(self.world.now_ms(), held=False)
        self.free_queue()

    def renew(self, epoch: int) -> Answer:
        """Write the record to prolong the lease, or read it if a write is unanswered.

        Then apply left publishes, unless a publish is under way. Errors of both are raised. Returns the machine's
        answer, None without a lease of this epoch.
        """
        driver = self.driver
        with driver.step_guard:
            answer: Answer = None
            held = driver.held()
            if held is not None and held.record.epoch != epoch:
                return None
            if isinstance(driver.state, machine.Checking):
                answer = driver.feed(machine.Look())
            elif isinstance(driver.state, (machine.Held, machine.Rolling)):
                answer = driver.feed(machine.Renew(driver.moment()))
        if self.publisher.publish_guard.acquire(blocking=False):
            until_s = self.world.monotonic_s() + self.settings.renew  # the next renewal must not wait
            try:
                self.publisher.apply_left(
                    lambda: min(self.publisher.left_s(), max(LEAST_S, until_s - self.world.monotonic_s()))
                )
            finally:
                self.publisher.publish_guard.release()
        return answer

    def give_back(self, epoch: int | None = None) -> None:
        """Wait for a publish under way, write until the record is released or another client's, and audit the end.

        Does nothing if another epoch's lease is held, sends nothing once ended. Store errors are raised.
        """
        driver = self.driver
        at_ms = self.world.now_ms()
        with self.publisher.publish_guard, driver.step_guard:
            held = driver.held()
            if epoch is not None and held is not None and held.record.epoch != epoch:
                return
            self.publisher.finish_in_flight()
            while isinstance(driver.state, (machine.Held, machine.Rolling)):
                driver.feed(machine.Release(driver.moment(), self.queue.comes_again()))
                self.publisher.finish_in_flight()
            released = isinstance(driver.state, machine.Idle) and driver.state.released is not None
        if self._audit is not None and self._audit.open_page is not None:
            self._audit.ended(at_ms, held=released)

    def wait_for_late(self) -> None:
        """Renew until no publish is pending, then sleep until no client can apply an earlier lease's.

        Returns at once without a lease, or when it ends; `renew`'s errors pass.
        """
        lease, held = self.lease, self.driver.held()
        while lease is not None and held is not None and held.record.all_pending:
            with self.publisher.publish_guard:
                pass  # a publish under way has ended
            lease.renew()  # else a client that takes over applies it again; without the guard: it may call `on_lost`
            held = self.driver.held()
        if held is not None and held.record.pending_until_ms:
            late_s = HAND_OVER_S / 2 + GRACE_MS / 1000
            self.world.sleep(max(0.0, self._took_s + late_s - self.world.monotonic_s()))


def add_details(error: LockError, url: str, record: LockRecord | None, now_ms: int) -> None:
    """Set the error's URL and, from a held `record` (None: unknown), its holder and validity if unset.

    Appends URL, holder and next step to its message, where missing.
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
