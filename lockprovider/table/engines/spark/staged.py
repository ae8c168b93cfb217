"""Writes for which one process gathers all rows: upsert, delete, overwriting the rows' partitions.

As a data source cannot shuffle, tasks stage rows in the table's folder, and the committing process merges them. A
killed process leaves its files in `.hoodie/.temp/staged-*`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsspec_cas import CasError, Machine
from fsspec_cas.bridge.threads import in_order
from lockprovider.table.engines.changes import AT_ONCE, check_unique, file_sized_tables, rows_by
from lockprovider.table.engines.spark import tasks
from lockprovider.table.engines.spark.options import WriteOperation
from lockprovider.table.engines.writer import start_for_tasks
from lockprovider.table.errors import Aborted
from lockprovider.table.files.base_file import buckets_of_keys
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.bloom import hashes
from lockprovider.table.format.layout import MARKERS, STAGED
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.conflict import BatchId
from lockprovider.table.transaction.transaction import WHOLE_RETRIES, CommitResult, Transaction, transact

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")
_NO_COLUMNS = pa.schema([])
_CHANGED = "the table's columns changed while the rows were staged: run the write again"


@dataclass(frozen=True)
class StagedFile:
    """File of changes (`tasks.change_schema`) with its row counts by table partition."""

    path: str
    counts: Mapping[str, int]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


@dataclass(frozen=True)
class Stage:
    """Settings for staging one write's rows in its own `folder`. Picklable."""

    writer: GroupWriter
    operation: WriteOperation
    valued: bool
    folder: str = field(default_factory=lambda: f"{MARKERS}/{STAGED}{Machine().new_id()}")

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[StagedFile]:
        """Convert a task's rows, and store them as files in `folder`."""
        missing: Any = "refuse" if self.operation is WriteOperation.UPSERT else "null"
        is_delete = self.operation is WriteOperation.DELETE
        changes = tasks.keyer(self.writer, delete=is_delete, missing=missing, valued=self.valued)(batches)
        reader = pa.RecordBatchReader.from_batches(tasks.change_schema(self.writer.schema), changes)
        return [self._put(part) for part in file_sized_tables(reader)]

    def _put(self, rows: pa.Table) -> StagedFile:
        sink, path = pa.BufferOutputStream(), f"{self.folder}/{Machine().new_id()}.arrow"
        with pa.ipc.new_file(sink, rows.schema, options=_PACKED) as file:
            file.write_table(rows)
        self.writer.place.store.put_if_absent(path, bytes(sink.getvalue())).unwrap()
        counts = {count["values"]: count["counts"] for count in pc.value_counts(rows[tasks.PARTITION]).to_pylist()}
        return StagedFile(path, counts)


def remove_staged(place: TablePlace, folders: Iterable[str]) -> None:
    """Remove all files in these folders, also of failed task attempts; ignores store errors."""
    with suppress(CasError):
        place.store.delete_all([entry.path for folder in folders for entry in place.store.list(f"{folder}/")])


def commit_staged(
    table: TableContext, stage: Stage, files: Sequence[StagedFile], batch_id: BatchId | None = None
) -> CommitResult:
    """Write the staged rows in one transaction, with retries; keep the staged files.

    Aborted: the table's columns have changed. AlreadyCommitted: the table has `batch_id`.
    """
    with tempfile.TemporaryDirectory(prefix="hudi-staged-") as folder:
        merging = _Merging(stage, tuple(files), Path(folder))

        def run(txn: Transaction) -> None:
            if batch_id is not None:
                txn.exactly_once(batch_id)
            merging.write(txn)

        return transact(table, run, retries=WHOLE_RETRIES)


@dataclass(frozen=True)
class _Merging:
    stage: Stage
    files: tuple[StagedFile, ...]
    folder: Path

    def write(self, txn: Transaction) -> None:
        """Begin `txn` with `start_for_tasks`, merge the rows into file groups, and add their files.

        Copies staged files into `folder`. Aborted: columns have changed. `insert_overwrite` first ends the rows'
        partitions and, without a bucket index, raises InvalidRecords for a repeated key.
        """
        replaces = self.stage.operation is WriteOperation.INSERT_OVERWRITE
        txn.operation = "DELETE" if self.stage.operation is WriteOperation.DELETE else "UPSERT"
        planner, counts = txn.planner(), Counter[str]()
        if not planner.schema.equals(self.stage.writer.schema):
            raise Aborted(_CHANGED)
        for file in self.files:
            counts.update(file.counts)
        if replaces:
            txn.end_partitions(sorted(counts))
        writer = start_for_tasks(txn, planner.schema, counts if self.stage.valued and txn.may_be_blind else None)
        slices = () if replaces else txn.remaining(counts)
        numbered = tasks.Numbered.of(slices, counts, writer.config.bucket_index)
        keys = pa.concat_tables([self._read(file, [tasks.KEY, tasks.PARTITION]) for file in self.files] or [_NONE])
        partitions = keys[tasks.PARTITION].combine_chunks().dictionary_encode()
        names: list[str] = partitions.dictionary.to_pylist()
        if replaces and writer.config.bucket_index is None:
            for partition in names:
                check_unique(keys[tasks.KEY].filter(pc.equal(keys[tasks.PARTITION], partition)), partition)
        homes: NDArray[np.int64] = partitions.indices.to_numpy().astype(np.int64)
        places = _groups(writer, numbered, keys[tasks.KEY], partitions)
        rewrite = tasks.rewriter(writer, numbered, valued=self.stage.valued)

        def merge(home: int, group: int, parts: list[tuple[Path, int]]) -> list[WriteStat]:
            opened = ((pa.ipc.open_file(pa.memory_map(str(path))), number) for path, number in parts)
            rows = pa.Table.from_batches([file.get_batch(number) for file, number in opened])
            return [WriteStat(**stat) for stat in rewrite((pa.scalar(names[home]), pa.scalar(group)), rows).to_pylist()]

        parts = self._sort(homes, *places)
        jobs = [partial(merge, home, group, batches) for (home, group), batches in sorted(parts.items())]
        txn.add(stat for stats in in_order(jobs, AT_ONCE) for stat in stats)

    def _read(self, staged: StagedFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a staged file's `columns` through a copy on this disk, made once.

        Aborted for other column names than the stage's.
        """
        copy = self.folder / staged.path.rpartition("/")[2]
        if not copy.exists():
            copy.write_bytes(self.stage.writer.place.store.read(staged.path).data)
        with pa.memory_map(str(copy)) as file:
            names = pa.ipc.open_file(file).schema.names
            if names != tasks.change_schema(self.stage.writer.schema).names:
                raise Aborted(_CHANGED)  # A stream's batch is committed by another writer than its tasks had.
            fields = [names.index(name) for name in columns or names]
            return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields)).read_all()

    def _sort(
        self, homes: NDArray[np.int64], rows: NDArray[np.int64], groups: NDArray[np.int64]
    ) -> dict[tuple[int, int], list[tuple[Path, int]]]:
        """Copy each staged file, which stays, into `folder`, with one batch per file group.

        Returns paths and batch numbers by partition number and group. `homes`: each row's partition number. `rows`:
        ascending row numbers over all files, with `groups`.
        """
        batches: dict[tuple[int, int], list[tuple[Path, int]]] = {}
        start = 0
        for number, staged in enumerate(self.files):
            table, path = self._read(staged).combine_chunks(), self.folder / f"sorted-{number}.arrow"
            selected = slice(*np.searchsorted(rows, [start, start + table.num_rows]))
            numbers, its_groups = rows[selected], groups[selected]
            codes = homes[numbers] << 32 | its_groups & 0xFFFFFFFF  # equal new groups of two partitions are two
            with pa.ipc.new_file(str(path), table.schema) as file:
                for part, chosen in enumerate(rows_by(pa.array(codes)).values()):
                    at, first = chosen.to_numpy(), chosen[0].as_py()
                    (batch,) = table.take(pa.array(numbers[at] - start)).combine_chunks().to_batches()
                    file.write_batch(batch)
                    home_and_group = int(homes[numbers[first]]), int(its_groups[first])
                    batches.setdefault(home_and_group, []).append((path, part))
            start += table.num_rows
        return batches


_NONE = pa.schema([(tasks.KEY, pa.string()), (tasks.PARTITION, pa.string())]).empty_table()


def _groups(
    writer: GroupWriter, numbered: tasks.Numbered, keys: pa.ChunkedArray, partitions: pa.DictionaryArray
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers, ascending, and their groups' numbers in `numbered`; negative: new in its partition.

    Each of its partition's groups with the key, else a new one; reads stored keys. With a bucket index: the bucket's.
    """
    if writer.config.bucket_index is not None:
        row_buckets = _numbers(keys, lambda chunk: buckets_of_keys(writer.config, chunk).to_numpy())
        return np.arange(len(keys)), numbered.by_bucket(partitions, row_buckets)
    hashed, homes = _numbers(keys, hashes), partitions.indices.to_numpy()
    locate = tasks.locator(writer, _NO_COLUMNS, np.unique(hashed).astype(np.uint32))
    is_new = np.ones(len(keys), dtype=np.bool_)
    assigned: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for home, path in enumerate(partitions.dictionary.to_pylist()):
        rows = np.flatnonzero(homes == home)
        partition_keys = keys.take(pa.array(rows))
        for numbered_slice in numbered.old.items():
            if numbered_slice[1].partition != path or not len(located := locate(numbered_slice)[tasks.KEY]):
                continue
            hit = rows[pc.is_in(partition_keys, value_set=located.combine_chunks()).to_numpy(zero_copy_only=False)]
            is_new[hit] = False
            assigned.append((hit, np.full(len(hit), numbered_slice[0])))
    new_rows = np.flatnonzero(is_new)
    assigned.append((new_rows, -1 - hashed[new_rows] % numbered.buckets))
    rows, groups = (np.concatenate(parts) for parts in zip(*assigned, strict=True))
    order = np.argsort(rows, kind="stable")
    return rows[order], groups[order]


def _numbers(keys: pa.ChunkedArray, of: Callable[[pa.Array], Any]) -> NDArray[np.int64]:
    return np.concatenate([np.array([], dtype=np.int64), *(of(chunk).astype(np.int64) for chunk in keys.chunks)])
