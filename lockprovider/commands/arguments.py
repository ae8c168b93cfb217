"""Arguments and output that all commands share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from fsspec_cas.command import DONE, OPTIONS_HELP, add_storage_options

Commands = Any  # argparse's own type is private

CODES = f"""exit codes:
  0    done
  1    refused, nothing was written (break: the record changed, or belongs to another owner); or a check failed
       (audit: two owners held the lock at once; demo: a row is missing)
  2    bad input: URL, options, credentials, a missing bucket, or an object that is not a lock record
  3    unknown: the write may have been applied; read the object and decide
  4    unavailable: the store did not answer or kept throttling; nothing was written
  5    not supported by this store or protocol
  130  interrupted

{OPTIONS_HELP}"""


def add_group(commands: Commands, name: str, text: str, examples: str, codes: str = CODES) -> Commands:
    """Add a command that has subcommands, and return the object that they are added to."""
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
    codes: str = CODES,
    more: str = "",
) -> argparse.ArgumentParser:
    """Add a command about an object at a URL, described by the text `url`; return its parser.

    `run` returns the exit code; None: `DONE`.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text}\n{more}",
        epilog=codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=lambda arguments: run(arguments) or DONE)
    parser.add_argument("url", metavar="URL", help=url)
    add_storage_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    return parser


def say(arguments: Any, fields: dict[str, Any], plain: str) -> None:
    """Print an answer as text or JSON on stdout, and flush it for pipes."""
    print(json.dumps(fields) if arguments.json else plain, flush=True)
