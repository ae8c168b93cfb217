"""Scans: read only the files, row groups and columns that a query needs; in no promised row order.

A slice with log files is excluded by partition only, and filtered after its merge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs as arrow_fs
from pyarrow import types

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import check_texts, shown
from fsspec_cas.bridge.threads import in_order
from lockprovider.table.convert import read_as
from lockprovider.table.convert.columns import leaf_types
from lockprovider.table.errors import InvalidRecords, UnsupportedTable
from lockprovider.table.files.base_file import INT96_UNIT, check_footer, reading, refuse_encrypted
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.place import FEW, Ranges, TablePlace, guarantee, may_have_range
from lockprovider.table.files.slice_rows import columns_to_merge, merged_rows
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.read.filters import Filter, of_expression, of_tuples
from lockprovider.table.read.sql_where import parse_where
from lockprovider.table.timeline.view import FileSlice, Snapshot

RangesOf = Callable[[Sequence[str]], Mapping[str, Ranges]]
# SQL text, a pyarrow expression, a list of tuples, or a `Filter`; None selects all rows.
Where = Any

SCAN_BATCH_ROWS = 1 << 16
_AT_ONCE = 4  # slices with logs
_Rows = list[pa.RecordBatch]  # Joined tables without columns lose their rows.
_VALUE_KEYGENS = ("SIMPLE", "COMPLEX")
_OPTIMIZED = "compact it with the engine that wrote it, or read it read-optimized"


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Plan of a read. Picklable; each slice can be read alone.

    Attributes:
        schema: columns of the result; `read` also has the filter's.
        bound: expression true of all requested rows, or None.
        merged: columns to read of slices with logs, and their merge rule.
    """

    slices: tuple[FileSlice, ...]
    schema: pa.Schema
    read: pa.Schema
    where: Filter | None
    bound: Any
    merged: tuple[pa.Schema, MergeRule] | None = None


def checked_columns(columns: Iterable[str] | None) -> tuple[str, ...] | None:
    names = None if columns is None else check_texts(columns, "columns", "names of columns")
    if names and len(set(names)) < len(names):
        raise InvalidInput(f"columns={shown([*names])} names a column twice: name each once")
    return names


def plan_scan(
    snapshot: Snapshot,
    schema: pa.Schema,
    config: TableConfig,
    *,
    columns: Iterable[str] | None = None,
    where: Where = None,
    partitions: Iterable[str] | None = None,
    ranges_of: RangesOf | None = None,
) -> ScanPlan:
    """Plan which files to read for the requested rows; calls `ranges_of` at most once.

    `columns` and `where` may name Hudi's meta columns, which `schema` and `columns=None` lack. Raises InvalidInput if
    either does not fit, UnsupportedTable for log files without their ordering column.
    """
    columns = checked_columns(columns)
    full = hudi_schema.with_meta(schema)
    result = selected(schema, columns)
    slices = snapshot.within(partitions)
    # A count without columns reads one column, which each table has.
    least = result if result.names else pa.schema([full.field(hudi_schema.COMMIT_TIME)])
    if where is None:
        return ScanPlan(slices, result, least, None, None, merged=_merge_plan(slices, full, least, config))
    row_filter = filter_of(where, full)
    mentioned = [full.field(name) for name in row_filter.columns]
    read = pa.schema([*least, *(full.field(name) for name in hudi_schema.absent(row_filter.columns, least.names))])
    bound = row_filter.bound()
    if bound is not None:
        slices = _pruned(slices, full, bound, (_guarantee(file_slice.partition, full, config) for file_slice in slices))
        if ranges_of is not None:
            slices = _within_ranges(slices, full, bound, mentioned, ranges_of)
    merged = _merge_plan(slices, full, read, config)
    if not row_filter.goes_by_statistics(full):
        bound = None
    return ScanPlan(slices, result, read, row_filter, bound, merged=merged)


def filter_of(where: Where, full: pa.Schema) -> Filter:
    if isinstance(where, Filter):
        return where
    if isinstance(where, str):
        return parse_where(where, full)
    return of_expression(where, full) if isinstance(where, pc.Expression) else of_tuples(where, full)


def to_table(
    place: TablePlace, scan: ScanPlan, progress: Callable[[Iterator[_Rows]], Iterator[_Rows]] = iter
) -> pa.Table:
    """Read into memory, up to 4 slices at once if some have logs; `progress` wraps their iterator."""
    reads = [partial(_read_batches, place, scan, file_slice) for file_slice in scan.slices]
    most = _AT_ONCE if place.store.is_remote else min(_AT_ONCE, os.cpu_count() or 1)
    # pyarrow's threads decode slices without logs.
    parts = progress(in_order(reads, 1 if scan.merged is None else most))
    return pa.Table.from_batches([batch for part in parts for batch in part], scan.schema)


def to_reader(place: TablePlace, scan: ScanPlan) -> pa.RecordBatchReader:
    """Open each file when reached."""
    batches = (batch for file_slice in scan.slices for batch in _batches(place, scan, file_slice, ahead=False))
    return pa.RecordBatchReader.from_batches(scan.schema, batches)


def read_slice(place: TablePlace, scan: ScanPlan, file_slice: FileSlice) -> pa.Table:
    return pa.Table.from_batches(_batches(place, scan, file_slice), scan.schema)


def selected(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Requested columns in this order (None: all but Hudi's own); raises InvalidInput for unknown ones."""
    if columns is None:
        return schema
    full = hudi_schema.with_meta(schema)
    missing = hudi_schema.absent(columns, full.names)
    if missing:
        raise InvalidInput(f"columns {shown(missing)} are not in the table; name some of {schema.names}")
    return pa.schema([full.field(name) for name in columns])


def _merge_plan(
    slices: tuple[FileSlice, ...], full: pa.Schema, read: pa.Schema, config: TableConfig
) -> tuple[pa.Schema, MergeRule] | None:
    """`read` with the columns that merging logs needs, and the rule; None if no slice has logs.

    Raises UnsupportedTable for missing ordering columns; `full`: all columns, with Hudi's own.
    """
    if not any(file_slice.logs for file_slice in slices):
        return None
    rule = MergeRule.of(config)
    strange = hudi_schema.absent(rule.ordering, full.names)
    if strange:
        raise UnsupportedTable(f"table {config.name!r} is ordered by {strange}, and has no such columns; {_OPTIMIZED}")
    extra = [full.field(name) for name in hudi_schema.absent(columns_to_merge(full, rule), read.names)]
    return pa.schema([*read, *extra]), rule


def _within_ranges(
    slices: tuple[FileSlice, ...], full: pa.Schema, expression: Any, mentioned: Sequence[pa.Field], ranges_of: RangesOf
) -> tuple[FileSlice, ...]:
    """Leave out slices without logs whose ranges of columns `mentioned` exclude `expression`.

    Returns all slices without calling `ranges_of` if few lack logs, or no column has ranges.
    """
    columns = [column for column in mentioned if may_have_range(column.type)]
    bare = [one.path for one in slices if not one.logs]
    if not columns or len(bare) <= FEW:
        return slices
    if not (ranges := ranges_of(bare)):
        return slices
    nothing: Ranges = {}
    known_ranges = (nothing if one.logs else ranges.get(one.path, nothing) for one in slices)
    return _pruned(slices, full, expression, (guarantee(one, columns) for one in known_ranges))


def _pruned(
    slices: tuple[FileSlice, ...], full: pa.Schema, expression: Any, guarantees: Iterable[Any]
) -> tuple[FileSlice, ...]:
    """Leave out slices whose `guarantees`, true of all their rows, exclude `expression`; opens no file."""
    pds, local = _dataset(), arrow_fs.LocalFileSystem()
    parquet = pds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(str(number), local, partition_expression=sure) for number, sure in enumerate(guarantees)
    ]
    dataset = pds.FileSystemDataset(fragments, full, parquet, local)
    return tuple(slices[int(fragment.path)] for fragment in dataset.get_fragments(filter=expression))


def _guarantee(partition: str, full: pa.Schema, config: TableConfig) -> Any:
    """Expression true of all rows of a partition, by its path; `true` if paths are not values."""
    sure = pc.scalar(True)
    generator = config.raw.get("hoodie.table.keygenerator.class", "").rpartition(".")[2].upper()
    names = (config.keygenerator_type, generator or _VALUE_KEYGENS[0])
    if not all(name.startswith(_VALUE_KEYGENS) for name in names):
        return sure
    try:
        texts = config.partition_style.values_of(partition)
    except InvalidRecords:
        return sure
    for name, text in zip(config.partition_fields, texts, strict=True):
        value = _value(text, full.field(name).type) if full.get_field_index(name) >= 0 else None
        if value is not None:
            sure = (pc.field(name) == value) & sure
    return sure


def _value(text: str | None, kind: pa.DataType) -> Any:
    """Convert a path's text to a scalar; None for no, ambiguous or invalid text.

    Also unless `kind` is text, integer or day.
    """
    if text is None or "/" in text:
        return None  # null and empty share one text; a path of several levels may be one value
    try:
        if types.is_string(kind):
            return pa.scalar(text, kind)
        if types.is_integer(kind):
            return pa.scalar(int(text), kind)
        return pa.scalar(date.fromisoformat(text), kind) if types.is_date(kind) else None
    except (ValueError, pa.ArrowException):
        return None


def _batches(
    place: TablePlace, scan: ScanPlan, file_slice: FileSlice, *, ahead: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield a slice's filtered rows, merged with logs; `HistoryGone`: a missing file.

    May cache footer notes. Without logs, `ahead` decodes in threads.
    """
    if not file_slice.logs:
        parts = _base_tables(place, scan, file_slice, ahead=ahead)
    elif scan.merged is None:
        raise RuntimeError("a scan with log files has a rule to merge them by")
    else:
        parts = merged_rows(place, file_slice, *scan.merged)
    for part in parts:
        rows = part if scan.where is None else scan.where.kept(part)
        yield from rows.select(scan.schema.names).to_batches()


def _read_batches(place: TablePlace, scan: ScanPlan, file_slice: FileSlice) -> _Rows:
    return list(_batches(place, scan, file_slice))


def _base_tables(place: TablePlace, scan: ScanPlan, file_slice: FileSlice, *, ahead: bool) -> Iterator[pa.Table]:
    """Yield a base file's unfiltered rows as `scan.read`, without row groups that the bound excludes.

    Logs are ignored. `HistoryGone`: it is missing. `ahead` decodes in several threads. With a filter, caches the
    footer's note.
    """
    with reading(file_slice.path):
        fragment = _fragment(place, file_slice)
        file_schema = fragment.physical_schema
        check_footer(fragment.metadata, repr(file_slice.path))
        if scan.where is not None:
            place.footer_notes.opened(file_slice.path, fragment.metadata)
        by_name = {field.name: field for field in file_schema}
        stored = pa.schema([by_name.get(field.name, field) for field in scan.read])
        if scan.bound is not None and all(map(_are_alike, stored, scan.read)):
            fragment = fragment.subset(filter=scan.bound, schema=stored)
        scanner = fragment.scanner(
            schema=stored,
            batch_size=SCAN_BATCH_ROWS,
            batch_readahead=1,
            use_threads=ahead,
            fragment_scan_options=_dataset().ParquetFragmentScanOptions(
                pre_buffer=ahead, page_checksum_verification=True
            ),
        )
        for batch in scanner.to_batches():
            yield read_as(batch, scan.read)


def _are_alike(stored: pa.Field, now: pa.Field) -> bool:
    before = dict(leaf_types(pa.schema([stored])))
    return all(
        path in before and (before[path] == kind or (types.is_integer(before[path]) and types.is_integer(kind)))
        for path, kind in leaf_types(pa.schema([now]))
    )


def _fragment(place: TablePlace, file_slice: FileSlice) -> Any:
    pds = _dataset()
    old_times = pds.ParquetReadOptions(coerce_int96_timestamp_unit=INT96_UNIT)
    no_keys = pds.ParquetFragmentScanOptions(decryption_properties=refuse_encrypted())
    parquet = pds.ParquetFileFormat(old_times, default_fragment_scan_options=no_keys)
    return parquet.make_fragment(*place.source(file_slice.path, file_slice.size))


def _dataset() -> Any:
    return import_module("pyarrow.dataset")
