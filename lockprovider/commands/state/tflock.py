"""`lockprovider state lock --style tflock`, and `who` and `unlock` of that lock: Terraform's own S3 lock file."""

from __future__ import annotations

import argparse
from typing import Any

from fsspec_cas.command import DONE, complain, storage_options
from lockprovider.commands.child import run_child
from lockprovider.commands.place import Commands, add_object_command, say
from lockprovider.commands.running import LOST, NOT_ACQUIRED, CommandResult, codes, passed_signals, reported
from lockprovider.recipes.errors import StateConflict, StateLocked
from lockprovider.recipes.state.terraform import TfLock, TfLockFile

STYLE = "tflock"
_CODES = codes(
    "not acquired: others held it for --timeout seconds; the command was not started",
    "lost: somebody unlocked it before the command ended",
    "the lock",
)
_MORE = f"""The lock is the file that Terraform and OpenTofu take with `use_lockfile = true`: URL.{STYLE}. So none
of their runs on this state goes on meanwhile. The command gets LOCKPROVIDER_LOCK_ID. Without a command it stays locked,
and its ID is said: `lockprovider state unlock URL --style {STYLE} --id ID`.

Not promised: that it is unlocked if this process is killed: that file has no lease. Where you can, keep the state by
`lockprovider state run`, whose lock lapses, and whose writes are fenced."""


def add(commands: Commands) -> None:
    """Register it."""
    text = "Hold Terraform's own lock of a state, while a command runs or until it is unlocked."
    what = "the state's object, bucket and key: s3://bucket/infra/network.tfstate"
    parser = add_object_command(commands, "lock", _lock, text, what, codes=_CODES, more=_MORE)
    parser.usage = "lockprovider state lock URL --style tflock [options] [-- COMMAND [ARGUMENT ...]]"
    parser.add_argument("--style", choices=(STYLE,), required=True, help="whose lock it is")
    parser.add_argument("--timeout", type=float, default=0.0, metavar="S", help="wait so long for others (default: 0)")
    parser.add_argument("--reason", default="", help="shown to those who wait")


def add_style(parser: argparse.ArgumentParser) -> None:
    """`--style` for `who` and `unlock`."""
    help_text = f"{STYLE}: of Terraform's own lock file beside the state, not of edits here"
    parser.add_argument("--style", choices=("edit", STYLE), default="edit", help=help_text)


def _opened(arguments: Any) -> TfLock:
    return TfLock.open(arguments.url, storage_options=storage_options(arguments))


def say_holder(arguments: Any) -> int:
    """Say who holds it."""
    shown = _opened(arguments).shown()
    fields = {"state": "absent"} if shown is None else {"state": "held", **_fields(shown)}
    say(arguments, fields, "nobody holds it" if shown is None else _words(shown))
    return DONE


def _words(shown: TfLockFile) -> str:
    """For people."""
    said = (shown.who or "somebody", f"since {shown.created}", f"ID {shown.id}", shown.operation, shown.info)
    return "  ".join(word for word in said if word)


def unlock(arguments: Any, confirmed: Any) -> int:
    """Remove the file that was shown, when that was confirmed, or has the ID that was given."""
    lock = _opened(arguments)
    shown = lock.shown()
    if shown is None:
        say(arguments, {"outcome": "not_held"}, "nobody holds it: nothing was unlocked")
        return DONE
    if arguments.id is not None and arguments.id != shown.id:
        raise StateConflict(f"another has it: {_words(shown)}; nothing was unlocked")
    if arguments.id is None and (refused := confirmed(_words(shown))) is not None:
        return int(refused)
    lock.unlock(shown)
    say(arguments, {"outcome": "unlocked", **_fields(shown)}, f"unlocked: {_words(shown)}")
    return DONE


def _lock(arguments: argparse.Namespace) -> int:
    return reported(arguments, _locked) if arguments.words else _lock_and_leave(arguments)


def _lock_and_leave(arguments: argparse.Namespace) -> int:
    held = _opened(arguments).acquire(operation="lock", info=arguments.reason, timeout=arguments.timeout)
    say(arguments, {"outcome": "locked", **_fields(held)}, held.id)
    return DONE


def _locked(arguments: argparse.Namespace, said: CommandResult) -> CommandResult:
    lock = _opened(arguments)
    with passed_signals():
        try:
            held = lock.acquire(operation=arguments.words[0], info=arguments.reason, timeout=arguments.timeout)
        except StateLocked as refusal:
            return CommandResult("not_acquired", NOT_ACQUIRED, f"not acquired: {refusal}")
        try:
            said = CommandResult("ended", run_child(arguments.words, {"LOCKPROVIDER_LOCK_ID": held.id}))
        finally:
            there = _given_back(lock, held)
    return said if there else CommandResult("lost", LOST, f"somebody unlocked it; the command ended with {said.code}")


def _given_back(lock: TfLock, held: TfLockFile) -> bool:
    """Whether it was there still."""
    try:
        return lock.unlock(held)
    except StateConflict as conflict:
        complain("lockprovider", str(conflict))
        return False


def _fields(one: TfLockFile) -> dict[str, str]:
    return {"id": one.id, "who": one.who, "operation": one.operation, "info": one.info, "created": one.created}
