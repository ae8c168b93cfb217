"""DataFrames in and out, by pandas and Dask: what is taken, what is refused, and what hudi-rs then reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hudi import HudiTableBuilder
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, data_files, orphans, rows, upsert

from lockprovider.table import InvalidRecords, Table, TableSpec, UnsupportedSchema, WriteConflict
from lockprovider.table.engines import arrow
from lockprovider.table.engines import pandas as engine

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


def test_a_frame_is_appended_upserted_and_deleted(table: Table) -> None:
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


def test_a_key_in_both_rows_and_deletes_is_deleted(table: Table) -> None:
    table.append(frame((1, "a", 1), (2, "a", 2)))
    table.upsert(frame((1, "a", 10), (3, "a", 3)), deletes=frame((1, "a", 0)))
    assert content(table) == by_hudi_rs(table.url) == {(2, "a", 2), (3, "a", 3)}


def test_the_index_is_dropped_whatever_it_is(table: Table) -> None:
    table.append(frame((1, "a", 1), (2, "b", 2), index=pd.Index(["x", "y"], name="value_too")))
    table.upsert(frame((3, "b", 3), index=pd.MultiIndex.from_tuples([(1, 2)])))
    assert table.to_arrow().column_names == STEPS
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 2), (3, "b", 3)}


def test_a_frame_that_was_read_is_the_frame_that_was_written(tmp_path: Path) -> None:
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
    found = engine.read(table)
    assert found["id"].tolist() == [big, 2]
    expected = given.assign(kind=given["kind"].astype(str), at=given["at"].dt.tz_convert("UTC").astype("M8[us, UTC]"))
    pd.testing.assert_frame_equal(found.drop(columns="tags"), expected.drop(columns="tags"), check_dtype=False)
    assert [None if t is None else list(t) for t in found["tags"]] == [["a", None], None]
    assert found["small"].dtype == "Int32"
    assert found["ok"].dtype == "boolean"
    without = schema.remove(schema.get_field_index("local"))  # hudi-rs 0.5 knows no timestamps without a zone
    other = Table.create(str(tmp_path / "u"), TableSpec("u", without, record_keys=("id",)), settings=SETTINGS)
    other.append(given.drop(columns="local"))
    assert as_hudi_rs_reads(other) == table.to_arrow(without.names).sort_by("id").to_pylist()


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (pd.to_timedelta([1, 2]), "'value' has type duration.*cast it to int64"),
        ([1, "one"], "'value' of dtype object cannot be stored"),
        ([{"a": 1}, {"a": 2}], "'value' is int64 in the table, not struct<a: int64>; cast it"),
        (["1", "2"], "'value' is int64 in the table, not string; cast it"),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), r"'value' is int64 in the table, not timestamp\[us\]; cast it"),
        ([1 + 2j, 3j], "'value' of dtype complex128 cannot be stored"),
        (pd.period_range("2024", periods=2), "'value'"),
        (np.array([2**63, 1], dtype="uint64"), "'value' has type uint64"),
    ],
    ids=["timedelta", "mixed", "dict", "text", "time", "complex", "period", "uint64"],
)
def test_a_column_of_the_wrong_type_is_named_and_nothing_is_written(table: Table, column: Any, sentence: str) -> None:
    bad = pd.DataFrame({"id": [1, 2], "part": ["a", "b"], "value": column})
    before = data_files(Path(table.url))
    for call in (table.append, table.upsert):
        with pytest.raises(UnsupportedSchema, match=sentence):
            call(bad)
    assert data_files(Path(table.url)) == before
    assert table.timeline().pending_writes == ()
    assert content(table) == set()


@pytest.mark.parametrize("value", [0.5, float(2**63), np.inf])
def test_a_number_that_would_change_is_refused_and_one_that_would_not_is_taken(table: Table, value: float) -> None:
    with pytest.raises(InvalidRecords, match="'value' of type double does not fit int64"):
        table.append(frame((1, "a", value), (2, "a", 1.0)))
    table.append(frame((1, "a", np.nan), (2, "a", 3.0)))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", None), (2, "a", 3)}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (frame((1, "a", 1), (None, "a", 2)), r"record key \['id'\] is null or empty in 1 rows, the first is row 1"),
        (frame((1, "a", 1)).assign(other=1), r"columns \['other'\] are not in the table.*add_columns"),
        (frame((1, "a", 1)).drop(columns="part"), r"columns \['part'\] are missing"),
        (frame((1, "a", 1)).rename(columns={"value": 7}), r"columns \[7\] need names"),
        (frame((1, "a", 1)).set_axis(["id", "part", "part"], axis=1), r"columns \['part', 'part'\] need names"),
        ("id,part,value", "str has no rows"),
        ({"id": [1]}, "dict has no rows"),
        (pd.Series([1], name="id"), "Series has no rows"),
    ],
    ids=["null key", "stranger", "no partition", "number as name", "twice", "text", "dict", "series"],
)
def test_bad_rows_are_refused_with_the_next_step_and_nothing_is_written(table: Table, bad: Any, sentence: str) -> None:
    before = data_files(Path(table.url))
    for call in (table.append, table.upsert):
        with pytest.raises(InvalidRecords, match=sentence):
            call(bad)
    assert data_files(Path(table.url)) == before
    assert table.timeline().pending_writes == ()


def test_a_key_that_comes_twice_is_refused_by_append_and_settled_by_upsert(table: Table) -> None:
    twice = frame((1, "a", 1), (1, "b", 2), (1, "a", 3))
    with pytest.raises(InvalidRecords, match="record key '1' comes more than once in partition 'a'.*use upsert"):
        table.append(twice)
    assert data_files(Path(table.url)) == set()
    table.upsert(twice)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 3), (1, "b", 2)}


def test_a_missing_column_is_null_when_appended_and_refused_when_it_would_erase_values(table: Table) -> None:
    table.append(frame((1, "a", 1)))
    part = frame((1, "a", 0), (2, "a", 0)).drop(columns="value")
    with pytest.raises(InvalidRecords, match=r"columns \['value'\] are missing"):
        table.upsert(part)
    table.append(part.iloc[1:])
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "a", None)}


def test_a_delete_needs_key_and_partition_and_nothing_else(table: Table) -> None:
    table.append(frame((1, "a", 1), (2, "a", 2)))
    with pytest.raises(InvalidRecords, match=r"columns \['part'\] are missing"):
        table.delete(pd.DataFrame({"id": [1]}))
    with pytest.raises(InvalidRecords, match="is null"):
        table.delete(pd.DataFrame({"id": [None], "part": ["a"]}))
    done = table.delete(pd.DataFrame({"part": ["a"], "id": [1], "why": ["asked for"]}))
    assert done.deleted == 1
    assert content(table) == by_hudi_rs(table.url) == {(2, "a", 2)}


def test_a_conflict_of_a_frame_is_retried_or_raised(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(frame((1, "a", 0)))
    real = arrow.write
    left = [3]

    def overtaken(txn: Any, *args: Any, **kwargs: Any) -> None:
        real(txn, *args, **kwargs)
        if left[0]:
            left[0] -= 1
            other = table.transaction()
            real(other, rows((1, "a", 100 + left[0])))
            other.commit()

    monkeypatch.setattr(arrow, "write", overtaken)
    with pytest.raises(WriteConflict):
        table.upsert(frame((1, "a", 1)), retries=1)
    done = table.upsert(frame((1, "a", 2)), retries=1)
    assert (done.attempts, done.conflicts) == (2, 1)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 2)}


# -- pyarrow, and all that speaks its stream ---------------------------------------------------------------------------


def test_a_reader_is_appended_file_by_file_and_never_held_whole(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "ROWS_PER_FILE", 1000)
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


def test_a_key_that_comes_twice_in_different_files_of_one_append_is_found(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "ROWS_PER_FILE", 10)
    batches = [*rows(*((n, "a", n) for n in range(30))).to_batches(max_chunksize=7), *rows((3, "a", 0)).to_batches()]
    with pytest.raises(InvalidRecords, match="record key '3' comes more than once"):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches))
    assert data_files(Path(table.url)) == set()
    assert orphans(Path(table.url)) == set()


def test_a_reader_can_be_upserted_and_has_no_second_try_when_appended(table: Table) -> None:
    def reader() -> pa.RecordBatchReader:
        return rows((1, "a", 1), (2, "b", 2)).to_reader()

    with pytest.raises(InvalidRecords, match="read only once"):
        table.append(reader(), retries=1)
    table.append(reader())
    table.upsert(reader(), deletes=rows((2, "b", 0)).to_reader(), retries=2)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}


def test_a_reader_that_fails_leaves_nothing(table: Table) -> None:
    def batches() -> Any:
        yield rows((1, "a", 1)).to_batches()[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert data_files(Path(table.url)) == set()
    assert table.timeline().pending_writes == ()


def test_whatever_gives_an_arrow_stream_can_be_written(table: Table) -> None:
    class Foreign:
        """As a polars DataFrame or a DuckDB result does."""

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return rows((1, "a", 1)).__arrow_c_stream__(requested_schema)

    table.append(Foreign())
    table.append(rows((2, "a", 2)).to_batches()[0])
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "a", 2)}


def test_a_read_of_a_transaction_is_of_its_own_moment(table: Table) -> None:
    table.append(frame((1, "a", 1)))
    txn = table.transaction()
    upsert(table, (1, "a", 2))
    assert engine.read(txn, ["value"])["value"].tolist() == [1]
    assert engine.read(table, ["value"])["value"].tolist() == [2]


def test_nothing_to_write_is_a_commit_of_nothing(table: Table) -> None:
    done = table.append(frame((1, "a", 1)).iloc[:0].astype({"id": "int64", "part": "str", "value": "int64"}))
    assert (done.inserted, done.file_groups) == (0, ())
    assert content(table) == by_hudi_rs(table.url) == set()
