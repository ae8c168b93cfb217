"""The table's past: what it was at a time, and what changed since.

    changes = table.changes(after=checkpoint)
    apply(changes.to_arrow()); checkpoint = changes.checkpoint      # kept by the consumer, with what it applied

Source: RFC-22; Hudi `HoodieTableFileSystemView`, incremental and time travel queries; `LSMTimeline` for the archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from fsspec_cas import InvalidInput
from lockprovider.table import clean, reading
from lockprovider.table import schema as hudi_schema
from lockprovider.table.archived import reach
from lockprovider.table.errors import HistoryGone
from lockprovider.table.incremental import OPERATION, Order, Window, changed_rows, latest, touched, window
from lockprovider.table.instant import Action, Instant
from lockprovider.table.overtaken import is_overtaken
from lockprovider.table.timeline import Timeline
from lockprovider.table.view import AsOf, Snapshot, lost, rewound, time_text

if TYPE_CHECKING:
    from datetime import datetime

    from lockprovider.table.manager import Table

Groups = Mapping[str, frozenset[str]]  # file ids by partition
_OVERTAKEN = 10  # how often changes are looked up again because files were removed while they were listed
_NEEDED = (hudi_schema.RECORD_KEY, hudi_schema.COMMIT_SEQNO)


def snapshot_at(table: Table, now: Timeline, moment: AsOf) -> Snapshot:
    """What the table was at a moment.

    Raises:
        HistoryGone: it is before the table, before what was archived, or a file was cleaned.
    """
    then = rewound(now, moment.includes)
    archived = _refuse_archived(table, moment.time, Order(moment.by))
    if not then.writes and not archived:
        raise HistoryGone(f"there is no table at {table.url!r} as of {moment.time}; ask for a later time")
    seen = table.snapshot(then)
    _refuse_gone(table, now, seen, None, f"as of {moment.time}")
    return seen


@dataclass(frozen=True, slots=True)
class Part:
    """The changes of one partition: its touched file groups before and after. Picklable, and read on its own."""

    before: reading.Scan
    then: reading.Scan
    schema: pa.Schema

    def read(self, home: reading.Home) -> pa.Table:
        """The changes.

        Raises:
            HistoryGone: a file was cleaned meanwhile.
        """
        old, new = (
            pa.concat_tables([scan.schema.empty_table(), *(reading.read_slice(home, scan, one) for one in scan.slices)])
            for scan in (self.before, self.then)
        )
        return changed_rows(old, new).select(self.schema.names).cast(self.schema)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of some commits, to be read once or several times.

    Attributes:
        checkpoint: the `after` of the next call. It stays where it was when nothing new could be given.
        commits: the instants whose changes these are, in the order in which they are given.
        schema: the columns of the rows: the operation (`insert`, `update` or `delete`), then those asked for.
        parts: the changes by partition, for an engine that reads them in several places.
    """

    checkpoint: str
    commits: tuple[Instant, ...]
    schema: pa.Schema
    parts: tuple[Part, ...] = field(repr=False)
    _home: reading.Home = field(repr=False)

    def to_arrow(self) -> pa.Table:
        """All changes.

        Raises:
            HistoryGone: a file was cleaned meanwhile.
        """
        return pa.concat_tables([self.schema.empty_table(), *(part.read(self._home) for part in self.parts)])

    def scan(self) -> pa.RecordBatchReader:
        """The changes batch by batch; in memory are the touched files of one partition, before and after."""
        read = (part.read(self._home) for part in self.parts)
        batches = (batch for rows in read for batch in rows.to_batches(reading.BATCH_ROWS))
        return pa.RecordBatchReader.from_batches(self.schema, batches)


def changes(
    table: Table,
    after: str | datetime | None,
    until: str | datetime | None,
    *,
    order: Order,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
) -> Changes:
    """See `Table.changes`."""
    start = "" if after is None or after == "" else time_text(after)
    end = "" if until is None else time_text(until)
    only = None if partitions is None else frozenset(partitions)
    for _ in range(_OVERTAKEN):
        # A listing takes pages, and shows what is created meanwhile on later pages only. All that completed before the
        # last commit of one listing is in the next.
        reached = latest(table.timeline(), order)
        now = table.timeline()
        check_since(table, now, start, order)
        given = window(now, start, min(reached, end) if end else reached, order)
        try:
            found = _changes(table, now, given, continues=bool(start), columns=columns, only=only)
        except HistoryGone as error:
            if not is_overtaken(table, now, error):
                raise
        else:
            if not clean.has_overtaken(table, now):
                return found
    raise HistoryGone(f"the table at {table.url!r} is cleaned faster than its files are listed; keep more commits")


def _changes(
    table: Table,
    now: Timeline,
    given: Window,
    *,
    continues: bool,
    columns: Sequence[str] | None,
    only: frozenset[str] | None,
) -> Changes:
    schema = table.schema(given.then if given.then.writes else now)
    wanted = _wanted(schema, columns)
    if not given.commits:
        return Changes(given.checkpoint, (), wanted, (), table)
    files = table.data_files()
    then = table.snapshot(given.then, files=files)
    before = table.snapshot(given.before, files=files) if continues else Snapshot(given.before, ())
    found = touched(table.metadata_of(i) for i in given.commits) if continues else then.groups
    groups = {partition: found[partition] for partition in sorted(found) if only is None or partition in only}
    _refuse_gone(table, now, then, groups, f"up to {given.checkpoint}")
    if continues:
        _refuse_gone(table, now, before, groups, "before these changes")
    names = list(dict.fromkeys((*wanted.names[1:], *_NEEDED)))
    old, new = (reading.plan(seen, schema, table.config(), columns=names) for seen in (before, then))
    # One partition after the other: a row may have moved between its file groups.
    parts = (Part(_only(old, *group), _only(new, *group), wanted) for group in groups.items())
    return Changes(given.checkpoint, given.commits, wanted, tuple(parts), table)


def check_since(table: Table, now: Timeline, start: str, order: Order) -> None:
    """Refuse to continue from a checkpoint that commits were archived or taken back after; empty is the beginning.

    Raises:
        HistoryGone: what happened since cannot be told.
    """
    if start:
        _refuse_archived(table, start, order)
        _refuse_restored(now, start, order)


def _only(scan: reading.Scan, partition: str, file_ids: frozenset[str]) -> reading.Scan:
    return replace(scan, slices=tuple(s for s in scan.slices if s.partition == partition and s.file_id in file_ids))


def _wanted(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    full = hudi_schema.with_meta(schema)
    names = schema.names if columns is None else list(columns)
    missing = [name for name in names if name not in full.names]
    if missing or isinstance(columns, str) or OPERATION in full.names:
        raise InvalidInput(f"columns {missing or columns or [OPERATION]!r} cannot be read; name some of {schema.names}")
    return pa.schema([pa.field(OPERATION, pa.string()), *(full.field(name) for name in names)])


def _refuse_gone(table: Table, now: Timeline, seen: Snapshot, among: Groups | None, which: str) -> None:
    """Refuse a past of which a file is needed that was cleaned."""
    shown = seen.timeline.written
    gone = lost(seen, [(i, table.metadata_of(i)) for i in now.writes if i.file_name not in shown])
    missing = sorted((p, f) for p, f in gone if among is None or f in among.get(p, ()))
    if missing:
        partition, file_id = missing[0]
        raise HistoryGone(
            f"the table {which} cannot be read any more: of {len(missing)} file groups the files were cleaned, one is "
            f"{file_id} in partition {partition!r}; ask for a later time, or read the whole table again"
        )


def _refuse_restored(now: Timeline, start: str, order: Order) -> None:
    restores = [i for i in now.instants if i.action is Action.RESTORE and i.is_completed and order.time_of(i) > start]
    if restores:
        raise HistoryGone(
            f"the table was restored ({restores[0].file_name}) after {start}, which took back commits that may have "
            "been consumed; read the whole table again"
        )


def _refuse_archived(table: Table, start: str, order: Order) -> str:
    """The time up to which writes were archived; empty if none were.

    Of archived writes the view knows only that they were completed, so it cannot tell a time between them.
    """
    found = reach(table)
    reached = found.completion if order is Order.COMPLETION else found.begin
    if start < reached:
        raise HistoryGone(f"commits up to {reached} were archived; ask for a later time than {start}")
    return reached
