"""Merge-on-read tables written here: hudi-rs reads the same rows, whatever happens to them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import datetime, timezone
from decimal import Decimal
from io import BytesIO
from math import inf, nan
from pathlib import Path
from secrets import token_hex
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi import HudiTableBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from table.mor_tables import KINDS, SETTINGS, a_table, by_hudi_rs, content, keys, log_files, rows

from lockprovider.table import (
    Aborted,
    HistoryGone,
    InvalidRecords,
    KeepActive,
    KeepCommits,
    Table,
    TableSpec,
    UnsupportedSchema,
    WriteConflict,
)
from lockprovider.table.engines import arrow as engine
from lockprovider.table.engines import changes
from lockprovider.table.engines.arrow import plan_write, start_here
from lockprovider.table.files import encoding, group_writer
from lockprovider.table.format import log_block
from lockprovider.table.format.layout import Action, parse_log_file
from lockprovider.table.format.log_block import BlockKind, decode_blocks, decode_deletes
from lockprovider.table.format.metadata import avro_schema, decode_commit
from lockprovider.table.transaction.transaction import Transaction

TIME, WHEN = pa.timestamp("us", "UTC"), datetime(2020, 1, 1, tzinfo=timezone.utc)
BY_EVENT = [kind for kind in KINDS if "event" in kind]


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return a_table(tmp_path / "t", request.param)


def blocks(table: Table) -> list[Any]:
    return [block for path in log_files(table) for block in decode_blocks((Path(table.url) / path).read_bytes(), path)]


def test_changes_go_into_log_files_and_new_rows_into_base_files(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1), (2, "a", "x", 1), (3, "b", "x", 1)))
    assert log_files(table) == []
    before = {path: path.read_bytes() for path in Path(table.url).rglob("*.parquet")}
    done = table.upsert(rows((1, "a", "y", 2), (3, "b", "y", 2)))
    assert (done.updated, done.inserted) == (2, 0)
    assert {path: path.read_bytes() for path in Path(table.url).rglob("*.parquet")} == before
    assert len(log_files(table)) == 2
    assert content(table) == by_hudi_rs(table) == [(1, "a", "y", 2), (2, "a", "x", 1), (3, "b", "y", 2)]
    assert content(table, read_optimized=True) == [(1, "a", "x", 1), (2, "a", "x", 1), (3, "b", "x", 1)]
    assert {i.action for i in table.timeline().instants} == {Action.DELTACOMMIT}


def test_commit_describes_a_log_as_the_jvms_does(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1)))
    begin = table.upsert(rows((1, "a", "y", 2))).instant
    (path,) = log_files(table)
    done = table.timeline().written_at(begin)
    assert done is not None
    data = (Path(table.url) / ".hoodie/timeline" / done.file_name).read_bytes()
    (record,) = list(fastavro.reader(BytesIO(data)))
    (stat,) = record["partitionToWriteStats"]["a"]
    name = path.rpartition("/")[2]
    assert (stat["prevCommit"], stat["baseFile"], stat["logFiles"], stat["logVersion"]) == (begin, "", [name], 1)
    assert decode_commit(data, "c").all_stats[0].is_log
    for block in blocks(table):
        assert block.instant == begin == parse_log_file(name).begin  # type: ignore[union-attr]


def test_log_file_is_one_put_after_its_marker(tmp_path: Path) -> None:
    table = a_table(tmp_path / "t", "by event")
    table.upsert(rows((1, "a", "x", 1)))
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", "y", 2)))
    (path,) = log_files(table)
    marker = Path(table.url) / ".hoodie/.temp" / txn.begin / f"{path}.marker.CREATE"
    assert marker.exists()
    assert marker.stat().st_mtime_ns <= (Path(table.url) / path).stat().st_mtime_ns
    assert content(table) == [(1, "a", "x", 1)], "not committed"
    txn.rollback()
    assert log_files(table) == []
    assert content(table) == by_hudi_rs(table) == [(1, "a", "x", 1)]


def test_many_rows_are_a_parquet_block_and_few_an_avro_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table(tmp_path / "t", "by event")
    many = [(i, "a", "x", 1) for i in range(encoding.PARQUET_ROWS)]
    table.upsert(rows(*many))
    table.upsert(rows(*((i, "a", "y", 2) for i, *_ in many)))
    table.upsert(rows((0, "a", "z", 3)))
    assert [block.kind for block in blocks(table)] == [BlockKind.PARQUET, BlockKind.AVRO]
    columns = pq.read_metadata(BytesIO(blocks(table)[0].content)).row_group(0)
    each = [columns.column(number) for number in range(columns.num_columns)]
    assert {one.path_in_schema for one in each if not one.has_dictionary_page} == {
        "_hoodie_commit_seqno",
        "_hoodie_record_key",
        "id",
    }, "no dictionary where no value comes twice"
    assert not any(one.is_stats_set for one in each), "a block is read as a whole"
    monkeypatch.setattr(encoding, "_BLOCK_BYTES", 10_000)
    table.upsert(rows(*((i, "a", "w", 4) for i, *_ in many)))
    assert len(blocks(table)) > 4, "a block may not be larger than others can read"
    assert content(table) == by_hudi_rs(table) == [(i, "a", "w", 4) for i, *_ in many]


@pytest.mark.parametrize("kind", ["by commit", "by event"])
@pytest.mark.parametrize("count", [300, encoding.PARQUET_ROWS])
def test_blocks_of_uneven_rows_and_many_deletes_stay_below_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    table = a_table(tmp_path / "t", kind)
    table.upsert(rows(*((i, "a", "x", 1) for i in range(2 * count))))
    monkeypatch.setattr(encoding, "_BLOCK_BYTES", 10_000)
    monkeypatch.setattr(log_block, "_MOST_BYTES", 18_000)
    large = [(i, "a", token_hex(2_000), 2) for i in range(20)]
    small = [(i, "a", "y", 2) for i in range(20, count)]
    table.upsert(rows(*large, *small))
    assert len(blocks(table)) > 8
    table.delete(keys(*((i, "a") for i in range(count, 2 * count))))
    assert len(blocks(table)) > 10
    assert content(table) == by_hudi_rs(table) == [*large, *small]
    with pytest.raises(InvalidRecords, match="store large values outside the table"):
        table.upsert(rows((0, "a", token_hex(20_000), 3)))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(TIME), [WHEN, None]), (pa.map_(pa.string(), TIME), [("a", WHEN)]),
        (pa.struct([("in", pa.struct([("t", TIME)]))]), {"in": {"t": WHEN}}),
        (pa.list_(pa.struct([("c", pa.decimal128(5, 2)), ("d", pa.date32())])), [{"c": Decimal("1.25"), "d": None}]),
        (pa.map_(pa.string(), pa.list_(pa.binary())), [("", [b"", None])]),
    ],
    ids=str,
)  # fmt: skip
def test_nested_values_of_few_rows_in_a_log_are_read_by_hudi_rs(tmp_path: Path, kind: pa.DataType, value: Any) -> None:
    columns = pa.schema([("id", pa.int64()), ("x", kind)])
    spec = TableSpec("t", columns, ("id",), table_type="merge_on_read")
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    for first, second in ((value, None), (None, value)):
        table.upsert(pa.Table.from_pylist([{"id": 1, "x": first}, {"id": 2, "x": second}], schema=columns))
    assert log_files(table)
    found = [pa.record_batch(batch) for batch in HudiTableBuilder.from_base_uri(table.url).build().read()]
    by_others = [{"id": row["id"], "x": row["x"]} for batch in found for row in batch.to_pylist()]
    assert sorted(map(str, by_others)) == sorted(map(str, table.to_arrow().to_pylist()))


def test_nested_day_after_pythons_last_year_is_written_to_a_log(tmp_path: Path) -> None:
    days = pa.array([[3_000_000]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    given = pa.table([pa.array([1]), days], names=["id", "days"])
    table = Table.create(
        str(tmp_path / "t"), TableSpec("t", given.schema, ("id",), table_type="merge_on_read"), settings=SETTINGS
    )
    table.upsert(given.set_column(1, "days", pa.nulls(1, days.type)))
    table.upsert(given)
    assert log_files(table)
    assert table.to_arrow().column("days").combine_chunks().equals(days)


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BY_EVENT)
def test_m4_delete_has_the_value_of_its_row_and_beats_a_lower_row(kind: str, tmp_path: Path) -> None:
    table = a_table(tmp_path / "t", kind)
    table.upsert(rows((1, "a", "x", 10)))
    assert table.delete(keys((1, "a"), (9, "a"))).deleted == 1
    (block,) = blocks(table)
    assert [one.values for one in decode_deletes(block.content, "log")] == [(10,)]
    table.upsert(rows((1, "a", "late", 5)))
    assert content(table) == by_hudi_rs(table) == []
    table.upsert(rows((1, "a", "new", 10)))
    assert content(table) == by_hudi_rs(table) == [(1, "a", "new", 10)]


def test_m4_mutant_delete_without_value_restores_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = encoding.encode_deletes
    monkeypatch.setattr(encoding, "encode_deletes", lambda keys, partition, *_: encode(keys, partition, None))
    table = a_table(tmp_path / "t", "by event")
    table.upsert(rows((1, "a", "x", 10)))
    table.delete(keys((1, "a")))
    table.upsert(rows((1, "a", "late", 5)))
    assert content(table) == by_hudi_rs(table) == [(1, "a", "x", 10)]


@pytest.mark.parametrize("kind", BY_EVENT)
def test_m6_row_without_ordering_value_is_refused_before_any_write(kind: str, tmp_path: Path) -> None:
    table = a_table(tmp_path / "t", kind)
    before = sorted(Path(table.url).rglob("*"))
    bad = rows((1, "a", "x", 1), (2, "a", "x", 1)).set_column(3, "ts", pa.array([1, None], pa.int64()))
    for write in (table.upsert, table.append):
        with pytest.raises(InvalidRecords, match="ordering column 'ts' is null in 1 rows"):
            write(bad)
    assert sorted(Path(table.url).rglob("*")) == before


def test_m6_nulls_are_ordinary_values_without_an_ordering_column(tmp_path: Path) -> None:
    table = a_table(tmp_path / "t", "by commit")
    null = rows((1, "a", "x", 1)).set_column(3, "ts", pa.nulls(1, pa.int64()))
    table.upsert(null)
    table.upsert(null)
    assert table.to_arrow().to_pylist() == null.to_pylist()


def test_m5_column_that_cannot_order_deletes_is_refused_at_creation(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("ts", pa.decimal128(20, 2))])
    with pytest.raises(UnsupportedSchema, match=r"decimal128\(20, 2\).* 15 digits"):
        Table.create(str(tmp_path / "t"), TableSpec("t", columns, ("id",), ordering="ts", table_type="merge_on_read"))
    assert not (tmp_path / "t").exists()
    with pytest.raises(InvalidRecords, match="table_type='mor'"):
        TableSpec("t", columns, ("id",), table_type="mor")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [5, 6]), (pa.float64(), [0.5, 1.5]), (pa.float32(), [0.5, 1.5]), (pa.string(), ["a", "b"]),
        (pa.date32(), [5, 6]), (pa.timestamp("us", "UTC"), [5, 6]),
        (pa.decimal128(12, 3), [Decimal("-3.250"), Decimal("2.500")]),
    ],
)  # fmt: skip
def test_m5_deletes_of_all_ordering_types_are_read_by_hudi_rs(
    kind: pa.DataType, values: list[Any], tmp_path: Path
) -> None:
    columns = pa.schema([("id", pa.int64()), ("ts", kind)])
    spec = TableSpec("t", columns, ("id",), ordering="ts", table_type="merge_on_read")
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    table.upsert(pa.table({"id": [1, 2], "ts": pa.array(values[1:] * 2, kind)}, schema=columns))
    table.delete(pa.table({"id": [1]}))
    late = pa.table({"id": [1], "ts": pa.array(values[:1], kind)}, schema=columns)
    table.upsert(late)
    assert table.to_arrow(["id"])["id"].to_pylist() == [2]
    found = [pa.record_batch(batch) for batch in HudiTableBuilder.from_base_uri(table.url).build().read()]
    assert [row["id"] for batch in found for row in batch.to_pylist()] == [2]


FLOATS = [1.0, -0.0, 0.0, inf, -inf, nan]


@pytest.mark.parametrize("table_type", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_nan_is_above_all_and_minus_zero_below_zero_as_to_hudi_rs(
    kind: pa.DataType, table_type: str, tmp_path: Path
) -> None:
    columns = pa.schema([("id", pa.int64()), ("v", pa.string()), ("ts", kind)])
    spec = TableSpec("t", columns, ("id",), ordering="ts", table_type=table_type)
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    pairs = list(enumerate((old, new) for old in FLOATS for new in FLOATS))

    def given_rows(which: int) -> pa.Table:
        ids, values = [number for number, _ in pairs], [pair[which] for _, pair in pairs]
        return pa.table([ids, [("old", "new")[which]] * len(ids), pa.array(values, kind)], schema=columns)

    def seen() -> list[tuple[int, str]]:
        batches = HudiTableBuilder.from_base_uri(table.url).build().read()
        by_others = sorted((r["id"], r["v"]) for batch in batches for r in pa.record_batch(batch).to_pylist())
        assert sorted((row["id"], row["v"]) for row in table.to_arrow().to_pylist()) == by_others
        return by_others

    table.upsert(given_rows(0))
    table.upsert(given_rows(1))
    rising = [-inf, -0.0, 0.0, 1.0, inf, nan]
    ranks = {repr(value): number for number, value in enumerate(rising)}
    expected = [(n, "old" if ranks[repr(old)] > ranks[repr(new)] else "new") for n, (old, new) in pairs]
    assert seen() == expected
    table.upsert(pa.concat_tables([given_rows(1), given_rows(0), given_rows(1)]))  # of one key in one write, too
    assert seen() == expected
    table.delete(pa.table({"id": [number for number, _ in pairs]}))
    assert seen() == [], "a row that nothing is lower than cannot be deleted"


@pytest.mark.parametrize("kind", [{}, {"buckets": 1}, {"table_type": "copy_on_write"}])
def test_rows_that_the_jvm_reads_as_deletes_are_refused(tmp_path: Path, kind: dict[str, Any]) -> None:
    columns = pa.schema([("id", pa.int64()), ("_hoodie_is_deleted", pa.bool_())])
    spec = TableSpec("t", columns, ("id",), **{"table_type": "merge_on_read", **kind})
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    table.upsert(pa.table([[1, 2], [False, None]], schema=columns))
    for write in (table.upsert, table.append):
        with pytest.raises(InvalidRecords, match="_hoodie_is_deleted is true in 1 rows.*deletes"):
            write(pa.table([[1, 3], [True, False]], schema=columns))
    assert table.delete(pa.table([[1], [True]], schema=columns)).deleted == 1
    assert table.to_arrow(["id"])["id"].to_pylist() == [2]


def test_m5_mutant_that_mixes_deletes_in_one_block_fails_hudi_rs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (changes, group_writer, encoding):  # as a row of a JVM writer's without a value
        monkeypatch.setattr(module, "refuse_unordered", lambda *_: None)
    without = rows((2, "a", "x", 1)).set_column(3, "ts", pa.nulls(1, pa.int64()))
    for folder in ("ours", "twin"):
        table = a_table(tmp_path / folder, "by event")
        table.upsert(pa.concat_tables([rows((1, "a", "x", 10), (3, "a", "x", 10)), without]))
        if folder == "twin":
            monkeypatch.setattr(encoding, "_deletes", lambda *given: [mixed(blocks) for blocks in [_deletes(*given)]])
        table.delete(keys((1, "a"), (2, "a")))
    assert by_hudi_rs(Table.open(str(tmp_path / "ours"))) == [(3, "a", "x", 10)]
    with pytest.raises(Exception, match="rdering"):  # hudi-rs does not export its type
        by_hudi_rs(table)


_deletes = encoding._deletes


def mixed(contents: Iterable[bytes]) -> bytes:
    """One delete block of several: their datums joined to one list."""
    records = []
    for content_ in contents:
        datum = BytesIO(content_[8:])
        found: Any = fastavro.schemaless_reader(datum, avro_schema(_LIST), None, return_record_name=True)
        records += found["deleteRecordList"]
    out = BytesIO()
    fastavro.schemaless_writer(out, avro_schema(_LIST), {"deleteRecordList": records})
    return struct.pack(">ii", 3, out.tell()) + out.getvalue()


_LIST = "HoodieDeleteRecordList"


def test_m7_log_file_name_that_the_jvm_ignores_is_never_written(tmp_path: Path) -> None:
    table = a_table(tmp_path / "t", "by event")
    table.upsert(rows((1, "a", "x", 1)))
    txn = Transaction(table)
    writer = start_here(txn, plan_write(txn, lambda _: None))[0]
    given_rows, given_keys, _ = writer.keyed(rows((1, "a", "y", 2)))
    with pytest.raises(InvalidRecords, match="digits"):
        writer.log(txn.snapshot.slices[0], given_rows, given_keys, given_keys[:0], "task-a")
    txn.rollback()


# -- writers beside each other -----------------------------------------------------------------------------------------


def test_second_writer_of_a_file_group_gets_a_conflict(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1), (2, "b", "x", 1)))
    other = Table.open(table.url, settings=SETTINGS)
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", "mine", 5)))
    other.upsert(rows((1, "a", "theirs", 2)))
    with pytest.raises(WriteConflict):
        txn.commit()
    txn.rollback()
    assert content(table) == by_hudi_rs(table) == [(1, "a", "theirs", 2), (2, "b", "x", 1)]
    apart = Transaction(table)
    engine.write(apart, upserts=rows((1, "a", "mine", 6)))
    other.upsert(rows((2, "b", "theirs", 2)))
    apart.commit()
    assert content(table) == by_hudi_rs(table) == [(1, "a", "mine", 6), (2, "b", "theirs", 2)]


def test_leftovers_of_a_dead_writer_are_removed_with_its_logs(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1)))
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", "dead", 9)))
    txn.leave()
    assert log_files(table)
    Table.open(table.url).roll_back(txn.begin, force=True)
    assert log_files(table) == []
    with pytest.raises(Aborted):
        txn.commit()
    assert content(table) == by_hudi_rs(table) == [(1, "a", "x", 1)]


# -- the past, and services --------------------------------------------------------------------------------------------


def test_past_versions_and_changes_are_read_commit_by_commit(table: Table) -> None:
    states, checkpoint = [], table.changes().checkpoint
    steps = [
        lambda: table.upsert(rows((1, "a", "x", 1), (2, "b", "x", 1))),
        lambda: table.upsert(rows((1, "a", "y", 2), (3, "a", "x", 1))),
        lambda: table.delete(keys((1, "a"))),
        lambda: table.upsert(rows((1, "a", "again", 7))),
    ]
    expected = [
        {("insert", 1), ("insert", 2)}, {("update", 1), ("insert", 3)}, {("delete", 1)}, {("insert", 1)},
    ]  # fmt: skip
    for step, told in zip(steps, expected, strict=True):
        done = step()
        found = table.changes(checkpoint)
        assert {(row["_operation"], row["id"]) for row in found.to_arrow().to_pylist()} == told
        checkpoint = found.checkpoint
        states.append((done.completion, content(table)))
    for completion, seen in states:
        assert content(table, as_of=completion) == seen


def test_restore_takes_logs_back_and_a_savepoint_keeps_them(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1)))
    kept = table.upsert(rows((1, "a", "y", 2))).instant
    table.savepoint(kept)
    paths = {path for saved in table.savepoints().values() for path in saved.paths}
    assert set(log_files(table)) <= paths
    table.upsert(rows((1, "a", "z", 3), (2, "a", "z", 3)))
    table.delete(keys((1, "a")))
    assert len(table.restore(kept).taken_back) == 2
    assert content(table) == by_hudi_rs(table) == [(1, "a", "y", 2)]
    assert set(log_files(table)) <= paths


def test_clean_takes_no_log_of_a_slice_that_is_the_latest(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1)))
    for number in range(2, 6):
        table.upsert(rows((1, "a", "y", number)))
    before = log_files(table)
    assert table.clean(KeepCommits(1)) == ()
    assert log_files(table) == before
    assert content(table) == by_hudi_rs(table) == [(1, "a", "y", 5)]


def test_archived_delta_commits_stay_visible_to_all_readers(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1)))
    for number in range(2, 10):
        table.upsert(rows((1, "a", "y", number)))
    assert table.archive(KeepActive(1, 2)).instants == ()  # the retention needs them
    settings = Table.open(table.url, settings=type(SETTINGS)(retention=KeepCommits(1)))
    assert len(settings.archive(KeepActive(1, 2)).instants) > 3
    again = Table.open(table.url)
    assert content(again) == by_hudi_rs(again) == [(1, "a", "y", 9)]
    again.upsert(rows((1, "a", "z", 10)))
    assert content(again) == by_hudi_rs(again) == [(1, "a", "z", 10)]
    with pytest.raises(HistoryGone):
        content(again, as_of="20200101000000000")


# -- histories ---------------------------------------------------------------------------------------------------------

one_row = st.tuples(st.integers(1, 4), st.sampled_from("ab"), st.integers(1, 5))
step = st.one_of(
    st.tuples(st.just("upsert"), st.lists(one_row, min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.lists(one_row, min_size=1, max_size=2)),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)
@given(st.lists(step, min_size=2, max_size=4))
def test_histories_end_with_the_expected_rows_also_by_hudi_rs(
    kind: str, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[tuple[int, str, int]]]]
) -> None:
    table = a_table(tmp_path_factory.mktemp("t") / "t", kind)
    by_event = "event" in kind
    state: dict[tuple[int, str], tuple[str, int]] = {}
    highest: dict[tuple[int, str], int] = {}  # of rows, and of deletes since
    for number, (what, given_rows) in enumerate(steps):
        last = {(key, part): ts for key, part, ts in given_rows}
        best = {(key, part): max(t for k, p, t in given_rows if (k, p) == (key, part)) for key, part, _ in given_rows}
        if what == "delete":
            table.delete(keys(*last))
            for key in last:
                state.pop(key, None)
        else:
            table.upsert(rows(*((key, part, f"{number}/{ts}", ts) for key, part, ts in given_rows)))
            for key, ts in (best if by_event else last).items():
                if not by_event or ts >= highest.get(key, 0):
                    state[key], highest[key] = (f"{number}/{ts}", ts), ts
        assert content(table) == by_hudi_rs(table) == sorted((*key, *value) for key, value in state.items())
