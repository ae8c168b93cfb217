"""What `run`, `elect` and others have in common: a command that runs only while something is held.

It leads a group of its own, so that what it starts is signalled with it; where it shares a terminal it stays in the
terminal's group, to be able to read from it, and is signalled alone. A small shell beside it ends it when this process
dies without a word (kill -9).

Not promised: that anything ends it while this process is merely stopped (SIGSTOP), or on a machine that freezes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from fsspec_cas import CasError, InvalidInput, Machine
from fsspec_cas.command import OPTIONS_HELP, complain
from fsspec_cas.waiting import Worker
from lockprovider import LeaseLost, LockError
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


def add_grace(parser: argparse.ArgumentParser) -> None:
    """`--grace`, which `grace_s` reads."""
    parser.add_argument("--grace", type=float, metavar="S", help="seconds between TERM and KILL (default: the margin)")


def grace_s(arguments: argparse.Namespace, margin_s: float) -> float:
    """Seconds between TERM and KILL.

    Raises:
        InvalidInput: they are none.
    """
    if arguments.grace is None:
        return margin_s
    if not 0 <= arguments.grace < math.inf:
        raise InvalidInput(f"--grace {arguments.grace:g} must be a number of seconds, 0 or more")
    return float(arguments.grace)


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


# -- the child ---------------------------------------------------------------------------------------------------------


# The first line names a process, or a group by its negative number; $1: seconds between asking and forcing. End of file
# means that the writer is gone; a second line, that all is well.
_GUARD = 'read -r it || exit; read -r _ && exit; kill -s TERM -- "$it" 2>&-; sleep "$1"; kill -s KILL -- "$it" 2>&-'


class Child:
    """One running command.

    `on_start` is called right after it was started, `on_end` from another thread as soon as it has ended.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        grace_s: float,
        *,
        on_start: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._grace_s = grace_s
        self._on_end = on_end
        self._own_group = not sys.stdin.isatty()
        self._guard = self._start_guard()  # first: nothing shall run unguarded but for the next line
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running it is the purpose
                words, env={**os.environ, **environment}, start_new_session=self._own_group
            )
            on_start()
        except BaseException:
            self._tell_guard(b"")
            raise
        self._name_it()
        self.ended = threading.Event()
        Worker(self._wait, "command").start()

    @property
    def own_group(self) -> bool:
        """Whether signals from the terminal do not reach it by themselves."""
        return self._own_group

    def send(self, number: int) -> None:
        """Pass a signal on."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the second: macOS, for a group of zombies
            if self._own_group:
                os.killpg(self._process.pid, number)
            else:
                os.kill(self._process.pid, number)

    def end(self) -> None:
        """Ask it to end, and after the grace make it."""
        self.send(signal.SIGTERM)
        self.ended.wait(self._grace_s)
        self.send(signal.SIGKILL)  # also what it has left behind
        self.ended.wait()

    def code(self) -> int:
        """Its exit code once it has ended, 128 + N if signal N ended it; it is gone after this."""
        self.ended.wait()
        self._tell_guard(b"\n")
        status = self._process.wait()
        return SIGNALLED - status if status < 0 else status

    def _start_guard(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - fixed words
            ["/bin/sh", "-c", _GUARD, "guard", f"{self._grace_s:.3f}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _name_it(self) -> None:
        pipe = self._guard.stdin
        target = -self._process.pid if self._own_group else self._process.pid
        with contextlib.suppress(BrokenPipeError):
            if pipe is not None:
                pipe.write(b"%d\n" % target)
                pipe.flush()

    def _tell_guard(self, last: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._guard.communicate(last)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):  # leaves it a zombie: as long as it is one, its number is nobody else's
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        self.ended.set()
        self._on_end()


def run_child(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command that holds no lease to its end, and return its exit code; TERM and HUP are passed on."""
    child: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        for one in child:
            one.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        child.append(subprocess.Popen(words, env={**os.environ, **environment}))  # noqa: S603 - its purpose
        status = child[0].wait()
    except OSError as error:
        raise InvalidInput(f"{words[0]}: {error.strerror}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return SIGNALLED - status if status < 0 else status
