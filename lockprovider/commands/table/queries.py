"""`lockprovider table info | timeline | log | files | read | doctor URL`: nothing here writes to the table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fsspec_cas import InvalidInput, Machine, Store
from fsspec_cas.command import DONE, REFUSED, storage_options
from lockprovider import HUDI_LOCK_PATH
from lockprovider.commands.place import Commands
from lockprovider.commands.table import answers
from lockprovider.commands.table.bars import bars
from lockprovider.commands.table.options import VERSION, add_table_command, opened, say_answer, settings
from lockprovider.commands.table.output import CommandAnswer
from lockprovider.commands.table.picture import draw_timeline
from lockprovider.storage_lock.audit import Tenure, analyse, places
from lockprovider.storage_lock.audit_log import read_files
from lockprovider.table.table import Table

_AUDIT_S = 30.0


def add(commands: Commands) -> None:
    """Register them."""
    add_table_command(commands, "info", _info, "Say what the table is, and how much of it there is.")
    parser = add_table_command(commands, "timeline", _timeline, "List the instants, or draw them.")
    _add_last(parser)
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw instants, writers, what was rolled back, and waits for the lock"
    )
    _add_last(add_table_command(commands, "log", _log, "List the completed writes."))
    _add_what(add_table_command(commands, "files", _files, "List the files that a reader reads."))
    parser = add_table_command(commands, "read", _read, "Show rows.")
    _add_what(parser)
    parser.add_argument("--columns", metavar="A,B", help="only these columns")
    parser.add_argument("--read-optimized", action="store_true", help="of a merge-on-read table base files alone")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many; 0: all (default: 20)")


def add_doctor(commands: Commands) -> None:
    """Register it, behind the services."""
    about = "Check the rules that shared writers must keep; say what is wrong and how to mend it."
    parser = add_table_command(commands, "doctor", _doctor, about)
    parser.add_argument("--keys", action="store_true", help="count keys that base files of several file groups have")


def _add_last(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", type=int, metavar="N", help="only the latest N")


def _last(arguments: Any) -> int | None:
    last: int | None = arguments.last
    if last is not None and last < 1:
        raise InvalidInput(f"--last {last} must be above zero")
    return last


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partition", metavar="PATH", help="only this partition, as its folder is named")
    parser.add_argument("--as-of", metavar="VERSION", help=VERSION)


def _info(arguments: Any) -> int:
    return say_answer(arguments, answers.info(opened(arguments)))


def _log(arguments: Any) -> int:
    return say_answer(arguments, answers.log(opened(arguments), _last(arguments)))


def _timeline(arguments: Any) -> int:
    last = _last(arguments)
    table = opened(arguments)
    if arguments.svg is None:
        return say_answer(arguments, answers.timeline(table, last))
    tenures = _tenures(table)
    found = bars(table, tenures, last)
    picture = draw_timeline(
        found, f"{table.config().name} at {table.url}", [(s.start_ms, s.end_ms, s.owner) for s in tenures]
    )
    arguments.svg.write_text(picture, encoding="utf-8")
    said = {"svg": str(arguments.svg), "instants": len(found), "holdings": len(tenures)}
    words = "" if tenures else f"; for waits for the lock: lockprovider audit {table.url} --enable"
    return say_answer(arguments, CommandAnswer(said, f"drew {len(found)} instants into {arguments.svg}{words}"))


def _tenures(table: Table) -> tuple[Tenure, ...]:
    """Who held the lock when, as far as the lock's audit tells; nothing if none is kept."""
    folder = places(HUDI_LOCK_PATH).folder
    return analyse(read_files(table.store, folder, timeout_s=_AUDIT_S), Machine().now_ms()).tenures


def _files(arguments: Any) -> int:
    return say_answer(arguments, answers.files(opened(arguments), arguments.partition, arguments.as_of))


def _read(arguments: Any) -> int:
    columns = None if arguments.columns is None else arguments.columns.split(",")
    if arguments.limit < 0:
        raise InvalidInput(f"--limit {arguments.limit} is below zero; 0 shows all rows")
    what = (columns, arguments.partition, arguments.as_of, arguments.limit)
    return say_answer(arguments, answers.read(opened(arguments), *what, read_optimized=arguments.read_optimized))


def _doctor(arguments: Any) -> int:
    store = Store.from_url(arguments.url, storage_options(arguments))
    answer, wrong = answers.doctor(Table(store, arguments.url, settings=settings(arguments)), keys=arguments.keys)
    say_answer(arguments, answer)
    return REFUSED if wrong else DONE
