"""Answers of commands about tables, printed as JSON or text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.command import BAD_INPUT, DONE, OPTIONS_HELP, REFUSED, complain, show_table, storage_options
from lockprovider.commands.arguments import Commands, add_command, option, to_json
from lockprovider.table.errors import Aborted, HistoryGone, TableError, TableExists, WriteConflict
from lockprovider.table.format.writer_settings import MODE_KEY
from lockprovider.table.settings import Mode, TableSettings
from lockprovider.table.table import Table


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Result of a command: `data` for programs, other fields for people."""

    data: Any
    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    below: str = ""
    code: int = DONE

    @classmethod
    def of_rows(
        cls, title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]], below: str = ""
    ) -> CommandAnswer:
        """Build an answer of rows: objects for programs, a table for people."""
        all_rows = tuple(rows)
        return cls([dict(zip(columns, row, strict=True)) for row in all_rows], title, columns, all_rows, below)


Run = Callable[[Any], "CommandAnswer | int"]

VERSION = "a commit's begin or completion time from `log`, or an ISO time with zone: the table after it"
TABLE_CODES = f"""exit codes:
  0    done; for doctor: all checks passed
  1    refused, nothing was changed; for doctor: a check failed
  2    bad input: URL, options, credentials, a missing table, or a kind of table that is not supported
  3    unknown: the write may have been applied; look at `lockprovider table log`
  4    unavailable: the store did not answer or kept throttling
  130  interrupted

{OPTIONS_HELP}"""


def add_bucket_by(parser: argparse.ArgumentParser) -> None:
    """Add `--bucket-by`, the key columns that select a row's bucket."""
    option(
        parser,
        "--bucket-by",
        "COLUMN",
        "a key column that selects the bucket; repeatable (default: all)",
        [],
        action="append",
    )


def add_table_command(commands: Commands, name: str, run: Run, text: str) -> argparse.ArgumentParser:
    """Add a command about one table; its help lists the exit codes."""
    url = "the table's folder: a path, or s3://bucket/table"
    parser = add_command(commands, name, _answered(run), text, url, codes=TABLE_CODES)
    option(parser, "--hoodie", "KEY=VALUE", "a setting of Hudi, repeatable", [], action="append")
    return parser


def settings(arguments: Any) -> TableSettings:
    """Return settings of an optimistic writer, changed by `--hoodie`; may raise InvalidInput or InvalidSettings."""
    options = {MODE_KEY: Mode.OPTIMISTIC.value}
    for pair in arguments.hoodie:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("hoodie."):
            raise InvalidInput(f"--hoodie {pair!r} is not a key of Hudi's with =VALUE")
        options[key] = value
    return TableSettings.from_hudi(options)


def opened(arguments: Any) -> Table:
    """Open the table that the arguments name."""
    return Table.open(arguments.url, storage_options=storage_options(arguments), settings=settings(arguments))


def _answered(run: Run) -> Callable[[Any], int]:
    """Wrap a command: print its answer, and return its code; a TableError becomes a sentence, and 1 or 2."""

    def answered(arguments: Any) -> int:
        """Run the command, print its answer or TableError, and return the code; --debug raises the error."""
        try:
            answer = run(arguments)
        except TableError as error:
            if arguments.debug:
                raise
            complain("lockprovider", str(error))
            return REFUSED if isinstance(error, (Aborted, HistoryGone, TableExists, WriteConflict)) else BAD_INPUT
        if isinstance(answer, int):
            return answer
        show(answer, as_json=arguments.json)
        return answer.code

    return answered


def show(answer: CommandAnswer, *, as_json: bool) -> None:
    """Print an answer as JSON or as a table."""
    if as_json:
        print(to_json(answer.data), flush=True)
        return
    rows = [tuple(_text(cell) for cell in row) for row in answer.rows]
    if not rows:
        print(answer.title)
    else:
        show_table(answer.title, answer.columns, rows)
    if answer.below:
        print(answer.below)
    sys.stdout.flush()


def _text(cell: object) -> str:
    """Return a cell as text: None is empty, a list or dict is joined by commas."""
    match cell:
        case None:
            return ""
        case list() | tuple():
            return ", ".join(map(str, cell))
        case dict():
            return ", ".join(f"{key}={value}" for key, value in cell.items())
        case _:
            return str(cell)
