"""Consistent reads of one moment: a read starts again if other clients change what it has listed.

NOT promised: success if files are removed faster than a read lists them (`HistoryGone`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from lockprovider.table.errors import HistoryGone
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.html import grid
from lockprovider.table.read import scan
from lockprovider.table.state.as_of import snapshot_of_version, unless_stale
from lockprovider.table.state.events import with_progress
from lockprovider.table.state.parallel import Stale, repeat_while_stale
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import TableVersion
from lockprovider.table.timeline.view import Snapshot

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_SHOWN = 50
_Part = TypeVar("_Part")

PointInTime = TableVersion | None  # None means the present.


@dataclass(frozen=True, slots=True, repr=False)
class Commit:
    """One completed write: its begin and completion times (17 digits, UTC), its action, and its metadata.

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
        """The extra metadata that the writer gave."""
        return dict(self.metadata.extra)


class CommitHistory(list[Commit]):
    """List of completed writes, in order of completion; notebooks show a table, newest first.

    >>> rows = pa.table({"id": [1]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id"))
    >>> done = table.append(rows), table.upsert(rows)
    >>> [commit.operation for commit in table.history()]
    ['UPSERT', 'INSERT', 'UPSERT']
    """

    def _repr_html_(self) -> str:
        names = "completion", "operation", "instant", "partitions", "files", "inserts", "updates", "deletes"
        rows = [_row(commit) for commit in reversed(self[-_SHOWN:])]
        note = f", the newest {_SHOWN} shown" if len(self) > _SHOWN else ""
        return grid(f"{len(self)} completed writes{note}", names, rows)


def _row(commit: Commit) -> tuple[object, ...]:
    stats = commit.metadata.all_stats
    counts = [sum(getattr(stat, name) for stat in stats) for name in ("num_inserts", "num_updates", "num_deletes")]
    touched = len(commit.metadata.stats)
    return commit.completion, commit.operation, commit.instant, touched, len(stats), *counts


def snapshot(table: TableContext, as_of: PointInTime) -> Snapshot:
    """Return the snapshot of a moment (None: now, which is cached while valid); lists again while files disappear.

    Raises `HistoryGone` after ten reads, or if that moment cannot be read any more.
    """
    return repeat_while_stale(partial(_snapshot, table, as_of))


def _snapshot(table: TableContext, as_of: PointInTime) -> Snapshot:
    """Return the cached snapshot, or list the files and cache those of now.

    Raises `Stale` if files may have been removed during the listing.
    """
    cached = table.current.known_snapshot() if as_of is None else None
    if cached is not None:
        return cached
    timeline = table.current.visible(noted=as_of is None)
    result = unless_stale(table, timeline, partial(snapshot_by, table, timeline, as_of))
    return result if as_of is not None else table.knowledge.cache_files(result)


def snapshot_by(table: TableContext, timeline: Timeline, as_of: PointInTime) -> Snapshot:
    """Return the snapshot of a moment, from one listing; it may be stale."""
    return table.snapshot_of(timeline) if as_of is None else snapshot_of_version(table, timeline, as_of)


def plan(
    table: TableContext,
    snapshot: Snapshot,
    columns: Iterable[str] | None,
    where: scan.Where,
    partitions: Iterable[str] | None,
    *,
    read_optimized: bool = False,
    config: TableConfig | None = None,
) -> scan.ScanPlan:
    """Plan which files of a snapshot to read; see `scan.plan_scan`.

    Reads the properties unless given by `config`. Files may be cleaned before they are read.
    """
    schema = table.schema(snapshot.timeline)
    snapshot = snapshot.read_optimized if read_optimized else snapshot
    config, ranges = config or table.config(), table.place.ranges
    return scan.plan_scan(
        snapshot, schema, config, columns=columns, where=where, partitions=partitions, ranges_of=ranges
    )


def rows(
    table: TableContext,
    columns: Iterable[str] | None,
    where: scan.Where,
    partitions: Iterable[str] | None,
    as_of: PointInTime = None,
    *,
    read_optimized: bool = False,
) -> pa.Table:
    """Read the rows into memory, with progress events; see `Table.scan`.

    Without `as_of` reads again if a file was cleaned, and after ten reads raises `HistoryGone`; with `as_of` at once.
    """

    def look() -> pa.Table:
        """Read once; a cleaned file raises `Stale`, or with `as_of` `HistoryGone`."""
        try:
            scan_plan = plan(table, snapshot(table, as_of), columns, where, partitions, read_optimized=read_optimized)
            return scan.to_table(table.place, scan_plan, partial(_reporting, table, len(scan_plan.slices)))
        except HistoryGone as error:
            if as_of is not None:
                raise
            raise Stale(error) from error  # The present rows are in other files now.

    return repeat_while_stale(look)


def _reporting(table: TableContext, total: int, parts: Iterator[_Part]) -> Iterator[_Part]:
    """Yield the parts, and report progress to the table's watcher."""
    return with_progress(table, "", "read file groups", parts, total)


def commits(table: TableContext) -> CommitHistory:
    """Read the completed writes on the timeline, oldest completion first; caches their metadata.

    Starts again if a commit was archived; after ten reads raises `HistoryGone`.
    """

    def look() -> CommitHistory:
        """Read once; raise `Stale` if a commit was archived or undone since the listing."""
        done = table.timeline().writes
        try:
            return CommitHistory(
                Commit(i.begin, i.completion or "", i.action.value, table.metadata_of(i)) for i in done
            )
        except HistoryGone as error:
            raise Stale(error) from error  # A commit was archived during the read.

    return repeat_while_stale(look)
