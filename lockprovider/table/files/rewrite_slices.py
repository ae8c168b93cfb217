"""Rewrite of file slices by table services: compaction of a slice, clustering of rows.

Source: Hudi `HoodieCompactor`, `FileGroupReaderBasedMergeHandle`; `SparkSortAndSizeExecutionStrategy`,
`RowCustomColumnsSortPartitioner`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lockprovider.table.files.base_file import array_of
from lockprovider.table.files.encoding import BATCH_ROWS
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.files.merge_log import MergeRule, order_of
from lockprovider.table.files.slice_rows import columns_to_merge, merged_rows
from lockprovider.table.format.layout import BaseFile, MarkerKind
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.schema import COMMIT_SEQNO, COMMIT_TIME, RECORD_KEY, with_meta
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SPILLED = pa.ipc.IpcWriteOptions(compression="lz4")


def write_clustered(
    writer: GroupWriter, slices: Sequence[FileSlice], sort_by: Sequence[str], file_ids: Sequence[str], token: str
) -> list[WriteStat]:
    """Write all rows of slices, of one partition, as new file groups; return statistics. Old files stay.

    Several file ids get sorted ranges of about equal size; empty files are not written. Commit times stay.
    """
    rule = MergeRule.of(writer.config) if any(file_slice.logs for file_slice in slices) else MergeRule()
    stored = [COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, *writer.schema.names]
    outputs = [np.zeros(0, np.int64)]
    if len(file_ids) > 1:
        columns = pa.concat_tables(_rows(writer, slices, [RECORD_KEY, *sort_by], rule))
        outputs = [_output_of(columns.select(list(sort_by)), columns.num_rows, len(file_ids))]
        del columns
    tables = _spread(_rows(writer, slices, stored, rule), outputs[0], len(file_ids))
    return [
        _write(writer, slices[0].partition, BaseFile(file_id, token, writer.begin), _ordered(rows, sort_by))
        for file_id, rows in zip(file_ids, tables, strict=True)
        if rows.num_rows
    ]


def _rows(writer: GroupWriter, slices: Iterable[FileSlice], names: list[str], rule: MergeRule) -> Iterator[pa.Table]:
    """Read the slices, and yield the named columns of their rows, in parts; the first is empty."""
    full = with_meta(writer.schema)
    unique_names = dict.fromkeys(names)
    columns = pa.schema([full.field(name) for name in dict.fromkeys([*unique_names, *columns_to_merge(full, rule)])])
    yield columns.empty_table().select([*unique_names])
    for file_slice in slices:
        for part in merged_rows(writer.place, file_slice, columns, rule, in_place=True):
            if part.num_rows:
                yield part.select([*unique_names])


def _output_of(rows: pa.Table, count: int, files: int) -> NDArray[np.int64]:
    size = max(1, -(-count // files))
    order = order_of(rows.columns) if rows.num_columns else np.arange(count)
    outputs = np.empty(count, np.int64)
    outputs[order] = np.arange(count) // size
    return outputs


def _spread(parts: Iterator[pa.Table], outputs: NDArray[np.int64], files: int) -> Iterator[pa.Table]:
    """Yield each output file's rows in turn; `outputs` has each row's file number.

    Of several files, rows wait in temporary files.
    """
    if files == 1:
        yield pa.concat_tables(parts)
        return
    with contextlib.ExitStack() as opened:
        runs = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(files)]
        first = next(parts)
        streams = [pa.ipc.new_stream(run, first.schema, options=_SPILLED) for run in runs]
        done = 0
        for part in parts:
            positions = outputs[done : done + part.num_rows]
            for number in np.unique(positions).tolist():
                streams[number].write_table(part.filter(pa.array(positions == number)))
            done += part.num_rows
        for run, stream in zip(runs, streams, strict=True):
            stream.close()
            run.seek(0)
            yield pa.ipc.open_stream(run).read_all()


def _ordered(rows: pa.Table, sort_by: Sequence[str]) -> pa.Table:
    return rows.take(order_of(rows.select(list(sort_by)).columns)) if sort_by else rows


def _write(writer: GroupWriter, partition: str, base: BaseFile, rows: pa.Table) -> WriteStat:
    keys, plain = array_of(rows.column(RECORD_KEY)), rows.drop([RECORD_KEY])
    parts = (plain[first : first + BATCH_ROWS] for first in range(0, rows.num_rows, BATCH_ROWS))
    stat = WriteStat(base.file_id, "", partition, num_inserts=rows.num_rows)
    return writer.put(writer.encoded(stat, base, parts, writer.schema, keys))


def write_compacted(writer: GroupWriter, file_slice: FileSlice, token: str) -> WriteStat:
    """Read a slice, and create the marker and base file that compact it; commit times and sequence numbers stay.

    An empty file is written too, since without it the previous base file's rows would reappear.
    """
    rule, full = MergeRule.of(writer.config), with_meta(writer.schema)
    stored = [COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, *writer.schema.names]
    needed = [name for name in columns_to_merge(full, rule) if name not in stored]
    columns = pa.schema([full.field(name) for name in (*stored, *needed)])
    stat = WriteStat(
        file_slice.file_id,
        "",
        file_slice.partition,
        prev_commit=file_slice.base or None,
        prev_base_file=file_slice.path.rpartition("/")[2] or None,
    )
    parts = (rows.select(stored) for rows in merged_rows(writer.place, file_slice, columns, rule, in_place=True))
    file = writer.encoded(stat, BaseFile(file_slice.file_id, token, writer.begin), parts, writer.schema)
    return writer.put_slice(file, MarkerKind.MERGE if file_slice.path else MarkerKind.CREATE)
