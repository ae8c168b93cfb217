"""What every command about a table takes: where it is, how its writers behave, how to say what was found."""

from __future__ import annotations

import argparse
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.command import (
    BAD_INPUT,
    DONE,
    OPTIONS_HELP,
    REFUSED,
    Run,
    add_storage_options,
    complain,
    storage_options,
)
from lockprovider.commands.place import Commands
from lockprovider.commands.table.output import CommandAnswer, show
from lockprovider.table.errors import Aborted, HistoryGone, TableError, TableExists, WriteConflict
from lockprovider.table.format.writer_settings import MODE_KEY
from lockprovider.table.settings import Mode, TableSettings
from lockprovider.table.table import Table

VERSION = "the begin or completion time of a commit, as `log` lists them, or any time (ISO with its zone): after it"
TABLE_CODES = f"""exit codes:
  0    done; for doctor: nothing is wrong
  1    refused, nothing was changed; for doctor: something is wrong
  2    bad input: URL, options, credentials, no table there, or one that cannot be had here
  3    unknown: the write may have been applied or not; look again
  4    unavailable: the store did not answer or kept throttling
  130  interrupted

{OPTIONS_HELP}"""


def add_table_command(commands: Commands, name: str, run: Run, about: str) -> argparse.ArgumentParser:
    """A command about one table; its exit codes are in its help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about, epilog=TABLE_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=_guarded(run))
    parser.add_argument("url", metavar="URL", help="the table's folder: a path, or s3://bucket/table")
    add_storage_options(parser)
    parser.add_argument("--hoodie", action="append", default=[], metavar="KEY=VALUE", help="a setting of Hudi's")
    parser.add_argument("--json", action="store_true", help="say it in JSON")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def settings(arguments: Any) -> TableSettings:
    """How a writer behaves.

    Raises:
        InvalidInput, InvalidSettings: an option cannot be understood.
    """
    options = {MODE_KEY: Mode.OPTIMISTIC.value}
    for pair in arguments.hoodie:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("hoodie."):
            raise InvalidInput(f"--hoodie {pair!r} is not a key of Hudi's with =VALUE")
        options[key] = value
    return TableSettings.from_hudi(options)


def opened(arguments: Any) -> Table:
    """The table that the arguments name."""
    return Table.open(arguments.url, storage_options=storage_options(arguments), settings=settings(arguments))


def say_answer(arguments: Any, answer: CommandAnswer) -> int:
    """One answer on stdout, in the form that was asked for."""
    show(answer, as_json=arguments.json)
    return DONE


def _guarded(run: Run) -> Run:
    """The errors of tables as one sentence and a code; all others are for who called."""

    def guarded(arguments: Any) -> int:
        try:
            return run(arguments)
        except TableError as error:
            if arguments.debug:
                raise
            complain("lockprovider", str(error))
            return REFUSED if isinstance(error, (Aborted, HistoryGone, TableExists, WriteConflict)) else BAD_INPUT

    return guarded
