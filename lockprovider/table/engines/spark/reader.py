"""Reader of the Spark data source: a snapshot, or changes between two completion times, one Spark task per file.

A stream's offset is a completion time, so a commit that began early and finished late is not missed.

Source: Hudi RFC-22 and `IncrementalRelationV2`; Spark's `DataSourceStreamReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fsspec_cas import InvalidInput
from lockprovider.table.convert import read_as
from lockprovider.table.engines.spark.errors import without_traceback
from lockprovider.table.engines.spark.options import SparkOptions
from lockprovider.table.errors import InvalidRecords, UnsupportedSchema
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.instant import Instant
from lockprovider.table.read import consistent
from lockprovider.table.read.changes import changes_since, check_since
from lockprovider.table.read.filters import Filter, OneOf, both
from lockprovider.table.read.scan import ScanPlan, read_slice
from lockprovider.table.read.sql_where import parse_where
from lockprovider.table.state.as_of import reached
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import OPERATION, Order, checkpoint_of
from lockprovider.table.timeline.view import AsOf

_OFFSET = "completion"
_START = ""  # before every completion time
_ROWS_PER_BATCH = 1 << 14


class Part(InputPartition):
    """Work of one task of a reader."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, and yield them."""
        raise NotImplementedError


class ReadsParts:
    """Mixin of a reader whose tasks read parts."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one part."""
        # Spark makes a partition without a value if there are none.
        return partition.batches() if isinstance(partition, Part) else iter(())


@dataclass
class Piece(Part):
    """The rows of a file, or the changes of a partition, with the types of `schema`, which Spark expects."""

    rows: Callable[[], pa.Table]
    schema: StructType

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, and yield them."""
        with without_traceback():
            target = to_arrow_schema(self.schema, timezone="UTC")
            yield from read_as(self.rows(), target).to_batches(max_chunksize=_ROWS_PER_BATCH)


def pieces(table: TableContext, scan: ScanPlan, schema: StructType) -> list[Piece]:
    """Split a scan into tasks, one per file slice; reads nothing."""
    template = replace(scan, slices=())  # each task has only its own slice
    return [Piece(partial(read_slice, table.place, template, file_slice), schema) for file_slice in scan.slices]


def snapshot_scan(
    table: TableContext, options: SparkOptions, columns: Sequence[str], as_of: str | None, among: Filter | None = None
) -> ScanPlan:
    """Request and plan a snapshot's files (`as_of` None: the latest) that may have rows for the options and `among`."""
    snapshot = consistent.snapshot(table, as_of)
    own_filter = _where(options, table.schema(snapshot.timeline))
    where = among if own_filter is None else own_filter if among is None else both(own_filter, among)
    return consistent.plan(table, snapshot, columns, where, options.partitions, read_optimized=options.read_optimized)


def changed(
    table: TableContext, options: SparkOptions, schema: StructType, begin: str, end: str, *, streams: bool = False
) -> list[Piece]:
    """Plan a read of commits completed in `(begin, end]`: the changed rows as of `end`, or net changes (`changes`).

    Returns no pieces without such commits. Without `changes`, an empty `begin` reads the snapshot of the last one.
    `streams`: `begin` is an offset, so a commit of this table. May raise HistoryGone.
    """
    columns = schema.names
    if options.changes:
        names = [name for name in columns if name != OPERATION]
        after = None if begin == _START else begin if streams else AsOf(begin)
        feed = changes_since(table, after, end or None, columns=names, partitions=options.partitions)
        return [Piece(partial(part.read, table.place), schema) for part in feed.parts]
    timeline = table.timeline()
    check_since(table, timeline, begin, Order.COMPLETION, is_checkpoint=streams)
    commits = [i for i in timeline.writes if begin < (i.completion or "") <= end]
    if not commits:
        return []
    if not begin:
        scan = snapshot_scan(table, options, columns, commits[-1].completion)
        return pieces(table, scan, schema)  # archived commits, too
    written = {instant.begin for instant in commits}
    of_commits = Filter((OneOf(hudi_schema.COMMIT_TIME, pa.string(), sorted(written)),))
    scan = snapshot_scan(table, options, columns, commits[-1].completion, of_commits)
    slices = tuple(file_slice for file_slice in scan.slices if not written.isdisjoint(file_slice.begins))
    return pieces(table, replace(scan, slices=slices), schema)


def plain_columns(schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    """Return the schema of the named columns in their order, Hudi's columns included.

    None: `schema`, which must lack Hudi's columns, as it is. Raises InvalidRecords for an unknown name.
    """
    if columns is None:
        return schema
    full = hudi_schema.with_meta(schema)
    missing = hudi_schema.absent(columns, full.names)
    if missing:
        raise InvalidRecords(f"columns {missing} are not in the table: use some of {schema.names}")
    return pa.schema([full.field(name) for name in columns])


def latest_completion(timeline: Timeline) -> str:
    """Return the last write's completion time; empty, before every time, without writes."""
    return max((instant.completion or _START for instant in timeline.writes), default=_START)


def _time(table: TableContext, timeline: Timeline, version: str) -> str:
    return checkpoint_of(timeline, version, Order.COMPLETION, reached(table))


def _where(options: SparkOptions, schema: pa.Schema) -> Filter | None:
    return None if options.filter is None else parse_where(options.filter, hudi_schema.with_meta(schema))


class BatchReader(ReadsParts, DataSourceReader):
    """Reader of a snapshot as of `pinned`, or of the changes between `begin` and `end`."""

    def __init__(self, options: SparkOptions, pinned: str | None, schema: StructType) -> None:
        self._options = options
        self._pinned = pinned
        self._schema = schema

    @without_traceback()
    def partitions(self) -> list[Piece]:
        """Plan one task per file; net changes have one per table partition."""
        options, table, schema = self._options, self._options.open(), self._schema
        if options.begin is None and options.end is None and not options.changes:
            return pieces(table, snapshot_scan(table, options, schema.names, self._pinned), schema)
        timeline = table.timeline()
        begin = _START if not options.begin else _time(table, timeline, options.begin)
        end = latest_completion(timeline) if options.end is None else _time(table, timeline, options.end)
        return changed(table, options, schema, begin, end)


class StreamReader(ReadsParts, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader that follows the table's commits in the order of their completion."""

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: str | None = None

    @without_traceback()
    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Return the offset of a new query; later starts use its checkpoint."""
        match self._options.starting:
            case "earliest":
                return {_OFFSET: _START}
            case "latest":
                return {_OFFSET: latest_completion(self._table.timeline())}
            case time:
                return {_OFFSET: self._commit_of(time) if time else _START}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch in commits, as Spark's limit in files."""
        limit = self._options.max_commits
        return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Make later batches stop at the commits that are complete now."""
        self._target = latest_completion(self._table.timeline())

    @without_traceback()
    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Return the completion time at which the next batch ends; `start` without new commits.

        Raises UnsupportedSchema if the table's columns differ from the query's.
        """
        done = self._completed_after(start[_OFFSET])
        self._check_columns()
        if isinstance(limit, ReadMaxFiles):
            done = done[: limit.max_files]
        return {_OFFSET: done[-1].completion or _START} if done else start

    @without_traceback()
    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[Piece]:
        """Plan one task per file, the same for equal offsets while the files exist."""
        self._check_columns()
        return changed(self._table, self._options, self._schema, start[_OFFSET], end[_OFFSET], streams=True)

    def _check_columns(self) -> None:
        """Raise UnsupportedSchema if the table's columns differ from the query's, as rows would lose values.

        Runs before the batch is committed, so that a restart reads it again.
        """
        names = self._schema.names
        table_columns = plain_columns(self._table.schema(), names if self._options.columns else None)
        query_types = {field.name: field.dataType.simpleString() for field in self._schema.fields}
        table_types = {field.name: field.dataType.simpleString() for field in from_arrow_schema(table_columns).fields}
        if differing := [f"{name} {kind}" for name, kind in table_types.items() if query_types.get(name) != kind]:
            raise UnsupportedSchema(
                f"columns {differing} of the table are new, or have another type, since the stream was loaded: load "
                "the stream again, and start the query with the same checkpoint; or name the columns to read in the "
                "option columns"
            )

    def __reduce__(self) -> tuple[type[StreamReader], tuple[SparkOptions, StructType]]:
        return (StreamReader, (self._options, self._schema))

    @cached_property
    def _table(self) -> TableContext:
        return self._options.open()

    def _commit_of(self, version: str) -> str:
        """Return the completion time of a version's last commit, a valid offset.

        An archived version's own time is returned, which reads reject later.
        """
        table = self._table
        timeline, archived = table.timeline(), reached(table)()
        time = _time(table, timeline, version)
        if time < archived:
            return time  # This time is rejected later: what happened since is unknown.
        return max(
            (instant.completion or "" for instant in timeline.writes if (instant.completion or "") <= time),
            default=archived,
        )

    def _completed_after(self, start: str) -> list[Instant]:
        """Return the commits completed after `start`, up to a first listing's last one and `_target`, if it is set.

        Lists the timeline a second time if the first listing has such commits.
        """
        table = self._table
        until = latest_completion(table.timeline())
        if until <= start:
            return []
        # A listing of several pages is not one moment: of two commits, it may lack the earlier one. A second listing
        # has all commits that had completed when the first one ended.
        until = until if self._target is None else min(until, self._target)
        return [instant for instant in table.timeline().writes if start < (instant.completion or _START) <= until]


def check_times(table: TableContext, timeline: Timeline, options: SparkOptions) -> None:
    """Raise InvalidInput for invalid times, or `changes` with `as_of` or `filter`."""
    if options.changes and (options.as_of is not None or options.filter is not None):
        raise InvalidInput(
            "changes=true cannot be used with as_of or filter: set begin and end, and call where on the DataFrame"
        )
    begin, end, _ = (_time(table, timeline, v) if v else None for v in (options.begin, options.end, options.as_of))
    if begin is not None and end is not None and end < begin:
        raise InvalidInput(f"end {end} is before begin {begin}: set the earlier one as begin")
