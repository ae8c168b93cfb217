"""The four steps of every engine's write, and what the engines share of the first two.

plan    `plan_write` or `plan_for_tasks` checks the rows and splits them as the engine wants them; nothing is begun yet
start   `start_here`, `start_append` or `start_for_tasks` begins the transaction; then there is a writer of its files
write   the engine writes the files, in its own process or in tasks
add     `Transaction.add` takes what was written; the commit is not the engine's
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa

from lockprovider.table.errors import TableError, UnsupportedTable, WriteConflict
from lockprovider.table.files.base_file import look_like_buckets
from lockprovider.table.files.group_writer import GroupWriter, WritesHere
from lockprovider.table.format.properties import BUCKET, BUCKETS, INDEX
from lockprovider.table.transaction.transaction import Transaction

Changes = TypeVar("Changes")  # as an engine has split them


@dataclass(frozen=True, slots=True)
class WritePlan(Generic[Changes]):
    """Rows that fit the table's columns, split by these.

    `planner` tells keys and partitions of rows; it is of no instant. `split` makes the changes of a planner.
    """

    planner: GroupWriter
    split: Callable[[GroupWriter], Changes]
    changes: Changes


def planner_by(txn: Transaction, schema: pa.Schema) -> GroupWriter:
    """What tells keys and partitions of rows, before anything is written; it is of no instant."""
    return GroupWriter(txn.table.place, "", txn.config, schema)


def planner_of(txn: Transaction) -> GroupWriter:
    """The same, by the columns that the table has."""
    return planner_by(txn, txn.table.schema(txn.timeline))


def plan_write(txn: Transaction, split: Callable[[GroupWriter], Changes]) -> WritePlan[Changes]:
    """Check and split what is to be written, by the columns that the table is known to have.

    Raises:
        InvalidRecords, DoesNotFit: what `split` refuses, by the columns that the table has now.
    """
    if (known := txn.expected_schema) is not None:
        with suppress(TableError):  # it may have got a column since
            return _planned(planner_by(txn, known), split)
    return plan_for_tasks(txn, split)


def plan_for_tasks(txn: Transaction, split: Callable[[GroupWriter], Changes]) -> WritePlan[Changes]:
    """Check and split what is to be written, by the columns that the table has now: tasks do not split it again.

    Raises:
        InvalidRecords, DoesNotFit: what `split` refuses.
    """
    return _planned(planner_of(txn), split)


def _planned(planner: GroupWriter, split: Callable[[GroupWriter], Changes]) -> WritePlan[Changes]:
    return WritePlan(planner, split, split(planner))


def start_here(
    txn: Transaction, plan: WritePlan[Changes], blindly: Collection[str] | None = None
) -> tuple[GroupWriter, Changes]:
    """Start `txn`: a writer for this process only, whose transaction knows what it wrote, and what it is to write.

    The rows are split again, if the table has other columns than the plan. `blindly`: the partitions of a write that
    may be blind, and is from now on.
    """
    if blindly is not None:
        txn.write_blindly(blindly)
    schema, changes = txn.begin_to_write(), plan.changes
    if not schema.equals(plan.planner.schema):
        changes = plan.split(planner_by(txn, schema))
    _check_marked(txn)
    return _writer(txn, schema, txn.start_here()), changes


def start_append(txn: Transaction, plan: WritePlan[Changes]) -> tuple[GroupWriter, Changes]:
    """Start `txn` for new file groups alone: they are announced while its instant is taken, if they can be made again.

    Raises:
        Passed: this, or what writes the first file: the table is not what the plan has assumed.
    """
    if not txn.may_start_early:
        return start_here(txn, plan)
    schema = plan.planner.schema
    return _writer(txn, schema, txn.start_early(schema, partial(_check_marked, txn))), plan.changes


def _writer(txn: Transaction, schema: pa.Schema, here: WritesHere | None = None) -> GroupWriter:
    return GroupWriter(txn.table.place, txn.begin, txn.config, schema, here)


def start_for_tasks(txn: Transaction, schema: pa.Schema, blindly: Collection[str] | None = None) -> GroupWriter:
    """Start `txn`: a writer that is good for other processes, by the columns of the plan; `blindly` as of `start_here`.

    Raises:
        WriteConflict: others have added columns meanwhile.
    """
    _check_marked(txn)
    if blindly is not None:
        txn.write_blindly(blindly)
    if not txn.begin_to_write().equals(schema):
        raise WriteConflict(txn.begin, txn.timeline.writes[-1].file_name, ())
    txn.start()
    return _writer(txn, schema)


def _check_marked(txn: Transaction) -> None:
    """Refuse to write where a JVM writer made buckets and did not say so in the properties, as it never does.

    Raises:
        UnsupportedTable: all file groups are called as buckets are.
    """
    if txn.config.bucket_index is not None:
        return
    for instant in reversed(txn.timeline.writes):
        ids = [file_id for _, file_id in txn.table.metadata_of(instant).file_groups]
        if not ids:
            continue
        if look_like_buckets(ids) and look_like_buckets(one.file_id for one in txn.snapshot.slices):
            raise UnsupportedTable(
                f"table {txn.config.name!r} has file groups like {ids[0]}, of a JVM writer with {INDEX}={BUCKET}: "
                f"say so by `lockprovider table adopt-buckets` (Table.adopt_bucket_index), with that writer's {BUCKETS}"
            )
        return
