"""`lockprovider run URL -- COMMAND`: a command that runs only while the lock is held."""

from __future__ import annotations

import argparse
import contextlib
import math
import threading
from dataclasses import replace

from fsspec_cas import CasError, InvalidInput, Machine, Unavailable
from fsspec_cas.command import complain
from lockprovider import Lock, LockError, LockSettings, NotAcquired
from lockprovider.commands.place import Commands, add_command, place
from lockprovider.commands.running import (
    NOT_ACQUIRED,
    CommandOrder,
    CommandResult,
    Stopped,
    codes,
    form,
    passed_signals,
    reported,
)
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.inspect import look
from lockprovider.storage_lock.provider import LockPlace

_FIRST_LOOK_S = 5.0
_AUDIT_S = 10.0  # for the last record, at the end
_CODES = codes(
    "not acquired: others held the lock for --timeout seconds; the command was not started",
    "lost: the lease was lost before the command ended by itself; the command was ended",
    "the lock",
)

_MORE = """The command gets the terminal, the signals (TERM, INT, HUP, QUIT, USR1, USR2) and LOCKPROVIDER_EPOCH: a
number that rises with every holder (across a JVM writer as far as clocks agree), a fencing token for what can check
one. When the lease is lost it gets TERM, and KILL after --grace seconds; the default is the margin by which this
holder gives up before others may act. If this process is killed, the command is ended, and the lease lapses.

Not promised: that nobody else acts while this process is stopped, or its machine frozen, beyond the lease."""


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
    return reported(arguments, _locked)


def _locked(arguments: argparse.Namespace, said: CommandResult) -> CommandResult:
    if not arguments.words or not arguments.words[0]:
        raise InvalidInput(f"no command; {form('run')}")
    at, news = place(arguments), threading.Event()
    settings = _settings(arguments, at.settings or LockSettings())
    audit = AuditLog(at.store, at.path, exit_s=_AUDIT_S)
    lock = Lock(at.store, at.path, settings, on_lost=lambda _: news.set(), audit=audit)
    with passed_signals() as signals:
        deadline_s = Machine().monotonic_s() + settings.timeout
        _look(at, settings)
        try:
            lease = lock.acquire(max(0.0, deadline_s - Machine().monotonic_s()))
        except NotAcquired as refusal:
            return CommandResult("not_acquired", NOT_ACQUIRED, f"not acquired: {refusal}")
        except Stopped:
            _give_back(lock, at)
            raise
        grace_s = settings.margin_s if arguments.grace is None else arguments.grace
        return CommandOrder(arguments.words, grace_s, news, signals).run_under(lease, lease.release, said)


def _look(at: LockPlace, settings: LockSettings) -> None:
    """Say what is wrong with the place now, and not after the whole wait; a store that is silent may yet answer.

    Raises:
        CasError: there is no such bucket, no access, and whatever else waiting does not mend.
    """
    if settings.timeout <= _FIRST_LOOK_S:
        return  # the acquisition itself says it as soon
    try:
        at.store.read_or_none(at.path, timeout=_FIRST_LOOK_S)
    except Unavailable as error:
        complain("lockprovider", f"{error}; trying on, for the {settings.timeout:g} s of --timeout")


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
