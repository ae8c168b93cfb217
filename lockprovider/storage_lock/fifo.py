"""A mutex for threads that is taken in the order of asking; `threading.Lock` promises no order."""

from __future__ import annotations

import threading
import weakref

from fsspec_cas.waiting import SLICE_S, Signal


class Fifo:
    """First come, first served. Whoever wants it asks for a `FifoTurn`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: list[weakref.ref[FifoTurn]] = []  # in the order of asking: the first has it

    @property
    def taken(self) -> bool:
        """Whether somebody has it now."""
        return self.first() is not None

    def first(self) -> FifoTurn | None:
        """Whose turn it is; those that nobody refers to any more have left."""
        with self._guard:
            while self._turns:
                turn = self._turns[0]()
                if turn is not None:
                    return turn
                del self._turns[0]
            return None

    def ask(self, turn: FifoTurn) -> None:
        """Put it at the end."""
        with self._guard:
            self._turns.append(weakref.ref(turn))

    def forget(self, turn: FifoTurn) -> None:
        """Take it out, wherever it is."""
        with self._guard:
            self._turns = [one for one in self._turns if one() not in (None, turn)]


class FifoTurn:
    """A place in the line of a `Fifo`, until `leave`, which any thread may call, or until nobody refers to it any more.

    So an interrupt cannot leave the mutex taken, whenever it comes: the turn is gone with the frame, or the lease, that
    had it, and the next in line finds that within `SLICE_S`.
    """

    def __init__(self, fifo: Fifo) -> None:
        self._fifo = fifo
        self.called = Signal()  # it is the first, perhaps
        fifo.ask(self)

    def wait(self, timeout: float) -> bool:
        """Whether it came within so many seconds."""
        while self._fifo.first() is not self:
            if timeout <= 0:
                return False
            self.called.wait(min(timeout, SLICE_S))
            timeout -= SLICE_S
        return True

    def leave(self) -> None:
        """It is over, or is not waited for any more: the next one's turn."""
        self._fifo.forget(self)
        first = self._fifo.first()
        if first is not None:
            first.called.set()
