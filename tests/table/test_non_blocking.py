"""Non-blocking writers: no conflict among them, no row lost, and the greatest ordering value wins in every reader.

Each rule of writers that do not wait for each other has a test, and a twin that breaks it and loses rows.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from noting import Later
from table.asked_for import at_rest, counted
from table.mor_tables import COLUMNS, SETTINGS, Row, by_hudi_rs, content, keys, log_files, rows

from fsspec_cas import Store
from lockprovider import InvalidSettings
from lockprovider.table import (
    Aborted,
    InvalidRecords,
    KeepActive,
    KeepCommits,
    KeepVersions,
    Mode,
    Scan,
    Table,
    TableSettings,
    TableSpec,
    WriteConflict,
)
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.engines.arrow import plan_write, start_here
from lockprovider.table.engines.writer import start_for_tasks
from lockprovider.table.files import group_writer
from lockprovider.table.format.bucket import fixed_file_id
from lockprovider.table.format.compatibility import MODE_KEY
from lockprovider.table.format.properties import pairs
from lockprovider.table.format.service_metadata import (
    ClusteringGroup,
    ClusteringPlan,
    PlannedSlice,
    encode_clustering_plan,
)
from lockprovider.table.services import anchors
from lockprovider.table.timeline import conflict, retention
from lockprovider.table.timeline.conflict import non_blocking
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice
from lockprovider.table.transaction.transaction import Transaction, transact

BLIND = replace(SETTINGS, mode=Mode.NON_BLOCKING)
BUCKETS = 2
SPEC = TableSpec("t", COLUMNS, ("id",), ("part",), ordering="ts", buckets=BUCKETS, table_type="merge_on_read")
HERE = [("a", n) for n in range(BUCKETS)]  # the buckets of one partition


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=BLIND)


def another(table: Table, settings: TableSettings = BLIND) -> Table:
    return Table.open(table.url, settings=settings)


def ordinary(table: Table) -> Table:
    return another(table, SETTINGS)


def begun(table: Table, *given: Row, deletes: pa.Table | None = None) -> Any:
    """A write that is not committed yet."""
    txn = Transaction(table, pinned=False)
    engine.write(txn, rows(*given) if given else None, deletes)
    return txn


def gone(*given: tuple[int, str, int]) -> pa.Table:
    """Deletes with their ordering values."""
    return keys(*(one[:2] for one in given)).append_column("ts", pa.array([one[2] for one in given], pa.int64()))


def seen(table: Table) -> list[Row]:
    found = content(table)
    assert by_hudi_rs(table) == found
    return found


# -- where it can be had -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({"table_type": "copy_on_write"}, "table_type='merge_on_read'"),
        ({"buckets": None}, "a bucket index (buckets=)"),
        ({"ordering": None}, "one ordering column (ordering=), hoodie.record.merge.mode=EVENT_TIME_ORDERING"),
        (
            {"table_type": "copy_on_write", "buckets": None},
            "table_type='merge_on_read', a bucket index (buckets=)",
        ),
    ],
)
def test_n1_mode_is_refused_naming_the_missing_property(tmp_path: Path, change: dict[str, Any], lacks: str) -> None:
    url, spec = str(tmp_path / "t"), replace(SPEC, **change)
    said = re.escape(f"{MODE_KEY}={Mode.NON_BLOCKING.value} is not possible for table 't', it lacks {lacks}: use")
    with pytest.raises(InvalidSettings, match=said):
        Table.create(url, spec, settings=BLIND)
    assert not Path(url).exists()
    Table.create(url, spec, settings=SETTINGS)
    with pytest.raises(InvalidSettings, match=said):
        Table.open(url, settings=BLIND)


def test_n1_mutant_by_commit_time_lets_a_compaction_change_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflict, "lacks_for_non_blocking", lambda _: ())
    came_to = []
    for is_compacted in (False, True):
        table = Table.create(str(tmp_path / str(is_compacted)), replace(SPEC, ordering=None), settings=BLIND)
        first, second = (begun(another(table), (1, "a", name, 1)) for name in ("first", "second"))
        second.commit()
        if is_compacted:
            table.compact()
        first.commit()
        came_to += seen(table)
    assert came_to == [(1, "a", "second", 1), (1, "a", "first", 1)]


@pytest.mark.parametrize("text", [Mode.NON_BLOCKING.value, "NON_BLOCKING_CONCURRENCY_CONTROL"])
def test_key_of_hudi_enables_the_mode(table: Table, text: str) -> None:
    settings = TableSettings.from_hudi({MODE_KEY: text})
    assert settings.mode is Mode.NON_BLOCKING
    assert not settings.is_eager
    with pytest.raises(InvalidSettings, match="EAGER would roll back live writers"):
        TableSettings.from_hudi({MODE_KEY: text, "hoodie.clean.failed.writes.policy": "EAGER"})


def test_created_table_enables_the_mode_for_jvm_writers(table: Table, tmp_path: Path) -> None:
    for made, said in ((table, Mode.NON_BLOCKING), (Table.create(str(tmp_path / "o"), SPEC), Mode.OPTIMISTIC)):
        text = (Path(made.url) / ".hoodie/hoodie.properties").read_text()
        assert dict(pairs(text))[MODE_KEY] == said.value
        assert made.share() == (), "and it stays so"


def test_n1_missing_ordering_value_is_refused_before_any_write(table: Table) -> None:
    before = sorted(Path(table.url).rglob("*"))
    with pytest.raises(InvalidRecords, match="ordering column 'ts' is null in 1 rows"):
        table.upsert(rows((1, "a", "x", 1)).set_column(3, "ts", pa.nulls(1, pa.int64())))
    with pytest.raises(InvalidRecords, match="ordering column 'ts' is null in 1 rows"):
        table.delete(keys((1, "a")).append_column("ts", pa.nulls(1, pa.int64())))
    assert sorted(Path(table.url).rglob("*")) == before


def test_m5_delete_with_the_value_that_means_none_is_refused(tmp_path: Path) -> None:
    columns = COLUMNS.set(3, pa.field("ts", pa.int32()))
    table = Table.create(str(tmp_path / "t"), replace(SPEC, schema=columns), settings=BLIND)
    with pytest.raises(InvalidRecords, match="0 in the ordering column 'ts'"):
        table.delete(gone((1, "a", 0)).set_column(2, "ts", pa.array([0], pa.int32())))


# -- writers beside each other -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("order", ["begun first", "begun last"])
def test_two_writers_of_the_same_keys_commit_and_the_greatest_value_wins(
    table: Table, order: str, compacted: tuple[int, ...]
) -> None:
    one = begun(another(table), (1, "a", "one", 5), (2, "a", "one", 1), (3, "b", "one", 1))
    two = begun(another(table), (1, "a", "two", 4), (2, "a", "two", 2), (4, "b", "two", 1))
    for number, txn in enumerate([one, two] if order == "begun first" else [two, one]):
        assert txn.commit().conflicts == 0
        if number in compacted:
            assert table.compact()
    assert seen(table) == [(1, "a", "one", 5), (2, "a", "two", 2), (3, "b", "one", 1), (4, "b", "two", 1)]


def test_refused_second_write_does_not_make_the_first_a_read(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 5)))
    late = begun(another(table), (1, "a", "late", 7))
    with pytest.raises(InvalidRecords, match="one write"):
        engine.delete_where(late, "id = 1")
    table.upsert(rows((1, "a", "x", 6)))
    assert late.commit().conflicts == 0
    assert seen(table) == [(1, "a", "late", 7)]


def test_reading_write_after_a_failed_blind_one_conflicts(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 5)))
    late = another(table)
    assert late.schema().names == COLUMNS.names
    txn = Transaction(late, pinned=False)
    table.add_columns(pa.schema([("note", pa.string())]))
    with pytest.raises(InvalidRecords, match="note is missing"):
        engine.write(txn, rows((1, "a", "late", 7)))
    engine.write(txn, deletes=keys((1, "a")))
    with_note = rows((1, "a", "y", 6)).append_column("note", pa.array([None], pa.string()))
    table.upsert(with_note)
    with pytest.raises(WriteConflict):
        txn.commit()
    txn.rollback()
    assert table.to_arrow().to_pylist() == with_note.to_pylist()


def test_appends_and_deletes_with_values_are_blind_too(table: Table) -> None:
    table.append(rows((1, "a", "x", 5), (2, "a", "x", 5)))
    with pytest.raises(InvalidRecords, match="more than once"):
        table.append(rows((1, "a", "x", 5), (1, "a", "y", 6)))
    late, high = begun(another(table), (1, "a", "late", 6)), begun(another(table), (2, "a", "high", 8))
    assert table.delete(gone((1, "a", 7), (2, "a", 7), (9, "a", 7))).deleted == 3, "whether there is a row or not"
    late.commit()
    high.commit()
    assert seen(table) == [(2, "a", "high", 8)]
    table.upsert(rows((3, "a", "x", 1), (4, "a", "x", 1)), deletes=gone((3, "a", 2)))
    assert seen(table) == [(2, "a", "high", 8), (4, "a", "x", 1)]


@pytest.mark.parametrize("kind", ["blind", "merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("value", [5, 15])
def test_key_to_upsert_and_to_delete_is_deleted_by_every_writer(tmp_path: Path, kind: str, value: int) -> None:
    spec = SPEC if kind == "blind" else replace(SPEC, table_type=kind)
    table = Table.create(str(tmp_path / "t"), spec, settings=BLIND if kind == "blind" else SETTINGS)
    table.upsert(rows((1, "a", "x", 7), (2, "a", "x", 20)))
    table.upsert(rows((1, "a", "y", 9), (1, "a", "y", 10)), deletes=gone((1, "a", value), (9, "b", value)))
    assert seen(table) == [(2, "a", "x", 20)]
    table.upsert(rows((2, "a", "y", 10)), deletes=gone((2, "a", value)))
    assert seen(table) == ([(2, "a", "x", 20)] if kind == "blind" else [])


def test_deletes_of_a_transaction_are_blind_if_all_have_values(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 5), (2, "a", "x", 5)))
    with another(table).transaction() as txn:
        txn.upsert(rows((3, "a", "x", 5)))
        txn.delete(gone((1, "a", 6)))
        table.upsert(rows((2, "a", "meanwhile", 6)))
    assert seen(table) == [(2, "a", "meanwhile", 6), (3, "a", "x", 5)]
    txn = table.transaction()
    txn.delete(gone((2, "a", 9)))
    txn.delete(keys((3, "a")))
    with pytest.raises(InvalidRecords, match="ordering column 'ts' is null in 1 rows"):
        txn.commit()
    txn.rollback()


def test_doctor_names_groups_of_logs_alone(table: Table) -> None:
    as_the_jvm_does(table, (IN_BUCKET_0, "a", "theirs", 1)).commit()
    (found,) = told = bare(table)
    assert (found.rule, found.state) == ("services", "note")
    assert found.what.startswith("1 file groups"), told
    table.compact()
    assert bare(table) == []


def bare(table: Table) -> list[Any]:
    return [one for _, _, found in diagnose(table) for one in found if "log files but no base file" in one.what]


def test_transaction_that_reads_is_ordinary_and_may_conflict(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 5)))
    for write in (
        lambda txn: engine.write(txn, rows((1, "a", f"{content(table)}", 7)) if Scan(txn).count() else None),
        lambda txn: txn.delete("id = 1"),
        lambda txn: txn.delete(keys((1, "a"))),
    ):
        reader = another(table)
        txn = reader.transaction()
        write(txn)
        table.upsert(rows((1, "a", "meanwhile", 6)))
        with pytest.raises(WriteConflict):
            txn.commit()
        txn.rollback()
    table.delete(keys((1, "a")))
    assert seen(table) == []


def test_added_column_is_a_conflict_for_writers_unaware_of_it(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 5)))
    txn = begun(another(table), (1, "a", "y", 6))
    table.add_columns(pa.schema([("more", pa.string())]))
    with pytest.raises(WriteConflict):
        txn.commit()
    txn.rollback()
    more = rows((1, "a", "y", 6)).append_column("more", pa.array(["m"]))
    another(table).upsert(more)
    assert table.to_arrow().to_pylist() == more.to_pylist()


def test_n3_one_log_per_bucket_is_put_after_its_marker_without_a_read(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "t"), SPEC, settings=BLIND)
    table, asked = counted(Table.open(str(tmp_path / "t"), settings=BLIND), BLIND)
    for _ in range(2):  # after the anchors the lock's log is a new one
        table.upsert(rows((1, "a", "x", 1), (2, "a", "x", 1)))
    at_rest(table)
    asked.names.clear()
    done = table.upsert(rows(*((n, "a", "y", 2) for n in range(8))), deletes=gone((9, "a", 3)))
    at_rest(table)
    names = list(asked.names)
    assert [name for name in names if name.startswith(("get files", "get data", "list"))] == []
    assert len(done.file_groups) == BUCKETS
    mine = [Path(path).name for path in log_files(table) if done.instant in path]
    assert sorted(mine) == [f".{fixed_file_id(n)}_{done.instant}.log.1_0-0-0" for n in range(BUCKETS)]
    made = [name for name in names if name in ("put marker", "put files")]
    assert made.count("put files") == made.count("put marker") == BUCKETS
    assert (made[0], made[-1]) == ("put marker", "put files")


def test_n4_greatest_value_of_rows_with_one_key_is_written(table: Table) -> None:
    table.upsert(rows((1, "a", "high", 9), (1, "a", "low", 3), (1, "a", "middle", 5)))
    assert seen(table) == [(1, "a", "high", 9)]


def test_n4_mutant_that_writes_the_last_row_loses_the_greatest(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    dedupe = group_writer.dedupe
    monkeypatch.setattr(group_writer, "dedupe", lambda given, its_keys, _: dedupe(given, its_keys, None))
    table.upsert(rows((1, "a", "high", 9), (1, "a", "low", 3), (1, "a", "middle", 5)))
    assert seen(table) == [(1, "a", "middle", 5)]


# -- N2: anchors -------------------------------------------------------------------------------------------------------


def as_the_jvm_does(table: Table, *given: Row, file_id: str = fixed_file_id(0)) -> Any:
    """A log file of a group that has no base file, or is not seen; not committed yet."""
    opened = Table.open(
        table.url, storage_options=table.storage_options, settings=replace(table.settings, mode=Mode.OPTIMISTIC)
    )
    txn = Transaction(opened, pinned=False)
    writer = start_here(txn, plan_write(txn, lambda _: None))[0]
    plain, its_keys, _ = writer.keyed(rows(*given))
    writer.open_partitions([given[0][1]])
    there = FileSlice(given[0][1], file_id, "", "", 0)
    txn.add([writer.log(there, plain, its_keys, pa.array([], pa.string()), "0-0-0")])
    txn._is_blind = True
    return txn


IN_BUCKET_0 = next(n for n in range(9) if SPEC.config().bucket_index.of(pa.array([str(n)]), ("id",))[0].as_py() == 0)  # type: ignore[union-attr]


def test_n2_each_bucket_of_a_new_partition_gets_a_base_file_first(table: Table) -> None:
    txn = begun(table, (1, "a", "x", 1))
    (anchor,) = [commit for commit in table.history() if commit.operation == "BULK_INSERT"]
    assert anchor.completion < txn.begin
    assert [one.group for one in table.snapshot().slices] == [("a", fixed_file_id(n)) for n in range(BUCKETS)]
    assert seen(table) == content(table, read_optimized=True) == []
    txn.commit()
    another(table).upsert(rows((2, "a", "x", 1)))
    assert [commit.operation for commit in table.history()].count("BULK_INSERT") == 1
    assert seen(table) == [(1, "a", "x", 1), (2, "a", "x", 1)]
    assert not list((Path(table.url) / ".hoodie/.temp").rglob("*.marker*"))


def test_n2_bucket_with_completed_rows_gets_none(table: Table) -> None:
    as_the_jvm_does(table, (IN_BUCKET_0, "a", "theirs", 1)).commit()
    table.upsert(rows((77, "a", "x", 1), (78, "a", "x", 1)))
    assert (IN_BUCKET_0, "a", "theirs", 1) in seen(table)
    assert [one.path == "" for one in table.snapshot().slices] == [True, False]


def test_n2_mutant_that_does_not_check_under_the_lock_hides_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "bare_buckets", lambda *_: HERE)
    as_the_jvm_does(table, (IN_BUCKET_0, "a", "theirs", 1)).commit()
    table.upsert(rows((77, "a", "x", 1), (78, "a", "x", 1)))
    assert (IN_BUCKET_0, "a", "theirs", 1) not in seen(table)


def test_n2_logs_written_while_the_base_file_is_made_belong_to_it(table: Table) -> None:
    theirs = as_the_jvm_does(table, (IN_BUCKET_0, "a", "theirs", 1))
    table.upsert(rows((77, "a", "x", 1), (78, "a", "x", 1)))
    theirs.commit()
    assert (IN_BUCKET_0, "a", "theirs", 1) in seen(table)
    assert all(one.path for one in table.snapshot().slices)


def test_n2_ordinary_writer_gives_way_to_the_base_file_of_a_new_bucket(table: Table) -> None:
    one = Transaction(ordinary(table))
    engine.write(one, rows((1, "a", "ordinary", 1)))
    table.upsert(rows((2, "a", "x", 1)))
    with pytest.raises(WriteConflict):
        one.commit()
    one.rollback()
    ordinary(table).upsert(rows((1, "a", "ordinary", 1)))
    assert len(table.snapshot().slices) == BUCKETS
    assert seen(table) == [(1, "a", "ordinary", 1), (2, "a", "x", 1)]


def test_n2_rolled_back_base_file_of_a_bucket_is_made_again(table: Table) -> None:
    start = table.history()[-1].instant
    txn = begun(another(table), (1, "a", "x", 1))
    table.restore(start)
    with pytest.raises((WriteConflict, Aborted)):
        txn.commit()
    txn.rollback()
    writer = another(table)
    writer.upsert(rows((1, "a", "y", 1)))
    assert all(one.path for one in table.snapshot().slices)
    assert seen(table) == [(1, "a", "y", 1)]


# -- N5, N6, M9, M10: what ends file groups ----------------------------------------------------------------------------


def planned_by_the_jvm(table: Table) -> Path:
    """A clustering of bucket 0: the JVM's can be of buckets."""
    one = table.snapshot().slices[0]
    given = PlannedSlice(one.partition, one.file_id, Path(one.path).name, tuple(log.file.name for log in one.logs))
    data = encode_clustering_plan(ClusteringPlan((ClusteringGroup((given,)),)), table.url)
    path = Path(table.url) / f".hoodie/timeline/{table.timeline().next_time(0)}.clustering.requested"
    path.write_bytes(data)
    table.lock.acquire().release()  # as its writer had it
    return path


@pytest.mark.parametrize("when", ["before", "after"])
def test_m9_write_into_a_group_that_is_going_to_be_replaced_gives_way(table: Table, when: str) -> None:
    table.upsert(rows((IN_BUCKET_0, "a", "x", 1)))
    txn = begun(another(table), (IN_BUCKET_0, "a", "y", 2)) if when == "before" else None
    path = planned_by_the_jvm(table)
    txn = txn or begun(another(table), (IN_BUCKET_0, "a", "y", 2))
    with pytest.raises(WriteConflict, match=r"clustering\.requested"):
        txn.commit()
    txn.rollback()
    path.unlink()
    table.lock.acquire().release()
    another(table).upsert(rows((IN_BUCKET_0, "a", "y", 2)))
    assert seen(table) == [(IN_BUCKET_0, "a", "y", 2)]


def overwritten(table: Table, *given: Row, partitions: tuple[str, ...] = ("a",)) -> None:
    ordinary(table).overwrite(rows(*given), partitions)


def test_n5_write_into_a_group_replaced_since_its_begin_gives_way(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1), (2, "a", "x", 1), (3, "b", "x", 1)))
    here, there = begun(another(table), (1, "a", "y", 2)), begun(another(table), (3, "b", "y", 2))
    overwritten(table, (4, "a", "over", 1))
    with pytest.raises(WriteConflict, match="replacecommit"):
        here.commit()
    here.rollback()
    there.commit()
    another(table).upsert(rows((1, "a", "y", 2)))
    assert seen(table) == [(1, "a", "y", 2), (3, "b", "y", 2), (4, "a", "over", 1)]


def test_n5_mutant_that_does_not_check_loses_its_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.upsert(rows((1, "a", "x", 1), (2, "a", "x", 1)))
    txn = begun(another(table), (1, "a", "y", 2))
    overwritten(table, (4, "a", "over", 1))
    monkeypatch.setattr(conflict, "non_blocking", lambda *_: None)
    txn.commit()
    assert seen(table) == [(4, "a", "over", 1)]


def test_n6_operation_that_ends_file_groups_is_refused_by_name(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1)))
    for call in (lambda: table.overwrite(rows((2, "a", "x", 1))), lambda: table.overwrite(rows(), ["a"])):
        with pytest.raises(InvalidSettings, match=r"ends file groups.*optimistic_concurrency_control"):
            call()
    assert seen(table) == [(1, "a", "x", 1)]


def test_n6_overwrite_gives_way_to_logs_written_since_it_began(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1)))
    txn = ordinary(table).transaction()
    txn.overwrite(rows((4, "a", "over", 1)), ["a"])
    table.upsert(rows((1, "a", "y", 2)))
    with pytest.raises(WriteConflict):
        txn.commit()
    txn.rollback()
    assert seen(table) == [(1, "a", "y", 2)]


def test_n6_mutant_that_ignores_logs_loses_them(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1)))
    careless = another(table, replace(SETTINGS, resolution=lambda *_: None))
    txn = careless.transaction()
    txn.overwrite(rows((4, "a", "over", 1)), ["a"])
    table.upsert(rows((1, "a", "y", 2)))
    txn.commit()
    assert seen(table) == [(4, "a", "over", 1)]


def as_non_blocking_jvm_writers_do(table: Table, *given: Row) -> None:
    """Into the group of the bucket that is seen, whatever its id, and if there is none into the fixed one."""
    ids = [one.file_id for one in table.snapshot().within([given[0][1]]) if int(one.file_id[:8]) == 0]
    as_the_jvm_does(table, *given, file_id=ids[0] if ids else fixed_file_id(0)).commit()


@pytest.mark.parametrize("given", [(), ((IN_BUCKET_0, "a", "over", 1),)], ids=["emptied", "overwritten"])
def test_m10_bucket_whose_group_ends_has_another_by_the_same_commit(table: Table, given: tuple[Row, ...]) -> None:
    table.upsert(rows(*((n, "a", "x", 1) for n in range(8))))
    for number in (1, 2):
        overwritten(table, *given)
        found = {int(one.file_id[:8]): one.file_id for one in table.snapshot().slices}
        assert sorted(found) == list(range(BUCKETS))
        if not given:
            assert found[0] == fixed_file_id(0, number)
        as_non_blocking_jvm_writers_do(table, (IN_BUCKET_0, "a", "theirs", 8 + number))
        assert seen(table) == [(IN_BUCKET_0, "a", "theirs", 8 + number)]


@pytest.mark.parametrize("task_files", [0, 1])
def test_m10_anchors_of_an_overwrite_by_tasks_are_not_listed_one_by_one(tmp_path: Path, task_files: int) -> None:
    made = Table.create(str(tmp_path / "t"), replace(SPEC, buckets=6), settings=BLIND)
    made.upsert(rows(*((n, "a", "x", 1) for n in range(50))))
    table, asked = counted(made, SETTINGS)
    txn = Transaction(table)
    txn.end_partitions(["a"])
    plain = rows((1, "a", "over", 1))
    writer = start_for_tasks(txn, table.schema())
    ids = ["00000001-0000-4000-8000-000000000000-0"] * task_files
    stats = [writer.insert("a", plain, pa.array(["1"]), "0-0-0", file_id) for file_id in ids]
    asked.names.clear()
    txn.add(stats)
    assert asked.names.count("list_page markers") == 1
    assert "list_page timeline" not in asked.names
    assert asked.names.count("put metafile") == 1
    assert asked.names.count("put data") == 6 - task_files
    kinds = {"MARKERS" in path.name for path in (tmp_path / "t/.hoodie/.temp" / txn.begin).iterdir()}
    assert len(kinds) == 1, "a JVM rollback reads one kind of markers"
    txn.commit()
    assert len(table.snapshot().slices) == 6


def test_m10_mutant_without_it_hides_writes_into_the_bucket(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflict, "left_bare", lambda *_: ())
    table.upsert(rows(*((n, "a", "x", 1) for n in range(8))))
    overwritten(table)
    as_non_blocking_jvm_writers_do(table, (IN_BUCKET_0, "a", "theirs", 9))
    assert seen(another(table)) == []


def test_m10_bucket_emptied_by_a_jvm_writer_gets_a_base_file_of_another_id(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert(rows((1, "a", "x", 1), (2, "a", "x", 1)))
    with monkeypatch.context() as patched:
        patched.setattr(conflict, "left_bare", lambda *_: ())
        overwritten(table)
    another(table).upsert(rows((1, "a", "y", 2), (2, "a", "y", 2)))
    assert [one.file_id for one in table.snapshot().slices] == [fixed_file_id(n, 1) for n in range(BUCKETS)]
    assert seen(table) == [(1, "a", "y", 2), (2, "a", "y", 2)]


def test_m10_mutant_that_reuses_the_fixed_id_writes_invisible_rows(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert(rows((1, "a", "x", 1), (2, "a", "x", 1)))
    monkeypatch.setattr(conflict, "left_bare", lambda *_: ())
    overwritten(table)
    monkeypatch.setattr(anchors, "anchor_id", lambda bucket, _: fixed_file_id(bucket[1]))
    with pytest.raises(WriteConflict):  # it looks again, and its anchors are not there
        another(table).upsert(rows((1, "a", "y", 2)), retries=0)
    assert seen(table) == []


# -- N7, N8, N9: ordinary writers, compaction, clocks ------------------------------------------------------------------


def count_up(table: Table, txn: Any) -> None:
    """A read, and a write of what follows from it."""
    ((_, _, value, ts),) = (tuple(row.values()) for row in Scan(txn).to_arrow().to_pylist())
    engine.write(txn, rows((1, "a", f"{int(value) + 1}", ts + 1)))


def test_n7_ordinary_writer_gives_way_to_a_log_and_no_step_is_lost(table: Table) -> None:
    table.upsert(rows((1, "a", "0", 1)))
    txn = Transaction(ordinary(table))
    count_up(table, txn)
    table.upsert(rows((1, "a", "10", 5)))
    with pytest.raises(WriteConflict):
        txn.commit()
    txn.rollback()
    transact(another(table), lambda again: count_up(table, again), retries=1)
    assert seen(table) == [(1, "a", "11", 6)]


def test_n7_mutant_that_reads_and_writes_blindly_loses_an_update(table: Table) -> None:
    table.upsert(rows((1, "a", "0", 1)))
    wrong = ordinary(table)
    wrong.settings = replace(wrong.settings, resolution=non_blocking)
    one, two = Transaction(wrong), Transaction(wrong)
    for txn in (one, two):
        count_up(table, txn)
    one.commit()
    two.commit()
    assert seen(table) == [(1, "a", "1", 2)]


def test_n8_logs_that_span_a_compaction_survive_clean_and_archival(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1), (2, "a", "x", 1)))
    txn = begun(another(table), (1, "a", "straddling", 8))
    begin = table.schedule_compaction()
    assert begin is not None
    table.upsert(rows((2, "a", "meanwhile", 8)))
    table.run_compaction(begin)
    txn.commit()
    for number in range(6):
        table.upsert(rows((9, "z", str(number), number + 10)))
    expected = [(1, "a", "straddling", 8), (2, "a", "meanwhile", 8), (9, "z", "5", 15)]
    service = another(table, replace(SETTINGS, retention=KeepCommits(1)))
    service.clean()
    assert f"log files of {txn.begin} are not compacted" in service.archive(KeepActive(1, 2)).held
    assert seen(table) == expected
    service.compact()
    table.upsert(rows((9, "z", "5", 15)))
    service.clean()
    assert service.archive(KeepActive(1, 2)).instants
    assert seen(another(table)) == expected


def test_n8_mutant_that_cleans_by_begin_times_loses_a_log(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = retention._committed

    def by_begin(now: Timeline, paths: Any, archived: Any) -> Any:
        told = SimpleNamespace(visible=now.visible, completions={begin: begin for begin in now.completions})
        return committed(told, paths, archived)  # type: ignore[arg-type]

    table.upsert(rows((1, "a", "x", 1)))
    txn = begun(another(table), (1, "a", "straddling", 8))
    table.compact()
    txn.commit()
    table.clean(KeepVersions(1))
    assert seen(table) == [(1, "a", "straddling", 8)]
    monkeypatch.setattr(retention, "_committed", by_begin)
    assert table.clean(KeepVersions(1))
    assert content(another(table)) == by_hudi_rs(table) == [(1, "a", "x", 1)]


class Ahead(Later):
    """A clock that is ahead of the others'."""

    def now_ms(self) -> int:
        return super().__getattr__("now_ms")() + 3_600_000  # type: ignore[no-any-return]


def ahead(table: Table) -> Table:
    return Table(Store.from_url(table.url), table.url, settings=BLIND, world=Ahead())


def test_n9_completion_exceeds_that_of_a_compaction_with_a_clock_ahead(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 1)))
    txn = begun(another(table), (1, "a", "y", 2))
    begin = ahead(table).schedule_compaction()
    assert begin is not None
    assert txn.commit().completion > begin
    assert another(table).upsert(rows((2, "a", "y", 2))).completion > begin
    table.run_compaction(begin)
    assert seen(table) == [(1, "a", "y", 2), (2, "a", "y", 2)]


def test_n9_mutant_that_uses_its_own_clock_is_hidden(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockprovider.table.format.layout import format_ms
    from lockprovider.table.timeline.timeline import Timeline

    table.upsert(rows((1, "a", "x", 1)))
    txn = begun(another(table), (1, "a", "y", 2))
    begin = ahead(table).schedule_compaction()
    assert begin is not None
    with monkeypatch.context() as patched:
        patched.setattr("lockprovider.table.transaction.decision.TableDecider.pending", lambda *_: None)
        patched.setattr(Timeline, "next_time", lambda _, now_ms, *__: format_ms(now_ms))
        assert txn.commit().completion < begin
    table.run_compaction(begin)
    assert seen(table) == [(1, "a", "x", 1)]
