"""`lockprovider run URL -- COMMAND`: a command that runs only while the lock is held."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType

from fsspec_cas import CasError, InvalidInput, Machine, Unavailable
from fsspec_cas.command import OPTIONS_HELP, complain
from lockprovider import Lease, LeaseLost, Lock, LockError, LockSettings, NotAcquired
from lockprovider.client.inspect import look
from lockprovider.client.provider import LockPlace
from lockprovider.commands.child import Child
from lockprovider.commands.place import Commands, add_command, place
from lockprovider.observe.audit_log import AuditLog

NOT_ACQUIRED, LOST, FAILED, CANNOT_EXECUTE, NO_SUCH_COMMAND, SIGNALLED = 122, 123, 125, 126, 127, 128
FORM = "write -- between the options and the command: lockprovider run URL [options] -- COMMAND [ARGUMENT ...]"
_FIRST_LOOK_S = 5.0
_AUDIT_S = 10.0  # for the last record, at the end
_CHECK_S = 5.0  # between looks at the own deadline, should the heartbeat's thread hang
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_FROM_TERMINAL = ("SIGINT", "SIGQUIT", "SIGHUP")

_CODES = f"""exit codes:
  N      the command's own; {SIGNALLED} + N if signal N ended it
  {NOT_ACQUIRED}    not acquired: others held the lock for --timeout seconds; the command was not started
  {LOST}    lost: the lease was lost before the command ended by itself; the command was ended
  {FAILED}    lockprovider failed before the command was started: usage, URL, options, store
  {CANNOT_EXECUTE}    the command cannot be executed
  {NO_SUCH_COMMAND}    there is no such command
  {SIGNALLED} + N  signal N came while it waited for the lock

{OPTIONS_HELP}"""

_MORE = """The command gets the terminal, the signals (TERM, INT, HUP, QUIT, USR1, USR2) and LOCKPROVIDER_EPOCH: a
number that rises with every holder (across a JVM writer as far as clocks agree), a fencing token for what can check
one. When the lease is lost it gets TERM, and KILL after --grace seconds; the default is the margin by which this
holder gives up before others may act. If this process is killed, the command is ended, and the lease lapses.

Not promised: that nobody else acts while this process is stopped, or its machine frozen, beyond the lease."""


@dataclass(slots=True)
class _Said:
    """What it came to, for --json."""

    outcome: str
    code: int
    why: str = ""
    reason: str | None = None  # of a lost lease
    epoch: int | None = None
    held_s: float | None = None


def add(commands: Commands) -> None:
    """Register it."""
    parser = add_command(commands, "run", _run, "Run a command while holding the lock.", codes=_CODES, more=_MORE)
    parser.usage = "lockprovider run URL [options] -- COMMAND [ARGUMENT ...]"
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="wait so long for the lock; 0 asks once (default: 60)"
    )
    parser.add_argument("--validity", type=float, metavar="S", help="how long a lease lives (default: 300)")
    parser.add_argument(
        "--renew", type=float, metavar="S", help="how often it is renewed (default: a tenth of --validity)"
    )
    parser.add_argument("--grace", type=float, metavar="S", help="seconds between TERM and KILL (default: the margin)")


def _run(arguments: argparse.Namespace) -> int:
    said = _Said("failed", FAILED)
    try:
        said = _locked(arguments, said)
    except Exception as error:  # code 2 is the command's, here
        if arguments.debug:
            raise
        known = isinstance(error, (CasError, LockError, OSError))
        said.why = str(error) if known else f"unexpected {type(error).__name__}: {error}; --debug shows more"
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, _Stopped) else signal.SIGINT
        said = _Said("interrupted", SIGNALLED + number, f"interrupted by {signal.Signals(number).name}")
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


def _locked(arguments: argparse.Namespace, said: _Said) -> _Said:
    if not arguments.words or not arguments.words[0]:
        raise InvalidInput(f"no command; {FORM}")
    at, news = place(arguments), threading.Event()
    settings = _settings(arguments, at.settings or LockSettings())
    audit = AuditLog(at.store, at.path, exit_s=_AUDIT_S)
    lock = Lock(at.store, at.path, settings, on_lost=lambda _: news.set(), audit=audit)
    with _signals() as signals:
        _look(at, settings)
        try:
            lease = lock.acquire()
        except NotAcquired as refusal:
            return _Said("not_acquired", NOT_ACQUIRED, f"not acquired: {refusal}")
        except _Stopped:
            _give_back(lock, at)
            raise
        grace_s = settings.margin_s if arguments.grace is None else arguments.grace
        return _under(lease, _Order(arguments.words, grace_s, news, signals), said)


def _look(at: LockPlace, settings: LockSettings) -> None:
    """Say what is wrong with the place now, and not after the whole wait; a store that is silent may yet answer.

    Raises:
        CasError: there is no such bucket, no access, and whatever else waiting does not mend.
    """
    try:
        at.store.read_or_none(at.path, timeout=_FIRST_LOOK_S)
    except Unavailable as error:
        complain("lockprovider", f"{error}; trying on, for the {settings.timeout_s:g} s of --timeout")


def _settings(arguments: argparse.Namespace, given: LockSettings) -> LockSettings:
    """The options, over what the URL says, over the defaults."""
    if arguments.validity is not None:
        given = replace(given, validity=arguments.validity, renew=arguments.validity / 10)
    if arguments.grace is not None and not 0 <= arguments.grace < math.inf:
        raise InvalidInput(f"--grace {arguments.grace:g} must be a number of seconds, 0 or more")
    if arguments.renew is not None:
        given = replace(given, renew=arguments.renew)
    return given if arguments.timeout is None else replace(given, timeout=arguments.timeout)


def _give_back(lock: Lock, at: LockPlace) -> None:
    """After an interrupted acquisition: what it may have taken all the same."""
    with contextlib.suppress(CasError, LockError):
        record = look(at.store, at.path, Machine(), timeout_s=5.0).record
        if record is not None and record.owner == lock.owner and not record.given:
            lock.acquire(0.0).release()


@dataclass(slots=True)
class _Order:
    """A command, and what it runs with."""

    words: list[str]
    grace_s: float
    news: threading.Event
    signals: _Signals


def _under(lease: Lease, order: _Order, said: _Said) -> _Said:
    """Run the command under the lease, and give it back."""
    world = Machine()
    began_s = world.monotonic_s()
    said.epoch = lease.epoch
    order.signals.hold()  # a command that was just started must not be forgotten
    try:
        child = Child(order.words, {"LOCKPROVIDER_EPOCH": str(lease.epoch)}, order.grace_s, order.news.set)
    except OSError as error:
        said.code = NO_SUCH_COMMAND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
        said.why = f"{order.words[0]}: {error.strerror}"
    else:
        order.signals.pass_to(child)
        lost = _watch(lease, child, order.news)
        order.signals.hold()
        said.code, said.outcome = child.code(), "ended"
        if lost is not None:
            said.why = f"{lost}; the command was ended (exit code {said.code})"
            said.code, said.outcome, said.reason = LOST, "lost", lost.reason.value
    order.signals.stop()
    _release(lease, said)
    said.held_s = round(world.monotonic_s() - began_s, 3)
    return said


def _watch(lease: Lease, child: Child, news: threading.Event) -> LeaseLost | None:
    """Until the command has ended; the loss, if the lease was lost before that."""
    world = Machine()
    while True:
        ended = child.ended.is_set()  # before the lease is asked: it was held then, if it is held now
        try:
            lease.check()
        except LeaseLost as lost:
            child.end()
            return lost
        if ended:
            return None
        news.wait(min(_CHECK_S, max(0.01, lease.deadline_s - world.monotonic_s())))
        news.clear()  # what it announced is looked at next


def _release(lease: Lease, said: _Said) -> None:
    try:
        lease.release()
    except (CasError, LockError, KeyboardInterrupt) as error:
        complain("lockprovider", f"the lock was not released and lapses by itself: {str(error) or 'interrupted'}")
        said.why = said.why or ""


class _Stopped(KeyboardInterrupt):
    """A signal came while there was no command to pass it to."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Signals:
    """Where signals go: to the command while there is one, else they stop what is being done."""

    def __init__(self) -> None:
        self._send: Callable[[int], None] = self._stop
        self._held: list[int] = []
        self._ignored: frozenset[int] = frozenset()

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The handler of them all."""
        del frame
        if number not in self._ignored:
            self._send(number)

    def hold(self) -> None:
        """Keep what comes, for whoever takes it."""
        self._send = self._held.append

    def pass_to(self, child: Child) -> None:
        """The terminal has sent its own to the command already, where that is in the same group."""
        names = () if child.own_group else _FROM_TERMINAL
        self._ignored = frozenset(getattr(signal, name) for name in names)
        self._send = child.send
        while self._held:
            child.send(self._held.pop(0))

    def stop(self) -> None:
        """Let the next one stop what is being done; what was kept came too late."""
        self._ignored, self._send = frozenset(), self._stop

    @staticmethod
    def _stop(number: int) -> None:
        raise _Stopped(number)


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    """What this process is told to ignore (nohup) stays ignored, by the command too."""
    signals = _Signals()
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
