"""A table with Hudi's bucket index: a key is always in its bucket's file group, whoever writes, and hudi-rs agrees."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table.bucket_tables import SPEC, bucket, groups, in_their_buckets
from table.overwriting import overwritten
from table.tables import SCHEMA, SETTINGS, by_hudi_rs, content, removed, rows, upsert

from lockprovider import InvalidSettings
from lockprovider.table import (
    Aborted,
    InvalidRecords,
    Table,
    TableSettings,
    TableSpec,
    TableTransaction,
    UnsupportedTable,
    WriteConflict,
)
from lockprovider.table.engines import arrow as engine
from lockprovider.table.engines.changes import _bucket_rewrites, changes_by_partition
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format.bucket import BucketIndex
from lockprovider.table.timeline.conflict import by_file_group, by_partition
from lockprovider.table.transaction.transaction import Transaction, transact

NAMED = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def overwrite(table: Table, partitions: list[str], *triples: tuple[int, str, int]) -> None:
    def run(txn: Transaction) -> None:
        txn.end_partitions(partitions)
        engine.insert(txn, rows(*triples))

    transact(table, run)


def test_rows_go_to_the_file_group_of_their_bucket_and_stay_there(table: Table) -> None:
    upsert(table, *((key, "a", key) for key in range(20)))
    first = groups(table)
    assert sorted(first) == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
    result = upsert(table, (1, "a", 100), (20, "a", 20), (7, "b", 7))
    assert (result.inserted, result.updated) == (2, 1)
    table.append(rows((21, "a", 21), (22, "b", 22)))
    table.delete(rows((2, "a", 0), (99, "a", 0)))
    assert {key: groups(table)[key] for key in first} == first
    expected = {(key, "a", key) for key in range(22) if key not in (1, 2)} | {(1, "a", 100), (7, "b", 7), (22, "b", 22)}
    assert content(table) == by_hudi_rs(table.url) == expected
    in_their_buckets(table)


def test_only_the_buckets_of_the_changes_are_read_and_rewritten(table: Table) -> None:
    upsert(table, *((key, "a", key) for key in range(20)))
    result = upsert(table, (4, "a", -4), (8, "a", -8))
    keys = BucketIndex(4, ("id",)).of(pa.array(["4", "8"]), ("id",)).to_pylist()
    assert {int(file_id[:8]) for _, file_id in result.file_groups} == set(keys)


def test_append_to_buckets_replaces_existing_keys_and_refuses_duplicates(table: Table) -> None:
    table.append(rows((1, "a", 1), (2, "a", 2)))
    result = table.append(rows((2, "a", 20), (3, "a", 3)))
    assert (result.inserted, result.updated, table.history()[-1].operation) == (1, 1, "INSERT")
    with pytest.raises(InvalidRecords, match="comes more than once"):
        table.append(rows((4, "a", 1), (4, "a", 2)))
    reader = rows((5, "a", 5), (6, "b", 6)).to_reader(max_chunksize=1)
    table.append(reader)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "a", 20), (3, "a", 3), (5, "a", 5), (6, "b", 6)}
    in_their_buckets(table)


@pytest.mark.parametrize("there", [False, True], ids=["first file group", "bucket exists"])
@pytest.mark.parametrize("earlier_commits_first", [True, False])
def test_two_writers_that_insert_the_same_new_key_conflict(
    table: Table, there: bool, earlier_commits_first: bool
) -> None:
    if there:
        upsert(table, (5, "a", 0))  # of the same bucket as 1
    writers = [Transaction(table), Transaction(table)]
    for number, txn in enumerate(writers):
        engine.write(txn, upserts=rows((1, "a", number)))
    first, second = writers if earlier_commits_first else writers[::-1]
    done = first.commit()
    with pytest.raises(WriteConflict) as lost:
        second.commit()
    second.rollback()
    assert lost.value.file_groups == done.file_groups
    assert [row for row in content(table) if row[0] == 1] == [(1, "a", writers.index(first))]
    assert by_hudi_rs(table.url) == content(table)


def test_race_without_buckets_leaves_the_key_twice(tmp_path: Path) -> None:
    plain = Table.create(str(tmp_path / "t"), TableSpec("p", SCHEMA, ("id",), ("part",)), settings=SETTINGS)
    writers = [Transaction(plain), Transaction(plain)]
    for number, txn in enumerate(writers):
        engine.write(txn, upserts=rows((1, "a", number)))
    for txn in writers:
        txn.commit()
    assert content(plain) == {(1, "a", 0), (1, "a", 1)}


def test_mutant_conflict_check_by_file_id_misses_the_race(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockprovider.table.timeline.conflict.by_bucket", lambda resolution: resolution)
    writers = [Transaction(table), Transaction(table)]
    for number, txn in enumerate(writers):
        engine.write(txn, upserts=rows((1, "a", number)))
    for txn in writers:
        txn.commit()
    with pytest.raises(AssertionError, match="two file groups of one bucket"):
        groups(table)


def test_new_keys_of_other_buckets_and_partitions_do_not_conflict(table: Table) -> None:
    writers = [Transaction(table) for _ in range(3)]
    for txn, change in zip(writers, ((1, "a", 1), (2, "a", 2), (1, "b", 3)), strict=True):
        engine.write(txn, upserts=rows(change))
    for txn in writers[::-1]:
        txn.commit()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "a", 2), (1, "b", 3)}
    in_their_buckets(table)


def test_loser_inserts_into_the_winners_file_group_when_it_tries_again(table: Table) -> None:
    slow = Transaction(table)
    engine.write(slow, upserts=rows((1, "a", 1)))
    upsert(table, (5, "a", 5))
    before = groups(table)
    with pytest.raises(WriteConflict):
        slow.commit()
    slow.rollback()
    upsert(table, (1, "a", 1))
    assert groups(table) == before
    assert content(table) == {(1, "a", 1), (5, "a", 5)}


def test_overwrite_gives_each_bucket_a_new_file_group(table: Table) -> None:
    upsert(table, *((key, "a", key) for key in range(8)), (1, "b", 1))
    before = groups(table)
    overwrite(table, ["a"], (1, "a", 10), (9, "a", 9))
    assert groups(table)["b", bucket(1)] == before["b", bucket(1)]
    assert not {group for key, group in groups(table).items() if key[0] == "a"} & set(before.values())
    upsert(table, (2, "a", 20), (1, "a", 11))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 11), (9, "a", 9), (2, "a", 20), (1, "b", 1)}
    in_their_buckets(table)


def test_insert_into_a_bucket_during_its_overwrite_conflicts(table: Table) -> None:
    upsert(table, (2, "a", 2))
    slow = Transaction(table)
    engine.write(slow, upserts=rows((1, "a", 1)))
    overwrite(table, ["a"], (5, "a", 5))
    with pytest.raises(WriteConflict):
        slow.commit()
    slow.rollback()
    assert content(table) == by_hudi_rs(table.url) == {(5, "a", 5)}


def test_bucket_index_is_in_the_properties_and_found_by_every_writer(table: Table) -> None:
    text = (Path(table.url) / ".hoodie" / "hoodie.properties").read_text()
    for line in ("hoodie.index.type=BUCKET", "hoodie.index.bucket.engine=SIMPLE", "hoodie.bucket.index.num.buckets=4"):
        assert line in text.splitlines()
    assert Table.open(table.url).config().bucket_index == BucketIndex(4, ("id",))


@pytest.mark.parametrize(
    "options",
    [
        {"hoodie.index.type": "BLOOM"},
        NAMED | {"hoodie.bucket.index.num.buckets": "8"},
        NAMED | {"hoodie.bucket.index.hash.field": "part"},
        NAMED | {"hoodie.index.bucket.engine": "CONSISTENT_HASHING"},
    ],
)
def test_settings_that_contradict_the_table_are_refused(table: Table, options: dict[str, str]) -> None:
    with pytest.raises(InvalidSettings, match="hoodie"):
        Table.open(table.url, settings=TableSettings.from_hudi(options))
    Table.open(table.url, settings=TableSettings.from_hudi(NAMED))


def test_table_without_buckets_refuses_a_writer_that_wants_them(tmp_path: Path) -> None:
    plain = Table.create(str(tmp_path / "t"), TableSpec("p", SCHEMA, ("id",)), settings=SETTINGS)
    with pytest.raises(InvalidSettings, match="no bucket index"):
        Table.open(plain.url, settings=TableSettings.from_hudi(NAMED))


def test_table_is_created_with_the_index_that_only_the_settings_name(tmp_path: Path) -> None:
    spec = TableSpec("p", SCHEMA, ("id", "part"))
    settings = TableSettings.from_hudi(NAMED | {"hoodie.bucket.index.hash.field": "id"})
    made = Table.create(str(tmp_path / "t"), spec, settings=settings)
    assert made.config().bucket_index == BucketIndex(4, ("id",))
    with pytest.raises(InvalidSettings, match=r"num\.buckets=4, but"):
        Table.create(str(tmp_path / "u"), TableSpec("p", SCHEMA, ("id",), buckets=5), settings=settings)


@pytest.mark.parametrize(("buckets", "by"), [(0, ()), (4, ("value",)), (100_000_000, ())])
def test_unsupported_index_is_refused(tmp_path: Path, buckets: int, by: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRecords, match="bucket"):
        Table.create(str(tmp_path / "t"), TableSpec("p", SCHEMA, ("id",), buckets=buckets, bucket_by=by))
    assert not (tmp_path / "t" / ".hoodie").exists()


def test_rows_of_composite_keys_are_grouped_by_the_hashed_columns(tmp_path: Path) -> None:
    spec = TableSpec("p", SCHEMA, ("id", "value"), ("part",), buckets=8, bucket_by=("id",))
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    upsert(table, *((key, "a", value) for key in range(6) for value in range(5)))
    upsert(table, *((key, "a", value) for key in range(6) for value in range(4, 7)))
    for one in table.snapshot().slices:
        found = pa.parquet.read_table(f"{table.url}/{one.path}", columns=["id"], partitioning=None)["id"]
        expected = BucketIndex(8, ("id",)).of(found.cast(pa.string()).combine_chunks(), ("id",))
        assert set(expected.to_pylist()) == {int(one.file_id[:8])}
    assert content(table) == by_hudi_rs(table.url) == {(key, "a", value) for key in range(6) for value in range(7)}


@pytest.mark.parametrize("resolution", [by_file_group, by_partition])
def test_every_resolution_names_the_winners_file_groups(tmp_path: Path, resolution: Any) -> None:
    settings = TableSettings(lock=SETTINGS.lock, heartbeat=SETTINGS.heartbeat, resolution=resolution)
    table = Table.create(str(tmp_path / "t"), SPEC, settings=settings)
    slow = Transaction(table)
    engine.write(slow, upserts=rows((1, "a", 1)))
    won = upsert(table, (5, "a", 5))
    with pytest.raises(WriteConflict) as lost:
        slow.commit()
    assert lost.value.file_groups == won.file_groups
    slow.rollback()


def test_jvm_bucket_table_that_does_not_say_so_is_not_written(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "a", 2))
    path = Path(table.url) / ".hoodie" / "hoodie.properties"
    with table.lock.acquire():
        path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "index" not in line))
    with pytest.raises(UnsupportedTable, match="adopt_bucket_index"):
        upsert(table, (3, "a", 3))
    assert content(table) == {(1, "a", 1), (2, "a", 2)}
    with pytest.raises(UnsupportedTable, match=r"rows of .* are of other buckets with BucketIndex\(buckets=7"):
        table.adopt_bucket_index(7)
    for _ in range(2):
        table.adopt_bucket_index(4)
    with pytest.raises(UnsupportedTable, match="cannot be changed"):
        table.adopt_bucket_index(8)
    upsert(table, (3, "a", 3), (1, "a", 10))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 10), (2, "a", 2), (3, "a", 3)}
    in_their_buckets(table)


def test_adoption_of_buckets_reads_the_keys_of_log_files(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), replace(SPEC, table_type="merge_on_read"), settings=SETTINGS)
    for same in (True, False):  # base files that fit 8 buckets, too; then log files that do not
        upsert(table, *((key, "a", key) for key in range(40) if (bucket(key) == bucket(key, 8)) is same))
    expected = content(table)
    path = tmp_path / "t/.hoodie/hoodie.properties"
    with table.lock.acquire():
        path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "index" not in line))
    with pytest.raises(UnsupportedTable, match=r"rows of .* are of other buckets with BucketIndex\(buckets=8"):
        table.adopt_bucket_index(8)
    upserts = {(key, "a", key) for key in range(40) if bucket(key) != bucket(key, 8)}
    for file in tmp_path.glob("t/a/*.parquet"):
        file.unlink()  # as JVM writers leave a bucket that has log files only
    removed(table, ".hoodie/.locks")
    logged = Table.open(table.url, settings=SETTINGS)
    assert content(logged) == upserts < expected
    logged.adopt_bucket_index(4)
    upsert(logged, *upserts)
    assert content(logged) == upserts


def test_table_without_buckets_cannot_adopt_them_once_it_has_rows(tmp_path: Path) -> None:
    plain = Table.create(str(tmp_path / "t"), TableSpec("p", SCHEMA, ("id",), ("part",)), settings=SETTINGS)
    plain.adopt_bucket_index(4)
    upsert(plain, (1, "a", 1))
    in_their_buckets(plain)
    other = Table.create(str(tmp_path / "u"), TableSpec("p", SCHEMA, ("id",), ("part",)), settings=SETTINGS)
    upsert(other, (1, "a", 1))
    with pytest.raises(UnsupportedTable, match="has no buckets"):
        other.adopt_bucket_index(4)
    assert other.config().bucket_index is None


@pytest.mark.parametrize("npartitions", [1, 3])
def test_dask_brings_the_rows_of_a_bucket_together(table: Table, npartitions: int) -> None:
    dd = pytest.importorskip("dask.dataframe")
    from lockprovider.table.engines import dask as on_dask

    def frame(*triples: tuple[int, str, int]) -> Any:
        return dd.from_pandas(rows(*triples).to_pandas(), npartitions=npartitions)

    on_dask.append(table, frame(*((key, "a", key) for key in range(9))).drop(columns="value"))
    before = groups(table)
    on_dask.append(table, frame((3, "a", 3), (20, "a", 20), (21, "b", 21)))
    on_dask.upsert(table, frame((4, "a", 4), (22, "a", 22)), deletes=frame((5, "a", 0)))
    expected = {(3, "a", 3), (20, "a", 20), (21, "b", 21), (4, "a", 4), (22, "a", 22)}
    assert content(table) == by_hudi_rs(table.url) == expected | {(key, "a", None) for key in (0, 1, 2, 6, 7, 8)}
    assert before.items() <= groups(table).items()
    in_their_buckets(table)


def test_files_of_no_bucket_are_not_committed(table: Table) -> None:
    with pytest.raises(InvalidRecords, match="of no bucket"):
        transact(table, lambda txn: overwritten(txn, ["a"], (1, "a", 1)))
    assert table.timeline().pending_writes == ()
    assert content(table) == set()


# -- properties that change under an open handle -----------------------------------------------------------------------


def test_append_of_a_reader_survives_a_change_of_properties(table: Table) -> None:
    handle = Table.open(table.url, settings=SETTINGS)
    upsert(handle, (1, "a", 0))
    table.set_visibility("unordered")
    assert handle.append(rows((2, "a", 0), (3, "b", 0)).to_reader()).inserted == 2
    assert {key for key, _, _ in content(table)} == {1, 2, 3}


def test_transact_without_retries_runs_once_after_a_change_of_properties(table: Table) -> None:
    handle, calls = Table.open(table.url, settings=SETTINGS), []
    upsert(handle, (1, "a", 0))
    table.set_visibility("unordered")

    def append(txn: TableTransaction) -> None:
        calls.append(1)
        txn.append(rows((2, "a", 0)).to_reader())

    with pytest.raises(Aborted, match="properties"):
        handle.transact(append, pinned=False)
    assert calls == [1]
    handle.transact(append, pinned=False)
    assert {key for key, _, _ in content(table)} == {1, 2}


def test_rows_in_many_chunks_are_split_into_buckets_as_fast_as_in_one(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("p", SCHEMA, ("id",), buckets=400), settings=SETTINGS)
    writer = GroupWriter(table.place, "", table.config(), table.schema())
    numbers = pa.array(range(200_000))
    whole = pa.table({"id": numbers, "part": pa.repeat("x" * 200, 200_000), "value": numbers})

    def seconds(changed: pa.Table) -> float:
        (changes,) = changes_by_partition(writer, changed, None).values()
        began_s = time.process_time()
        assert len([*_bucket_rewrites(writer, (), "", changes, "0-0-0")]) == 400
        return time.process_time() - began_s

    chunks = pa.concat_tables([whole.slice(start, 500) for start in range(0, whole.num_rows, 500)])
    assert seconds(chunks) < 5 * seconds(whole) + 0.5
