"""`lockprovider break URL`: take the lock from a holder that will not give it back."""

from __future__ import annotations

import sys
from typing import Any

from fsspec_cas import InvalidInput, Lost, Machine, Unknown, Won
from fsspec_cas.command import DONE, REFUSED, UNKNOWN, complain
from lockprovider.commands.place import Commands, add_command, add_request_timeout, place, say
from lockprovider.storage_lock.inspect import Broken, break_lock, look
from lockprovider.storage_lock.provider import LockPlace
from lockprovider.storage_lock.status import LockStatus, lines, status_fields

_MORE = """It shows the record, asks, and marks that very record as released, by a conditional write: if the holder
renewed it in between, or somebody else took it, nothing is written.

A holder that is alive goes on until its next renewal tells it. What it would publish through the lock is refused from
then on; anything else that it writes is not stopped. Make sure that it is dead, or that you can bear this.

A publish that was decided is finished before the lock is free. One that never can be (other bytes are at its path, or
its own are gone) keeps everybody from taking the lock: it is set aside, in an object whose name is printed."""


def add(commands: Commands) -> None:
    """Register it."""
    parser = add_command(commands, "break", _break, "Release a lock in the place of its holder.", more=_MORE)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--if-owner", metavar="OWNER", help="only if the record's owner is this one")
    add_request_timeout(parser)


def _break(arguments: Any) -> int:
    at = place(arguments)
    seen = look(at.store, at.path, Machine(), timeout_s=arguments.timeout)
    record = seen.record
    if record is None:
        return _nothing_to_do(arguments, at, seen)
    if arguments.if_owner not in (None, record.owner):
        return _refused(arguments, seen, f"{at} is not owned by {arguments.if_owner} but by {record.owner}")
    if record.given and not record.unapplied:
        return _nothing_to_do(arguments, at, seen)
    if not arguments.yes and not _confirmed(at, seen):
        return _refused(arguments, seen, "not confirmed")
    return _break_seen(arguments, at, seen)


def _break_seen(arguments: Any, at: LockPlace, seen: LockStatus) -> int:
    done = break_lock(at.store, at.path, seen, Machine(), timeout_s=arguments.timeout)
    match done.outcome:
        case Won():
            _say(arguments, "broken", seen, _words(at, seen, done), done)
            return DONE
        case Lost():
            return _refused(arguments, seen, f"the record of {at} has changed since it was shown; look again")
        case Unknown(why=why):
            _say(arguments, "unknown", seen, "")
            complain("lockprovider", f"it is not known whether {at} was broken: {why}; run `lockprovider status`")
            return UNKNOWN


def _words(at: LockPlace, seen: LockStatus, done: Broken) -> str:
    said = [f"broken: {at} is free; it was held by {seen.record and seen.record.owner}"]
    if done.finished:
        said.append(f"decided before, and there now: {', '.join(done.finished)}")
    said += [f"set aside: {path} cannot be applied; see {kept}" for path, kept in done.set_aside.items()]
    return "\n".join(said)


def _confirmed(at: LockPlace, seen: LockStatus) -> bool:
    if not sys.stdin.isatty():
        raise InvalidInput("nobody is there to be asked; look with `lockprovider status` and add --yes")
    shown = "\n".join([f"lock     {at}", *lines(seen)])
    print(f"{shown}\nBreak it? Type yes: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == "yes"


def _nothing_to_do(arguments: Any, at: LockPlace, seen: LockStatus) -> int:
    _say(arguments, "not_held", seen, f"not held: {at} is {seen.state}; nothing was written")
    return DONE


def _refused(arguments: Any, seen: LockStatus, why: str) -> int:
    _say(arguments, "refused", seen, "")
    complain("lockprovider", f"{why}; nothing was written")
    return REFUSED


def _say(arguments: Any, outcome: str, seen: LockStatus, plain: str, done: Broken | None = None) -> None:
    if plain or arguments.json:
        more = {} if done is None else {"finished": list(done.finished), "set_aside": dict(done.set_aside)}
        say(arguments, {"outcome": outcome, "seen": status_fields(seen), **more}, plain)
