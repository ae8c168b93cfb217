"""What renews a lease.

It stops when the lease is released or lost, and when the thread that took the lock is dead: then nobody is left to do
the protected work, and the lease should lapse. If it stops for any reason but a release, the lease is told so.

A client that takes its lock again and again keeps the thread, parked between the leases: to start one costs more than
all the rest of a short turn. So it is not woken either when a lease begins or ends: it looks twice in an interval, and
ends when it has found nothing to do for so long.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol

from fsspec_cas import CasError, Machine, World
from fsspec_cas.waiting import Signal, Worker
from lockprovider.errors import LockError

_RETRY_S = 1.0
_LOOKS = 2  # in an interval; so the first beat comes after a half to a whole one, and all others after a whole one
_BEATS, _PARKED = "lease-heartbeat", "parked-heartbeat"  # so a list of the threads tells how many leases there are


class Beating(Protocol):
    """What a heartbeat keeps alive."""

    thread: threading.Thread
    lost: Signal

    def renew(self) -> bool:
        """Prolong once; False while the answer is not known."""

    def abandon(self, why: str) -> None:
        """There will be no more beats, and nobody asked for that."""


class Heartbeat:
    """Calls `renew` every `interval_s` seconds, after a failure sooner; not once it was held for `max_hold` seconds.

    It keeps what it renews alive, unless `keeps` is False: a lease that nobody refers to is collected and given back.
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
        """Start beating.

        Raises:
            RuntimeError: there can be no more threads.
        """
        self._pulse.begin(self)

    def stop(self) -> None:
        """Stop, and wait for a beat on its way: its answer must not come after the release."""
        self._stopped = True
        self._pulse.leave(self)
        if self._thread is not threading.current_thread():
            with self._beating:
                pass

    def beat(self) -> float | None:
        """Prolong once; the seconds until the next time, None if there is none."""
        with self._beating:
            lease = self._lease()
            if self._stopped or lease is None:  # it is being given back
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
        if lease.lost.is_set():
            return "it is over", 0.0
        if not lease.thread.is_alive():
            return f"the thread that took it ({lease.thread.name}) is dead", 0.0
        if self._most_s is not None and self._world.monotonic_s() - self._began_s >= self._most_s:
            return f"it was held for max_hold={self._most_s:g} s, and is not renewed any more", 0.0
        wait_s = self.interval_s if _renewed(lease) else min(_RETRY_S, self.interval_s)
        return ("it is over" if lease.lost.is_set() else None), wait_s


def _renewed(lease: Beating) -> bool:
    try:
        return lease.renew()
    except (CasError, LockError):
        return False  # unreachable, or a roll-forward that fails: the deadline decides


class Pulse:
    """The thread, for one heartbeat after another. It ends by itself when there was none for an interval."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._end = Signal()
        self._now: Heartbeat | None = None
        self._begun = 0

    def begin(self, heartbeat: Heartbeat) -> None:
        """Beat for this one."""
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
        """No more of it. A client that has taken the lock once may never do so again: then the thread ends."""
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

    def _beat_until(self, end: Signal, known: Heartbeat | None) -> None:
        slice_s = 0.0 if known is None else known.interval_s / _LOOKS
        pause_s, looks = slice_s, 0
        while not end.wait(pause_s):
            pause_s = slice_s
            now = self._wanted(end, known)
            looks = looks + 1 if now is known else 1
            known = now
            if now is not None and looks >= _LOOKS:
                next_s = now.beat()
                looks = 0
                if next_s is None:
                    self.leave(now)
                elif next_s < now.interval_s:
                    pause_s, looks = next_s, _LOOKS - 1

    def _wanted(self, end: Signal, known: Heartbeat | None) -> Heartbeat | None:
        """Whose turn it is; with the second look in vain it is over."""
        with self._guard:
            if self._now is None and known is None:
                end.set()
            return self._now
