"""The thread that renews a lease.

It stops when the lease is released or lost, and when the thread that took the lock is dead: then nobody is left to do
the protected work, and the lease should lapse.
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
        wait_s = self._interval_s
        while not self._stop.wait(wait_s) and not self._lease.lost.is_set() and self._lease.thread.is_alive():
            wait_s = self._interval_s if self._renewed() else min(_RETRY_S, self._interval_s)

    def _renewed(self) -> bool:
        try:
            return self._lease.renew()
        except (CasError, LockError):
            return False  # unreachable, or a roll-forward that fails: the deadline decides
