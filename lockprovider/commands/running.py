"""What `run` and `elect` have in common: a command that runs only while something is held, signals, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from fsspec_cas import CasError, Machine
from fsspec_cas.command import OPTIONS_HELP, complain
from lockprovider import LeaseLost, LockError
from lockprovider.commands.child import Child
from lockprovider.recipes.errors import CoordinationError, TermLost

NOT_ACQUIRED, LOST, FAILED, CANNOT_EXECUTE, NO_SUCH_COMMAND, SIGNALLED = 122, 123, 125, 126, 127, 128
_CHECK_S = 5.0  # between looks at the own deadline, should the heartbeat's thread hang
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_ENDS = {getattr(signal, name) for name in _PASSED_ON[:4] if hasattr(signal, name)}
_FROM_TERMINAL = ("SIGINT", "SIGQUIT", "SIGHUP")


def form(command: str) -> str:
    """How such a command is written."""
    return (
        f"write -- between the options and the command: lockprovider {command} URL [options] -- COMMAND [ARGUMENT ...]"
    )


def codes(not_acquired: str, lost: str, waited_for: str) -> str:
    """The exit codes, for the help of a command."""
    return f"""exit codes:
  N      the command's own; {SIGNALLED} + N if signal N ended it
  {NOT_ACQUIRED}    {not_acquired}
  {LOST}    {lost}
  {FAILED}    lockprovider failed before the command was started: usage, URL, options, store
  {CANNOT_EXECUTE}    the command cannot be executed
  {NO_SUCH_COMMAND}    there is no such command
  {SIGNALLED} + N  signal N came while it waited for {waited_for}

{OPTIONS_HELP}"""


@dataclass(slots=True)
class CommandResult:
    """What it came to, for --json."""

    outcome: str
    code: int
    why: str = ""
    reason: str | None = None  # of a lost lease
    epoch: int | None = None
    held_s: float | None = None


def reported(arguments: argparse.Namespace, work: Callable[[argparse.Namespace, CommandResult], CommandResult]) -> int:
    """Do it, say what it came to, and return the exit code."""
    said = CommandResult("failed", FAILED)
    try:
        said = work(arguments, said)
    except Exception as error:  # code 2 is the command's, here
        if arguments.debug:
            raise
        known = isinstance(error, (CasError, LockError, CoordinationError, OSError))
        said.why = str(error) if known else f"unexpected {type(error).__name__}: {error}; --debug shows more"
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        said = CommandResult("interrupted", SIGNALLED + number, f"interrupted by {signal.Signals(number).name}")
    if said.why:
        complain("lockprovider", said.why)
    if arguments.json:  # stdout is the command's
        shown = {
            "outcome": said.outcome,
            "code": said.code,
            "epoch": said.epoch,
            "held_s": said.held_s,
            "reason": said.reason,
        }
        print(json.dumps({**shown, "why": said.why}), file=sys.stderr, flush=True)
    return said.code


class LeaseOrTerm(Protocol):
    """A lease, or a term."""

    epoch: int

    @property
    def deadline_s(self) -> float:
        """When the belief ends."""

    def check(self) -> None:
        """Raise `LeaseLost` or `TermLost` if it is over."""


@dataclass(slots=True)
class CommandOrder:
    """A command, and what it runs with."""

    words: list[str]
    grace_s: float
    news: threading.Event
    signals: Signals

    def run_under(self, held: LeaseOrTerm, give_back: Callable[[], object], said: CommandResult) -> CommandResult:
        """Run the command while it is held, and give it back."""
        world = Machine()
        began_s = world.monotonic_s()
        said.epoch = held.epoch
        self.signals.hold()  # a command that was just started must not be forgotten
        try:
            epoch = {"LOCKPROVIDER_EPOCH": str(held.epoch)}
            child = Child(self.words, epoch, self.grace_s, on_start=self.signals.started, on_end=self.news.set)
        except OSError as error:
            said.code = NO_SUCH_COMMAND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
            said.why = f"{self.words[0]}: {error.strerror}"
        else:
            self.signals.pass_to(child)
            lost = _watch(held, child, self.news)
            self.signals.hold()
            said.code, said.outcome = child.code(), "ended"
            if lost is not None:
                said.why = f"{lost}; the command was ended (exit code {said.code})"
                said.code, said.outcome, said.reason = LOST, "lost", lost.reason.value
        self.signals.stop()
        try:
            give_back()
        except (CasError, LockError, KeyboardInterrupt) as error:
            complain("lockprovider", f"it was not released and lapses by itself: {str(error) or 'interrupted'}")
        said.held_s = round(world.monotonic_s() - began_s, 3)
        return said


def _watch(held: LeaseOrTerm, child: Child, news: threading.Event) -> LeaseLost | TermLost | None:
    """Until the command has ended; the loss, if it was lost before that."""
    world = Machine()
    while True:
        ended = child.ended.is_set()  # before it is asked: it was held then, if it is held now
        try:
            held.check()
        except (LeaseLost, TermLost) as lost:
            child.end()
            return lost
        if ended:
            return None
        news.wait(min(_CHECK_S, max(0.01, held.deadline_s - world.monotonic_s())))
        news.clear()  # what it announced is looked at next


class Stopped(KeyboardInterrupt):
    """A signal came while there was no command to pass it to."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """Where signals go: to the command while there is one, else they stop what is being done."""

    def __init__(self) -> None:
        self._send: Callable[[int], None] = self._stop
        self._held: list[int] = []
        self._before = 0  # so many of them came before the command was started
        self._ignored: frozenset[int] = frozenset()
        self.asked_to_end = 0  # by this signal, the last of those that do so

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The handler of them all."""
        del frame
        if number in _ENDS:
            self.asked_to_end = number
        if number not in self._ignored:
            self._send(number)

    def hold(self) -> None:
        """Keep what comes, for whoever takes it."""
        self._send = self._held.append

    def started(self) -> None:
        """The command runs from now on."""
        self._before = len(self._held)

    def pass_to(self, child: Child) -> None:
        """The terminal sends its own to the command, too, once that runs, where it is in the same group."""
        names = () if child.own_group else _FROM_TERMINAL
        self._ignored = frozenset(getattr(signal, name) for name in names)
        self._send = child.send
        while self._held:
            number = self._held.pop(0)
            if self._before > 0 or number not in self._ignored:
                child.send(number)
            self._before -= 1

    def stop(self) -> None:
        """Let the next one stop what is being done; what was kept came too late."""
        self._ignored, self._send = frozenset(), self._stop

    @staticmethod
    def _stop(number: int) -> None:
        raise Stopped(number)


@contextlib.contextmanager
def passed_signals() -> Iterator[Signals]:
    """What this process is told to ignore (nohup) stays ignored, by the command too."""
    signals = Signals()
    numbers = [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, signals.receive)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
