"""What every command about a lock takes: where it is, how to reach it, how to say what was found."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from fsspec_cas.command import OPTIONS_HELP, add_storage_options, storage_options
from lockprovider import HUDI_LOCK_PATH
from lockprovider.storage_lock.provider import LockPlace, locate

Commands = Any  # argparse's own type for it is private

CODES = f"""exit codes:
  0    done
  1    refused, nothing was written (break: the record changed, or is another owner's); or found wrong (audit: the
       lock was held by two at once; demo: a row is missing)
  2    bad input: URL, options, credentials, no such bucket, or the object there is no lock record
  3    unknown: the write may have been applied or not; look again
  4    unavailable: the store did not answer or kept throttling; nothing was written
  5    not supported by this store or protocol
  130  interrupted

{OPTIONS_HELP}"""


def add_command(
    commands: Commands, name: str, run: Callable[[Any], int], text: str, *, codes: str = CODES, more: str = ""
) -> argparse.ArgumentParser:
    """A command about one lock; its exit codes are in its help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text}\n{more}",
        epilog=codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "url", metavar="URL", help="the table, or any folder: s3://bucket/table; `?on=` and so on may follow"
    )
    parser.add_argument(
        "--on",
        metavar="PATH",
        help=f"the lock's object below URL, where it is not a table's (default: {HUDI_LOCK_PATH})",
    )
    add_storage_options(parser)
    parser.add_argument("--json", action="store_true", help="say it in JSON")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def add_object_command(
    commands: Commands,
    name: str,
    run: Callable[[Any], int],
    text: str,
    what: str,
    *,
    codes: str = CODES,
    more: str = "",
) -> argparse.ArgumentParser:
    """A command about one object that is no lock; `what` says which."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text}\n{more}",
        epilog=codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("url", metavar="URL", help=what)
    add_storage_options(parser)
    parser.add_argument("--json", action="store_true", help="say it in JSON")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def add_request_timeout(parser: argparse.ArgumentParser) -> None:
    """`--timeout` for each call to the store."""
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="for each call (default: 30)")


def place(arguments: Any) -> LockPlace:
    """The lock that the arguments name.

    Raises:
        CasError, InvalidSettings: the URL or an option cannot be understood.
    """
    return locate(arguments.url, on=arguments.on, storage_options=storage_options(arguments))


def say(arguments: Any, said: dict[str, Any], plain: str) -> None:
    """One answer on stdout, in the form that was asked for; at once, for who reads along."""
    print(json.dumps(said) if arguments.json else plain, flush=True)
