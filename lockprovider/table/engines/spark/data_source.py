"""Spark data source `hudi_cas` of SPARK.md, for batches, streams and temporary views.

Source: Hudi `IncrementalRelationV2`; Spark's `DataSourceStreamReader`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fsspec_cas import InvalidInput
from lockprovider.table.convert import read_as
from lockprovider.table.engines.spark.errors import without_traceback
from lockprovider.table.engines.spark.jobs import arrow_schema
from lockprovider.table.engines.spark.options import HudiWrite, SparkOptions, WriteOperation, check_read
from lockprovider.table.engines.spark.writer import BatchWriter, StreamWriter, WriteJob
from lockprovider.table.errors import TableNotFound, UnsupportedSchema
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.layout import Instant
from lockprovider.table.read import consistent
from lockprovider.table.read.consistent import changes_schema, changes_since, check_since
from lockprovider.table.read.filters import Filter, OneOf, both
from lockprovider.table.read.scan import ScanPlan, read_slice, selected
from lockprovider.table.read.sql_where import parse_where
from lockprovider.table.state.as_of import columns_at
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import (
    OPERATION,
    AsOf,
    Order,
    checkpoint_of,
    moment_of_version,
    rewound,
    window,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "hudi_cas"
_OFFSET = "completion"
_START = ""
_ROWS_PER_BATCH = 1 << 14


def register(spark: SparkSession) -> None:
    spark.dataSource.register(HudiCas)


def activate(spark: SparkSession) -> None:
    """Make the session active in a thread, where `df.write` searches Python data sources."""
    session = getattr(spark, "_jsparkSession", None)
    if session is not None:
        jvm: Any = getattr(spark, "_jvm")  # noqa: B009 - neither name is public; Connect has none of them
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)


class HudiCas(DataSource):
    """Data source `hudi_cas`. Spark pickles it into the process of the next call."""

    _pinned: str | None = None  # completion time that a loaded DataFrame shows

    @classmethod
    def name(cls) -> str:
        return NAME

    @without_traceback()
    def schema(self) -> StructType:
        """Open the table, remember the version to show (`as_of`, else the latest), and return the columns.

        With `as_of` or `end`: those of that time. `changes` adds `_operation` first. InvalidInput for unusable options
        or times.
        """
        options = SparkOptions.of(self.options)
        table = options.open()
        timeline = table.timeline()
        check_times(table, timeline, options)
        self._pinned = options.as_of or latest_completion(timeline) or None
        columns_of = changes_schema if options.changes else selected
        return from_arrow_schema(columns_of(_schema(table, timeline, options), options.columns))

    @without_traceback()
    def reader(self, schema: StructType) -> BatchReader:
        options = SparkOptions.of(self.options)
        options.refuse("a batch read", *_OF_WRITES, "stream_id", "starting", "max_commits")
        check_read(options.hudi, of_stream=False)
        _check_columns(options, schema)
        return BatchReader(options, self._pinned or options.as_of, schema)

    @without_traceback()
    def streamReader(self, schema: StructType) -> StreamReader:
        options = SparkOptions.of(self.options)
        check_read(options.hudi, of_stream=True)
        options.refuse("a stream", *_OF_WRITES, "as_of", "begin", "end", "stream_id", "read_optimized")
        _check_columns(options, schema)
        return StreamReader(options, schema)

    @without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """Open or create the table, and take an instant unless rows are gathered or ignored."""
        options = SparkOptions.of(self.options)
        options.refuse("a write", *_OF_READS, "stream_id")
        job = _job(options, schema, overwrite=overwrite)
        job.begin()
        return BatchWriter(job)

    @without_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001 - Spark's
        """Open or create the table, and check the write like `WriteJob.check`; takes no instant.

        InvalidInput for complete mode, replacing operations, read options, and `if_exists` but append.
        """
        if overwrite:
            raise InvalidInput(
                "outputMode('complete') would replace the table with each batch: use outputMode('append')"
            )
        options = SparkOptions.of(self.options)
        options.refuse("a streaming write", *_OF_READS, "if_exists")
        job = _job(options, schema, overwrite=False)
        if job.overwrite or job.hudi_write.operation is WriteOperation.INSERT_OVERWRITE:
            raise InvalidInput(
                "each batch of this stream would replace those before it: set the operation insert, upsert or delete"
            )
        job.check()
        return StreamWriter(job)


_OF_READS = (
    "columns", "filter", "partitions", "as_of", "begin", "end", "changes", "read_optimized", "starting", "max_commits",
)  # fmt: skip
_OF_WRITES = ("merge_schema", "if_exists", "fence")


def _schema(table: TableContext, timeline: Timeline, options: SparkOptions) -> pa.Schema:
    """Table's columns at `as_of` or `end`, by default now."""
    if (version := options.as_of if options.end is None else options.end) is not None:
        moment = moment_of_version(timeline, version, table.current.last_archived)
        with contextlib.suppress(TableNotFound):  # neither a commit until then nor the creation states columns
            return columns_at(table, rewound(timeline, moment.includes))
    return table.schema(timeline)


def _check_columns(options: SparkOptions, schema: StructType) -> None:
    if options.changes and OPERATION not in schema.names:
        raise InvalidInput(f"the given columns lack {OPERATION}: deleted rows would look like others; add it, a string")


def _job(options: SparkOptions, schema: StructType, *, overwrite: bool) -> WriteJob:
    hudi_write = HudiWrite.of(options.hudi, overwrite=overwrite)
    if overwrite and options.if_exists != "append":
        raise InvalidInput(
            f"if_exists={options.if_exists} cannot be used with mode('overwrite'): leave one of them out"
        )
    return WriteJob(options, hudi_write, arrow_schema(schema))


class ReadsParts:
    """Mixin of a reader whose partitions' values read their rows."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        read: Callable[[], Iterator[pa.RecordBatch]] | None = partition.value
        return iter(()) if read is None else read()  # Spark makes a partition without a value if there are none


def _rows_as(schema: StructType, read: Callable[..., pa.Table], *arguments: object) -> Iterator[pa.RecordBatch]:
    with without_traceback():
        target = to_arrow_schema(schema, timezone="UTC")
        yield from read_as(read(*arguments), target).to_batches(max_chunksize=_ROWS_PER_BATCH)


def slice_parts(table: TableContext, scan: ScanPlan, schema: StructType) -> list[InputPartition]:
    template = replace(scan, slices=())
    read = partial(_rows_as, schema, read_slice, table.place, template)
    return [InputPartition(partial(read, file_slice)) for file_slice in scan.slices]


def snapshot_scan(
    table: TableContext,
    options: SparkOptions,
    columns: Sequence[str],
    as_of: str | None,
    among: Filter | None = None,
    *,
    schema: pa.Schema | None = None,
) -> ScanPlan:
    """Plan a read of the latest or `as_of`'s snapshot: files that may have rows for options and `among`.

    `schema`: the table's columns, of a later time; None: the snapshot's.
    """
    snapshot = consistent.snapshot(table, as_of)
    schema, where = schema or columns_at(table, snapshot.timeline), among
    if options.filter is not None:
        own_filter = parse_where(options.filter, hudi_schema.with_meta(schema))
        where = own_filter if among is None else both(own_filter, among)
    optimized = options.read_optimized
    return consistent.plan(table, snapshot, columns, where, options.partitions, read_optimized=optimized, schema=schema)


def changed(
    table: TableContext,
    options: SparkOptions,
    schema: StructType,
    begin: str,
    end: str,
    *,
    of_now: pa.Schema | None = None,
) -> list[InputPartition]:
    """Plan tasks that read commits completed in `(begin, end]`: rows written, as of the last commit, or net `changes`.

    Without `changes`, an empty `begin` reads the last commit's snapshot. No commits, no tasks. `of_now`, a stream's,
    are the table's columns now, null if it got them after `end`; then `begin` is an offset.

    HistoryGone: commits after `begin` are gone or, if it is an offset, none has its time.
    """
    columns, streams = schema.names, of_now is not None
    if options.changes:
        names = [name for name in columns if name != OPERATION]
        after = None if begin == _START else begin if streams else AsOf(begin)
        feed = changes_since(table, after, end, columns=names, partitions=options.partitions, schema=of_now)
        return [InputPartition(partial(_rows_as, schema, part.read, table.place)) for part in feed.parts]
    timeline = table.timeline()
    archived = check_since(table, timeline, begin, end, Order.COMPLETION, is_checkpoint=streams)
    span = window(timeline, begin, end, Order.COMPLETION, archived)
    if span.checkpoint == begin:
        return []
    if not begin:
        return slice_parts(table, snapshot_scan(table, options, columns, span.checkpoint, schema=of_now), schema)
    written = {instant.begin for instant in span.commits}
    of_commits = Filter((OneOf(hudi_schema.COMMIT_TIME, pa.string(), sorted(written)),))
    scan = snapshot_scan(table, options, columns, span.checkpoint, of_commits, schema=of_now)
    slices = tuple(file_slice for file_slice in scan.slices if not written.isdisjoint(file_slice.begins))
    return slice_parts(table, replace(scan, slices=slices), schema)


def latest_completion(timeline: Timeline) -> str:
    """Latest write's completion time; empty without writes."""
    return max((instant.completion or _START for instant in timeline.writes), default=_START)


def _time(table: TableContext, timeline: Timeline, version: str) -> str:
    return checkpoint_of(timeline, version, Order.COMPLETION, table.current.last_archived)


class BatchReader(ReadsParts, DataSourceReader):
    """Reader of a batch."""

    def __init__(self, options: SparkOptions, pinned: str | None, schema: StructType) -> None:
        self._options = options
        self._pinned = pinned
        self._schema = schema

    @without_traceback()
    def partitions(self) -> list[InputPartition]:
        """List files; plan one task per file slice or, for net changes, per table partition.

        Without `begin`, `end` and `changes`: the pinned snapshot. Else, without `end`: up to the last commit.
        """
        options, table, schema = self._options, self._options.open(), self._schema
        if options.begin is None and options.end is None and not options.changes:
            return slice_parts(table, snapshot_scan(table, options, schema.names, self._pinned), schema)
        timeline = table.timeline()
        check_times(table, timeline, options)
        begin = _START if not options.begin else _time(table, timeline, options.begin)
        end = latest_completion(timeline) if options.end is None else _time(table, timeline, options.end)
        return changed(table, options, schema, begin, end)


class StreamReader(ReadsParts, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader that follows the table's commits by completion."""

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: str | None = None

    @without_traceback()
    def initialOffset(self) -> dict[str, str]:
        """New query's offset by `starting`: the beginning, the last commit, or the last up to a version."""
        match self._options.starting:
            case "earliest":
                return {_OFFSET: _START}
            case "latest":
                return {_OFFSET: latest_completion(self._table.timeline())}
            case time:
                return {_OFFSET: self._commit_of(time) if time else _START}

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_commits
        return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = latest_completion(self._table.timeline())

    @without_traceback()
    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """Completion time at which the next batch ends; `start` without new commits."""
        done = self._completed_after(start[_OFFSET])
        self._check_columns()
        if isinstance(limit, ReadMaxFiles):
            done = done[: limit.max_files]
        return {_OFFSET: done[-1].completion or _START} if done else start

    @without_traceback()
    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Same tasks for equal offsets while the files exist."""
        of_now = self._check_columns()
        return changed(self._table, self._options, self._schema, start[_OFFSET], end[_OFFSET], of_now=of_now)

    def _check_columns(self) -> pa.Schema:
        """Return the table's columns; raise UnsupportedSchema if some to read are new or have other types."""
        schema = self._table.schema()
        changes = self._options.changes
        names = [name for name in self._schema.names if not (changes and name == OPERATION)]
        table_columns = selected(schema, names if self._options.columns else None)
        query_types = {field.name: field.dataType.simpleString() for field in self._schema.fields}
        table_types = {field.name: field.dataType.simpleString() for field in from_arrow_schema(table_columns).fields}
        if differing := [f"{name} {kind}" for name, kind in table_types.items() if query_types.get(name) != kind]:
            raise UnsupportedSchema(
                f"columns {differing} of the table are new, or have another type, since the stream was loaded: load "
                "the stream again, and start the query with the same checkpoint; or name the columns to read in the "
                "option columns"
            )
        return schema

    def __reduce__(self) -> tuple[type[StreamReader], tuple[SparkOptions, StructType]]:
        return (StreamReader, (self._options, self._schema))

    @cached_property
    def _table(self) -> TableContext:
        return self._options.open()

    def _commit_of(self, version: str) -> str:
        """Completion time of the last commit up to `version`; empty before the first.

        A version before the last archived commit: its own time, which reads refuse.
        """
        table = self._table
        timeline, archived = table.timeline(), table.current.last_archived()
        time = _time(table, timeline, version)
        if time < archived:
            return time
        return max(
            (instant.completion or "" for instant in timeline.writes if (instant.completion or "") <= time),
            default=archived,
        )

    def _completed_after(self, start: str) -> list[Instant]:
        table = self._table
        until = latest_completion(table.timeline())
        if until <= start:
            return []
        until = until if self._target is None else min(until, self._target)
        return [instant for instant in table.timeline().writes if start < (instant.completion or _START) <= until]


def check_times(table: TableContext, timeline: Timeline, options: SparkOptions) -> None:
    """Raise InvalidInput for invalid times, or an `end` before `begin`."""
    begin = _time(table, timeline, options.begin) if options.begin else None
    end, _ = (None if v is None else _time(table, timeline, v) for v in (options.end, options.as_of))
    if begin is not None and end is not None and end < begin:
        raise InvalidInput(f"end {end} is before begin {begin}: set the earlier one as begin")
