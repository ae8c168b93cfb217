"""Two writers insert the same new key into a table without buckets: checked at the commit, or there twice."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table.overwriting import overwrite
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from lockprovider.table import InvalidRecords, Table, TableEvent, TableSettings, TableSpec, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.files.keys import KeyFile
from lockprovider.table.format.bloom import BloomFilter, encode_filter

CHECKED = TableSettings(lock=SETTINGS.lock, heartbeat=SETTINGS.heartbeat, check_keys=True)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=CHECKED)


def race(table: Table) -> list[tuple[int, str, int]]:
    """Two writers with one new key in common; what comes of it."""
    writers = [table.transaction(), table.transaction()]
    for number, txn in enumerate(writers):
        engine.write(txn, upserts=rows((1, "a", number), (number + 10, "a", number)))
    writers[1].commit()
    try:
        writers[0].commit()
    finally:
        writers[0].rollback()
    return sorted(content(table))


def test_later_of_two_inserts_of_one_key_gets_an_error_naming_it(table: Table) -> None:
    seen: list[TableEvent] = []
    with pytest.raises(WriteConflict, match="both inserted key '1'") as lost:
        race(Table.open(table.url, settings=CHECKED, watcher=seen.append))
    assert [event.detail["lost_to"] for event in seen if event.kind == "conflict"] == [lost.value.lost_to]
    assert pickle.loads(pickle.dumps(lost.value)).keys == ("1",)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (11, "a", 1)}
    assert table.timeline().pending_writes == ()


def test_key_exists_twice_without_the_check(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    assert [row for row in race(table) if row[0] == 1] == [(1, "a", 0), (1, "a", 1)]


def test_retry_turns_a_duplicate_insert_into_an_update(table: Table) -> None:
    tries: list[int] = []

    def run(txn: object) -> None:
        tries.append(1)
        if len(tries) == 1:
            upsert(table, (1, "a", 100))
        engine.write(txn, upserts=rows((1, "a", 5), (2, "a", 5)))  # type: ignore[arg-type]

    other = Table.open(table.url, settings=SETTINGS)
    result = other.transact(run, retries=3, check_keys=True)
    assert (result.conflicts, result.inserted, result.updated) == (1, 1, 1)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 5), (2, "a", 5)}


@pytest.mark.usefixtures("brisk")
def test_many_writers_of_the_same_keys_leave_each_key_once(table: Table) -> None:
    def write(number: int) -> None:
        mine = Table.open(table.url, settings=CHECKED)
        mine.upsert(rows(*((key, "a", number) for key in range(number, number + 4))), retries=50)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(8)))
    assert sorted(key for key, _, _ in content(table)) == list(range(11))
    assert by_hudi_rs(table.url) == content(table)


def test_other_keys_and_the_same_key_of_another_partition_do_not_conflict(table: Table) -> None:
    slow = table.transaction()
    engine.write(slow, upserts=rows((1, "a", 1), (5, "a", 5)))
    upsert(table, (1, "b", 1), (3, "a", 3), (4, "a", 4))
    overwrite(table, ["c"], (1, "c", 1))
    slow.commit()
    assert {(1, "a", 1), (1, "b", 1), (1, "c", 1), (3, "a", 3)} < content(table)


def test_commit_between_first_check_and_lock_is_compared(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = table.transaction()
    engine.write(slow, upserts=rows((1, "a", 1)))
    other = Table.open(table.url, settings=CHECKED)
    stage = table.lock.stage

    def late(path: str, data: bytes, *, unshared: bool) -> object:
        upsert(other, (1, "a", 2))
        return stage(path, data, unshared=unshared)

    monkeypatch.setattr(table.lock, "stage", late)
    with pytest.raises(WriteConflict, match="both inserted key '1'"):
        slow.commit()
    slow.rollback()
    assert content(table) == {(1, "a", 2)}


def test_checked_append_refuses_keys_that_are_there(table: Table) -> None:
    table.append(rows((1, "a", 1), (2, "b", 2)))
    with pytest.raises(InvalidRecords, match=r"1 record keys are in partition 'a' already, the first is '1'"):
        table.append(rows((1, "a", 5), (3, "a", 3)), retries=5)
    table.append(rows((3, "a", 3), (1, "b", 1)))
    table.append(rows((3, "a", 3)), check_keys=False)
    assert sorted(key for key, part, _ in content(table) | {(0, "a", 0)} if part == "a") == [0, 1, 3]
    assert table.timeline().pending_writes == ()


def test_checked_append_to_buckets_refuses_keys_that_are_there(tmp_path: Path) -> None:
    spec = TableSpec("p", SCHEMA, ("id",), buckets=2)
    table = Table.create(str(tmp_path / "t"), spec, settings=CHECKED)
    table.append(rows((1, "a", 1)))
    with pytest.raises(InvalidRecords, match="1 record keys are in the table already"):
        table.append(rows((1, "a", 2), (2, "a", 2)))
    assert content(table) == {(1, "a", 1)}


def test_only_footers_are_read_when_ranges_or_blooms_decide(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = rows((1, "a", 1), (3, "a", 3)), rows((2, "a", 2), (4, "a", 4))
    for part in (low, high, rows((7, "a", 7))):
        table.append(part, check_keys=False)
    files = [KeyFile(table.place, one.path, one.size) for one in table.snapshot().slices]
    by_keys = {tuple(file.keys.to_pylist()): file for file in files}
    read: list[str] = []
    keys_of = "lockprovider.table.files.base_file.keys_of"
    real = __import__("lockprovider.table.files.base_file", fromlist=["keys_of"]).keys_of
    monkeypatch.setattr(keys_of, lambda file: read.append("keys") or real(file))
    first, second, third = (
        KeyFile(table.place, by_keys[key].path, by_keys[key].size) for key in (("1", "3"), ("2", "4"), ("7",))
    )
    assert len(first.shared(third)) == 0
    assert read == []
    assert len(first.shared(second)) == 0
    assert read == ["keys"], "its own; the other's bloom filter tells"
    assert second.among(pa.array(["4", "5"])).to_pylist() == ["4"]


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, unique=True))
def test_bloom_filter_lookup_of_many_keys_equals_single_lookups(keys: list[str]) -> None:
    found = BloomFilter.parse(encode_filter(keys[::2]))
    asked = [*keys, *(key + "?" for key in keys)]
    assert found.might_contain_each(asked).tolist() == [bool(found.might_contain_each([key])[0]) for key in asked]
    assert found.might_contain_each(keys[::2]).all()
