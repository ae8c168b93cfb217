"""Heartbeat of a lease, on a thread of its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from fsspec_cas import CasError, Machine, World
from fsspec_cas.waiting import Signal, Worker
from lockprovider.errors import LockError

_RETRY_S = 1.0


class Beating(Protocol):
    """Protocol of a lease that a heartbeat renews."""

    thread: threading.Thread
    lost: Signal

    def renew(self) -> bool:
        """Prolong the lease once; False while the outcome is unknown."""

    def abandon(self, why: str) -> None:
        """Mark the lease as lost: its heartbeat has stopped without a release."""


class Heartbeat:
    """Calls `renew` every `interval_s` seconds, sooner after a failure, for at most `max_hold` seconds.

    It also stops when the acquiring thread is dead, so that the lease lapses. Unless stopped for a release, it marks
    the lease as lost. With `keeps=False` an unreferenced lease is collected, and released.
    """

    def __init__(
        self,
        lease: Beating,
        interval_s: float,
        *,
        keeps: bool = True,
        max_hold: float | None = None,
        world: World | None = None,
    ) -> None:
        self._interval_s = interval_s
        self._lease: Callable[[], Beating | None] = (lambda: lease) if keeps else weakref.ref(lease)
        self._world, self._most_s = world or Machine(), max_hold
        self._began_s = self._world.monotonic_s()
        self._stopped = Signal()
        self._beating = threading.Lock()
        self._thread: threading.Thread = Worker(self._beat_until_stopped, "lease-heartbeat")

    def start(self) -> None:
        """Start to beat in a new thread, first after one interval; may raise `RuntimeError`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a beat under way, whose answer must not follow the release."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            with self._beating:
                pass

    def _beat_until_stopped(self) -> None:
        pause_s: float | None = self._interval_s
        while pause_s is not None and not self._stopped.wait(pause_s):
            pause_s = self._beat()

    def _beat(self) -> float | None:
        """Prolong the lease once, or mark it as lost; returns the seconds until the next beat, if any."""
        with self._beating:
            lease = self._lease()
            if self._stopped.is_set() or lease is None:  # it is being released
                return None
            why: str | None = "its heartbeat failed"
            try:
                why, pause_s = self._renew(lease)
            finally:
                if why is not None and not self._stopped.is_set():
                    lease.abandon(why)
            return pause_s if why is None else None

    def _renew(self, lease: Beating) -> tuple[str | None, float]:
        """Call `renew` unless the lease, its thread or `max_hold` has ended.

        Returns the reason to end, or None, and the pause in seconds.
        """
        if lease.lost.is_set():
            return "it has ended", 0.0
        if not lease.thread.is_alive():
            return f"the thread that acquired it ({lease.thread.name}) has ended", 0.0
        if self._most_s is not None and self._world.monotonic_s() - self._began_s >= self._most_s:
            return f"it was held for max_hold={self._most_s:g} s and is no longer renewed", 0.0
        try:
            is_renewed = lease.renew()
        except (CasError, LockError):
            is_renewed = False  # the deadline decides
        pause_s = self._interval_s if is_renewed else min(_RETRY_S, self._interval_s)
        return ("it has ended" if lease.lost.is_set() else None), pause_s
