"""Arguments and output that all commands share."""

from __future__ import annotations

import argparse
import base64
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import LARGEST_NUMBER
from fsspec_cas.command import (
    BAD_INPUT,
    DONE,
    INTERRUPTED,
    NOT_SUPPORTED,
    OPTIONS_HELP,
    REFUSED,
    UNAVAILABLE,
    UNKNOWN,
    add_storage_options,
    complain,
)

Commands = Any

_NO_ANSWER = "unavailable: the store did not answer or kept throttling"
READS = {"unknown": "", "unavailable": _NO_ANSWER}


def exit_codes(
    refused: str = "",
    *,
    unknown: str = "unknown: the write may have been applied; read the object and decide",
    unavailable: str = f"{_NO_ANSWER}; nothing was written",
) -> str:
    """Help on exit codes and storage options.

    `refused`, `unknown` and `unavailable` describe their codes; "" leaves a code out.
    """
    meanings = {
        DONE: "done",
        REFUSED: refused,
        BAD_INPUT: "bad input: usage, URL, options, credentials; or what it names is missing or unfit",
        UNKNOWN: unknown,
        UNAVAILABLE: unavailable,
        NOT_SUPPORTED: "not supported by this store or protocol",
        INTERRUPTED: "interrupted",
    }
    lines = [f"  {code:<3}  {meaning}" for code, meaning in meanings.items() if meaning]
    return "\n".join(["exit codes:", *lines, "", OPTIONS_HELP])


CODES = exit_codes("refused, nothing was written; or a check failed (audit, doctor, demo)")


RUNS = "URL [options] -- COMMAND [ARGUMENT ...]"


def add_group(commands: Commands, name: str, text: str, examples: str, codes: str = CODES) -> Commands:
    """Add a command of subcommands; return the object that takes these. `codes` ends its help."""
    parent = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"{examples}\n\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parent.add_subparsers(required=True, metavar="COMMAND")


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[Any], int | None],
    text: str,
    url: str,
    *,
    codes: str = "",
    more: str = "",
    usage: str = "",
) -> argparse.ArgumentParser:
    """Add a command with a URL, storage options, `--json` and `--debug`; `url`: the URL's help.

    `run` returns the exit code (None: `DONE`). `more` follows `text`, `codes` ends the help, `usage` replaces what
    follows the name.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text}\n{more}",
        epilog=codes or exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _mix(parser)
    parser.usage = f"{parser.prog} {usage}" if usage else None
    parser.set_defaults(run=lambda arguments: run(arguments) or DONE)
    parser.add_argument("url", metavar="URL", help=url)
    add_storage_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    return parser


def stdin_lines() -> Iterator[bytes]:
    """Lines of stdin, without line ends."""
    return (line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer)


def _mix(parser: argparse.ArgumentParser) -> None:
    """Patch `parser` to accept options before positional arguments that may be left out."""

    def parse(words: Sequence[str], namespace: argparse.Namespace | None = None) -> Any:
        """`parser.parse_known_args`, which accepts intermixed options."""
        del vars(parser)["parse_known_args"]
        try:
            if "--" in words:  # mixed, one before all positional arguments would be lost
                known, unknown = parser.parse_known_args(words, namespace)
                if not unknown:
                    return known, unknown
            return parser.parse_known_intermixed_args(words, namespace)
        finally:
            vars(parser)["parse_known_args"] = parse

    vars(parser)["parse_known_args"] = parse


def _number(kind: Callable[[str], float], least: float, most: float, words: str) -> Callable[[str], Any]:
    """Argparse type of numbers from `least` to `most`; `kind` parses, `words` describe them in the error."""

    def parse(text: str) -> float:
        with suppress(ValueError):
            if least <= (number := kind(text)) <= most:
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}")

    return parse


_LONGEST_S = 1e9
seconds = _number(float, 0, _LONGEST_S, "a number of seconds, 0 or more")
wait = _number(float, 0, math.inf, "a number of seconds, 0 or more, or inf")
pause = _number(float, 0.001, _LONGEST_S, "a number of seconds, 0.001 or more")
hours = _number(float, 0, _LONGEST_S / 3600, "a number of hours, 0 or more")
whole = _number(int, 0, LARGEST_NUMBER, "a whole number, 0 or more")
positive = _number(int, 1, LARGEST_NUMBER, "a whole number, 1 or more")
integer = _number(int, -LARGEST_NUMBER, LARGEST_NUMBER, "a whole number")


def file(text: str) -> Path:
    if not text or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not the path of a file")
    return Path(text)


def _filled(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty: leave the option out, or give a value")
    return text


_METAVARS = {seconds: "S", wait: "S", pause: "S", hours: "H", whole: "N", positive: "N", integer: "N", file: "FILE"}


def flag(parser: Commands, name: str, text: str) -> None:
    parser.add_argument(name, action="store_true", help=text)


def option(parser: Commands, name: str, kind: Any, text: str, default: Any = None, **more: Any) -> None:
    """`kind`: a type of this module, or a text's metavar."""
    kind, metavar = (_filled, kind) if isinstance(kind, str) else (kind, _METAVARS[kind])
    more = {"type": kind, "metavar": metavar} | more
    parser.add_argument(name, help=text, default=default, **more)


def json_argument(text: str | bytes, what: str, hint: str) -> Any:
    """Parse JSON; InvalidInput says `what` and `hint`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} is not JSON ({error}){hint}") from error


def to_json(value: Any) -> str:
    return json.dumps(_plain(value))


def _plain(value: Any) -> Any:
    """Return a copy for JSON, at any depth: bytes as base64; NaN, infinities and unknown types as text."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case None | str() | int() | float():
            return value
        case _:
            return str(value)


def say(arguments: Any, fields: Any, plain: str) -> None:
    print(to_json(fields) if arguments.json else plain, flush=True)


def confirmed(arguments: Any, question: str, check: str) -> bool:
    """Return True for `--yes`; else ask on stderr, and return whether the line read is "yes"; if not, print so.

    Without a terminal, raises InvalidInput, which advises the command `check`.
    """
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidInput(f"no terminal to ask for confirmation: check with `lockprovider {check}`, then add --yes")
    print(f"{question} Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() == "yes":
        return True
    complain("lockprovider", "not confirmed; nothing was changed")
    return False
