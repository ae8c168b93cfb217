"""DataFrames in and out, by pandas and Dask: what is taken, what is refused, and what hudi-rs then reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hudi import HudiTableBuilder
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, data_files, orphans, rows, upsert

from fsspec_cas import InvalidInput, Store
from fsspec_cas.backends.local import LocalBackend
from lockprovider.table import Aborted, HistoryGone, InvalidRecords, Table, TableSpec, UnsupportedSchema, WriteConflict
from lockprovider.table.engines import arrow, changes
from lockprovider.table.engines import dask as on_dask
from lockprovider.table.engines.writer import start_for_tasks
from lockprovider.table.transaction.transaction import Transaction, transact

STEPS = ["id", "part", "value"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def frame(*triples: tuple[Any, Any, Any], index: Any = None) -> pd.DataFrame:
    return pd.DataFrame(list(triples), columns=STEPS, index=index)


def as_hudi_rs_reads(table: Table) -> list[dict[str, Any]]:
    names = table.schema().names
    found = [b.select(names) for b in HudiTableBuilder.from_base_uri(table.url).build().read()]
    return sorted((row for batch in found for row in batch.to_pylist()), key=lambda row: row["id"])


# -- pandas ------------------------------------------------------------------------------------------------------------


def test_frame_is_appended_upserted_and_deleted(table: Table) -> None:
    first = table.append(frame((1, "a", 1), (2, "a", 2), (3, "b", 3)), extra={"batch": "7"})
    second = table.upsert(frame((2, "a", 20), (4, "b", 4)), retries=3)
    third = table.delete(frame((3, "b", 0), (99, "b", 0)))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "a", 20), (4, "b", 4)}
    counts = [(done.inserted, done.updated, done.deleted) for done in (first, second, third)]
    assert counts == [(3, 0, 0), (1, 1, 0), (0, 0, 1)]
    history = table.history()[1:]
    assert [commit.operation for commit in history] == ["INSERT", "UPSERT", "DELETE"]
    assert [commit.extra.get("batch") for commit in history] == ["7", None, None]
    assert [commit.instant for commit in history] == [first.instant, second.instant, third.instant]


def test_key_in_both_rows_and_deletes_is_deleted(table: Table) -> None:
    table.append(frame((1, "a", 1), (2, "a", 2)))
    table.upsert(frame((1, "a", 10), (3, "a", 3)), deletes=frame((1, "a", 0)))
    assert content(table) == by_hudi_rs(table.url) == {(2, "a", 2), (3, "a", 3)}


def test_index_is_dropped_whatever_it_is(table: Table) -> None:
    table.append(frame((1, "a", 1), (2, "b", 2), index=pd.Index(["x", "y"], name="value_too")))
    table.upsert(frame((3, "b", 3), index=pd.MultiIndex.from_tuples([(1, 2)])))
    assert table.to_arrow().column_names == STEPS
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 2), (3, "b", 3)}


def test_read_frame_equals_the_written_frame(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()), ("small", pa.int32()), ("ok", pa.bool_()), ("x", pa.float64()), ("name", pa.string()),
            ("kind", pa.string()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
            ("day", pa.date32()), ("tags", pa.list_(pa.string())), ("raw", pa.binary()),
        ]
    )  # fmt: skip
    big = 2**60 + 1  # not a float
    given = pd.DataFrame(
        {
            "id": pd.array([1, 2], "Int64"),
            "small": pd.array([1, None], "Int32"),
            "ok": pd.array([None, True], "boolean"),
            "x": [0.5, np.nan],
            "name": ["ä", None],
            "kind": pd.Categorical(["k", "l"]),
            "at": pd.to_datetime(["2024-02-29 12:00:00.123456", None]).tz_localize("Europe/Berlin"),
            "local": pd.to_datetime(["2024-02-29 12:00", "1969-12-31 00:00"]),
            "day": [pd.Timestamp("2024-02-29").date(), None],
            "tags": [["a", None], None],
            "raw": [b"\x00\xff", None],
        }
    )
    given.loc[0, "id"] = big
    table = Table.create(str(tmp_path / "t"), TableSpec("t", schema, record_keys=("id",)), settings=SETTINGS)
    table.append(given)
    found = table.to_pandas()
    assert found["id"].tolist() == [big, 2]
    expected = given.assign(kind=given["kind"].astype(str), at=given["at"].dt.tz_convert("UTC").astype("M8[us, UTC]"))
    pd.testing.assert_frame_equal(found.drop(columns="tags"), expected.drop(columns="tags"), check_dtype=False)
    assert found["tags"].dtype == pd.ArrowDtype(pa.list_(pa.field("element", pa.string())))
    assert found["tags"].tolist() == [["a", None], pd.NA]
    assert found["small"].dtype == "Int32"
    assert found["ok"].dtype == "boolean"
    without = schema.remove(schema.get_field_index("local"))  # hudi-rs 0.5 knows no timestamps without a zone
    other = Table.create(str(tmp_path / "u"), TableSpec("u", without, record_keys=("id",)), settings=SETTINGS)
    other.append(given.drop(columns="local"))
    assert as_hudi_rs_reads(other) == table.to_arrow(without.names).sort_by("id").to_pylist()


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (pd.to_timedelta([1, 2]), "^value: duration.* does not fit int64; cast it to int64"),
        ([1, "one"], "'value' of dtype object cannot be stored"),
        ([{"a": 1}, {"a": 2}], "^value: struct<a: int64> does not fit int64; cast it"),
        (["1", "2"], "^value: (large_)?string does not fit int64; cast it"),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), r"^value: timestamp\[.s\] does not fit int64; cast it"),
        ([1 + 2j, 3j], "'value' of dtype complex128 cannot be stored"),
        (pd.period_range("2024", periods=2), "^value: .*period"),
        (np.array([2**63, 1], dtype="uint64"), "^value: uint64 does not fit int64: 9223372036854775808, in row 0"),
    ],
    ids=["timedelta", "mixed", "dict", "text", "time", "complex", "period", "uint64"],
)
def test_column_of_the_wrong_type_is_named_and_nothing_is_written(table: Table, column: Any, sentence: str) -> None:
    bad = pd.DataFrame({"id": [1, 2], "part": ["a", "b"], "value": column})
    before = data_files(Path(table.url))
    for call in (table.append, table.upsert):
        with pytest.raises(UnsupportedSchema, match=sentence):
            call(bad)
    assert data_files(Path(table.url)) == before
    assert table.timeline().pending_writes == ()
    assert content(table) == set()


@pytest.mark.parametrize("value", [0.5, float(2**63), np.inf])
def test_number_that_would_change_is_refused(table: Table, value: float) -> None:
    with pytest.raises(InvalidRecords, match="^value: double does not fit int64: "):
        table.append(frame((1, "a", value), (2, "a", 1.0)))
    table.append(frame((1, "a", np.nan), (2, "a", 3.0)))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", None), (2, "a", 3)}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (frame((1, "a", 1), (None, "a", 2)), r"record key \['id'\] is null or empty in 1 rows, the first is row 1"),
        (frame((1, "a", 1)).assign(other=1), r"^other is int64 and not in the table.*add_columns"),
        (frame((1, "a", 1)).drop(columns="part"), "^part is missing"),
        (frame((1, "a", 1)).rename(columns={"value": 7}), r"columns \[7\] need names"),
        (frame((1, "a", 1)).set_axis(["id", "part", "part"], axis=1), r"columns \['part', 'part'\] need names"),
        ("id,part,value", "str has no rows"),
        ({"id": [1]}, "dict has no rows"),
        (pd.Series([1], name="id"), "Series has no rows"),
        (dd.from_pandas(frame((1, "a", 1)), npartitions=1), "for Dask use lockprovider.table.engines.dask"),
    ],
    ids=["null key", "stranger", "no partition", "number as name", "twice", "text", "dict", "series", "dask"],
)
def test_bad_rows_are_refused_with_the_next_step(table: Table, bad: Any, sentence: str) -> None:
    before = data_files(Path(table.url))
    for call in (table.append, table.upsert):
        with pytest.raises(InvalidRecords, match=sentence):
            call(bad)
    assert data_files(Path(table.url)) == before
    assert table.timeline().pending_writes == ()


def test_duplicate_key_is_refused_by_append_and_merged_by_upsert(table: Table) -> None:
    twice = frame((1, "a", 1), (1, "b", 2), (1, "a", 3))
    with pytest.raises(InvalidRecords, match="record key '1' comes more than once in partition 'a'.*use upsert"):
        table.append(twice)
    assert data_files(Path(table.url)) == set()
    table.upsert(twice)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 3), (1, "b", 2)}


def test_missing_column_is_null_in_append_and_refused_in_upsert(table: Table) -> None:
    table.append(frame((1, "a", 1)))
    part = frame((1, "a", 0), (2, "a", 0)).drop(columns="value")
    with pytest.raises(InvalidRecords, match="^value is missing"):
        table.upsert(part)
    table.append(part.iloc[1:])
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "a", None)}


def test_delete_needs_key_and_partition_and_nothing_else(table: Table) -> None:
    table.append(frame((1, "a", 1), (2, "a", 2)))
    with pytest.raises(InvalidRecords, match="^part is missing"):
        table.delete(pd.DataFrame({"id": [1]}))
    with pytest.raises(InvalidRecords, match="is null"):
        table.delete(pd.DataFrame({"id": [None], "part": ["a"]}))
    done = table.delete(pd.DataFrame({"part": ["a"], "id": [1], "why": ["asked for"]}))
    assert done.deleted == 1
    assert content(table) == by_hudi_rs(table.url) == {(2, "a", 2)}


def test_conflict_of_a_frame_is_retried_or_raised(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(frame((1, "a", 0)))
    real = arrow.write
    left = [3]

    def overtaken(txn: Any, *args: Any, **kwargs: Any) -> None:
        real(txn, *args, **kwargs)
        if left[0]:
            left[0] -= 1
            other = Transaction(table)
            real(other, rows((1, "a", 100 + left[0])))
            other.commit()

    monkeypatch.setattr(arrow, "write", overtaken)
    with pytest.raises(WriteConflict):
        table.upsert(frame((1, "a", 1)), retries=1)
    done = table.upsert(frame((1, "a", 2)), retries=1)
    assert (done.attempts, done.conflicts) == (2, 1)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 2)}


# -- pyarrow, and all that speaks its stream ---------------------------------------------------------------------------


def test_reader_is_appended_file_by_file_in_bounded_memory(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "ROWS_PER_FILE", 1000)
    taken: list[int] = []

    def batches() -> Any:
        for start in range(0, 4500, 300):
            taken.append(len(data_files(Path(table.url))))
            yield rows(*((n, "a", n) for n in range(start, start + 300))).to_batches()[0]

    done = table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert done.inserted == 4500
    assert len(done.file_groups) == 4
    assert taken[0] == 0
    assert taken[-1] == 3, "the last batch was asked for when three files were written"
    assert content(table) == by_hudi_rs(table.url) == {(n, "a", n) for n in range(4500)}


def test_duplicate_key_across_files_of_one_append_is_found(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "ROWS_PER_FILE", 10)
    batches = [*rows(*((n, "a", n) for n in range(30))).to_batches(max_chunksize=7), *rows((3, "a", 0)).to_batches()]
    with pytest.raises(InvalidRecords, match="record key '3' comes more than once"):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches))
    assert data_files(Path(table.url)) == set()
    assert orphans(Path(table.url)) == set()


def test_reader_can_be_upserted_and_has_no_second_try_when_appended(table: Table) -> None:
    def reader() -> pa.RecordBatchReader:
        return rows((1, "a", 1), (2, "b", 2)).to_reader()

    with pytest.raises(InvalidRecords, match="read only once"):
        table.append(reader(), retries=1)
    table.append(reader())
    table.upsert(reader(), deletes=rows((2, "b", 0)).to_reader(), retries=2)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}


def test_reader_that_fails_leaves_nothing(table: Table) -> None:
    def batches() -> Any:
        yield rows((1, "a", 1)).to_batches()[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert data_files(Path(table.url)) == set()
    assert table.timeline().pending_writes == ()


def test_any_object_with_an_arrow_stream_can_be_written(table: Table) -> None:
    class Foreign:
        """As a polars DataFrame or a DuckDB result does."""

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return rows((1, "a", 1)).__arrow_c_stream__(requested_schema)

    table.append(Foreign())
    table.append(rows((2, "a", 2)).to_batches()[0])
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "a", 2)}


def test_read_of_a_transaction_uses_its_snapshot(table: Table) -> None:
    table.append(frame((1, "a", 1)))
    with table.transaction() as txn:
        upsert(table, (1, "a", 2))
        assert txn.to_pandas(["value"])["value"].tolist() == [1]
    assert table.to_pandas(["value"])["value"].tolist() == [2]


def test_empty_frame_makes_an_empty_commit(table: Table) -> None:
    done = table.append(frame((1, "a", 1)).iloc[:0].astype({"id": "int64", "part": "str", "value": "int64"}))
    assert (done.inserted, done.file_groups) == (0, ())
    assert content(table) == by_hudi_rs(table.url) == set()


# -- Dask --------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["threads", "processes"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    """`processes` pickles all that goes to a worker, as a cluster does."""
    pool = ProcessPoolExecutor(2, mp_context=get_context("spawn")) if request.param == "processes" else None
    with dask.config.set(scheduler=request.param, pool=pool), pool or nullcontext():
        yield request.param


def parted(count: int, *triples: tuple[Any, Any, Any]) -> Any:
    return dd.from_pandas(frame(*triples), npartitions=count, sort=False)


def test_dask_frame_is_appended_upserted_and_deleted_in_one_commit_each(table: Table, scheduler: str) -> None:
    first = on_dask.append(table, parted(3, *((n, "ab"[n % 2], n) for n in range(20))), extra={"batch": "7"})
    changed, gone = (
        parted(2, (2, "a", 20), (3, "b", 30), (100, "c", 1)),
        parted(2, (4, "a", 0), (5, "b", 0), (99, "z", 0)),
    )
    second = on_dask.upsert(table, changed, deletes=gone, retries=2)
    third = on_dask.delete(table, parted(1, (100, "c", 0)))
    expected = {(n, "ab"[n % 2], n * 10 if n in {2, 3} else n) for n in range(20) if n not in {4, 5}}
    assert content(table) == by_hudi_rs(table.url) == expected
    assert (first.inserted, first.updated, first.deleted) == (20, 0, 0)
    assert (second.inserted, second.updated, second.deleted) == (1, 2, 2)
    assert third.deleted == 1
    assert [commit.operation for commit in table.history()[1:]] == ["INSERT", "UPSERT", "DELETE"]
    assert table.history()[1].extra == {"batch": "7"}
    found = on_dask.read(table)
    assert {tuple(row) for row in found.compute().itertuples(index=False)} == expected
    assert orphans(Path(table.url)) == set()


def test_dask_read_is_lazy_with_one_partition_per_file_and_one_snapshot(table: Table) -> None:
    table.append(frame((1, "a", 1), (2, "b", 2), (3, "c", 3)))
    old = on_dask.read(table)
    narrow = on_dask.read(table.scan(["value", "_hoodie_record_key"], pc.field("part") > "b"))
    second = table.upsert(frame((1, "a", 10)))
    assert old.npartitions == 3
    assert narrow.npartitions == 1
    assert sorted(old.compute()["value"]) == [1, 2, 3]
    assert narrow.compute().to_dict("records") == [{"value": 3, "_hoodie_record_key": "3"}]
    assert on_dask.read(table.scan(partitions=["a"]))["value"].sum().compute() == 10
    assert sorted(on_dask.read(table.scan(as_of=table.history()[1].completion)).compute()["value"]) == [1, 2, 3]
    assert sorted(on_dask.read(table.scan(as_of=second.completion)).compute()["value"]) == [2, 3, 10]
    for path in Path(table.url).glob("a/*.parquet"):
        path.unlink()
    with pytest.raises(HistoryGone, match="read again"):
        old.compute()


def test_empty_table_is_a_dask_frame_without_rows(table: Table) -> None:
    found = on_dask.read(table)
    assert list(found.columns) == STEPS
    assert len(found) == 0
    assert on_dask.append(table, found).inserted == 0


def explode(rows: pd.DataFrame) -> pd.DataFrame:
    if (rows["value"] == 13).any():
        raise ZeroDivisionError("the unlucky one")
    return rows


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.soak)], indirect=True)
def test_task_that_fails_leaves_nothing(table: Table, scheduler: str) -> None:
    table.append(frame((1, "a", 1)))
    before = data_files(Path(table.url))
    lucky = parted(5, *((n, "ab"[n % 2], n) for n in range(20)))
    with pytest.raises(ZeroDivisionError, match="unlucky"):
        on_dask.append(table, lucky.map_partitions(explode, meta=lucky._meta))
    with pytest.raises(InvalidRecords, match=r"record key \['id'\] is null"):
        on_dask.append(table, parted(3, (5, "a", 5), (6, "a", 6), (None, "a", 7)))
    with pytest.raises(UnsupportedSchema, match="^value: .*string does not fit int64"):
        on_dask.upsert(table, parted(2, (5, "a", "five"), (6, "a", "six")))
    with pytest.raises(InvalidRecords, match="comes more than once in partition 'a'"):
        on_dask.append(table, parted(1, (5, "a", 5), (5, "a", 6)))
    for write in (on_dask.append, on_dask.upsert):
        with pytest.raises(InvalidRecords, match="value '.hoodie' of partition column 'part'"):
            write(table, parted(2, (5, "b", 5), (6, ".hoodie", 6)))
        with pytest.raises(InvalidRecords, match="partition 'a/b' would be inside partition 'a'"):
            write(table, parted(2, (5, "b", 5), (6, "a/b", 6)))
    assert data_files(Path(table.url)) == before
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}
    assert table.timeline().pending_writes == ()


def test_last_of_equal_keys_in_several_dask_partitions_wins(table: Table) -> None:
    on_dask.upsert(table, parted(4, (1, "a", 1), (1, "a", 2), (2, "a", 5), (1, "a", 3)), deletes=parted(1, (2, "a", 0)))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 3)}


def test_conflict_of_dask_writers_is_retried(table: Table) -> None:
    table.append(frame((1, "a", 0)))
    tries = [0]

    def overtaken(txn: Any) -> None:
        tries[0] += 1
        on_dask.merge(txn, parted(1, (1, "a", 1)))
        if tries[0] == 1:
            upsert(table, (1, "a", 100))

    assert transact(table, overtaken, retries=1).conflicts == 1
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}


def test_task_that_is_run_again_writes_no_second_file(table: Table) -> None:
    """As a cluster does when it has lost a worker: the same task, the same rows, both attempts run to their end."""
    txn = Transaction(table)
    writer = start_for_tasks(txn, table.schema())
    sent = cloudpickle.loads(cloudpickle.dumps(writer))
    first, second = (on_dask._insert(frame((1, "a", 1), (2, "b", 2)), one, 0) for one in (writer, sent))
    assert first == second
    txn.add(second)
    txn.commit()
    assert len(data_files(Path(table.url))) == 2
    txn = Transaction(table)
    pieces = on_dask._split(
        frame((1, "a", 10), (3, "a", 3)), start_for_tasks(txn, table.schema()), is_delete=False, valued=False
    )
    writer, slices = start_for_tasks(txn, table.schema()), txn.snapshot.within(["a"])
    first, second = (on_dask._rewrite([pieces["a"]], writer, slices, "a", 0) for _ in range(2))
    assert first == second
    txn.add(first)
    txn.commit()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 10), (2, "b", 2), (3, "a", 3)}
    assert len(data_files(Path(table.url))) == 4


class Intruder(LocalBackend):
    """Lets another act just before the first deletion of an object whose path ends in `before`."""

    def __init__(self, before: str, act: Callable[[], Any]) -> None:
        self.before, self.act, self.met = before, act, False

    async def delete(self, path: str, *args: Any, **kwargs: Any) -> Any:
        if path.endswith(self.before) and not self.met:
            self.met = True
            self.act()
        return await super().delete(path, *args, **kwargs)


@pytest.mark.parametrize("moment", [".inflight", ".commit.requested", "nothing"])
def test_task_that_outlives_its_transaction_leaves_no_file(table: Table, moment: str) -> None:
    """It sees that its instant was rolled back, or the rollback sees its file."""
    late: list[Any] = []

    def task() -> None:
        late.append(on_dask._insert(frame((7, "a", 7)), writers[0], 5))

    backend = Intruder(moment, task)
    txn = Transaction(Table(Store(backend, table.url), table.url, settings=SETTINGS))
    writers = [start_for_tasks(txn, table.schema())]
    on_dask._insert(frame((1, "a", 1)), writers[0], 0)
    txn.rollback()
    assert backend.met == (moment != "nothing")
    if moment == "nothing":
        with pytest.raises(Aborted, match="rolled back"):
            task()
    assert data_files(Path(table.url)) == set()


@pytest.mark.parametrize("kind", ["dask", "arrow"])
def test_many_new_rows_go_into_several_files(table: Table, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(changes, "ROWS_PER_FILE", 10)
    new = [(n, "a", n) for n in range(35)]
    if kind == "dask":
        on_dask.append(table, parted(1, *new))
        on_dask.upsert(table, parted(2, *((n + 100, "a", n) for n in range(25))))
    else:
        table.append(frame(*new))
        table.upsert(frame(*((n + 100, "a", n) for n in range(25))))
    assert content(table) == by_hudi_rs(table.url) == {*new, *((n + 100, "a", n) for n in range(25))}
    assert len(data_files(Path(table.url))) == 3 + 2, "of 12, 12, 11 and 13, 12 rows"


@pytest.mark.parametrize("buckets", [None, 2], ids=["keys are looked up", "buckets"])
def test_dask_changes_a_merge_on_read_table_by_log_files(tmp_path: Path, buckets: int | None) -> None:
    spec = replace(SPEC, table_type="merge_on_read", buckets=buckets)
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    on_dask.append(table, dd.from_pandas(frame((1, "a", 1), (2, "a", 1), (3, "b", 1)), npartitions=2))
    on_dask.upsert(table, dd.from_pandas(frame((1, "a", 5), (4, "b", 4)), npartitions=2))
    on_dask.delete(table, dd.from_pandas(frame((2, "a", 0)), npartitions=1))
    assert [*(tmp_path / "t").rglob("*.log.*")]
    expected = {(1, "a", 5), (3, "b", 1), (4, "b", 4)}
    assert content(table) == by_hudi_rs(table.url) == expected
    assert {tuple(row) for row in on_dask.read(table).compute()[STEPS].to_numpy().tolist()} == expected
    base = on_dask.read(table.scan(read_optimized=True)).compute()[STEPS].to_numpy().tolist()
    assert {tuple(row) for row in base} - {(4, "b", 4)} == {(1, "a", 1), (2, "a", 1), (3, "b", 1)}, "4 may be in a log"


def test_frames_of_other_kinds_get_one_typed_error(table: Table) -> None:
    given = frame((1, "a", 1))
    for call in (on_dask.append, on_dask.upsert, on_dask.delete):
        with pytest.raises(InvalidInput, match=r"pandas.*must be a DataFrame of Dask"):
            call(table, given)
    not_a_table: Any = table.url
    with pytest.raises(InvalidInput, match="must be a Table"):
        on_dask.append(not_a_table, dd.from_pandas(given, npartitions=1))
