"""Tables as people use them who come from pandas, polars, deltalake or pyiceberg."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from table.tables import SCHEMA, SPEC, by_hudi_rs, content, rows, upsert

from fsspec_cas import InvalidInput
from lockprovider.table import (
    Aborted,
    InvalidRecords,
    Scan,
    Table,
    TableEvent,
    TableExists,
    TableSpec,
    TableTransaction,
    WriteConflict,
)
from lockprovider.table.engines import arrow
from lockprovider.table.format.layout import PROPERTIES
from lockprovider.table.transaction.transaction import Transaction

THREE = ((1, "a", 10), (2, "a", 20), (3, "b", 30))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(tmp_path / "t", SPEC)
    made.append(rows(*THREE))
    return made


def in_one(table: Table, *steps: Callable[[TableTransaction], object]) -> TableTransaction:
    """These steps in one transaction, after its end."""
    with table.transaction() as txn:
        for step in steps:
            step(txn)
    return txn


# -- transactions ------------------------------------------------------------------------------------------------------


def test_transaction_exposes_only_its_public_verbs(table: Table) -> None:
    verbs = {"append", "upsert", "delete", "overwrite", "to_arrow", "to_pandas", "to_polars", "scan"}
    with table.transaction() as txn:
        names = {name for name in dir(txn) if not name.startswith("_")}
    assert names == {*verbs, "commit", "rollback", "begin", "timeline", "extra", "result", "exactly_once"}
    assert not isinstance(txn, Transaction)
    shown: list[object] = []
    table.transact(lambda given: (given.upsert(rows((1, "a", 11))), shown.append(given)))
    assert type(shown[0]) is TableTransaction


def test_engine_takes_a_transaction_and_nothing_else(table: Table) -> None:
    with table.transaction() as txn:
        seen = Scan(txn, filter="part = 'a'").to_arrow()
        arrow.write(txn, upserts=seen)
        txn.extra["by"] = "hand"
        assert txn.begin
    assert table.metadata_of(table.timeline().writes[-1]).extra["by"] == "hand"
    with pytest.raises(InvalidInput, match=r"must be a transaction: `with table.transaction\(\) as txn:`"):
        arrow.write(table, upserts=seen)  # type: ignore[arg-type]


def test_clean_end_commits_what_was_read_and_changed(table: Table) -> None:
    with table.transaction() as txn:
        found = txn.to_pandas(filter="part = 'a'")
        txn.upsert(found.assign(value=found["value"] + 1))
        txn.upsert(rows((4, "b", 40)))
        txn.delete("value = 30")
        assert content(table) == {*THREE}, "visible only at the end"
    assert txn.result is not None
    assert content(table) == {(1, "a", 11), (2, "a", 21), (4, "b", 40)} == by_hudi_rs(table.url)
    assert repr(txn) == f"<TableTransaction on {table.url!r}, committed>"
    assert table.history()[-1].completion == table.version


def test_exception_rolls_back(table: Table) -> None:
    before = table.version
    with pytest.raises(ZeroDivisionError):
        in_one(table, lambda txn: txn.append(rows((9, "a", 1))), lambda _: 1 / 0)
    assert (content(table), table.version) == ({*THREE}, before)
    with table.transaction() as txn:
        assert txn.to_arrow().num_rows == 3
    assert txn.result is None, "nothing was written, so there is nothing to commit"
    assert table.version == before


def test_rolled_back_transaction_commits_nothing_at_block_end(table: Table) -> None:
    before = content(table)
    with table.transaction() as txn:
        txn.append(rows((9, "z", 9)))
        txn.rollback()
    assert content(table) == before
    with pytest.raises(Aborted, match="begin another one"):
        txn.commit()
    assert (content(table), txn.result) == (before, None)


def test_transaction_that_is_committed_again_returns_its_result(table: Table) -> None:
    txn = table.transaction()
    txn.append(rows((9, "z", 9)))
    done = txn.commit()
    assert txn.commit() is txn.result is done
    txn.rollback()
    assert (9, "z", 9) in content(table)


def test_later_of_two_transactions_gets_a_conflict_at_block_end(table: Table) -> None:
    with pytest.raises(WriteConflict):
        in_one(table, lambda txn: txn.upsert(rows((1, "a", 11))), lambda _: table.upsert(rows((1, "a", 12))))
    assert (1, "a", 12) in content(table)


def test_appends_go_together_and_an_overwrite_stands_alone(table: Table) -> None:
    with table.transaction() as txn:
        txn.append(rows((4, "b", 40)))
        txn.append(pd.DataFrame({"id": [5], "part": ["c"]}))
    assert content(table) == {*THREE, (4, "b", 40), (5, "c", None)}
    for first, second in (("append", "upsert"), ("append", "delete"), ("delete", "append"), ("overwrite", "delete")):
        with pytest.raises(InvalidRecords, match=f"^{second} cannot follow {first} in one transaction"):
            in_one(table, *(partial(write, name) for name in (first, second)))
    with pytest.raises(InvalidRecords, match="before delete"):
        in_one(table, lambda txn: txn.delete(rows((1, "a", 1))), lambda txn: txn.upsert(rows((1, "a", 1))))
    with table.transaction() as txn:
        txn.overwrite(rows((7, "a", 70)))
        with pytest.raises(InvalidRecords, match="must be the only write"):
            txn.overwrite(rows((8, "a", 70)))
    assert content(table) == {(7, "a", 70)} == by_hudi_rs(table.url)


def write(name: str, txn: TableTransaction) -> None:
    getattr(txn, name)(rows((1, "a", 1)))


def test_bad_rows_are_refused_where_they_are_given(table: Table) -> None:
    with table.transaction() as txn:
        with pytest.raises(InvalidRecords, match="part is missing"):
            txn.upsert(rows((1, "a", 11)), deletes=pd.DataFrame({"id": [2]}))
        with pytest.raises(InvalidRecords, match="value"):
            txn.upsert(pd.DataFrame({"id": [1], "part": ["a"]}))
        with pytest.raises(InvalidInput, match=r"at character 1: 'fare' is not a column"):
            txn.delete("fare = 1")
    assert txn.result is None


def test_function_gets_the_same_verbs_and_is_run_again(table: Table) -> None:
    runs = []

    def raise_all(txn: TableTransaction) -> None:
        found = txn.to_pandas(filter="part = 'a'")
        if not runs:
            table.upsert(rows((1, "a", 100)))
        runs.append(1)
        txn.upsert(found.assign(value=found["value"] + 1))

    assert table.transact(raise_all, retries=1).conflicts == 1
    assert content(table) == {(1, "a", 101), (2, "a", 21), (3, "b", 30)}


# -- reading -----------------------------------------------------------------------------------------------------------


def test_scan_gives_equal_rows_as_every_frame(table: Table) -> None:
    filter_ = "value between 20 and 30 and not part = 'b'"
    assert table.to_arrow(filter=filter_).to_pylist() == [{"id": 2, "part": "a", "value": 20}]
    frame = table.to_pandas(["id", "value"], filter_)
    assert (frame["id"].tolist(), str(frame["value"].dtype)) == ([2], "Int64")
    assert table.to_polars(filter=filter_).rows() == [(2, "a", 20)]
    assert table.to_duckdb(filter=filter_).aggregate("sum(value)").fetchall() == [(20,)]
    with duckdb.connect() as connection:
        assert table.scan().to_duckdb(connection).count("id").fetchall() == [(3,)]
    with table.transaction() as txn:
        assert txn.to_polars(filter=filter_).rows() == [(2, "a", 20)]
        assert (
            sum(batch.num_rows for batch in txn.scan(filter=filter_).to_reader())
            == txn.scan(None, filter_).count()
            == 1
        )
    assert (table.count(), table.count(filter_), table.count(partitions=["a"])) == (3, 1, 2)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("fare = 1", "at character 1"),
        ("id = ", "at character 6"),
        ("id = 1 or", "at character 10"),
        ("id like 'x'", "at character 4"),
        ("id = 'x'", "at character 6"),
        ("id = 1; drop", "from ';"),
    ],
)
def test_filter_that_cannot_be_parsed_is_refused_with_its_place(table: Table, text: str, place: str) -> None:
    for ask in (table.to_arrow, table.to_pandas):
        with pytest.raises(InvalidInput) as refused:
            ask(filter=text)
        assert place in str(refused.value)
    with pytest.raises(InvalidInput):
        table.delete(text)


def test_moment_may_be_given_as_iso_text(table: Table) -> None:
    then = table.version
    table.delete("id = 1")
    moment = datetime.strptime(then, "%Y%m%d%H%M%S%f").replace(tzinfo=timezone.utc)
    for text in (then, moment.isoformat(), moment.isoformat().replace("+00:00", "Z")):
        assert table.count(as_of=text) == 3
    assert table.count() == 2
    with pytest.raises(InvalidInput, match="2026-11-22T08:30:00Z"):
        table.count(as_of=moment.replace(tzinfo=None).isoformat())


# -- writing -----------------------------------------------------------------------------------------------------------


def test_polars_frames_go_in_also_lazy_ones(table: Table) -> None:
    lazy = pl.LazyFrame({"id": [1, 4], "part": ["a", "a"], "value": [1, 4]}).filter(pl.col("id") > 1)
    table.upsert(lazy)
    table.upsert(pl.DataFrame({"id": [5], "part": ["a"], "value": [5]}))
    assert content(table) == {*THREE, (4, "a", 4), (5, "a", 5)}


def test_rows_are_deleted_by_a_condition(table: Table) -> None:
    table.append(rows((4, "a", None)))
    table.delete("part = 'a' and value is null")
    assert content(table) == {*THREE}
    table.delete("value > 15", retries=0)
    assert content(table) == {THREE[0]} == by_hudi_rs(table.url)


def test_table_or_some_partitions_are_overwritten(table: Table) -> None:
    table.overwrite(rows((8, "b", 80)), ["b"])
    assert content(table) == {*THREE[:2], (8, "b", 80)} == by_hudi_rs(table.url)
    with pytest.raises(InvalidRecords, match=r"\['a'\]"):
        table.overwrite(rows((9, "a", 90)), ["b"])
    with pytest.raises(InvalidInput, match=r"give \['b'\]"):
        table.overwrite(rows((9, "b", 90)), "b")
    table.overwrite(rows(), ["b"])
    assert content(table) == {*THREE[:2]} == by_hudi_rs(table.url)
    table.overwrite(rows((9, "c", 90)))
    assert content(table) == {(9, "c", 90)} == by_hudi_rs(table.url)
    assert [commit.operation for commit in table.history()[-3:]] == [
        "INSERT_OVERWRITE",
        "DELETE_PARTITION",
        "INSERT_OVERWRITE_TABLE",
    ]


@pytest.mark.parametrize("buckets", [None, 2])
def test_overwriting_goes_with_and_without_buckets(tmp_path: Path, buckets: int | None) -> None:
    made = Table.create(tmp_path, TableSpec("t", SCHEMA, "id", "part", buckets=buckets))
    made.append(rows(*THREE))
    made.overwrite(rows((1, "a", 1)), ["a"])
    assert content(made) == {(1, "a", 1), THREE[2]} == by_hudi_rs(made.url)


def test_whole_write_is_tried_again_three_times(table: Table) -> None:
    left = [3]

    def others_are_faster(event: TableEvent) -> None:
        if event.kind == "written" and left[0]:
            left[0] -= 1
            table.upsert(rows((1, "a", left[0])))

    slow = Table.open(table.url, watcher=others_are_faster)
    assert slow.upsert(rows((1, "a", 7))).conflicts == 3
    left[0] = 4
    with pytest.raises(WriteConflict):
        slow.delete("id = 1")
    assert (1, "a", 0) in content(table)


# -- making and finding ------------------------------------------------------------------------------------------------


def test_schema_may_come_from_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [1], "part": ["a"], "value": [1.5]}, index=pd.Index([7], name="x"))
    expected = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.float64())])
    for name, given in (("pd", frame), ("pl", pl.from_pandas(frame)), ("pa", pa.table(pl.from_pandas(frame)))):
        made = Table.create(tmp_path / name, TableSpec("t", given, "id", "part"))
        made.append(given)
        assert made.schema() == expected
        assert made.to_pandas().to_dict("records") == [{"id": 1, "part": "a", "value": 1.5}]
    with pytest.raises(InvalidRecords, match="give rows.schema"):
        TableSpec("t", 5, "id")


def test_create_opens_an_existing_equal_table(table: Table, tmp_path: Path) -> None:
    assert Table.exists(table.url)
    assert not Table.exists(tmp_path / "none")
    assert Table.create(table.url, SPEC, exist_ok=True).count() == 3
    with pytest.raises(TableExists, match=r"record_keys are \('id',\), not \('value',\)"):
        Table.create(table.url, TableSpec("t", SCHEMA, "value", "part"), exist_ok=True)
    with pytest.raises(TableExists, match="exist_ok"):
        Table.create(table.url, SPEC)


def test_create_makes_the_first_commit_if_an_earlier_creator_died(table: Table, tmp_path: Path) -> None:
    half = tmp_path / "half" / PROPERTIES
    half.parent.mkdir(parents=True)
    half.write_bytes(table.store.read(PROPERTIES).data)
    for _ in range(2):
        assert len(Table.create(tmp_path / "half", SPEC, exist_ok=True).timeline().writes) == 1


@pytest.mark.parametrize("flag", ["hive_style", "url_encode"])
def test_create_refuses_an_existing_table_whose_folders_have_other_names(tmp_path: Path, flag: str) -> None:
    Table.create(tmp_path / "t", TableSpec("t", SCHEMA, "id", "part"))
    with pytest.raises(TableExists, match=f"its {flag} are False, not True"):
        Table.create(tmp_path / "t", replace(TableSpec("t", SCHEMA, "id", "part"), **{flag: True}), exist_ok=True)
    Table.create(tmp_path / "flat", TableSpec("t", SCHEMA, "id"))
    Table.create(tmp_path / "flat", replace(TableSpec("t", SCHEMA, "id"), **{flag: True}), exist_ok=True)  # no folders


def test_scan_refuses_a_column_named_twice(table: Table) -> None:
    with pytest.raises(InvalidInput, match="names a column twice"):
        table.scan(["id", "id"])


def test_relative_path_is_the_same_table_in_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = Table.create("here/t", SPEC)
    upsert(table, (1, "a", 1))
    sent = pickle.dumps((table, table.place))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again, place = pickle.loads(sent)
    assert content(again) == {(1, "a", 1)}
    assert place.store.list(".hoodie/hoodie.properties")


def test_table_repr_names_its_url_and_survives_pickling(table: Table) -> None:
    again = pickle.loads(pickle.dumps(table))
    assert repr(again) == f"<Table at {table.url!r}>"
    assert again.version == table.version
