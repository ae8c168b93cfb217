"""Non-blocking writes by Dask: no conflict among them, and bad rows are refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pyarrow as pa
import pytest
from table.mor_tables import Row, by_hudi_rs, content, keys, log_files, rows
from table.test_non_blocking import BLIND, SPEC, gone

from lockprovider.table import InvalidRecords, Table, WriteConflict
from lockprovider.table.engines import arrow, dask
from lockprovider.table.errors import AlreadyCommitted
from lockprovider.table.timeline.conflict import BatchId
from lockprovider.table.transaction.transaction import inside


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=BLIND)


def another(table: Table) -> Table:
    return Table.open(table.url, settings=BLIND)


def parted(given: pa.Table) -> Any:
    return dd.from_pandas(given.to_pandas(), npartitions=2)


def begun(table: Table, *given: Row) -> Any:
    """A write by Dask that is not committed yet."""
    txn = table.transaction()
    dask.merge(txn, parted(rows(*given)))
    return txn


def test_dask_writers_of_the_same_keys_commit_and_the_greatest_value_wins(table: Table) -> None:
    one = begun(another(table), (1, "a", "one", 5), (2, "a", "one", 1), (3, "b", "one", 1))
    two = begun(another(table), (1, "a", "two", 4), (2, "a", "two", 2), (4, "b", "two", 1))
    table.upsert(rows((3, "b", "by pyarrow", 2)))
    two.commit()
    table.compact()
    one.commit()
    expected = [(1, "a", "one", 5), (2, "a", "two", 2), (3, "b", "by pyarrow", 2), (4, "b", "two", 1)]
    assert content(table) == by_hudi_rs(table) == expected
    assert [c.operation for c in table.history()].count("BULK_INSERT") == 1, "anchors of both partitions, once"


def test_dask_writes_and_deletes_with_values_never_conflict(table: Table) -> None:
    late = begun(another(table), (2, "a", "late", 8))
    dask.append(table, parted(rows((1, "a", "x", 5), (2, "a", "x", 5), (3, "a", "x", 5))))
    assert dask.delete(table, parted(gone((1, "a", 7), (2, "a", 7), (9, "a", 7)))).deleted == 3
    done = dask.upsert(table, parted(rows((4, "b", "x", 1))), deletes=parted(gone((3, "a", 6))))
    assert (done.conflicts, done.deleted) == (0, 1)
    late.commit()
    assert content(table) == by_hudi_rs(table) == [(2, "a", "late", 8), (4, "b", "x", 1)]
    assert all(".log." in path for path in log_files(table))


def test_dask_deletes_without_values_are_ordinary_and_may_conflict(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 5)))
    txn = another(table).transaction()
    dask.merge(txn, None, parted(keys((1, "a"))))
    table.upsert(rows((1, "a", "meanwhile", 6)))
    with pytest.raises(WriteConflict):
        txn.commit()
    txn.rollback()
    dask.delete(table, parted(keys((1, "a"))))
    assert content(table) == by_hudi_rs(table) == []


def test_null_ordering_value_is_refused_before_the_instant_begins(table: Table) -> None:
    before = sorted(Path(table.url).rglob("*"))
    bad = rows((1, "a", "x", 1)).to_pandas()
    bad["ts"] = bad["ts"].astype("Int64").where(bad["ts"] > 1)
    with pytest.raises(InvalidRecords, match="ordering column 'ts' is null in 1 rows"):
        dask.upsert(table, dd.from_pandas(bad, npartitions=1))
    with pytest.raises(InvalidRecords, match="ordering column 'ts' is null in 1 rows"):
        dask.delete(table, dd.from_pandas(bad[["id", "part", "ts"]], npartitions=1))
    assert sorted(Path(table.url).rglob("*")) == before


def test_column_added_while_dask_computes_is_a_conflict_and_retried(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 5)))
    tries = 0

    def run(txn: Any) -> None:
        nonlocal tries
        tries += 1
        frame = parted(rows((1, "a", "y", 6)))
        assert txn.timeline
        if tries == 1:
            another(table).add_columns(pa.schema([("more", pa.string())]))
        dask.merge(txn, frame if tries == 1 else frame.assign(more="m"))

    assert table.transact(run, retries=1).conflicts == 1
    assert table.to_arrow(["value", "more"]).to_pylist() == [{"value": "y", "more": "m"}]


@pytest.mark.parametrize("moment", ["before it writes", "while it writes"])
def test_stream_batch_is_written_once_by_non_blocking_writers(table: Table, moment: str) -> None:
    batch = BatchId("stream", 1)

    def once(txn: Any) -> None:
        inside(txn).exactly_once(batch)
        arrow.write(txn, rows((1, "a", "once", 5)))

    late = inside(another(table).transaction())
    late.exactly_once(batch)
    if moment == "while it writes":
        arrow.write(late, rows((1, "a", "twice", 6)))
    table.transact(once)
    with pytest.raises(AlreadyCommitted):
        late.commit() if moment == "while it writes" else arrow.write(late, rows((1, "a", "twice", 6)))
    late.rollback()
    assert content(table) == by_hudi_rs(table) == [(1, "a", "once", 5)]
