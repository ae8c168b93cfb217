"""A mutex for threads that is taken in the order of asking; `threading.Lock` promises no order."""

from __future__ import annotations

import threading
from collections import deque


class Fifo:
    """First come, first served. Any thread may release it, whoever took it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    @property
    def taken(self) -> bool:
        """Whether somebody has it now."""
        return self._taken

    def acquire(self, timeout: float) -> bool:
        """Take it, waiting for at most so many seconds."""
        called = threading.Event()
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            self._waiting.append(called)
        try:
            called.wait(timeout)
        finally:
            got = self._leave(called)
        return got

    def release(self) -> None:
        """The next one's turn."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False

    def _leave(self, called: threading.Event) -> bool:
        with self._guard:
            if called.is_set():
                return True
            self._waiting.remove(called)
            return False
