"""What a table is asked on the command line, as answers: nothing here writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockprovider.commands.table.output import CommandAnswer
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.state.archive_index import reach

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockprovider.table.read.consistent import Commit
    from lockprovider.table.table import Table
    from lockprovider.table.timeline.view import FileSlice


def info(table: Table) -> CommandAnswer:
    """What the table is, and how much of it there is."""
    config, now = table.config(), table.timeline()
    seen = table.snapshot(now)
    last = now.writes[-1:]
    said: dict[str, Any] = {
        "url": table.url,
        "name": config.name,
        "type": config.table_type,
        "version": config.version,
        "record_keys": list(config.record_keys),
        "partition_fields": list(config.partition_fields),
        "ordering_field": config.ordering_field,
        "buckets": config.bucket_index and config.bucket_index.buckets,
        "bucket_by": list(config.bucket_by),
        "columns": {field.name: str(field.type) for field in table.schema(now)},
        "commits": len(now.writes),
        "archived_up_to": reach(table.archived).begin or None,
        "pending_writes": list(now.pending_writes),
        "savepoints": sorted(i.begin for i in now.instants if i.action is Action.SAVEPOINT and i.is_completed),
        "last_commit": last[0].file_name if last else None,
        "partitions": len(seen.partitions),
        "files": len(_files(seen.slices)),
        "bytes": sum(size for _, _, size in _files(seen.slices)),
        "log_files": sum(len(slice_.logs) for slice_ in seen.slices),
        "pending_compactions": list(now.pending(Action.COMPACTION)),
        "pending_clusterings": list(now.pending(Action.CLUSTERING)),
    }
    columns = [f"{name} {kind}" for name, kind in said["columns"].items()]
    rows = tuple((key.replace("_", " "), columns if key == "columns" else value) for key, value in said.items())
    return CommandAnswer(said, f"table {config.name}", ("", "value"), rows)


def log(table: Table, last: int | None) -> CommandAnswer:
    """The completed writes, the latest first."""
    commits = table.history()[::-1][:last]
    said = [_commit(commit) for commit in commits]
    columns = ("completed", "instant", "operation", "inserted", "updated", "deleted", "files", "extra")
    rows = tuple(tuple(_short(one[name]) for name in columns) for one in said)
    return CommandAnswer(said, f"{len(said)} commits of {table.url}, the latest first", columns, rows)


def _short(cell: object) -> object:
    match cell:
        case list():
            return len(cell)
        case dict():
            return ", ".join(f"{key}={value}" for key, value in cell.items())
        case _:
            return cell


def _commit(commit: Commit) -> dict[str, Any]:
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


def timeline(table: Table, last: int | None) -> CommandAnswer:
    """The instants, one line each whatever their number of files; the latest first."""
    now = table.timeline()
    states: dict[tuple[str, str], Instant] = {}
    for instant in now.instants:
        key = (instant.begin, "write" if instant.changes_rows else instant.action.value)
        if key not in states or _rank(instant) > _rank(states[key]):
            states[key] = instant
    found = sorted(states.values(), key=lambda i: (i.begin, i.completion or "~"), reverse=True)[:last]
    columns = ("begin", "completed", "action", "state")
    said = [dict(zip(columns, (i.begin, i.completion, i.action.value, i.state.value), strict=True)) for i in found]
    rows = tuple(tuple(one.values()) for one in said)
    return CommandAnswer(said, f"{len(said)} instants of {table.url}, the latest first; times are UTC", columns, rows)


def _rank(instant: Instant) -> int:
    return list(InstantState).index(instant.state)


def files(table: Table, partition: str | None, as_of: str | None) -> CommandAnswer:
    """The files that a reader reads."""
    seen = table.snapshot(as_of=as_of)
    found = _files(seen.within(None if partition is None else [partition]))
    columns = ("path", "instant", "bytes")
    said = [dict(zip(columns, one, strict=True)) for one in found]
    total = sum(size for _, _, size in found)
    title = f"{len(found)} files, {total} bytes, of {table.url}" + (f" as of {as_of}" if as_of else "")
    return CommandAnswer(said, title, columns, tuple(tuple(one.values()) for one in said))


def _files(slices: Iterable[FileSlice]) -> list[tuple[str, str, int]]:
    """Path, instant and size of each base and log file."""
    found: list[tuple[str, str, int]] = []
    for one in slices:
        found += [(one.path, one.begin, one.size)] if one.path else []
        found += [(log.path, log.file.begin, log.size) for log in one.logs]
    return found


def read(
    table: Table,
    columns: list[str] | None,
    partition: str | None,
    as_of: str | None,
    limit: int,
    *,
    read_optimized: bool,
) -> CommandAnswer:
    """The first rows."""
    within = None if partition is None else [partition]
    reader = table.scan(columns, partitions=within, as_of=as_of, read_optimized=read_optimized).to_reader()
    said: list[dict[str, Any]] = []
    for batch in reader:
        said += batch.slice(0, limit - len(said) if limit else None).to_pylist()
        if limit and len(said) >= limit:
            break
    names = tuple(reader.schema.names)
    rows = tuple(tuple(row[name] for name in names) for row in said)
    more = "" if not limit or len(said) < limit else f"the first {limit}; --limit 0 shows all"
    return CommandAnswer(said, f"{len(said)} rows of {table.url}", names, rows, more)


def savepoints(table: Table) -> CommandAnswer:
    """All savepoints."""
    columns = ("instant", "by", "made_ms", "comment", "files")
    found = table.savepoints().items()
    said = [dict(zip(columns, (b, s.user, s.at_ms, s.comment, len(s.paths)), strict=True)) for b, s in found]
    rows = tuple(tuple(one.values()) for one in said)
    return CommandAnswer(said, f"{len(said)} savepoints of {table.url}", columns, rows)


def doctor(table: Table, *, keys: bool = False) -> tuple[CommandAnswer, bool]:
    """What is wrong, and whether anything is."""
    report = diagnose(table, keys=keys)
    said = [
        {"rule": rule, "about": about, "state": f.state, "what": f.what, "mend": f.mend}
        for rule, about, found in report
        for f in found
    ]
    rows: list[tuple[object, ...]] = []
    for rule, about, found in report:
        if not found:
            rows.append((rule, "ok", about, ""))
        rows += [(rule, finding.state.upper(), finding.what, finding.mend) for finding in found]
    wrong = sum(one["state"] == "wrong" for one in said)
    below = "nothing is wrong" if not wrong else f"{wrong} things are wrong"
    title = f"{table.url}: {len(report)} checks"
    return CommandAnswer(said, title, ("rule", "state", "what", "how to mend it"), tuple(rows), below), bool(wrong)
