"""Commands of a lock."""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from fsspec_cas import CasError, Content, InvalidInput, Lost, Machine, Unavailable, Unknown, Won
from fsspec_cas.command import DONE, REFUSED, UNKNOWN, complain, storage_options
from lockprovider import HUDI_LOCK_PATH, Lock, LockError, LockSettings, NotAcquired
from lockprovider.commands.arguments import (
    READS,
    RUNS,
    Commands,
    add_command,
    confirmed,
    exit_codes,
    file,
    flag,
    option,
    pause,
    positive,
    say,
    seconds,
    wait,
)
from lockprovider.commands.running import (
    NOT_ACQUIRED,
    CommandOrder,
    CommandResult,
    Stopped,
    add_grace,
    codes,
    command_of,
    passed_signals,
    reported,
)
from lockprovider.lanes import RED, Box, Lane, draw_lanes
from lockprovider.storage_lock.audit import Audit, How, Overlap, analyse, places
from lockprovider.storage_lock.audit_log import AuditLog, is_enabled, read_files, set_enabled
from lockprovider.storage_lock.provider import LockPlace, locate
from lockprovider.storage_lock.record import LockRecord
from lockprovider.storage_lock.status import (
    Broken,
    Change,
    LockStatus,
    RecordState,
    break_lock,
    changes_between,
    describe,
    lines,
    look,
    record_fields,
    state_at,
    status_fields,
)
from lockprovider.words import count, moment, span


def add(commands: Commands) -> None:
    """Register `status`, `run`, `watch`, `break` and `audit`."""
    more = (
        "The command only reads. It judges by the store's clock whether the lease has lapsed, if the store reports it."
    )
    text = "Show the holder of the lock, since when, until when, and what is pending."
    _add_timeout(_command(commands, "status", _status, text, codes=exit_codes(**READS), more=more))
    command = partial(reported, work=_run_locked)
    text = "Run a command while holding the lock."
    run = _command(commands, "run", command, text, codes=_RUN_CODES, more=_RUN_MORE, usage=RUNS)
    option(run, "--timeout", seconds, "seconds to wait for the lock; 0 tries once (default: 60)")
    option(run, "--validity", seconds, "seconds that a lease lasts without renewal (default: 300)")
    option(run, "--renew", seconds, "seconds between renewals (default: a tenth of --validity)")
    add_grace(run)
    text, quiet = "Print each change of the lock as it happens.", exit_codes(unknown="", unavailable="")
    watch = _command(commands, "watch", _watch, text, codes=quiet, more=_WATCH_MORE)
    option(watch, "--every", pause, "seconds between reads (default: 1)", 1.0)
    option(watch, "--for", wait, "end after S seconds (default: Ctrl-C)", dest="for_s")
    _add_timeout(watch)
    text = "Release a lock that another process holds."
    refused = exit_codes("refused, nothing was written: not confirmed, held by another owner, or changed")
    free = _command(commands, "break", _break, text, codes=refused, more=_BREAK_MORE)
    flag(free, "--yes", "do not ask for confirmation")
    option(free, "--if-owner", "OWNER", "break the lock only if OWNER holds it")
    _add_timeout(free)
    text = "Show which process held the lock when, and for how long."
    wrong = exit_codes("two owners held the lock at once")
    audit = _command(commands, "audit", _audit, text, codes=wrong, more=_AUDIT_MORE)
    switch = audit.add_mutually_exclusive_group()
    flag(switch, "--enable", "make all writers keep records from now on")
    flag(switch, "--disable", "stop keeping records; old ones stay")
    option(audit, "--svg", file, "draw the records as a picture")
    option(audit, "--last", positive, "read only the N files that were written last")
    _add_timeout(audit)


def _command(
    commands: Commands, name: str, run: Callable[[Any], int | None], text: str, **more: str
) -> argparse.ArgumentParser:
    url = "the table, or any folder: s3://bucket/table; options such as `?on=` may follow"
    parser = add_command(commands, name, run, text, url, **more)
    on = f"path of the lock's object below URL (default: {HUDI_LOCK_PATH})"
    option(parser, "--on", "PATH", on, type=str)
    return parser


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    option(parser, "--timeout", seconds, "seconds for each request (default: 30)", 30.0)


def _place(arguments: Any) -> LockPlace:
    return locate(arguments.url, on=arguments.on, storage_options=storage_options(arguments))


def _status(arguments: Any) -> None:
    at = _place(arguments)
    status = look(at.store, at.path, Machine(), timeout_s=arguments.timeout)
    say(arguments, {"url": at.url, "path": at.path, **status_fields(status)}, _shown(at, status))


def _shown(at: LockPlace, status: LockStatus) -> str:
    return "\n".join([f"lock     {at}", *lines(status)])


_WATCH_MORE = """The command reads the lock every --every seconds. While nothing changes, the store sends no body (304).
A change that is undone between two reads is not shown. The command ends at Ctrl-C, or after --for seconds."""


def _watch(arguments: Any) -> int:
    """Poll the record, and print its state, then changes; DONE after `--for`, else endless.

    Reports each outage of the store once, and retries.
    """
    at, world = _place(arguments), Machine()
    end_s = None if arguments.for_s is None else world.monotonic_s() + arguments.for_s
    content: Content | None = None
    record: LockRecord | None = None
    before: RecordState | None = None
    reached = True
    while True:
        try:
            content = at.store.read_or_none(at.path, content, timeout=arguments.timeout)
            reached = True
        except Unavailable as error:
            if reached:
                complain("lockprovider", f"{error}; retrying")
            reached = False
        else:
            after = None if content is None else LockRecord.decode(content.data, at.path)
            state = state_at(after, world.now_ms())
            changes = [Change(state, after)] if before is None else changes_between(record, after)
            if before is not None and state == "lapsed" and (changes or before != "lapsed"):
                changes.append(Change("lapsed", after))
            record, before = after, state
            for change in changes:
                now_ms, fields = world.now_ms(), record_fields(change.record)
                fields = {"at_ms": now_ms, "url": at.url, "path": at.path, "what": change.what, **fields}
                say(arguments, fields, f"{moment(now_ms)}  {describe(change)}")
        if end_s is not None and world.monotonic_s() + arguments.every > end_s:
            return DONE
        world.sleep(arguments.every)


_BREAK_MORE = """The command shows the lock record, asks, and marks that record as released by a conditional write. If
the holder renewed the lock in between, or another process acquired it, nothing is written.

A live holder works on until its next renewal notices the break. From the break on, what it publishes through the lock
is refused; its other writes are not stopped. Make sure that the holder is dead, or that these writes do no harm.

A decided publish is applied before the lock is free. If it cannot be applied, no client could acquire the lock: its
path holds other bytes, or its own bytes are gone. It is then set aside in an object whose name is printed."""


def _break(arguments: Any) -> int:
    """Break the lock after confirmation, its publishes applied or set aside.

    DONE, also if it is free without any. REFUSED if declined, held by another than `--if-owner`, or changed since;
    UNKNOWN: perhaps broken.
    """
    at = _place(arguments)
    status = look(at.store, at.path, Machine(), timeout_s=arguments.timeout)
    record = status.record
    if record is None or (record.is_free and not record.all_pending):
        _say_seen(arguments, "not_held", status, f"not held: {at} is {status.state}; nothing was written")
        return DONE
    if arguments.if_owner not in (None, record.owner):
        return _refused(arguments, status, f"{at} is held by {record.owner}, not by {arguments.if_owner}")
    if not confirmed(arguments, f"{_shown(at, status)}\nBreak it?", "status"):
        _say_seen(arguments, "refused", status, "")
        return REFUSED
    return _break_seen(arguments, at, status)


def _break_seen(arguments: Any, at: LockPlace, status: LockStatus) -> int:
    """Apply or set aside pending publishes, break the lock of `status`, and print the outcome.

    Returns DONE, REFUSED (the record changed), or UNKNOWN.
    """
    result = break_lock(at.store, at.path, status, Machine(), timeout_s=arguments.timeout)
    match result.outcome:
        case Won():
            _say_seen(arguments, "broken", status, _broken(at, status, result), result)
            return DONE
        case Lost():
            why = f"the lock record of {at} has changed since it was shown; run the command again"
            return _refused(arguments, status, why)
        case Unknown(why=why):
            _say_seen(arguments, "unknown", status, "")
            complain("lockprovider", f"{at} may have been broken: {why}; run `lockprovider status`")
            return UNKNOWN


def _broken(at: LockPlace, status: LockStatus, result: Broken) -> str:
    """Sentences: who held the broken lock, and which publishes were applied or set aside."""
    sentences = [f"broken: {at} is free; it was held by {status.record and status.record.owner}"]
    if result.finished:
        sentences.append(f"applied decided publishes: {', '.join(result.finished)}")
    sentences += [
        f"set aside the publish of {path}, which cannot be applied; see {copy}"
        for path, copy in result.set_aside.items()
    ]
    return "\n".join(sentences)


def _refused(arguments: Any, status: LockStatus, why: str) -> int:
    _say_seen(arguments, "refused", status, "")
    complain("lockprovider", f"{why}; nothing was written")
    return REFUSED


def _say_seen(arguments: Any, outcome: str, status: LockStatus, plain: str, result: Broken | None = None) -> None:
    if plain or arguments.json:
        more = {} if result is None else {"finished": list(result.finished), "set_aside": dict(result.set_aside)}
        say(arguments, {"outcome": outcome, "seen": status_fields(status), **more}, plain)


_AUDIT_MORE = """The command reads the audit records of all writers, JVM Hudi included. --enable and --disable switch
the records on and off for all writers. A Python writer notices at an acquisition, at most a minute late. A JVM writer
begins at its next acquisition, and stops at its next start.

Times are those of each writer's clock before it sent a request, so an overlap of up to 500 ms may be a difference of
clocks. The exit code is 1 if two owners held the lock at once for longer."""

_LOOKS: dict[How, tuple[str, str]] = {
    "released": ("#3b78c3", "released"),
    "lost": ("#8a5cc2", "lost before its release"),
    "lapsed": ("#f0a202", "no end recorded; lapsed"),
    "held": ("#2f9e6e", "held now"),
}
_MOST_LANES = 40


def _audit(arguments: Any) -> int:
    """Switch the audit on or off; or print its records, and draw them into `--svg`.

    Returns DONE, or REFUSED for overlaps. InvalidInput: `--svg` or `--last` with a switch.
    """
    at = _place(arguments)
    if arguments.enable or arguments.disable:
        if arguments.svg is not None or arguments.last is not None:
            raise InvalidInput("--svg and --last are for the records: leave them out with --enable and --disable")
        return _set(arguments, at)
    where = places(at.path)
    enabled = is_enabled(at.store, where.switch, timeout_s=arguments.timeout)
    files = read_files(at.store, where.folder, arguments.last, timeout_s=arguments.timeout)
    audit = analyse(files, Machine().now_ms())
    if arguments.svg is not None:
        arguments.svg.write_text(draw_audit(audit, str(at)), encoding="utf-8")
    fields = {"url": at.url, "path": at.path, "enabled": enabled, "wrong": bool(audit.overlaps), **asdict(audit)}
    for tenure in fields["tenures"]:
        tenure["held_ms"] = tenure["end_ms"] - tenure["start_ms"]
    say(arguments, fields, "\n".join(_report(at, audit, enabled=enabled)))
    return REFUSED if audit.overlaps else DONE


def _set(arguments: Any, at: LockPlace) -> int:
    switch = places(at.path).switch
    set_enabled(at.store, switch, enabled=arguments.enable, timeout_s=arguments.timeout)
    words = "writers keep records from now on" if arguments.enable else "writers stop keeping records; old ones stay"
    fields = {"url": at.url, "path": at.path, "enabled": arguments.enable}
    say(arguments, fields, f"{words} ({at.url.rstrip('/')}/{switch})")
    return DONE


def _report(at: LockPlace, audit: Audit, *, enabled: bool) -> Iterator[str]:
    """Yield an audit's lines: switch, totals, each tenure, overlaps, and files with lines that are no records."""
    switch = "on" if enabled else "off: run with --enable to make all writers keep records"
    yield from (f"lock     {at}", f"audit    {switch}", f"records  {_totals(audit)}")
    if audit.tenures:
        yield f"\n{'from':<28}{'for':<13}{'owner':<37}{'how it ended':<32}renewed"
    for tenure in audit.tenures:
        held, how = span(tenure.end_ms - tenure.start_ms), _LOOKS[tenure.how][1]
        yield f"{moment(tenure.start_ms):<28}{held:<13}{tenure.owner:<37}{how:<32}{tenure.renewals}"
    yield from (f"WRONG {_sentence(overlap)}" for overlap in audit.overlaps)
    yield from (f"note  {file} has lines that are not audit records" for file in audit.unreadable)


def _totals(audit: Audit) -> str:
    owners = count(len({tenure.owner for tenure in audit.tenures}), "owner")
    held_ms = sum(tenure.end_ms - tenure.start_ms for tenure in audit.tenures)
    words = f"held {count(len(audit.tenures), 'time')} by {owners} for {span(held_ms)} together"
    wrong = count(len(audit.overlaps), "overlap") if audit.overlaps else "no overlap"
    return f"{words} ({count(audit.files, 'file')}); {wrong}"


def _sentence(overlap: Overlap) -> str:
    long = span(overlap.to_ms - overlap.from_ms)
    return f"overlap: {' and '.join(overlap.owners)} both held it for {long} from {moment(overlap.from_ms)}"


def draw_audit(audit: Audit, title: str) -> str:
    """Audit as SVG, with a lane per owner; beyond 40, the last is "others"."""
    owners = list(dict.fromkeys(tenure.owner for tenure in audit.tenures))
    names = owners if len(owners) <= _MOST_LANES else [*owners[: _MOST_LANES - 1], "others"]
    of_owner: dict[str, list[Box]] = {name: [] for name in names}
    for tenure in audit.tenures:
        colour, how = _LOOKS[tenure.how]
        words = f"{tenure.owner}: {span(tenure.end_ms - tenure.start_ms)} from {moment(tenure.start_ms)}, {how}"
        lane = of_owner[tenure.owner if tenure.owner in of_owner else "others"]
        lane.append(Box(tenure.start_ms, tenure.end_ms, colour, words))
    stripes = [Box(overlap.from_ms, overlap.to_ms, RED, _sentence(overlap), opacity=0.35) for overlap in audit.overlaps]
    legend = [Box(0, 0, colour, words) for colour, words in _LOOKS.values()]
    legend.append(Box(0, 0, RED, "held by two owners at once", opacity=0.35))
    lanes = [Lane(name, boxes) for name, boxes in of_owner.items()]
    return draw_lanes(title, _totals(audit), lanes, legend=legend, stripes=stripes, is_wrong=bool(audit.overlaps))


_FIRST_LOOK_S = 5.0
_AUDIT_S = 10.0
_RUN_CODES = codes(
    "the lock",
    "not acquired: other clients held the lock for --timeout seconds; the command was not started",
    "lost: the lease was lost while the command ran; the command was ended",
)

_RUN_MORE = """The command gets the terminal, the signals TERM, INT, HUP, QUIT, USR1 and USR2, and the variable
LOCKPROVIDER_EPOCH: a number that rises with every holder, for use as a fencing token. Across a JVM writer it rises as
far as the clocks agree.

When the lease is lost, the command gets TERM, and KILL after --grace seconds. By default that is the margin by which
this holder stops before another may act. If this program is killed, the command is ended, and the lease lapses.

Not promised: that no other process acts while this process or its machine is paused beyond the lease."""


def _run_locked(arguments: argparse.Namespace, result: CommandResult) -> CommandResult:
    """Acquire the lock, run the command, and release; fill in and return `result`.

    "lost": a lost lease ended the command. "not_acquired", in a new result: after `--timeout`. A signal during the
    acquisition raises `Stopped`, and releases the lock.
    """
    words = command_of(arguments, "run")
    at, news = _place(arguments), threading.Event()
    settings = _settings(arguments, at.settings or LockSettings())
    grace_s = settings.margin_s if arguments.grace is None else arguments.grace
    audit = AuditLog(at.store, at.path, exit_s=_AUDIT_S)
    lock = Lock(at.store, at.path, settings, on_lost=lambda _: news.set(), audit=audit)
    with passed_signals() as signals:
        deadline_s = Machine().monotonic_s() + settings.timeout
        _look_first(at, settings)
        try:
            lease = lock.acquire(max(0.0, deadline_s - Machine().monotonic_s()))
        except NotAcquired as refusal:
            return CommandResult("not_acquired", NOT_ACQUIRED, f"not acquired: {refusal}")
        except Stopped:
            _give_back(lock, at)
            raise
        return CommandOrder(words, signals, grace_s, news).run_under(lease, lease.release, result)


def _look_first(at: LockPlace, settings: LockSettings) -> None:
    if settings.timeout <= _FIRST_LOOK_S:
        return
    try:
        at.store.read_or_none(at.path, timeout=_FIRST_LOOK_S)
    except Unavailable as error:
        complain("lockprovider", f"{error}; retrying for the {settings.timeout:g} s of --timeout")


def _settings(arguments: argparse.Namespace, settings: LockSettings) -> LockSettings:
    if arguments.validity is not None:
        settings = replace(settings, validity=arguments.validity, renew=arguments.validity / 10)
    if arguments.renew is not None:
        settings = replace(settings, renew=arguments.renew)
    return settings if arguments.timeout is None else replace(settings, timeout=arguments.timeout)


def _give_back(lock: Lock, at: LockPlace) -> None:
    with contextlib.suppress(CasError, LockError):
        record = look(at.store, at.path, Machine(), timeout_s=5.0).record
        if record is not None and record.owner == lock.owner and not record.is_free:
            lock.acquire(0.0).release()
