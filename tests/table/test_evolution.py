"""Columns that are added, and rows whose order is told by a column; hudi-rs reads the same."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hudi import HudiTableBuilder
from table.tables import SCHEMA, SETTINGS, SPEC, data_files, removed, rows, upsert

from lockprovider.table import InvalidRecords, Table, TableEvent, TableSpec, UnsupportedSchema, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.metadata import decode_commit, encode_commit
from lockprovider.table.format.schema import to_avro
from lockprovider.table.timeline.conflict import by_file_group
from lockprovider.table.transaction.transaction import Transaction, transact

NOTE = pa.schema([("note", pa.string()), ("score", pa.float64())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def seen(table: Table) -> list[dict[str, Any]]:
    """All rows, which our reader and hudi-rs agree on."""
    ours = table.to_arrow().sort_by("id").to_pylist()
    names = table.schema().names
    found = [batch.select(names) for batch in HudiTableBuilder.from_base_uri(table.url).build().read()]
    assert sorted((row for batch in found for row in batch.to_pylist()), key=lambda row: row["id"]) == ours
    return ours


# -- columns -----------------------------------------------------------------------------------------------------------


def test_added_columns_are_null_in_older_rows_and_filled_in_newer_ones(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "a", 2), (3, "b", 3))
    files = data_files(Path(table.url))
    table.add_columns(NOTE)
    assert data_files(Path(table.url)) == files, "nothing is rewritten"
    assert table.schema().names == [*SCHEMA.names, "note", "score"]
    assert [(row["id"], row["note"]) for row in seen(table)] == [(1, None), (2, None), (3, None)]
    table.append(pd.DataFrame({"id": [4], "part": ["b"], "value": [4], "note": ["new"], "score": [0.5]}))
    table.upsert(pd.DataFrame({"id": [2], "part": ["a"], "value": [20], "note": ["changed"], "score": [None]}))
    table.append(pd.DataFrame({"id": [5], "part": ["a"], "value": [5]}))
    found = {(row["id"], row["value"], row["note"], row["score"]) for row in seen(table)}
    assert found == {
        (1, 1, None, None),
        (2, 20, "changed", None),
        (3, 3, None, None),
        (4, 4, "new", 0.5),
        (5, 5, None, None),
    }
    assert table.to_arrow(["id"], filter=pc.field("note") == "new").to_pylist() == [{"id": 4}]
    assert table.to_arrow(["id"], filter=pc.field("score").is_null()).num_rows == 4


def test_past_reads_have_old_columns_and_changes_have_current_ones(table: Table) -> None:
    first = upsert(table, (1, "a", 1))
    table.add_columns(NOTE)
    upsert_note = pd.DataFrame({"id": [1], "part": ["a"], "value": [2], "note": ["n"], "score": [1.0]})
    table.upsert(upsert_note)
    assert table.to_arrow(as_of=first.completion).to_pylist() == [{"id": 1, "part": "a", "value": 1}]
    change = table.changes(first.completion).to_arrow().to_pylist()
    assert change == [{"_operation": "update", "id": 1, "part": "a", "value": 2, "note": "n", "score": 1.0}]


def test_adding_an_existing_column_is_refused_only_with_another_type(table: Table) -> None:
    table.add_columns(NOTE)
    table.add_columns(pa.schema([("note", pa.large_string()), ("more", pa.int64())]))
    assert table.schema().names == [*SCHEMA.names, "note", "score", "more"]
    with pytest.raises(UnsupportedSchema, match="'note' is string in the table, not int64"):
        table.add_columns(pa.schema([("note", pa.int64())]))
    with pytest.raises(UnsupportedSchema, match="'span' has type duration"):
        table.add_columns(pa.schema([("span", pa.duration("s"))]))
    with pytest.raises(UnsupportedSchema, match="are one to SQL engines"):
        table.add_columns(pa.schema([("NOTE", pa.string())]))
    assert table.schema().names == [*SCHEMA.names, "note", "score", "more"]
    assert table.timeline().pending_writes == ()


@pytest.mark.parametrize("resolution", [by_file_group, partial(by_file_group)], ids=["ours", "own"])  # own: held lock
def test_writer_unaware_of_added_columns_retries_and_keeps_them(table: Table, resolution: Any) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))
    events: list[TableEvent] = []
    settings = replace(SETTINGS, resolution=resolution)
    slow = Transaction(Table.open(table.url, settings=settings, watcher=events.append))
    engine.write(slow, upserts=rows((2, "b", 20)))
    table.add_columns(NOTE)
    with pytest.raises(WriteConflict, match="or added columns") as lost:
        slow.commit()
    slow.rollback()
    assert [one.detail["lost_to"] for one in events if one.kind == "conflict"] == [lost.value.lost_to]
    assert "note" in table.schema().names
    tries = itertools.count()

    def overtaken(txn: Any) -> None:
        engine.insert(txn, rows((3, "b", 30)))
        if next(tries) == 0:
            table.add_columns(pa.schema([("late", pa.int32())]))

    assert transact(table, overtaken, retries=1).conflicts == 1
    assert table.schema().names == [*SCHEMA.names, "note", "score", "late"]
    assert [(row["value"], row["note"]) for row in seen(table)] == [(1, None), (2, None), (30, None)]


def test_transaction_adds_the_columns_of_each_call(table: Table) -> None:
    txn = Transaction(table)
    txn.add_columns(pa.schema([("one", pa.struct([("a", pa.int64())]))]))
    txn.add_columns(pa.schema([("two", pa.string()), ("one.b", pa.string())]))
    with pytest.raises(UnsupportedSchema, match="'two' is string in the table, not int64"):
        txn.add_columns(pa.schema([("two", pa.int64())]))
    txn.add(())
    txn.commit()
    assert table.schema().names == [*SCHEMA.names, "one", "two"]
    assert table.schema().field("one").type == pa.struct([("a", pa.int64()), ("b", pa.string())])


def test_concurrent_column_additions_both_succeed(table: Table) -> None:
    one = Transaction(table)
    one.add_columns(pa.schema([("one", pa.int64())]))
    one.add(())
    table.add_columns(pa.schema([("two", pa.string())]))
    with pytest.raises(WriteConflict):
        one.commit()
    one.rollback()
    table.add_columns(pa.schema([("one", pa.int64())]))
    assert table.schema().names == [*SCHEMA.names, "two", "one"]
    seen(table)


def test_mutant_without_the_column_check_loses_a_column(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong twin."""
    slow = Transaction(table)
    engine.write(slow, upserts=rows((2, "b", 20)))
    table.add_columns(NOTE)
    monkeypatch.setattr("lockprovider.table.transaction.decision._refuse_columns", lambda *_: None)
    slow.commit()
    assert "note" not in table.schema().names


NARROW = pa.schema([("id", pa.int64()), ("f", pa.float32()), ("n", pa.int32()), ("m", pa.int32())])
WIDE = pa.schema([("id", pa.int64()), ("f", pa.float64()), ("n", pa.int64()), ("m", pa.string())])


@pytest.mark.parametrize("table_type", ["copy_on_write", "merge_on_read"])
def test_columns_that_the_jvm_has_widened_have_the_values_that_it_reads(tmp_path: Path, table_type: str) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", NARROW, "id", table_type=table_type), settings=SETTINGS)
    table.append(pa.table([[1, 2, 3], [0.1, 0.1, None], [7, 8, 9], [7, 8, 9]], schema=NARROW))
    done = table.upsert(pa.table([[2], [0.2], [8], [8]], schema=NARROW))
    written = table.timeline().written_at(done.instant)
    assert written is not None
    path = tmp_path / "t/.hoodie/timeline" / written.file_name
    said = decode_commit(path.read_bytes(), path.name)
    path.write_bytes(encode_commit(replace(said, schema_json=to_avro(WIDE, "t"))))
    removed(table, ".hoodie/.locks")  # the log knows the commit as it was; the JVM's have none
    jvms = Table.open(table.url, settings=SETTINGS)
    expected = [(1, 0.1, 7, "7"), (2, 0.2, 8, "8"), (3, None, 9, "9")]
    assert by_id(jvms) == expected, "the floats as they are written, not by their bits"
    for where, found in (("m = '7'", [1]), ("m >= '8'", [2, 3]), ("n = 8", [2]), ("f = 0.1", [1]), ("m is null", [])):
        assert sorted(jvms.to_arrow(["id"], where)["id"].to_pylist()) == found, where
    jvms.upsert(pa.table([[3], [0.3], [1 << 40], ["x"]], schema=WIDE))
    assert by_id(jvms) == [*expected[:2], (3, 0.3, 1 << 40, "x")]
    if table_type == "merge_on_read":
        jvms.compact()
        assert by_id(jvms) == [*expected[:2], (3, 0.3, 1 << 40, "x")]


def by_id(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


# -- the ordering field ------------------------------------------------------------------------------------------------

EVENTS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("value", pa.string())])


def events(*found: tuple[int, int | None, str]) -> pd.DataFrame:
    frame = pd.DataFrame(found, columns=["id", "at", "value"])
    return frame.assign(at=pd.to_datetime(frame["at"], unit="s", utc=True))


@pytest.fixture(params=["arrow", "dask"])
def write(request: pytest.FixtureRequest) -> Any:
    if request.param == "arrow":
        return lambda table, frame, **more: table.upsert(frame, **more)
    import dask.dataframe as dd

    from lockprovider.table.engines import dask as engine

    return lambda table, frame, **more: engine.upsert(
        table, dd.from_pandas(frame, npartitions=2, sort=False), **{k: dd.from_pandas(v) for k, v in more.items()}
    )


def test_unpinned_write_of_tasks_uses_the_current_columns(tmp_path: Path) -> None:
    import dask.dataframe as dd

    from lockprovider.table.engines import dask as engine

    table = Table.create(str(tmp_path / "t"), TableSpec("t", EVENTS, record_keys=("id",)), settings=SETTINGS)
    frame = dd.from_pandas(events((1, 50, "first")), npartitions=1)
    engine.append(table, frame)
    Table.open(table.url, settings=SETTINGS).add_columns(pa.schema([("late", pa.string())]))
    more = dd.from_pandas(events((2, 50, "second")), npartitions=1)
    assert table.transact(lambda txn: engine.insert(txn, more), pinned=False).inserted == 1
    assert values(table) == {1: "first", 2: "second"}


def values(table: Table) -> dict[int, str]:
    return {row["id"]: row["value"] for row in seen(table)}


def test_highest_ordering_value_of_a_key_wins_in_any_order(tmp_path: Path, write: Any) -> None:
    spec = TableSpec("t", EVENTS, record_keys=("id",), ordering="at")
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    write(table, events((1, 50, "first"), (2, 50, "first"), (3, 50, "older"), (3, 70, "newer"), (3, 60, "middle")))
    assert values(table) == {1: "first", 2: "first", 3: "newer"}
    late = write(table, events((1, 40, "late"), (2, 50, "as late"), (3, 80, "latest"), (4, None, "no time")))
    assert values(table) == {1: "first", 2: "as late", 3: "latest", 4: "no time"}, "of equals the later commit"
    assert (late.inserted, late.updated) == (1, 2)
    write(table, events((1, None, "unknown"), (4, 10, "a time"), (3, 1, "x")), deletes=events((3, 0, "")))
    assert values(table) == {1: "unknown", 2: "as late", 4: "a time"}, "a delete has no time and always wins"


@pytest.mark.parametrize("ordering", [None, "at"])
def test_later_commit_wins_by_commit_time_whatever_the_ordering_field(
    tmp_path: Path, write: Any, ordering: str | None
) -> None:
    spec = TableSpec("t", EVENTS, record_keys=("id",), ordering=ordering, version=9)
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    properties = tmp_path / "t/.hoodie/hoodie.properties"  # as JVM Hudi is told by `hoodie.write.record.merge.mode`
    properties.write_text(properties.read_text().replace("EVENT_TIME_ORDERING", "COMMIT_TIME_ORDERING"))
    table = Table.open(table.url, settings=SETTINGS)
    write(table, events((1, 50, "first"), (2, 9, "b"), (2, 1, "last of two")))
    write(table, events((1, 40, "late")))
    assert values(table) == {1: "late", 2: "last of two"}
    assert "hoodie.record.merge.mode=COMMIT_TIME_ORDERING" in properties.read_text()


def test_change_that_lost_is_no_change_to_a_consumer(tmp_path: Path) -> None:
    spec = TableSpec("t", EVENTS, record_keys=("id",), ordering="at")
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    table.upsert(events((1, 50, "first"), (2, 50, "first")))
    start = table.changes().checkpoint
    table.upsert(events((1, 40, "late"), (2, 60, "newer")))
    assert [(row["_operation"], row["id"]) for row in table.changes(start).to_arrow().to_pylist()] == [("update", 2)]


def test_ordering_field_that_is_no_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecords, match="nothing"):
        Table.create(str(tmp_path / "t"), TableSpec("t", EVENTS, record_keys=("id",), ordering="nothing"))
