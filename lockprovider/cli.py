"""Command line `lockprovider`; `lockprovider.commands` holds its commands."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from fsspec_cas.command import BAD_INPUT, REFUSED, UNAVAILABLE, UNKNOWN, add_completion, add_general, complain, run
from lockprovider.commands import demo, lock, running
from lockprovider.commands.arguments import CODES
from lockprovider.errors import LeaseLost, LockError, NotAcquired, PublishUnknown
from lockprovider.recipes import errors

# Imported only for their commands; their `add_<name>` sets `run`.
LATE: dict[str, tuple[str, str]] = {
    "elect": ("lockprovider.commands.election", "Run a command while this process leads an election."),
    "leader": ("lockprovider.commands.election", "Show the leader of an election."),
    "table": ("lockprovider.commands.table", "Show, check and maintain a Hudi table."),
    "queue": ("lockprovider.commands.queue", "Put messages into a work queue and process them."),
    "state": ("lockprovider.commands.state", "Read, write and edit a shared document with a history."),
    "wal": ("lockprovider.commands.wal", "Append to a shared log and read it."),
}

_RUN = ("run", "elect", "state run", "state lock", "queue work")
_OWN_CODES = _RUN[:4]  # 2 may be the program's exit code

_EXAMPLES = """examples:
  lockprovider status s3://bucket/table
  lockprovider run s3://bucket/table --timeout 600 -- ./nightly.sh
  lockprovider run /mnt/share --on jobs/nightly.json -- make report
  lockprovider break s3://bucket/table --if-owner 6f1c...
  lockprovider watch s3://bucket/table --json | jq .what"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command (default: of `sys.argv`); return its exit status. Words after `--` are the program to start.

    Usage errors raise SystemExit, or return 125 if 2 could be that program's.
    """
    all_words = list(sys.argv[1:] if arguments is None else arguments)
    options = list(takewhile(lambda word: word.startswith("-"), all_words))
    words, command = all_words[len(options) :], list[str]()
    name = next((name for name in _RUN if words[: name.count(" ") + 1] == name.split()), "")
    if name and "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    try:
        root = parser(words[:1])
        parsed = root.parse_args([*options, *words])
        if any("\udc80" <= letter <= "\udcff" for letter in "".join(words)):  # bytes that Python could not decode
            root.error("an argument is not UTF-8 text")
    except SystemExit as end:
        if name not in _OWN_CODES or end.code != BAD_INPUT or (name == "state lock" and not command):
            raise
        complain("lockprovider", running.form(name))
        return running.FAILED
    parsed.words = command
    return run("lockprovider", parsed, _code)


def parser(first: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Build the parser of all commands; those of `LATE` have arguments only if named in `first`, which imports them.

    SystemExit: an import failed.
    """
    root = argparse.ArgumentParser(
        prog="lockprovider",
        description="Locks and tables on object stores.",
        epilog=f"{_EXAMPLES}\n\n{CODES}\n\n`run` and `elect` have other exit codes: see `lockprovider run --help`.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_general(root)
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    add_completion(commands, lambda: parser(list(LATE)))
    lock.add(commands)
    for name, (late, text) in LATE.items():
        if name in first:
            getattr(_late(name, late), f"add_{name}")(commands)
        else:
            commands.add_parser(name, help=text)
    demo.add(commands)
    return root


def _late(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        print(f"lockprovider: {name!r} needs {error.name}: install the extra 'table' of fsspec-cas", file=sys.stderr)
        raise SystemExit(BAD_INPUT) from error


def _code(error: Exception) -> int | None:  # noqa: PLR0911 - a table
    """Map a lock or coordination error to its exit code; None for other errors."""
    match error:
        case PublishUnknown():
            return UNKNOWN
        case LeaseLost() | NotAcquired() | errors.Fenced() | errors.StateLocked() | errors.StateConflict():
            return REFUSED
        case errors.NoRevision() | errors.TermLost() | errors.NotElected() | errors.ClaimLost():
            return REFUSED
        case errors.SequenceGap() | errors.Sealed() | errors.Trimmed():
            return REFUSED
        case errors.Overloaded() | errors.QueueFull() | errors.LogFull():
            return UNAVAILABLE
        case LockError() | errors.CoordinationError():
            return BAD_INPUT
        case _:
            return None


if __name__ == "__main__":
    sys.exit(main())
