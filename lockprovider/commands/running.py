"""Run a command, and end it if its lease or term is lost.

The command leads its own process group, but on a terminal stays in the terminal's, to read from it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from fsspec_cas import CasError, InvalidInput, Machine
from fsspec_cas.command import OPTIONS_HELP, complain
from fsspec_cas.machine import Worker
from lockprovider import LeaseLost, LockError
from lockprovider.commands.arguments import RUNS, option, seconds
from lockprovider.recipes.errors import CoordinationError, TermLost
from lockprovider.storage_lock.lease import restore_handlers

if TYPE_CHECKING:
    from lockprovider import Lease
    from lockprovider.election import Term

NOT_ACQUIRED, LOST, FAILED, CANNOT_EXECUTE, NO_SUCH_COMMAND, SIGNALLED = 122, 123, 125, 126, 127, 128
_CHECK_S = 5.0  # in case the heartbeat's thread hangs
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_ENDS, signal.SIGUSR1, signal.SIGUSR2)
_EXPECTED = (CasError, LockError, CoordinationError, OSError)  # their text is for the user
_FROM_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})


def form(command: str) -> str:
    return f"write -- between the options and the command: lockprovider {command} {RUNS}"


def codes(waited_for: str, not_acquired: str = "", lost: str = "") -> str:
    """Help on exit codes and storage options; `waited_for`: what a signal may interrupt.

    `not_acquired` describes 122, `lost` 123; empty: left out.
    """
    own = {NOT_ACQUIRED: not_acquired, LOST: lost}
    lines = "".join(f"  {code}    {text}\n" for code, text in own.items() if text)
    return f"""exit codes:
  N      the command's own; {SIGNALLED} + N if signal N ended it
{lines}  {FAILED}    lockprovider failed before the command was started: usage, URL, options, store
  {CANNOT_EXECUTE}    the command cannot be executed
  {NO_SUCH_COMMAND}    the command was not found
  {SIGNALLED} + N  signal N arrived while lockprovider waited for {waited_for}

{OPTIONS_HELP}"""


def command_of(arguments: argparse.Namespace, name: str) -> list[str]:
    """Words after `--`; without any, InvalidInput names the command `name`."""
    words: list[str] = arguments.words
    if not words or not words[0]:
        raise InvalidInput(f"no command was given: {form(name)}")
    return words


def add_grace(parser: argparse.ArgumentParser) -> None:
    option(parser, "--grace", seconds, "seconds between TERM and KILL (default: the safety margin, see above)")


@dataclass(slots=True)
class CommandResult:
    """Command's result, for --json."""

    outcome: str
    code: int
    why: str = ""
    reason: str | None = None
    epoch: int | None = None
    held_s: float | None = None


def explained(error: BaseException) -> str:
    if isinstance(error, (*_EXPECTED, KeyboardInterrupt)):
        return str(error) or "interrupted"
    return f"unexpected {type(error).__name__}: {error}"


def reported(arguments: argparse.Namespace, work: Callable[[argparse.Namespace, CommandResult], CommandResult]) -> int:
    """Run `work`; print its `why`, and with `--json` its result, on stderr; return the exit code.

    Errors give 125 (`--debug` raises them), interrupts 128 + the signal's number.
    """
    result = CommandResult("failed", FAILED)
    try:
        result = work(arguments, result)
    except Exception as error:  # exit code 2 belongs to the command here
        if arguments.debug:
            raise
        result = CommandResult("failed", FAILED, explained(error))
        if not isinstance(error, _EXPECTED):
            result.why += "; add --debug for the traceback"
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        result = CommandResult("interrupted", SIGNALLED + number, f"interrupted by {signal.Signals(number).name}")
    if result.why:
        complain("lockprovider", result.why)
    if arguments.json:  # stdout belongs to the command
        print(json.dumps(asdict(result)), file=sys.stderr, flush=True)
    return result.code


@dataclass(slots=True)
class CommandOrder:
    """Command, its signals, its grace (None: never killed), and the event that wakes its watcher."""

    words: list[str]
    signals: Signals
    grace_s: float | None = None
    news: threading.Event = field(default_factory=threading.Event)

    def run(
        self, environment: Mapping[str, str], result: CommandResult, held: Lease | Term | None = None
    ) -> CommandResult:
        """Run the command to its end, or end it once `held` is lost (code 123); fill in and return `result`.

        If it cannot start, sets only `why` and code 126 or 127. `environment` adds variables. Passes signals on, and
        keeps later ones.
        """
        self.signals.hold()
        try:
            child = Child(self.words, environment, self.grace_s, on_start=self.signals.started, on_end=self.news.set)
        except OSError as error:
            result.code = NO_SUCH_COMMAND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
            result.why = f"{self.words[0]}: {error.strerror}"
            return result
        self.signals.pass_to(child)
        lost = _watch(held, child, self.news) if held is not None else None
        child.ended.wait()
        self.signals.hold()
        result.code, result.outcome = child.code(), "ended"
        if lost is not None:
            result.why = f"{lost}; the command was ended (exit code {result.code})"
            result.code, result.outcome, result.reason = LOST, "lost", lost.reason.value
        return result

    def run_under(self, held: Lease | Term, give_back: Callable[[], object], result: CommandResult) -> CommandResult:
        """Run the command under `held`, then `give_back`; fill in and return `result`, with epoch and seconds held.

        Errors of `give_back`, and signals during it, are only printed. Later signals raise `Stopped`.
        """
        world = Machine()
        began_s = world.monotonic_s()
        result.epoch = held.epoch
        self.run({"LOCKPROVIDER_EPOCH": str(held.epoch)}, result, held)
        self.signals.stop()
        try:
            give_back()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the command has ended
            complain("lockprovider", f"the release failed, and the lease or term lapses by itself: {explained(error)}")
        result.held_s = round(world.monotonic_s() - began_s, 3)
        return result


def _watch(held: Lease | Term, child: Child, news: threading.Event) -> LeaseLost | TermLost | None:
    """Wait for the command's end; None: `held` was valid then. End it once `held` is lost; return the loss.

    Checks every 5 s, at the deadline, and when `news` is set, clearing it.
    """
    world = Machine()
    while True:
        # Read before the check: a lease held after it was held when the command ended.
        ended = child.ended.is_set()
        try:
            held.check()
        except (LeaseLost, TermLost) as lost:
            child.end()
            return lost
        if ended:
            return None
        news.wait(min(_CHECK_S, max(0.01, held.deadline_s - world.monotonic_s())))
        news.clear()


class Stopped(KeyboardInterrupt):
    """Signal that no command could receive."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """Passes signals to the running command; at other times keeps them, or raises `Stopped`."""

    def __init__(self) -> None:
        self._send: Callable[[int], None] = self._stop
        self._held: list[int] = []
        self._before = 0  # signals held before the command started
        self._ignored: frozenset[signal.Signals] = frozenset()
        self.asked_to_end = 0

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Pass, keep or raise a signal, as last set; note one that asks for the end."""
        del frame
        if number in _ENDS:
            self.asked_to_end = number
        if number not in self._ignored:
            self._send(number)

    def hold(self) -> None:
        """Keep signals for `pass_to`."""
        self._send = self._held.append

    def started(self) -> None:
        self._before = len(self._held)

    def pass_to(self, child: Child) -> None:
        """Pass on the signals kept by `hold`, then new ones.

        On a terminal, leaves out INT, QUIT and HUP since the command's start, which the terminal sends.
        """
        self._ignored = frozenset() if child.own_group else _FROM_TERMINAL
        self._send = child.send
        while self._held:
            number = self._held.pop(0)
            if self._before > 0 or number not in self._ignored:
                child.send(number)
            self._before -= 1

    def stop(self) -> None:
        """Let the next signal raise `Stopped`; drop kept ones."""
        self._ignored, self._send = frozenset(), self._stop
        self._held.clear()

    @staticmethod
    def _stop(number: int) -> None:
        raise Stopped(number)


@contextlib.contextmanager
def passed_signals() -> Iterator[Signals]:
    """Let the yielded `Signals` handle TERM, INT, HUP, QUIT, USR1 and USR2, unless ignored; then restore handlers.

    At first it raises `Stopped`. Main thread only.
    """
    signals = Signals()
    before = {number: signal.getsignal(number) for number in _PASSED_ON}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signals.receive)
    try:
        yield signals
    finally:
        restore_handlers(before)


# Line 1: a process or (negative) group. End of file: this process has died; line 2: all is well.
# $1: seconds between TERM and KILL, or empty.
_GUARD = (
    'read -r it || exit; read -r _ && exit; kill -s TERM -- "$it" 2>&-; '
    '[ "$1" ] && sleep "$1" && kill -s KILL -- "$it" 2>&-'
)


class Child:
    """Starts a command, and a guard shell that ends it if this process dies or cannot wait; may raise OSError.

    Calls `on_start` after the start, `on_end` on another thread.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        grace_s: float | None,
        *,
        on_start: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._grace_s = grace_s
        self._on_end = on_end
        self.own_group = not sys.stdin.isatty()  # else the terminal's signals reach the command
        # First: the command runs unguarded for one line only.
        self._guard = subprocess.Popen(  # noqa: S603 - fixed words
            ["/bin/sh", "-c", _GUARD, "guard", "" if grace_s is None else f"{grace_s:.3f}"],
            stdin=subprocess.PIPE,
            bufsize=0,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._process = subprocess.Popen(  # noqa: S603 - its purpose
                words, env={**os.environ, **environment}, start_new_session=self.own_group
            )
            on_start()
            with contextlib.suppress(BrokenPipeError):
                assert self._guard.stdin is not None  # noqa: S101 - a pipe
                self._guard.stdin.write(b"%d\n" % (-self._process.pid if self.own_group else self._process.pid))
            self.ended = threading.Event()
            Worker(self._wait, "command").start()
        except BaseException:
            self._tell_guard(b"")
            raise

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises the second for a group of zombies
            if self.own_group:
                os.killpg(self._process.pid, number)
            else:
                os.kill(self._process.pid, number)

    def end(self) -> None:
        """Send TERM, and KILL after the grace; wait."""
        self.send(signal.SIGTERM)
        self.ended.wait(self._grace_s)
        self.send(signal.SIGKILL)  # also ends processes that the command left behind
        self.ended.wait()

    def code(self) -> int:
        """Wait for the end, end the guard."""
        self.ended.wait()
        self._tell_guard(b"\n")
        status = self._process.wait()
        return SIGNALLED - status if status < 0 else status

    def _tell_guard(self, last: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._guard.communicate(last)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):  # WNOWAIT leaves a zombie: no other process gets its number
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        self.ended.set()
        self._on_end()
