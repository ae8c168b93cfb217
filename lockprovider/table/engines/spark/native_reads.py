"""Reads of base files by Spark's own Parquet reader, to which Spark passes a query's columns and filters.

Python reads files that Spark would read differently. Source: Spark's `ParquetFileFormat`,
`DataSourceUtils.datetimeRebaseSpec`, `DataSource.checkAndGlobPathIfNecessary`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark import jobs
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.errors import Corrupt, HistoryGone, UnsupportedTable
from lockprovider.table.files.base_file import LEGACY_KEY, SPARK_KEY
from lockprovider.table.files.place import TablePlace
from lockprovider.table.read.filters import has_floats
from lockprovider.table.read.scan import ScanPlan, read_slice
from lockprovider.table.timeline.view import FileSlice

NativeReads = bool | str
AUTO = "auto"

_PLAIN = re.compile(r"[ -~]*", re.ASCII)  # a JVM maps other characters by its locale
_GLOB = re.compile(r"[][{}*?\\]")
_HIDDEN = ("_", ".")  # prefixes of names that Spark ignores
_THIS_CALENDAR = b"3.0.0"  # a text, as Spark compares texts, too
_OPTIONS = {  # override the session's settings
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
}


def folder_for_spark(spark: SparkSession, place: TablePlace, native_reads: NativeReads) -> str | None:
    """Return the table's folder as Spark's URL, or None if Python reads all files; may raise InvalidInput."""
    local = f"file://{place.store.root}" if place.is_local else None
    if native_reads == AUTO:
        return local if hasattr(spark, "_jsparkSession") else None  # a server may run on another machine
    if isinstance(native_reads, str):
        if "://" not in native_reads:
            raise InvalidInput(
                f"native_reads={native_reads!r} is not a URL: pass True, False, 'auto', or the table's URL for Spark"
            )
        return native_reads.rstrip("/")
    return (local or place.url.rstrip("/")) if native_reads else None


def read_scan(spark: SparkSession, place: TablePlace, scan: ScanPlan, folder: str | None) -> DataFrame:
    """Describe a scan's rows as a DataFrame, perhaps unfiltered; with `folder` it requests the files' footers.

    `folder` is the table's address for Spark; with None, Python reads all files. Nested columns with floats are always
    read by Python. Within `typed_errors`, a file cleaned since raises HistoryGone.
    """
    by_spark: list[FileSlice] = []
    by_python: list[FileSlice] = []
    folder = None if any(map(_has_floats_inside, scan.read)) else folder
    for file_slice in scan.slices:
        is_alike = folder is not None and is_read_alike(place, file_slice, scan.read, folder)
        (by_spark if is_alike else by_python).append(file_slice)
    if not by_spark:
        return jobs.run_per_piece(spark, by_python, partial(read_slice, place, scan), scan.schema)
    rows = _read_files(spark, [f"{folder}/{file_slice.path}" for file_slice in by_spark], scan.schema)
    if not by_python:
        return rows
    return rows.union(jobs.run_per_piece(spark, by_python, partial(read_slice, place, scan), scan.schema))


def _read_files(spark: SparkSession, paths: Sequence[str], columns: pa.Schema) -> DataFrame:
    with typed_errors():
        rows = spark.read.schema(from_arrow_schema(columns)).options(**_OPTIONS).parquet(*paths)
    return rows.selectExpr(*map(_by_row, columns))  # texts: a `Column` takes several calls of the JVM


def _by_row(column: pa.Field) -> str:
    """Select a column; a filter on floats must see rows, as statistics cannot express NaN and -0."""
    name = f"`{column.name}`"
    return f"nanvl({name}, {name}) as {name}" if types.is_floating(column.type) else name


def is_read_alike(place: TablePlace, file_slice: FileSlice, columns: pa.Schema, folder: str) -> bool:
    """Return whether Spark reads a slice as Python does; may request its footer.

    False for logs or unreadable files. `folder` is the table's address for Spark.
    """
    path = f"{folder}/{file_slice.path}"
    if (
        file_slice.logs
        or not _PLAIN.fullmatch(path)
        or _GLOB.search(path)
        or path.rpartition("/")[2].startswith(_HIDDEN)
    ):
        return False
    try:
        footer = place.footer(file_slice.path)
    except (Corrupt, HistoryGone, UnsupportedTable):
        return False
    return _is_of_this_calendar(footer) and has_alike(footer.schema.to_arrow_schema(), columns)


def _is_of_this_calendar(footer: pq.FileMetaData) -> bool:
    """Return whether a file's dates are of the calendar that Spark uses since version 3.0."""
    metadata = footer.metadata or {}
    return LEGACY_KEY.encode() not in metadata and metadata.get(SPARK_KEY.encode(), _THIS_CALENDAR) >= _THIS_CALENDAR


def has_alike(stored: pa.Schema, columns: pa.Schema) -> bool:
    """Return whether each column has this type in the file or is missing; Spark ignores case."""
    stored_fields: dict[str, list[tuple[str, pa.DataType]]] = {}
    for field in stored:
        stored_fields.setdefault(field.name.lower(), []).append((field.name, field.type))
    return all(
        stored_fields.get(column.name.lower(), [(column.name, column.type)]) == [(column.name, column.type)]
        for column in columns
    )


def _has_floats_inside(column: pa.Field) -> bool:
    return bool(types.is_nested(column.type)) and has_floats(column.type)
