"""The thread that renews a lease.

It stops when the lease is released or lost, and when the thread that took the lock is dead: then nobody is left to do
the protected work, and the lease should lapse. If it stops for any reason but a release, the lease is told so.
"""

from __future__ import annotations

import threading
from typing import Protocol

from fsspec_cas import CasError
from lockprovider.errors import LockError

_RETRY_S = 1.0


class Beating(Protocol):
    """What a heartbeat keeps alive."""

    thread: threading.Thread
    lost: threading.Event

    def renew(self) -> bool:
        """Prolong once; False while the answer is not known."""

    def abandon(self, why: str) -> None:
        """There will be no more beats, and nobody asked for that."""


class Heartbeat:
    """Calls `renew` every `interval_s` seconds; after a failure sooner."""

    def __init__(self, lease: Beating, interval_s: float) -> None:
        self._lease = lease
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease-heartbeat", daemon=True)

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a beat on its way: its answer must not come after the release."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _beat(self) -> None:
        why = "its heartbeat failed"
        try:
            why = self._beat_while_needed()
        finally:
            if not self._stop.is_set():
                self._lease.abandon(why)

    def _beat_while_needed(self) -> str:
        wait_s = self._interval_s
        while not self._stop.wait(wait_s) and not self._lease.lost.is_set():
            if not self._lease.thread.is_alive():
                return f"the thread that took it ({self._lease.thread.name}) is dead"
            wait_s = self._interval_s if self._renewed() else min(_RETRY_S, self._interval_s)
        return "it is over"

    def _renewed(self) -> bool:
        try:
            return self._lease.renew()
        except (CasError, LockError):
            return False  # unreachable, or a roll-forward that fails: the deadline decides
