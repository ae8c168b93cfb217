"""Says an answer on stdout: as JSON, or as a table, by rich if that is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What a command found: `said` for programs, the rest for people."""

    said: Any
    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    below: str = ""


def show(answer: CommandAnswer, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        print(json.dumps(answer.said, default=str), flush=True)
        return
    rows = [tuple(_text(cell) for cell in row) for row in answer.rows]
    if not answer.columns:
        print(answer.title)
    elif not _rich(answer, rows):
        _plain(answer, rows)
    if answer.below:
        print(answer.below)
    sys.stdout.flush()


def _text(cell: object) -> str:
    match cell:
        case None:
            return ""
        case list() | tuple():
            return ", ".join(map(str, cell))
        case _:
            return str(cell)


def _rich(answer: CommandAnswer, rows: Sequence[tuple[str, ...]]) -> bool:
    if not sys.stdout.isatty():
        return False  # what is piped is not to be cut to the width of a screen
    try:
        from rich.console import Console  # noqa: PLC0415 - not needed for anything else
        from rich.markup import escape  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
    except ImportError:
        return False
    table = Table(title=escape(answer.title), title_justify="left")
    for column in answer.columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)
    return True


def _plain(answer: CommandAnswer, rows: Sequence[tuple[str, ...]]) -> None:
    print(answer.title)
    widths = [max(len(row[n]) for row in (answer.columns, *rows)) for n in range(len(answer.columns))]
    for row in (answer.columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
