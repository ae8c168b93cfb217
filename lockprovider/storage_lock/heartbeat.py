"""Heartbeat of a lease; its thread is parked between leases, as starting one is slow."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from fsspec_cas import CasError, Machine, World
from fsspec_cas.machine import Signal, Worker
from lockprovider.errors import LockError

_LOG = logging.getLogger("lockprovider")
_RETRY_S = 1.0
_LOOKS = 2  # per interval: the first beat comes after half an interval or more
_BEATS, _PARKED = "lease-heartbeat", "parked-heartbeat"


def run_callbacks(calls: Iterable[Callable[[], object]]) -> None:
    """Call each, in order; log an exception, so that it ends neither the heartbeat nor later callbacks."""
    for call in calls:
        try:
            call()
        except Exception:  # noqa: BLE001
            _LOG.exception("the callback %r of a lost lease or term failed", call)


class Beating(Protocol):
    """Protocol of a lease that a heartbeat renews."""

    thread: threading.Thread
    lost: Signal

    def renew(self) -> bool:
        """Prolong the lease once; False while the outcome is unknown."""

    def abandon(self, why: str) -> None:
        """Mark the lease as lost: its heartbeat has stopped without a release."""


class Heartbeat:
    """Calls `renew` every `interval_s` seconds, sooner after a failure, until stopped for a release.

    Abandons a lease whose thread or `max_hold` has ended. With `keeps=False` an unreferenced lease is collected, and
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
        """Renew the lease once; mark it as lost if it must end or an unexpected error raises.

        Returns seconds until the next beat, fewer after a failed renewal; None if there is none.
        """
        with self._beating:
            lease = self._lease()
            if self._stopped or lease is None:  # it is being released
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
    """Thread of a client's successive heartbeats; after the first it is parked between them, an interval at most."""

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
        """On the thread, look twice an interval for the current heartbeat, and let one seen twice beat.

        `last` is the first one. Ends once `end` is set, also by two looks without a heartbeat.
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
