"""Commands that make, query, draw and check tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from fsspec_cas import InvalidInput, Machine, Store
from fsspec_cas.command import DONE, REFUSED, storage_options
from lockprovider import HUDI_LOCK_PATH
from lockprovider.commands.arguments import CODES, Commands, add_group, file, flag, option, positive, whole
from lockprovider.commands.table_services import (
    VERSION,
    CommandAnswer,
    add_bucket_by,
    add_services,
    add_table_command,
    opened,
    settings,
)
from lockprovider.lanes import FAINT, INK, RED, Box, Lane, Mark, draw_lanes
from lockprovider.storage_lock.audit import Tenure, analyse, places
from lockprovider.storage_lock.audit_log import read_files
from lockprovider.table.convert.plan import in_python
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.errors import Corrupt
from lockprovider.table.format.layout import TIMELINE, Action, Instant, InstantState, to_ms
from lockprovider.table.format.properties import READABLE_VERSIONS
from lockprovider.table.format.service_metadata import decode_rollback
from lockprovider.table.read.consistent import Commit
from lockprovider.table.spec import TableSpec
from lockprovider.table.state.archive_index import reach
from lockprovider.table.table import Table
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice
from lockprovider.words import count, span

_EXAMPLES = """examples:
  lockprovider table create s3://bucket/trips --column id:int64 --column city:string --key id --partition-by city
  lockprovider table log s3://bucket/trips --last 10
  lockprovider table read s3://bucket/trips --columns id,city --as-of 20261121093000000
  lockprovider table clean s3://bucket/trips --hours 24 --dry-run
  lockprovider table archive s3://bucket/trips --keep-min 50 --keep-max 100
  lockprovider table savepoint s3://bucket/trips --comment 'before the move'
  lockprovider table timeline s3://bucket/trips --svg trips.svg
  lockprovider table doctor s3://bucket/trips"""
_AUDIT_S = 30.0


def add_table(commands: Commands) -> None:
    """Register `table`."""
    table = add_group(commands, "table", "Show, check and maintain a Hudi table.", _EXAMPLES, CODES)
    _add_create(table)
    _add_queries(table)
    add_services(table)
    about = "Check the rules that shared writers must keep, and show how to mend what is wrong."
    parser = add_table_command(table, "doctor", _doctor, about, "a check failed", reads=True)
    flag(parser, "--keys", "also count keys that occur in several file groups (reads all keys)")


def _add_create(commands: Commands) -> None:
    """Register `create`."""
    parser = add_table_command(commands, "create", _create, "Create a table.", "a table exists")
    schema = parser.add_mutually_exclusive_group(required=True)
    option(schema, "--column", "NAME:TYPE", "a column, e.g. id:int64 or at:timestamp; repeatable", action="append")
    option(schema, "--like", file, "take the columns of this file", metavar="FILE.parquet")
    option(parser, "--key", "COLUMN", "a column of the record key; repeatable", action="append", required=True)
    option(parser, "--partition-by", "COLUMN", "a partition column; repeatable", [], action="append")
    option(parser, "--ordering", "COLUMN", "of two rows with one key, the one with the higher value wins")
    option(parser, "--buckets", positive, "use Hudi's bucket index with N file groups in each partition")
    add_bucket_by(parser)
    flag(parser, "--merge-on-read", "write changes into log files, which readers merge")
    versions = READABLE_VERSIONS
    text = "Hudi's table version (default: 8; Hudi 1.0 cannot open version 9)"
    option(parser, "--table-version", positive, text, versions[0], choices=versions, metavar=None)
    option(parser, "--name", "NAME", "the table's name (default: the folder's)")
    flag(parser, "--hive-style", "name partition folders like city=rome")
    flag(parser, "--url-encode", "escape partition folders like a%%2Fb, so that any text can be a partition")


def _add_queries(commands: Commands) -> None:
    """Register `info`, `timeline`, `log`, `files` and `read`."""
    add_table_command(commands, "info", _info, "Show the table's settings and its size.", reads=True)
    timeline = add_table_command(commands, "timeline", _timeline, "List or draw the instants.", reads=True)
    log = add_table_command(commands, "log", _log, "List the completed writes.", reads=True)
    for parser in (timeline, log):
        option(parser, "--last", positive, "list only the latest N")
    option(timeline, "--svg", file, "draw instants, writers, rollbacks and waits for the lock")
    gone = "the files of the version are gone"
    files = add_table_command(commands, "files", _list_files, "List the files that a reader reads.", gone, reads=True)
    read = add_table_command(commands, "read", _read, "Print rows.", gone, reads=True)
    for parser in (files, read):
        option(parser, "--partition", "PATH", "only this partition, by the name of its folder", type=str)
        option(parser, "--as-of", "VERSION", VERSION)
    option(read, "--columns", "A,B", "print only these columns")
    flag(read, "--read-optimized", "read only the base files of a merge-on-read table")
    option(read, "--limit", whole, "print at most N rows; 0 prints all (default: 20)", 20)


def _create(arguments: Any) -> CommandAnswer:
    """Create the table from `--column`s, or the schema of the Parquet file `--like`.

    InvalidInput: a bad column or file, or `--bucket-by` without `--buckets`.
    """
    if arguments.bucket_by and arguments.buckets is None:
        raise InvalidInput("--bucket-by needs --buckets N, the number of file groups in each partition")
    schema = _like(arguments.like) if arguments.like else pa.schema([_column(text) for text in arguments.column])
    options = storage_options(arguments)
    spec = TableSpec(
        arguments.name or Store.from_url(arguments.url, options).url.rstrip("/").rpartition("/")[2],
        schema,
        record_keys=tuple(arguments.key),
        partition_by=tuple(arguments.partition_by),
        ordering=arguments.ordering,
        hive_style=arguments.hive_style,
        url_encode=arguments.url_encode,
        buckets=arguments.buckets,
        bucket_by=tuple(arguments.bucket_by),
        version=arguments.table_version,
        table_type="merge_on_read" if arguments.merge_on_read else "copy_on_write",
    )
    behaviour = settings(arguments)
    table = Table.create(arguments.url, spec, storage_options=options, settings=behaviour)
    return CommandAnswer({"url": table.url, "name": spec.name}, f"created {spec.name} at {table.url}")


def _like(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidInput(f"--like {path} is no Parquet file that can be read: {error}") from error


def _column(text: str) -> pa.Field:
    name, colon, kind = text.rpartition(":")
    if not colon or not name:
        raise InvalidInput(f"--column {text!r} is not NAME:TYPE")
    return pa.field(name, _type(kind))


def _type(text: str) -> pa.DataType:
    """Parse `timestamp` (microseconds, UTC), `decimal(10,2)`, or an Arrow type's name; InvalidInput for others."""
    try:
        if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", text):
            return pa.decimal128(int(match[1]), int(match[2]))
        return pa.timestamp("us", "UTC") if text == "timestamp" else pa.type_for_alias(text)
    except (ValueError, OverflowError):
        types = "bool, int32, int64, float32, float64, string, binary, date32, timestamp, decimal(10,2)"
        raise InvalidInput(f"{text!r} is not a type; use e.g. {types}") from None


def _partitions(arguments: Any) -> list[str] | None:
    return None if arguments.partition is None else [arguments.partition]


def _timeline(arguments: Any) -> CommandAnswer:
    """List all or the `--last` instants.

    With `--svg`, draw them and the audited lock holdings into that file, replacing it; the answer only counts both.
    """
    last, table = arguments.last, opened(arguments)
    if arguments.svg is None:
        return _instants(table, last)
    audit = read_files(table.store, places(HUDI_LOCK_PATH).folder, timeout_s=_AUDIT_S)
    tenures = analyse(audit, Machine().now_ms()).tenures
    drawn = bars(table, tenures, last)
    picture = draw_timeline(drawn, f"{table.config().name} at {table.url}", tenures)
    arguments.svg.write_text(picture, encoding="utf-8")
    fields = {"svg": str(arguments.svg), "instants": len(drawn), "holdings": len(held_during(drawn, tenures))}
    words = "" if tenures else f"; for waits for the lock: lockprovider audit {table.url} --enable"
    return CommandAnswer(fields, f"drew {len(drawn)} instants into {arguments.svg}{words}")


def _info(arguments: Any) -> CommandAnswer:
    """Answer with the table's settings, columns and sizes; reads its timeline and all file names."""
    table = opened(arguments)
    config, timeline = table.config(), table.timeline()
    snapshot = table.snapshot(timeline)
    last = timeline.writes[-1:]
    fields: dict[str, Any] = {
        "url": table.url,
        "name": config.name,
        "type": config.table_type,
        "version": config.version,
        "record_keys": list(config.record_keys),
        "partition_fields": list(config.partition_fields),
        "ordering_field": config.ordering_field,
        "buckets": config.bucket_index and config.bucket_index.buckets,
        "bucket_by": list(config.bucket_by),
        "columns": {field.name: str(field.type) for field in table.schema(timeline)},
        "commits": len(timeline.writes),
        "archived_up_to": reach(table.knowledge).begin or None,
        "pending_writes": list(timeline.pending_writes),
        "savepoints": sorted(i.begin for i in timeline.instants if i.action is Action.SAVEPOINT and i.is_completed),
        "last_commit": last[0].file_name if last else None,
        "partitions": len(snapshot.partitions),
        "files": len(_files(snapshot.slices)),
        "bytes": sum(size for _, _, size in _files(snapshot.slices)),
        "log_files": sum(len(slice_.logs) for slice_ in snapshot.slices),
        "pending_compactions": list(timeline.pending(Action.COMPACTION)),
        "pending_clusterings": list(timeline.pending(Action.CLUSTERING)),
    }
    columns = [f"{name} {kind}" for name, kind in fields["columns"].items()]
    rows = tuple((key.replace("_", " "), columns if key == "columns" else value) for key, value in fields.items())
    return CommandAnswer(fields, f"table {config.name}", ("", "value"), rows)


def _log(arguments: Any) -> CommandAnswer:
    table = opened(arguments)
    commits = table.history()[::-1][: arguments.last]
    entries = [_commit(commit) for commit in commits]
    columns = ("completed", "instant", "operation", "inserted", "updated", "deleted", "files", "extra")
    rows = tuple(tuple((entry | {"files": len(entry["files"])})[name] for name in columns) for entry in entries)
    return CommandAnswer(entries, f"{len(entries)} commits of {table.url}, the latest first", columns, rows)


def _commit(commit: Commit) -> dict[str, Any]:
    """Commit's fields for JSON: rows summed over its files, their paths, and replaced file groups."""
    stats = [stat for stats in commit.metadata.stats.values() for stat in stats]
    return {
        "completed": commit.completion,
        "instant": commit.instant,
        "operation": commit.operation,
        "inserted": sum(stat.num_inserts for stat in stats),
        "updated": sum(stat.num_updates for stat in stats),
        "deleted": sum(stat.num_deletes for stat in stats),
        "files": [stat.path for stat in stats],
        "replaced": {partition: list(ids) for partition, ids in commit.metadata.replaced.items()},
        "extra": commit.extra,
    }


def _instants(table: Table, last: int | None) -> CommandAnswer:
    """List the `last` instants by begin, latest first, each in its furthest state; None: all."""
    timeline = table.timeline()
    states = {
        (instant.begin, "write" if instant.changes_rows else instant.action.value): instant
        for instant in sorted(timeline.instants, key=lambda instant: list(InstantState).index(instant.state))
    }
    latest = sorted(states.values(), key=lambda i: (i.begin, i.completion or "~"), reverse=True)[:last]
    title = f"{len(latest)} instants of {table.url}, the latest first; times are UTC"
    rows = [(i.begin, i.completion, i.action.value, i.state.value) for i in latest]
    return CommandAnswer.of_rows(title, ("begin", "completed", "action", "state"), rows)


def _list_files(arguments: Any) -> CommandAnswer:
    table, as_of = opened(arguments), arguments.as_of
    files = _files(table.snapshot(as_of=as_of).within(_partitions(arguments)))
    total = sum(size for _, _, size in files)
    title = f"{len(files)} files, {total} bytes, of {table.url}" + (f" as of {as_of}" if as_of else "")
    return CommandAnswer.of_rows(title, ("path", "instant", "bytes"), files)


def _files(slices: Iterable[FileSlice]) -> list[tuple[str, str, int]]:
    files: list[tuple[str, str, int]] = []
    for file_slice in slices:
        files += [(file_slice.path, file_slice.begin, file_slice.size)] if file_slice.path else []
        files += [(log.path, log.file.begin, log.size) for log in file_slice.logs]
    return files


def _read(arguments: Any) -> CommandAnswer:
    """Read rows up to `--limit` (0: all); the answer says if the limit was reached."""
    columns = None if arguments.columns is None else arguments.columns.split(",")
    limit: int = arguments.limit
    table = opened(arguments)
    options = {"as_of": arguments.as_of, "read_optimized": arguments.read_optimized}
    reader = table.scan(columns, partitions=_partitions(arguments), **options).to_reader()
    records: list[dict[str, Any]] = []
    for batch in reader:
        part = batch.slice(0, limit - len(records) if limit else None)
        records += map(in_python, part.to_struct_array())
        if limit and len(records) >= limit:
            break
    names = tuple(reader.schema.names)
    rows = tuple(tuple(row[name] for name in names) for row in records)
    more = "" if not limit or len(records) < limit else f"the first {limit}; --limit 0 shows all"
    return CommandAnswer(records, f"{len(records)} rows of {table.url}", names, rows, more)


def _doctor(arguments: Any) -> CommandAnswer:
    """Check the table by reads, even if it cannot be opened; REFUSED after a fault, not after notes."""
    store = Store.from_url(arguments.url, storage_options(arguments))
    table = Table(store, arguments.url, settings=settings(arguments))
    report = diagnose(table, keys=arguments.keys)
    entries = [{"about": about, **asdict(finding)} for _, about, findings in report for finding in findings]
    rows: list[tuple[object, ...]] = []
    for rule, about, findings in report:
        if not findings:
            rows.append((rule, "ok", about, ""))
        rows += [(rule, finding.state.upper(), finding.what, finding.mend) for finding in findings]
    wrong = sum(entry["state"] == "wrong" for entry in entries)
    below = "all checks passed" if not wrong else f"{wrong} things are wrong"
    title = f"{table.url}: {len(report)} checks"
    columns = ("rule", "state", "what", "next step")
    return CommandAnswer(entries, title, columns, tuple(rows), below, REFUSED if wrong else DONE)


BarKind = Literal["write", "replace", "clean", "rollback", "restore", "undone", "pending"]
_WAIT = "#b9d3f0"
_LOOKS: dict[BarKind, tuple[str, str]] = {
    "write": ("#3b78c3", "commit"),
    "replace": ("#8a5cc2", "overwrite"),
    "clean": ("#2f9e6e", "clean"),
    "rollback": ("#f0a202", "rollback"),
    "restore": ("#b35c00", "restore"),
    "undone": (RED, "rolled back"),
    "pending": (FAINT, "pending"),
}
_KINDS: dict[Action, BarKind] = {
    Action.REPLACECOMMIT: "replace",
    Action.CLEAN: "clean",
    Action.ROLLBACK: "rollback",
    Action.RESTORE: "restore",
}
_WRITER = "writer"  # extra metadata that names a commit's lane


@dataclass(frozen=True, slots=True)
class Bar:
    """Instant from begin to end, in epoch ms.

    All its files existed at `ready_ms`, and it held the lock from `held_ms` on; None: unknown.
    """

    start_ms: int
    end_ms: int
    kind: BarKind
    label: str
    lane: str = ""
    savepoint: bool = False
    ready_ms: int | None = None
    held_ms: int | None = None


def draw_timeline(bars: Sequence[Bar], title: str, tenures: Sequence[Tenure] = ()) -> str:
    """Bars as SVG, with a lane of the lock if `tenures` overlap their time."""
    (placed, names), shown = lanes(bars), held_during(bars, tenures)
    rows = [Lane("" if name in names[:n] else name, *_drawn(placed, n)) for n, name in enumerate(names)]
    rows += [Lane("the lock", shown)] if shown else []
    legend: list[Box | Mark] = [_box(kind, 0, 0, meaning) for kind, (_, meaning) in _LOOKS.items()]
    legend += [Box(0, 0, _WAIT, "waits for lock"), Box(0, 0, INK, "has the lock"), Mark(0, "diamond", INK, "savepoint")]
    waits = "waits for the lock are unknown, because no audit was kept"
    if tenures:
        waits = f"the lock's audit has the acquisition of {sum(bar.held_ms is not None for bar in bars)} of them"
    return draw_lanes(title, f"{count(len(bars), 'instant')}; {waits}", rows, legend=legend)


def held_during(bars: Sequence[Bar], tenures: Sequence[Tenure]) -> list[Box]:
    """Box for each tenure that overlaps the bars' time, cut to it."""
    start = min((bar.start_ms for bar in bars), default=0)
    end = max([bar.end_ms for bar in bars] + [start + 1])
    return [
        Box(
            max(tenure.start_ms, start),
            min(tenure.end_ms, end),
            INK,
            f"{tenure.owner} held the lock for {span(tenure.end_ms - tenure.start_ms)}",
        )
        for tenure in tenures
        if tenure.end_ms >= start and tenure.start_ms <= end
    ]


def lanes(bars: Sequence[Bar]) -> tuple[list[tuple[Bar, int]], list[str]]:
    """Assign bars to lanes without overlaps; return each bar, by start, with its lane's index, and the lanes' names.

    A lane is of one named writer, other writers, or (last) table services.
    """
    busy: list[tuple[str, int]] = []
    placed: list[tuple[Bar, int]] = []
    for bar in sorted(bars, key=lambda bar: (bar.start_ms, bar.end_ms)):
        group = bar.lane or ("table services" if bar.kind in ("clean", "rollback", "restore") else "writers")
        free = (n for n, (name, until_ms) in enumerate(busy) if name == group and until_ms <= bar.start_ms)
        lane = next(free, len(busy))
        busy[lane : lane + 1] = [(group, max(bar.end_ms, bar.start_ms + 1))]
        placed.append((bar, lane))
    order = sorted(range(len(busy)), key=lambda n: (busy[n][0] == "table services", busy[n][0], n))
    return [(bar, order.index(lane)) for bar, lane in placed], [busy[n][0] for n in order]


def _drawn(placed: Sequence[tuple[Bar, int]], lane: int) -> tuple[list[Box], list[Mark]]:
    in_lane = [bar for bar, at in placed if at == lane]
    savepoints = [Mark(bar.end_ms, "diamond", INK, "savepoint") for bar in in_lane if bar.savepoint]
    return [box for bar in in_lane for box in _boxes(bar)], savepoints


def _boxes(bar: Bar) -> list[Box]:
    """Bar's box and, if known, those of waiting for the lock and holding it."""
    boxes = [_box(bar.kind, bar.start_ms, bar.end_ms, bar.label)]
    if bar.held_ms is None:
        return boxes
    if bar.ready_ms is not None and bar.ready_ms < bar.held_ms:
        words = f"{bar.label}: waited for the lock for {span(bar.held_ms - bar.ready_ms)} at most"
        boxes.append(Box(bar.ready_ms, bar.held_ms, _WAIT, words))
    words = f"{bar.label}: held the lock for {span(bar.end_ms - bar.held_ms)} until its commit"
    return [*boxes, Box(bar.held_ms, bar.end_ms, INK, words)]


def _box(kind: BarKind, start_ms: int, end_ms: int, words: str) -> Box:
    return Box(start_ms, end_ms, _LOOKS[kind][0], words, hollow=kind == "pending")


def bars(table: Table, tenures: Sequence[Tenure], last: int | None = None) -> list[Bar]:
    """Bars, by begin, of completed, pending and rolled-back instants, or of the `last` ones.

    Reads their metadata and, with `tenures`, lists the table's files. A savepoint marks its commit's bar.
    """
    timeline = table.timeline()
    ends = [to_ms(i.completion or i.begin) for i in timeline.instants]
    made_ms = {entry.path: entry.modified_ms for entry in table.data_files() if entry.modified_ms} if tenures else {}
    savepoints = {i.begin for i in timeline.instants if i.action is Action.SAVEPOINT and i.is_completed}
    done = (i for i in timeline.instants if i.is_completed and i.action is not Action.SAVEPOINT)
    completed = sorted(done, key=lambda i: i.begin)[-last if last else None :]
    drawn = [replace(_done(table, item, made_ms, tenures), savepoint=item.begin in savepoints) for item in completed]
    pending = (begin for action in (*Action,) if action is not Action.SAVEPOINT for begin in timeline.pending(action))
    still = [Bar(to_ms(b), max(ends, default=0), "pending", f"{b} is pending") for b in sorted({*pending})]
    every = sorted(drawn + still + _undone(table, timeline), key=lambda bar: bar.start_ms)
    return every[-last:] if last else every


def with_lock(bar: Bar, ready_ms: int | None, tenures: Sequence[Tenure]) -> Bar:
    """Add the lock's times if only one tenure contains the bar's end."""
    holders = [tenure for tenure in tenures if tenure.start_ms <= bar.end_ms <= tenure.end_ms]
    if len(holders) != 1:
        return bar
    held_ms = max(bar.start_ms, holders[0].start_ms)
    ready = None if ready_ms is None else min(max(ready_ms, bar.start_ms), held_ms)
    return replace(bar, ready_ms=ready, held_ms=held_ms)


def _done(table: Table, instant: Instant, made_ms: Mapping[str, int], tenures: Sequence[Tenure]) -> Bar:
    """Completed instant's bar; reads a write's metadata, for its label, lane and lock times.

    `made_ms`: modification times by path.
    """
    kind = _KINDS.get(instant.action, "write")
    bar = Bar(to_ms(instant.begin), to_ms(instant.completion or instant.begin), kind, instant.file_name)
    if not instant.changes_rows:
        return bar
    metadata = table.metadata_of(instant)
    label = f"{bar.label} {metadata.operation}, {len(metadata.file_groups)} file groups"
    bar = replace(bar, label=label, lane=metadata.extra.get(_WRITER, ""))
    times_ms = [made_ms.get(stat.path) for stats in metadata.stats.values() for stat in stats]
    known_ms = [time_ms for time_ms in times_ms if time_ms is not None]
    return with_lock(bar, max(known_ms) if 0 < len(known_ms) == len(times_ms) else None, tenures)


def _undone(table: Table, timeline: Timeline) -> list[Bar]:
    """Read completed rollbacks; return bars of the instants they removed, skipping corrupt ones."""
    undone: list[Bar] = []
    for instant in timeline.instants:
        if instant.action is Action.ROLLBACK and instant.is_completed:
            name = instant.file_name
            try:
                victims = decode_rollback(table.store.read(f"{TIMELINE}/{name}").data, name)
            except Corrupt:
                continue  # the doctor reports it
            ended = to_ms(instant.begin)
            undone += [Bar(to_ms(b), ended, "undone", f"{b}.{a} was rolled back by {name}") for b, a in victims]
    return undone
