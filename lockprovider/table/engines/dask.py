"""Dask engine: workers read and write files, the client runs and commits the transaction; every scheduler works.

    engine.append(table, ddf); engine.upsert(table, ddf, retries=5)
    ddf = engine.read(table.scan(filter="city = 'ulm'"))

All workers must reach the table. Not promised: that changes which differ at each computation survive a worker's loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain, count
from typing import Any, cast

import pyarrow as pa

try:
    import dask
    import dask.dataframe
    import pandas as pd
    from dask.callbacks import Callback
    from dask.delayed import delayed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{__name__} needs {error.name}, which is not installed: install the extra 'dask' of fsspec-cas",
        name=error.name,
    ) from error

from fsspec_cas import InvalidInput
from lockprovider.table.convert import OnMissing
from lockprovider.table.convert.rows import as_table
from lockprovider.table.engines.changes import (
    KeyedChanges,
    changes_by_partition,
    check_unique,
    new_groups,
    rewrite_partition,
)
from lockprovider.table.engines.scan import Scan, resolve_scan, to_pandas
from lockprovider.table.engines.writer import WritePlan, cluster_by, compact_by, plan_for_tasks, start_for_tasks
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.read.scan import ScanPlan, read_slice
from lockprovider.table.rewrite.clustering import ClusteringResult
from lockprovider.table.rewrite.compaction import CompactionResult
from lockprovider.table.rewrite.executor import RewriteTask
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.rewrite_plan import TARGET_FILE_BYTES, ClusteringRule
from lockprovider.table.timeline.view import FileSlice
from lockprovider.table.transaction.transaction import (
    WHOLE_RETRIES,
    AnyTransaction,
    CommitResult,
    Transaction,
    inside,
    transact,
)

Frame = Any
_Pieces = dict[str, KeyedChanges]
_DASK: Any = dask


def append(
    table: TableContext, rows: Frame, *, retries: int = WHOLE_RETRIES, extra: Mapping[str, str] | None = None
) -> CommitResult:
    """Like `Table.append`.

    Without a bucket index, writes files for each Dask partition's table partitions: repartition if these are many.
    """
    return transact(table, lambda txn: insert(txn, rows), retries=retries, extra=extra)


def upsert(
    table: TableContext,
    rows: Frame,
    *,
    deletes: Frame | None = None,
    retries: int = WHOLE_RETRIES,
    extra: Mapping[str, str] | None = None,
) -> CommitResult:
    """Like `Table.upsert`: one task holds all changes of a table partition."""
    return transact(table, lambda txn: merge(txn, rows, deletes), retries=retries, extra=extra)


def delete(
    table: TableContext, keys: Frame, *, retries: int = WHOLE_RETRIES, extra: Mapping[str, str] | None = None
) -> CommitResult:
    """Delete rows by key, like `Table.delete`."""
    return transact(table, lambda txn: merge(txn, None, keys), retries=retries, extra=extra)


def compact(table: TableContext, instant: str | None = None) -> tuple[CompactionResult, ...]:
    """Like `Table.compact`: one task per file slice.

    With `instant`, run only that scheduled compaction.
    """
    return compact_by(table, _on_workers, instant)


def cluster(
    table: TableContext,
    sort_by: Sequence[str] = (),
    target_file_bytes: int = TARGET_FILE_BYTES,
    small_file_bytes: int | None = None,
    *,
    instant: str | None = None,
) -> tuple[ClusteringResult, ...]:
    """Like `Table.cluster`: one task per group of files, which holds one new file's rows.

    With `instant` and no other argument, run only that scheduled clustering.
    """
    return cluster_by(table, _on_workers, ClusteringRule.of(sort_by, target_file_bytes, small_file_bytes), instant)


def _on_workers(work: Sequence[RewriteTask]) -> Iterable[WriteStat]:
    return chain.from_iterable(_DASK.compute(*(delayed(task.write)() for task in work)))


def read(source: TableContext | AnyTransaction | Scan) -> Frame:
    """Describe the rows as of this call as a Dask frame, one partition per file; see `Table.scan`.

    Raises:
        HistoryGone: that moment cannot be read; at compute time: a file was cleaned since.
    """
    place, scan = resolve_scan(source if isinstance(source, Scan) else Scan(source))
    empty = to_pandas(scan.schema.empty_table(), plain=False)
    if not scan.slices:
        return _DASK.dataframe.from_pandas(empty, npartitions=1)
    return _DASK.dataframe.from_map(_read, scan.slices, place=place, scan=replace(scan, slices=()), meta=empty)


def insert(txn: AnyTransaction, rows: Frame) -> None:
    """Insert rows into `txn` without checking for existing keys; see `append`.

    Call it once per transaction. A key twice in a Dask partition raises InvalidRecords; twice in several is NOT
    checked. With a bucket index, it upserts.
    """
    txn = inside(txn)
    txn.operation = "INSERT"
    rows, is_blind = _frame(rows, "rows"), txn.may_be_blind

    def split(planner: GroupWriter) -> list[Any]:
        _check_known(rows, planner, "null")
        parts = list(rows.to_delayed())
        return parts if txn.config.bucket_index is None else [delayed(_fresh)(part, planner) for part in parts]

    plan = plan_for_tasks(txn, split)
    if txn.config.bucket_index is not None:
        _change(txn, plan, blindly=is_blind)
        return
    writer = start_for_tasks(txn, plan.planner.schema)
    tasks = [delayed(_insert)(part, writer, number) for number, part in enumerate(plan.changes)]
    txn.add(chain.from_iterable(_computed(txn, "write files", tasks)))


def merge(txn: AnyTransaction, upserts: Frame | None = None, deletes: Frame | None = None) -> None:
    """Upsert rows and delete keys in `txn`, a key in both is deleted; see `Table.upsert`.

    Call it once per transaction; InvalidRecords if both are None. Workers keep the changes in memory.
    """
    txn = inside(txn)
    if upserts is None and deletes is None:
        raise InvalidRecords("nothing to write: give upserts, deletes, or both")
    upserts = None if upserts is None else _frame(upserts, "rows")
    deletes = None if deletes is None else _frame(deletes, "deletes")
    txn.operation = "DELETE" if upserts is None else "UPSERT"
    is_blind = txn.may_be_blind and (deletes is None or txn.config.ordering_field in deletes.columns)

    def split(planner: GroupWriter) -> list[Any]:
        """Check the upserts' declared types; return an unstarted task per Dask partition that splits its changes."""
        if upserts is not None:
            _check_known(upserts, planner, "refuse")
        return [
            delayed(_split)(part, planner, is_delete, is_blind)
            for frame, is_delete in ((upserts, False), (deletes, True))
            for part in ([] if frame is None else frame.to_delayed())
        ]

    _change(txn, plan_for_tasks(txn, split), blindly=is_blind)


def _check_known(rows: Frame, planner: GroupWriter, missing: OnMissing) -> None:
    schema = as_table(rows._meta).schema  # noqa: SLF001 - what Dask knows of a frame
    open_fields = [pa.field(field.name, pa.null()) if pa.types.is_dictionary(field.type) else field for field in schema]
    planner.plan(pa.schema(open_fields), missing)


def _frame(frame: Any, name: str) -> Frame:
    if not isinstance(frame, _DASK.dataframe.DataFrame):
        raise InvalidInput(
            f"{name} is a {type(frame).__module__}.{type(frame).__name__}, and must be a DataFrame of Dask: make one "
            "with dask.dataframe.from_pandas, or pass it to Table.append, upsert or delete"
        )
    return frame


def _change(txn: Transaction, plan: WritePlan[list[Any]], *, blindly: bool) -> None:
    """Compute changes on workers, which keep them; begin `txn`, write each table partition in one task, add the files.

    `blindly`: without reading stored rows.
    """
    pieces = _DASK.persist(*plan.changes)
    paths = _computed(txn, "find the partitions of rows", [delayed(sorted)(piece) for piece in pieces], 1, 2)
    partitions = sorted(set(chain.from_iterable(paths)))
    writer = start_for_tasks(txn, plan.planner.schema, partitions if blindly else None)
    rewrites = []
    for number, path in enumerate(partitions):
        changes = [piece[path] for piece, found in zip(pieces, paths, strict=True) if path in found]
        rewrites.append(delayed(_rewrite)(changes, writer, txn.remaining([path]), path, number))
    txn.add(chain.from_iterable(_computed(txn, "merge partitions", rewrites, 2, 2)))


def _computed(txn: Transaction, step: str, tasks: Sequence[Any], number: int = 1, of: int = 1) -> Sequence[Any]:
    """Run delayed tasks; return results in order, or raise the first error.

    Reports progress (`step` is step `number` of `of`): the begin and, outside of a cluster's task, each end.
    """
    keys, done = {task.key for task in tasks}, count()
    report = partial(txn.table.report, "progress", txn.begin, step=step, number=number, of=of, total=len(tasks))

    def ended(key: Any, *_: Any) -> None:
        if key in keys:
            report(done=next(done))

    report(done=next(done))
    client = getattr(_DASK.base.get_scheduler(), "__self__", None)  # a cluster, which calls no `Callback`
    distributed: Any = None if client is None else import_module("dask.distributed")
    if client is None or _is_task(distributed):  # `compute` frees a task's thread meanwhile
        counting: Any = Callback
        with counting(posttask=ended):
            return cast("Sequence[Any]", _DASK.compute(*tasks))
    futures = client.compute([*tasks])
    for future in distributed.as_completed(futures):
        if future.status == "error":
            break
        ended(future.key)
    return cast("Sequence[Any]", client.gather(futures))


def _is_task(distributed: Any) -> bool:
    with suppress(ValueError):
        return distributed.get_worker() is not None
    return False


def _read(file_slice: FileSlice, place: TablePlace, scan: ScanPlan) -> pd.DataFrame:
    frame: pd.DataFrame = to_pandas(read_slice(place, scan, file_slice), plain=False)
    return frame


def _fresh(frame: pd.DataFrame, writer: GroupWriter) -> _Pieces:
    rows = as_table(frame, lambda: writer.schema)
    by_partition = changes_by_partition(writer, rows, None)
    for partition, changes in by_partition.items():
        check_unique(pa.chunked_array([changes.keys]), partition)
    return by_partition


def _insert(frame: pd.DataFrame, writer: GroupWriter, number: int) -> list[WriteStat]:
    """On a worker, write Dask partition `number`'s rows into new file groups; a key twice raises InvalidRecords."""
    by_partition, task = _fresh(frame, writer), (f"{number}-0-0", number)
    groups = (
        group
        for path, changes in by_partition.items()
        for group in new_groups(writer, path, changes.rows, changes.keys, task)
    )
    return [writer.put(writer.encode(group)) for group in groups]


def _split(frame: pd.DataFrame, writer: GroupWriter, is_delete: bool, valued: bool) -> _Pieces:  # noqa: FBT001 - a task's
    rows = as_table(frame, lambda: writer.schema)
    if not is_delete:
        return changes_by_partition(writer, rows, None, "refuse")
    return changes_by_partition(writer, None, rows, valued=valued)


def _rewrite(
    pieces: list[KeyedChanges], writer: GroupWriter, slices: tuple[FileSlice, ...], partition: str, number: int
) -> list[WriteStat]:
    """On a worker, write one table partition's changes, of all Dask partitions, into `slices` and new files.

    `number` names the files.
    """
    all_values = [piece.values for piece in pieces]  # noqa: PD011 - no frames
    values = [array for array in all_values if array is not None]
    changes = KeyedChanges(
        pa.concat_tables([piece.rows for piece in pieces]),
        pa.concat_arrays([piece.keys for piece in pieces]),
        pa.concat_arrays([piece.deletes for piece in pieces]),
        pa.concat_arrays(values) if values else None,
    )
    return list(rewrite_partition(writer, slices, partition, changes, f"{number}-0-0"))
