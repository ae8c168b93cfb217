"""`lockprovider table`: look at a table, and run its services."""

from __future__ import annotations

import argparse
import getpass
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fsspec_cas import InvalidInput, Store
from fsspec_cas.command import BAD_INPUT, DONE, OPTIONS_HELP, REFUSED, add_storage_options, complain, storage_options
from lockprovider.table import rollback, told
from lockprovider.table.clean import finish_dead, would_clean
from lockprovider.table.errors import Aborted, HistoryGone, TableError, TableExists, WriteConflict
from lockprovider.table.manager import Table, TableSpec
from lockprovider.table.picture import draw
from lockprovider.table.retention import KeepCommits, KeepHours, KeepVersions, Policy
from lockprovider.table.service import beating, dead_among
from lockprovider.table.settings import MODE_KEY, Mode, TableSettings
from lockprovider.table.show import Answer, show

Commands = Any  # argparse's own type for it is private

_CODES = f"""exit codes:
  0    done; for doctor: nothing is wrong
  1    refused, nothing was changed; for doctor: something is wrong
  2    bad input: URL, options, credentials, no table there, or one that cannot be had here
  3    unknown: the write may have been applied or not; look again
  4    unavailable: the store did not answer or kept throttling
  130  interrupted

{OPTIONS_HELP}"""
_EXAMPLES = """examples:
  lockprovider table create s3://bucket/trips --column id:int64 --column city:string --key id --partition-by city
  lockprovider table log s3://bucket/trips --last 10
  lockprovider table read s3://bucket/trips --columns id,city --as-of 20261121093000000
  lockprovider table clean s3://bucket/trips --hours 24 --dry-run
  lockprovider table savepoint s3://bucket/trips --comment 'before the move'
  lockprovider table timeline s3://bucket/trips --svg trips.svg
  lockprovider table doctor s3://bucket/trips"""
_INSTANT = "the begin time of a commit, 17 digits; `log` lists them"


def add(commands: Commands) -> None:
    """Register `table` and all its commands."""
    raw = argparse.RawDescriptionHelpFormatter
    text = "Look at a Hudi table, and run its services."
    parent = commands.add_parser(
        "table", help=text, description=text, epilog=f"{_EXAMPLES}\n\n{_CODES}", formatter_class=raw
    )
    table = parent.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Any], int], about: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = table.add_parser(
            name, help=about, description=about, epilog=_CODES, formatter_class=raw
        )
        parser.set_defaults(run=_guarded(run))
        parser.add_argument("url", metavar="URL", help="the table's folder: a path, or s3://bucket/table")
        add_storage_options(parser)
        parser.add_argument("--hoodie", action="append", default=[], metavar="KEY=VALUE", help="a setting of Hudi's")
        parser.add_argument("--json", action="store_true", help="say it in JSON")
        parser.add_argument("--debug", action="store_true", help="show where an error came from")
        return parser

    _add_create(command("create", _create, "Make a new table."))
    command("info", _info, "Say what the table is, and how much of it there is.")
    sub = command("timeline", _timeline, "List the instants, or draw them.")
    _add_last(sub)
    sub.add_argument("--svg", type=Path, metavar="FILE", help="draw instants, writers and what was rolled back")
    _add_last(command("log", _log, "List the completed writes."))
    sub = command("files", _files, "List the files that a reader reads.")
    _add_what(sub)
    sub = command("read", _read, "Show rows.")
    _add_what(sub)
    sub.add_argument("--columns", metavar="A,B", help="only these columns")
    sub.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many; 0: all (default: 20)")
    _add_clean(command("clean", _clean, "Remove files that no reader within the retention needs."))
    sub = command("savepoint", _savepoint, "Keep the files of a commit from being cleaned.")
    sub.add_argument("instant", nargs="?", metavar="INSTANT", help=f"{_INSTANT} (default: the last)")
    sub.add_argument("--comment", default="", help="why")
    what = sub.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list all savepoints instead")
    what.add_argument("--delete", action="store_true", help="delete this savepoint instead")
    sub = command("restore", _restore, "Take back every commit that completed after another one.")
    sub.add_argument("instant", metavar="INSTANT", help=_INSTANT)
    sub.add_argument("--yes", action="store_true", help="do not ask")
    sub = command("rollback", _rollback, "Remove what failed writers left, and finish what dead services planned.")
    sub.add_argument("instant", nargs="?", metavar="INSTANT", help="only this pending write")
    sub.add_argument("--force", action="store_true", help="with INSTANT: even if its writer is alive")
    command("retire-metadata", _retire, "Remove a metadata table of JVM Hudi's, which would hide commits from here.")
    command("doctor", _doctor, "Check the rules that shared writers must keep; say what is wrong and how to mend it.")


def _add_create(parser: argparse.ArgumentParser) -> None:
    schema = parser.add_mutually_exclusive_group(required=True)
    schema.add_argument("--column", action="append", metavar="NAME:TYPE", help="e.g. id:int64, at:timestamp")
    schema.add_argument("--like", type=Path, metavar="FILE.parquet", help="the columns of this file")
    parser.add_argument("--key", action="append", required=True, metavar="COLUMN", help="names a row; repeatable")
    parser.add_argument("--partition-by", action="append", default=[], metavar="COLUMN", help="repeatable")
    parser.add_argument("--ordering", metavar="COLUMN", help="of two rows with one key the higher wins")
    parser.add_argument("--name", help="default: the folder's")
    parser.add_argument("--hive-style", action="store_true", help="folders like city=rome")


def _add_clean(parser: argparse.ArgumentParser) -> None:
    keep = parser.add_mutually_exclusive_group()
    keep.add_argument("--commits", type=int, metavar="N", help="keep what the last N commits need (default: 10)")
    keep.add_argument("--hours", type=float, metavar="H", help="keep what an as-of within H hours needs")
    keep.add_argument("--versions", type=int, metavar="N", help="keep N versions of each file group")
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")


def _add_last(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", type=int, metavar="N", help="only the latest N")


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partition", metavar="PATH", help="only this partition, as its folder is named")
    parser.add_argument("--as-of", metavar="TIME", help="as of this completion time, 14 or 17 digits, UTC")


def _guarded(run: Callable[[Any], int]) -> Callable[[Any], int]:
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


def _settings(arguments: Any) -> TableSettings:
    options = {MODE_KEY: Mode.OPTIMISTIC.value}
    for pair in arguments.hoodie:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("hoodie."):
            raise InvalidInput(f"--hoodie {pair!r} is not a key of Hudi's with =VALUE")
        options[key] = value
    return TableSettings.from_hudi(options)


def _table(arguments: Any) -> Table:
    return Table.open(arguments.url, storage_options=storage_options(arguments), settings=_settings(arguments))


def _say(arguments: Any, answer: Answer) -> int:
    show(answer, as_json=arguments.json)
    return DONE


def _create(arguments: Any) -> int:
    schema = (
        pq.read_schema(arguments.like) if arguments.like else pa.schema([_column(text) for text in arguments.column])
    )
    spec = TableSpec(
        arguments.name or arguments.url.rstrip("/").rpartition("/")[2],
        schema,
        record_keys=tuple(arguments.key),
        partition_by=tuple(arguments.partition_by),
        ordering=arguments.ordering,
        hive_style=arguments.hive_style,
    )
    settings = _settings(arguments)
    table = Table.create(arguments.url, spec, storage_options=storage_options(arguments), settings=settings)
    return _say(arguments, Answer({"url": table.url, "name": spec.name}, f"created {spec.name} at {table.url}"))


def _column(text: str) -> pa.Field:
    name, colon, kind = text.rpartition(":")
    if not colon or not name:
        raise InvalidInput(f"--column {text!r} is not NAME:TYPE")
    return pa.field(name, _type(kind))


def _type(text: str) -> pa.DataType:
    if text == "timestamp":
        return pa.timestamp("us", "UTC")
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", text):
        return pa.decimal128(int(found[1]), int(found[2]))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        known = "bool, int32, int64, float32, float64, string, binary, date32, timestamp, decimal(10,2)"
        raise InvalidInput(f"{text!r} is not a type; use e.g. {known}") from None


def _info(arguments: Any) -> int:
    return _say(arguments, told.info(_table(arguments)))


def _log(arguments: Any) -> int:
    return _say(arguments, told.log(_table(arguments), arguments.last))


def _timeline(arguments: Any) -> int:
    table = _table(arguments)
    if arguments.svg is None:
        return _say(arguments, told.timeline(table, arguments.last))
    bars = told.bars(table)
    arguments.svg.write_text(draw(bars, f"{table.config().name} at {table.url}"), encoding="utf-8")
    said = {"svg": str(arguments.svg), "instants": len(bars)}
    return _say(arguments, Answer(said, f"drew {len(bars)} instants into {arguments.svg}"))


def _files(arguments: Any) -> int:
    return _say(arguments, told.files(_table(arguments), arguments.partition, arguments.as_of))


def _read(arguments: Any) -> int:
    columns = None if arguments.columns is None else arguments.columns.split(",")
    if arguments.limit < 0:
        raise InvalidInput(f"--limit {arguments.limit} is below zero; 0 shows all rows")
    answer = told.read(_table(arguments), columns, arguments.partition, arguments.as_of, arguments.limit)
    return _say(arguments, answer)


def _clean(arguments: Any) -> int:
    table, policy = _table(arguments), _policy(arguments)
    if arguments.dry_run:
        plan = would_clean(table, policy)
        return _say(arguments, _removed("would remove", [(plan.policy, plan.files)]))
    return _say(arguments, _removed("removed", [(done.instant, done.files) for done in table.clean(policy)]))


def _policy(arguments: Any) -> Policy | None:
    if arguments.hours is not None:
        return KeepHours(arguments.hours)
    if arguments.versions is not None:
        return KeepVersions(arguments.versions)
    return None if arguments.commits is None else KeepCommits(arguments.commits)


def _removed(word: str, cleans: Sequence[tuple[str, Any]]) -> Answer:
    rows = tuple((by, part or ".", name) for by, found in cleans for part, names in found.items() for name in names)
    said = [{"by": by, "partition": part, "file": name} for by, part, name in rows]
    title = f"{word} {len(rows)} files"
    return Answer(said, title, ("by", "partition", "file") if rows else (), rows)


def _savepoint(arguments: Any) -> int:
    table = _table(arguments)
    if arguments.list:
        return _say(arguments, told.savepoints(table))
    if not arguments.delete:
        begin = table.savepoint(arguments.instant, user=getpass.getuser(), comment=arguments.comment)
        return _say(arguments, Answer({"savepoint": begin}, f"savepoint {begin}: its files stay"))
    if arguments.instant is None:
        raise InvalidInput("--delete needs the INSTANT of a savepoint; --list shows them")
    if not table.delete_savepoint(arguments.instant):
        complain("lockprovider", f"there is no savepoint {arguments.instant}; --list shows those there are")
        return REFUSED
    said = {"deleted": arguments.instant}
    return _say(arguments, Answer(said, f"deleted savepoint {arguments.instant}: its files may be cleaned"))


def _restore(arguments: Any) -> int:
    table = _table(arguments)
    if not arguments.yes and not _confirmed(table, arguments.instant):
        complain("lockprovider", "not confirmed; nothing was changed")
        return REFUSED
    result = table.restore(arguments.instant)
    said = {"restore": result.instant, "target": result.target, "taken_back": list(result.taken_back)}
    return _say(arguments, Answer(said, f"restored to {result.target}; took back {len(result.taken_back)} writes"))


def _confirmed(table: Table, instant: str) -> bool:
    if not sys.stdin.isatty():
        raise InvalidInput("nobody is there to be asked; look at `lockprovider table log`, and add --yes")
    later = [commit.instant for commit in table.history() if commit.instant > instant]
    words = f"Take back the commits after {instant} ({', '.join(later) or 'none'}) for good? Type yes: "
    print(words, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == "yes"


def _rollback(arguments: Any) -> int:
    table = _table(arguments)
    if arguments.instant is None:
        done = [*rollback.sweep(table), *(result.instant for result in finish_dead(table))]
        words = ", ".join(done) or "nothing to do"
        return _say(arguments, Answer({"done": done}, f"rolled back or finished: {words}"))
    begin = arguments.instant
    now = table.timeline()
    if begin not in now.pending_writes:
        complain("lockprovider", f"{begin} is no pending write; to take back commits, use restore")
        return REFUSED
    if not arguments.force:
        with beating(table, now):
            alive = begin not in dead_among(table, [begin])
        if alive:
            complain("lockprovider", f"the writer of {begin} is alive; wait for it, or add --force")
            return REFUSED
    rollback.roll_back(table, begin)
    return _say(arguments, Answer({"done": [begin]}, f"rolled back {begin}"))


def _retire(arguments: Any) -> int:
    table = _table(arguments)
    count = table.retire_metadata_table()
    words = f"removed {count} files of the metadata table" if count else "there is no metadata table"
    return _say(arguments, Answer({"removed": count}, words))


def _doctor(arguments: Any) -> int:
    store = Store.from_url(arguments.url, storage_options(arguments))
    answer, wrong = told.doctor(Table(store, arguments.url, settings=_settings(arguments)))
    _say(arguments, answer)
    return REFUSED if wrong else DONE
