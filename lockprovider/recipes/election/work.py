"""What is done while one leads, and how it is ended when another may."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from fsspec_cas import CasError, InvalidInput
from fsspec_cas.waiting import Signal, Worker
from lockprovider.recipes.election.term import Term
from lockprovider.recipes.errors import Fenced, TermLost

T = TypeVar("T")
OnDeposed = Literal["event", "interrupt", "exit"]

DEPOSED_CODE = 123  # of a process that had to be ended; as `lockprovider run` has it for a lost lease
AGAIN_S = 1.0  # between two interrupts of what goes on
_LOOK_S = 0.2  # so that a Ctrl-C is seen


class Deposed(BaseException):
    """Raised in what leads when it does so no more. Not an `Exception`: nobody should go on after it by mistake."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How work is ended that goes on after its term: not, by interrupts, or with the process after `grace_s`."""

    on_deposed: OnDeposed
    grace_s: float

    def __post_init__(self) -> None:
        if self.on_deposed not in get_args(OnDeposed):
            ways = ", ".join(map(repr, get_args(OnDeposed)))
            raise InvalidInput(f"on_deposed={self.on_deposed!r} must be one of {ways}")

    @property
    def interrupts(self) -> bool:
        """Whether it is interrupted, again and again."""
        return self.on_deposed != "event"

    def pause_s(self, waited_s: float) -> float:
        """Until the next step, for work that went on for so long."""
        return min(AGAIN_S, self.grace_s - waited_s) if self.on_deposed == "exit" else AGAIN_S

    def end_process(self, waited_s: float, epoch: int) -> None:
        """At once, with all its threads, if it is time for that."""
        if self.on_deposed == "exit" and waited_s >= self.grace_s:
            sys.stderr.write(f"lockprovider: term {epoch} is lost, and its work goes on: this process ends\n")
            sys.stderr.flush()
            os._exit(DEPOSED_CODE)


def work_under(term: Term, main: Callable[[Term], T], ending: Ending) -> tuple[bool, T | None]:
    """Call it on a thread of its own. Whether it ended by itself while it led, and what it returned.

    Raises:
        What it raised, but for what came of the loss.
    """
    call = _Call(main, term)
    try:
        while not call.done.wait(_LOOK_S):
            if term.lost.is_set():
                call.end(ending)
    except BaseException:  # a Ctrl-C here
        term.give_up("its work is being stopped")
        call.end(ending)
        raise
    return ended_by_itself(call.error, term), call.result


def ended_by_itself(error: BaseException | None, term: Term) -> bool:
    """Whether work ended while it led; False: because it did so no more. If it was refused first, the store is asked.

    Raises:
        The error, if it did not come of the loss.
    """
    if error is None:
        return not term.lost.is_set()
    if isinstance(error, (Deposed, asyncio.CancelledError, TermLost, Fenced)):
        if not term.lost.is_set():
            with contextlib.suppress(CasError):
                term.renew()
        if term.lost.is_set():
            return False
    raise error


class _Call:
    """One call on a thread of its own, that can be interrupted."""

    def __init__(self, main: Callable[[Term], Any], term: Term) -> None:
        self.done = Signal()
        self.result: Any = None
        self.error: BaseException | None = None
        self._main, self._term = main, term
        self._guard = threading.Lock()
        self._over = False
        self._thread = Worker(self._live, f"term-{term.epoch}")
        self._thread.start()

    def end(self, ending: Ending) -> None:
        """Return once it has ended; else this process does."""
        waited_s = 0.0
        while True:
            if ending.interrupts:
                self._interrupt()
            pause_s = ending.pause_s(waited_s)
            if self.done.wait(pause_s):
                return
            waited_s += pause_s
            ending.end_process(waited_s, self._term.epoch)

    def _interrupt(self) -> None:
        """Raise `Deposed` in it, between two of its steps; not once it has ended."""
        with self._guard:
            if not self._over and self._thread.ident is not None:
                _raise_in(self._thread.ident, Deposed)

    def _live(self) -> None:
        try:
            try:
                self.result = self._main(self._term)
            except BaseException as error:  # noqa: BLE001 - raised where the work was asked for
                self.error = error
            self._leave()
        except Deposed as error:  # it came between the end and this
            self.error = self.error or error
            self._leave()
        self.done.set()

    def _leave(self) -> None:
        with self._guard:
            self._over = True
            _raise_in(threading.get_ident(), None)  # none that was sent may come later


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    given = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), given)
