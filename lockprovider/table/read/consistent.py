"""Reads of one moment, of the changes between two, and of the commit history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import pyarrow as pa

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import shown
from lockprovider.table.errors import HistoryGone
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.layout import Action, FileGroup, Instant
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.read.scan import (
    SCAN_BATCH_ROWS,
    ScanPlan,
    Where,
    checked_columns,
    plan_scan,
    read_slice,
    selected,
    to_table,
)
from lockprovider.table.state.as_of import columns_at, refuse_archived, refuse_gone, snapshot_at, unless_stale
from lockprovider.table.state.parallel import Stale, repeat_while_stale
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import (
    OPERATION,
    Order,
    TableVersion,
    Window,
    changed_rows,
    checkpoint_of,
    is_empty,
    is_instant,
    latest_checkpoint,
    moment_of_version,
    touched,
    window,
)
from lockprovider.table.timeline.view import Snapshot, given_partitions

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_SHOWN = 50
_NEEDED = (hudi_schema.RECORD_KEY, hudi_schema.COMMIT_SEQNO)

PointInTime = TableVersion | None


@dataclass(frozen=True, slots=True, repr=False)
class Commit:
    """Completed write; `instant` is its begin. Times have 17 digits, in UTC.

    >>> rows = pa.table({"id": [1]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id"))
    >>> done = table.append(rows, extra={"job": "nightly"})
    >>> commit = table.history()[-1]
    >>> commit.operation, commit.instant == done.instant
    ('INSERT', True)
    """

    instant: str
    completion: str
    action: str
    metadata: CommitMetadata

    def __repr__(self) -> str:
        return f"<Commit {self.instant} {self.operation}, completed {self.completion}>"

    @property
    def operation(self) -> str:
        """Hudi's name of the operation, upper case."""
        return self.metadata.operation

    @property
    def extra(self) -> dict[str, str]:
        """Writer's extra metadata."""
        return dict(self.metadata.extra)


class CommitHistory(list[Commit]):
    """List of completed writes, by completion.

    >>> rows = pa.table({"id": [1]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id"))
    >>> done = table.append(rows), table.upsert(rows)
    >>> [commit.operation for commit in table.history()]
    ['UPSERT', 'INSERT', 'UPSERT']
    """

    def _repr_html_(self) -> str:
        """HTML table of the newest 50 commits, newest first."""
        names = "completion", "operation", "instant", "partitions", "files", "inserts", "updates", "deletes"
        rows: list[tuple[object, ...]] = []
        for commit in reversed(self[-_SHOWN:]):
            stats = commit.metadata.all_stats
            counts = (sum(getattr(stat, f"num_{name}") for stat in stats) for name in names[-3:])
            times = commit.completion, commit.operation, commit.instant
            rows.append((*times, len(commit.metadata.stats), len(stats), *counts))
        note = f", the newest {_SHOWN} shown" if len(self) > _SHOWN else ""
        head = "".join(f"<th>{name}</th>" for name in names)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
        table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        return f"<table><caption>{len(self)} completed writes{note}</caption>{table}</table>"


def snapshot(table: TableContext, as_of: PointInTime) -> Snapshot:
    """Snapshot of a moment (None: now, cached while valid); may list files, or raise `HistoryGone`."""
    return repeat_while_stale(partial(_snapshot, table, as_of))


def _snapshot(table: TableContext, as_of: PointInTime) -> Snapshot:
    cached = table.current.known_snapshot() if as_of is None else None
    if cached is not None:
        return cached
    timeline = table.current.visible(noted=as_of is None)
    result = unless_stale(table, timeline, partial(snapshot_by, table, timeline, as_of))
    return result if as_of is not None else table.knowledge.cache_files(result)


def snapshot_by(table: TableContext, timeline: Timeline, as_of: PointInTime) -> Snapshot:
    if as_of is None:
        return table.snapshot_of(timeline)
    return snapshot_at(table, timeline, moment_of_version(timeline, as_of, table.current.last_archived))


def plan(
    table: TableContext,
    snapshot: Snapshot,
    columns: Iterable[str] | None,
    where: Where,
    partitions: Iterable[str] | None,
    *,
    read_optimized: bool = False,
    config: TableConfig | None = None,
    schema: pa.Schema | None = None,
) -> ScanPlan:
    """Plan a scan as `plan_scan`; reads the properties without `config`, the snapshot's columns without `schema`."""
    schema = schema or columns_at(table, snapshot.timeline)
    snapshot = snapshot.read_optimized if read_optimized else snapshot
    config, ranges = config or table.config(), table.place.ranges
    return plan_scan(snapshot, schema, config, columns=columns, where=where, partitions=partitions, ranges_of=ranges)


def rows(
    table: TableContext,
    columns: Iterable[str] | None,
    where: Where,
    partitions: Iterable[str] | None,
    as_of: PointInTime = None,
    *,
    read_optimized: bool = False,
) -> pa.Table:
    """Read the rows into memory, with progress events; `read_optimized`: without log files.

    Repeats if files vanish, but with `as_of` raises `HistoryGone`.
    """

    def look() -> pa.Table:
        """Read rows; missing files raise Stale, or HistoryGone with `as_of`."""
        try:
            scan_plan = plan(table, snapshot(table, as_of), columns, where, partitions, read_optimized=read_optimized)
            report = partial(table.report_each, "", "read file groups", total=len(scan_plan.slices))
            return to_table(table.place, scan_plan, report)
        except HistoryGone as error:
            if as_of is not None:
                raise
            raise Stale(error) from error  # The rows are in other files now.

    return repeat_while_stale(look)


def commits(table: TableContext) -> CommitHistory:
    """Read the completed writes on the timeline, oldest completion first; caches their metadata."""

    def commit(instant: Instant) -> Commit:
        return Commit(instant.begin, instant.completion or "", instant.action.value, table.metadata_of(instant))

    def look() -> CommitHistory:
        done = table.timeline().writes
        try:
            return CommitHistory(map(commit, done))
        except HistoryGone as error:
            raise Stale(error) from error

    return repeat_while_stale(look)


@dataclass(frozen=True, slots=True)
class PartitionChanges:
    """Scans of a partition's touched file groups, before and after. Picklable."""

    before: ScanPlan
    after: ScanPlan
    schema: pa.Schema

    def read(self, place: TablePlace) -> pa.Table:
        old, new = (
            pa.concat_tables([scan.schema.empty_table(), *(read_slice(place, scan, part) for part in scan.slices)])
            for scan in (self.before, self.after)
        )
        return changed_rows(old, new).select(self.schema.names).cast(self.schema)


@dataclass(frozen=True, slots=True)
class Changes:
    """Some commits' changes, readable several times.

    Attributes:
        checkpoint: `after` of the next call; the same without new commits.
        commits: instants with these changes, in the requested order.
        schema: operation (`insert`, `update` or `delete`), then the requested columns.
        parts: changes by partition, for engines.

    >>> rows = pa.table({"id": [1, 2], "city": ["ulm", "bonn"]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id", "city"))
    >>> done = table.append(rows)
    >>> changes = table.changes()
    >>> changes.checkpoint == done.completion
    True
    """

    checkpoint: str
    commits: tuple[Instant, ...]
    schema: pa.Schema
    parts: tuple[PartitionChanges, ...] = field(repr=False)
    _place: TablePlace = field(repr=False)

    def to_arrow(self) -> pa.Table:
        """Read all changes.

        Raises:
            HistoryGone: a file was cleaned before it was read.

        >>> changes.to_arrow().column("_operation").to_pylist()
        ['insert', 'insert']
        """
        return pa.concat_tables([self.schema.empty_table(), *(part.read(self._place) for part in self.parts)])

    def to_reader(self) -> pa.RecordBatchReader:
        """Read the changes in batches; memory holds one partition's touched files, before and after.

        >>> sum(batch.num_rows for batch in changes.to_reader())
        2
        """
        read = (part.read(self._place) for part in self.parts)
        batches = (batch for rows in read for batch in rows.to_batches(SCAN_BATCH_ROWS))
        return pa.RecordBatchReader.from_batches(self.schema, batches)


def changes_since(
    table: TableContext,
    after: TableVersion | None = None,
    until: TableVersion | None = None,
    *,
    order: Order | str = Order.COMPLETION,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
    schema: pa.Schema | None = None,
) -> Changes:
    """Plan the changes of commits in (after, until], by their time in `order`; lists timeline and files.

    Without `after` every row is an insert. `until` None: now. `schema`: columns of a later time than `until`; None: of
    that time, or now's if no commit up to it is on the timeline. Raises InvalidInput for an unknown order,
    `HistoryGone` if commits or files are gone.
    """
    by_name = {known.value: known for known in Order}
    if not isinstance(order, str) or order not in by_name:
        raise InvalidInput(f"order={shown(order)} is unknown: use {', '.join(by_name)}")
    order = by_name[order]
    columns, within = checked_columns(columns), given_partitions(partitions)
    only = None if within is None else frozenset(within)

    def look() -> Changes:
        """Plan the changes of one listing.

        Stale: cleaning may have removed files; HistoryGone: missing files, lost commits, or an unknown start.
        """
        # A paged listing may lack the earlier of two commits. A second has both.
        latest = latest_checkpoint(table.timeline(), order)
        timeline = table.timeline()
        archived = table.current.last_archived
        start, end = (
            "" if version is None or is_empty(version) else checkpoint_of(timeline, version, order, archived)
            for version in (after, until)
        )
        archived_time = check_since(table, timeline, start, end, order, is_checkpoint=is_instant(after))
        span = window(timeline, start, latest if until is None else min(latest, end), order, archived_time)
        read = partial(
            _changes, table, timeline, span, continues=bool(start), columns=columns, only=only, schema=schema
        )
        return unless_stale(table, timeline, read)

    return repeat_while_stale(look)


def _changes(
    table: TableContext,
    timeline: Timeline,
    span: Window,
    *,
    continues: bool,
    columns: Sequence[str] | None,
    only: frozenset[str] | None,
    schema: pa.Schema | None,
) -> Changes:
    """List files, and plan a window's changes by partition (`only`: these). Unless `continues`, every row is an insert.

    Raises InvalidInput for a column named like the operation, `HistoryGone` for missing files, UnsupportedTable for
    columns that schema-on-read changed.
    """
    schema = schema or table.schema(span.then if span.then.writes else timeline)
    result = changes_schema(schema, columns)
    if not span.commits and (continues or not span.checkpoint):
        return Changes(span.checkpoint, (), result, (), table.place)
    files = table.data_files()
    then = table.snapshot_of(span.then, files)
    before = table.snapshot_of(span.before, files) if continues else Snapshot(span.before, ())
    table.current.refuse_misread(span.then, before)
    by_partition = touched(table.metadata_of(i) for i in span.commits) if continues else then.groups
    groups = {name: by_partition[name] for name in sorted(by_partition) if only is None or name in only}

    def is_read(group: FileGroup) -> bool:
        if not continues:  # A full read does not need file groups that ended.
            return only is None or group[0] in only
        return group[1] in groups.get(group[0], ())

    refuse_gone(table, timeline, then, is_read, f"up to {span.checkpoint}")
    if continues:
        refuse_gone(table, timeline, before, is_read, "before these changes")
    names = list(dict.fromkeys((*result.names[1:], *_NEEDED)))
    old, new = (plan_scan(snapshot, schema, table.config(), columns=names) for snapshot in (before, then))
    # Whole partitions: rows may move between file groups.
    parts = (
        PartitionChanges(_within_groups(old, *group), _within_groups(new, *group), result) for group in groups.items()
    )
    return Changes(span.checkpoint, span.commits, result, tuple(parts), table.place)


def changes_schema(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Schema of changes, the operation first; InvalidInput if the table has a column of its name, in any case."""
    if named := [name for name in schema.names if name.lower() == OPERATION]:
        raise InvalidInput(f"column {named[0]!r} of the table has the name of the operation; read it by a scan")
    return pa.schema([pa.field(OPERATION, pa.string()), *selected(schema, columns)])


def check_since(
    table: TableContext, timeline: Timeline, start: str, end: str, order: Order, *, is_checkpoint: bool = True
) -> str:
    """Read the archive (cached) for its last write's time; empty if none, or without `start` and `end`.

    Raises `HistoryGone` if commits after `start` (without it, after `end`) were archived, or a restore followed
    `start`. With `is_checkpoint`, also if no instant has the time `start`.
    """
    if not start:
        return refuse_archived(table, end, order) if end else ""
    archived = refuse_archived(table, start, order)
    restored = (i for i in timeline.instants if i.action is Action.RESTORE and i.is_completed)
    if restore := next((i for i in restored if order.time_of(i) > start), None):
        raise HistoryGone(
            f"the table was restored ({restore.file_name}) after {start}, which undid commits that you may have read; "
            "read the whole table again"
        )
    if is_checkpoint and start != archived and not any(start in (i.begin, i.completion) for i in timeline.instants):
        raise HistoryGone(
            f"checkpoint {start} is not a commit time of the table at {table.url!r}: it was recreated or copied, "
            f"or the checkpoint is of another table, or of another order than {order.value!r}; read the whole table "
            "again, or give a datetime to read what completed after it"
        )
    return archived


def _within_groups(scan: ScanPlan, partition: str, file_ids: frozenset[str]) -> ScanPlan:
    return replace(scan, slices=tuple(s for s in scan.slices if s.partition == partition and s.file_id in file_ids))
