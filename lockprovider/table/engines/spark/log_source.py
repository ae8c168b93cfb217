"""Spark data source `lockprovider_wal`: a log (`lockprovider.wal`) as a stream, or its present records.

    register_log(spark)                                         # once a session
    log = spark.readStream.format("lockprovider_wal").option("reader", "to-hudi").load("s3://bucket/orders")

Options:

- `path`
- `storage_options`: JSON
- `starting`: `earliest`, `latest` or `slot:offset`, for a query without a checkpoint
- `max_slots`: most slots at once
- `reader`: name of a reader in the log, which keeps the records that Spark has not committed. Without it, a query
  that falls behind fails with `Trimmed`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark.data_source import ReadsParts
from lockprovider.table.engines.spark.errors import without_traceback
from lockprovider.table.engines.spark.options import Parser, count_option, json_option, parsed, text_option
from lockprovider.wal import LogReader, MalformedObject, Position, Wal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_NAME = "lockprovider_wal"
COLUMNS = pa.schema(
    [
        ("slot", pa.int64()),
        ("offset", pa.int64()),
        ("record", pa.binary()),
        ("epoch", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
_SLOTS_PER_TASK = 64


def register_log(spark: SparkSession) -> None:
    spark.dataSource.register(LogSource)


def _starting(_: str, text: str) -> str:
    if text not in {"earliest", "latest"}:
        Position.parse(text)
    return text


_PARSERS: Mapping[str, Parser] = {
    "storage_options": json_option,
    "starting": _starting,
    "max_slots": count_option,
    "reader": text_option,
}


@dataclass(frozen=True)
class LogOptions:
    """Options of one read."""

    url: str
    storage_options: dict[str, Any] | None = None
    starting: str = "earliest"
    max_slots: int | None = None
    reader: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> LogOptions:
        lowered = {key.lower(): value for key, value in options.items()}
        if strange := sorted(lowered.keys() - {"path", *_PARSERS}):
            raise InvalidInput(f"options {strange} are not known: use some of {sorted({'path', *_PARSERS})}")
        if not lowered.get("path"):
            raise InvalidInput("no path: call load(url), or set the option path")
        return cls(lowered["path"], **parsed(lowered, _PARSERS))

    def open(self) -> Wal:
        return Wal.open(self.url, storage_options=self.storage_options)

    def begins(self, log: Wal) -> Position:
        """Where a query without a checkpoint begins; requests the log, except for a position."""
        match self.starting:
            case "earliest":
                return log.position("oldest")
            case "latest":
                return log.end()
            case text:
                return Position.parse(text)


def _read_part(options: LogOptions, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
    """Yield one batch of `COLUMNS` per slot, from `start` to before `end`, which begins a slot.

    MalformedObject if records are missing.
    """
    with without_traceback():
        reached = start.offset
        for batch in options.open().read(start):
            if batch.start.slot >= end.slot:
                break
            count, first, at_us = len(batch.records), batch.start, batch.at_ms * 1000
            offsets = range(first.offset, first.offset + count)
            columns = [[first.slot] * count, offsets, batch.records, [batch.epoch] * count, [at_us] * count]
            arrays = [pa.array(values, field.type) for values, field in zip(columns, COLUMNS, strict=True)]
            yield pa.record_batch(arrays, schema=COLUMNS)
            reached = batch.end.offset
        if reached != end.offset:
            gap = f"the records {reached} to {end.offset} of {options.url!r} are missing"
            raise MalformedObject(f"{gap}: another program removes objects of this log")


def log_parts(options: LogOptions, log: Wal, start: Position, end: Position) -> list[InputPartition]:
    if end.offset == start.offset:
        return []
    cuts = [log.position(slot) for slot in range(start.slot + _SLOTS_PER_TASK, end.slot, _SLOTS_PER_TASK)]
    return [InputPartition(partial(_read_part, options, first, last)) for first, last in pairwise([start, *cuts, end])]


class LogSource(DataSource):
    """Data source of a log."""

    @classmethod
    def name(cls) -> str:
        return LOG_NAME

    @without_traceback()
    def schema(self) -> StructType:
        LogOptions.of(self.options)
        return from_arrow_schema(COLUMNS)

    @without_traceback()
    def reader(self, schema: StructType) -> LogBatchReader:  # noqa: ARG002 - Spark's signature
        options = LogOptions.of(self.options)
        if options.reader is not None or options.max_slots is not None:
            raise InvalidInput("options reader and max_slots cannot be used with a batch read: leave them out")
        return LogBatchReader(options)

    @without_traceback()
    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: ARG002 - Spark's
        return LogStreamReader(LogOptions.of(self.options))


class LogBatchReader(ReadsParts, DataSourceReader):
    """Reader of a batch, up to the log's present end."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    @without_traceback()
    def partitions(self) -> list[InputPartition]:
        log = self._options.open()
        return log_parts(self._options, log, self._options.begins(log), log.end())


class LogStreamReader(ReadsParts, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader that follows a log; the option `reader` opens a named reader, which fences its former client."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._reader: LogReader | None = None
        self._target: Position | None = None

    @without_traceback()
    def initialOffset(self) -> dict[str, int]:
        """New query's start, at which a new named reader begins."""
        begins = self._options.begins(self._log)
        if self._options.reader is not None:
            self._reader = self._log.reader(self._options.reader, start=begins)
        return _offset(begins)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_slots
        return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._log.end()

    @without_traceback()
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Position at which the next batch ends, never before `start`."""
        begins, end = _position(start), self._target or self._log.end()
        if isinstance(limit, ReadMaxFiles) and end.slot - begins.slot > limit.max_files:
            end = self._log.position(begins.slot + limit.max_files)
        return _offset(max(begins, end))

    @without_traceback()
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Same tasks for equal offsets while the log keeps the records."""
        return log_parts(self._options, self._log, _position(start), _position(end))

    @without_traceback()
    def commit(self, end: dict[str, int]) -> None:
        """Move the named reader, if any, forward to this position; opens it first if this process has not."""
        if self._options.reader is not None:
            self._reader = self._reader or self._log.reader(self._options.reader)
            if _position(end) > self._reader.position:
                self._reader.commit(_position(end))

    def __reduce__(self) -> tuple[type[LogStreamReader], tuple[LogOptions]]:
        return (LogStreamReader, (self._options,))

    @cached_property
    def _log(self) -> Wal:
        return self._options.open()


def _offset(position: Position) -> dict[str, int]:
    return {"slot": position.slot, "offset": position.offset}


def _position(offset: dict[str, int]) -> Position:
    return Position(offset["slot"], offset["offset"])
