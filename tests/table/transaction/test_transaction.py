"""What RFC-22 asks of concurrent transactions, on tables in memory and on disk."""

from __future__ import annotations

import asyncio
import pickle
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from noting import Later, record
from patience import until
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, data_files, orphans, rows, upsert

from fsspec_cas import OutcomeUnknown, Store
from fsspec_cas.answer import NoAnswer
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from lockprovider.table import (
    Aborted,
    InvalidRecords,
    Scan,
    Table,
    TableExists,
    TableNotFound,
    TableSpec,
    UnsupportedTable,
    WriteConflict,
)
from lockprovider.table.engines import arrow as engine
from lockprovider.table.engines.writer import start_for_tasks
from lockprovider.table.errors import PropertiesChanged
from lockprovider.table.services import rollback
from lockprovider.table.state.heartbeat import WriterHeartbeat
from lockprovider.table.transaction import lifecycle
from lockprovider.table.transaction.transaction import Transaction, transact


@pytest.fixture(params=["memory", "local"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://tests/{tmp_path.name}/table" if request.param == "memory" else str(tmp_path / "table")


@pytest.fixture
def table(url: str) -> Table:
    return Table.create(url, SPEC, settings=SETTINGS)


def test_table_is_made_once(url: str, table: Table) -> None:
    with pytest.raises(TableExists, match="open it with Table.open"):
        Table.create(url, SPEC)
    assert content(Table.open(url)) == set()


def test_folder_without_a_table_is_not_opened_and_not_changed(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound, match=r"Table\.create"):
        Table.open(str(tmp_path / "nothing"))
    assert list(tmp_path.iterdir()) == []


def test_spec_that_names_no_column_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecords, match="nowhere"):
        Table.create(str(tmp_path / "t"), TableSpec("t", SCHEMA, record_keys=("nowhere",)))
    assert list(tmp_path.iterdir()) == []


def test_upserts_replace_insert_and_delete_by_key(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "a", 2), (3, "b", 3))
    result = transact(
        table,
        lambda txn: engine.write(
            txn,
            upserts=rows((2, "a", 20), (4, "b", 4)),
            deletes=pa.table({"id": [3, 99], "part": ["b", "b"]}),
        ),
    )
    assert content(table) == {(1, "a", 1), (2, "a", 20), (4, "b", 4)}
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)


def test_key_that_is_upserted_and_deleted_at_once_is_deleted(table: Table) -> None:
    upsert(table, (1, "a", 1))
    delete = pa.table({"id": [1, 2], "part": ["a", "a"]})
    transact(table, lambda txn: engine.write(txn, upserts=rows((1, "a", 5), (2, "a", 5), (3, "a", 5)), deletes=delete))
    assert content(table) == {(3, "a", 5)}


def test_all_rows_of_a_file_group_can_be_deleted(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))
    transact(table, lambda txn: engine.write(txn, deletes=pa.table({"id": [1], "part": ["a"]})))
    assert content(table) == {(2, "b", 2)}
    upsert(table, (1, "a", 7))
    assert content(table) == {(1, "a", 7), (2, "b", 2)}


def test_later_of_two_writers_of_a_file_group_gives_way(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))
    first, second = Transaction(table), Transaction(table)
    engine.write(first, upserts=rows((1, "a", 10)))
    engine.write(second, upserts=rows((1, "a", 100)))
    won = first.commit()
    with pytest.raises(WriteConflict) as caught:
        second.commit()
    assert caught.value.lost_to == f"{won.instant}_{won.completion}.commit"
    assert caught.value.file_groups == won.file_groups
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    second.rollback()
    assert content(table) == {(1, "a", 10), (2, "b", 2)}
    assert table.timeline().pending_writes == ()


def test_conflict_over_a_cleaned_file_names_the_commit_that_replaced_it(table: Table) -> None:
    read = upsert(table, (1, "a", 1), (2, "b", 2))
    late = Transaction(table)
    won = upsert(table, (1, "a", 10))
    upsert(table, (2, "b", 20))
    (cleaned,) = (e.path for e in table.store.list("a/") if read.instant in e.path)
    table.store.delete(cleaned)
    engine.write(late, upserts=rows((3, "a", 3)))
    with pytest.raises(WriteConflict) as caught:
        late.commit()
    assert caught.value.lost_to == f"{won.instant}_{won.completion}.commit"
    assert caught.value.file_groups == won.file_groups


@pytest.mark.parametrize(
    "second",
    [
        lambda txn: engine.insert(txn, rows((2, "a", 2))),
        lambda txn: engine.delete_where(txn, "id = 1"),
        lambda txn: engine.replace_all(txn, rows((2, "a", 2))),
    ],
    ids=["insert", "delete_where", "replace_all"],
)
def test_refused_second_write_leaves_the_commit_as_it_was(table: Table, second: Callable[[Any], None]) -> None:
    upsert(table, (1, "a", 1))
    txn = Transaction(table, pinned=False)
    engine.write(txn, upserts=rows((1, "a", 5)))
    with pytest.raises(InvalidRecords, match="first write|one write"):
        second(txn)
    txn.commit()
    assert table.history()[-1].operation == "UPSERT"
    assert content(table) == {(1, "a", 5)}


def test_write_after_a_failed_overwrite_is_refused(table: Table) -> None:
    upsert(table, (1, "a", 1))
    txn = Transaction(table)
    with pytest.raises(InvalidRecords, match="more than once"):
        engine.replace_all(txn, rows((2, "a", 2), (2, "a", 3)), ["a"])
    with pytest.raises(InvalidRecords, match="an overwrite has begun"):
        engine.insert(txn, rows((2, "b", 2)))
    txn.rollback()
    assert content(table) == {(1, "a", 1)}


def test_rows_of_a_refused_commit_are_not_in_a_later_one(table: Table) -> None:
    txn = table.transaction()
    txn.append(pa.concat_tables([rows((1, "a", 1)), rows((1, "a", 2))]))
    with pytest.raises(InvalidRecords, match="more than once"):
        txn.commit()
    txn.append(rows((2, "b", 2)))
    txn.commit()
    assert content(table) == {(2, "b", 2)}


def test_conflicting_write_is_undone_without_the_lock(table: Table) -> None:
    for value in (1, 2):
        upsert(table, (1, "a", value))
    before = record(table.store).log
    first, second = Transaction(table), Transaction(table)
    engine.write(first, upserts=rows((1, "a", 10)))
    engine.write(second, upserts=rows((1, "a", 100)))
    first.commit()
    with pytest.raises(WriteConflict):
        second.commit()
    second.rollback()
    given_up = Transaction(table)
    engine.write(given_up, upserts=rows((2, "b", 1)))
    given_up.rollback()
    after = record(table.store).log
    assert before is not None
    assert after is not None
    assert (after.name, after.next) == (before.name, before.next + 1)
    left = [entry.path for entry in table.store.list("") if second.begin in entry.path or given_up.begin in entry.path]
    assert left == []
    assert table.timeline().pending_rollbacks == ()


def test_writers_of_different_file_groups_both_succeed_in_any_order(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))
    first, second = Transaction(table), Transaction(table)
    engine.write(first, upserts=rows((1, "a", 10)))
    engine.write(second, upserts=rows((2, "b", 20)))
    second.commit()
    first.commit()
    assert content(table) == {(1, "a", 10), (2, "b", 20)}


def test_instant_begun_before_a_finished_one_conflicts_with_it(table: Table) -> None:
    """The set of completed instants is compared, not begin times."""
    upsert(table, (1, "a", 1))
    early = Transaction(table)
    early.start()
    upsert(table, (1, "a", 10))
    engine.write(early, upserts=rows((1, "a", 100)))
    with pytest.raises(WriteConflict):
        early.commit()


def test_begin_and_completion_times_exceed_everything_before_them(table: Table) -> None:
    for number in range(5):
        upsert(table, (number, "a", number))
    times = [time for commit in table.history() for time in (commit.instant, commit.completion)]
    assert times == sorted(set(times))


@pytest.mark.usefixtures("brisk")
def test_conflict_is_retried_from_a_fresh_snapshot_without_lost_updates(url: str, table: Table) -> None:
    upsert(table, *((number, "ab"[number % 2], 0) for number in range(6)))
    conflicts = []

    def bump(txn: object) -> None:
        old = Scan(txn, partitions=["a"]).to_arrow()
        engine.write(txn, upserts=rows(*((r["id"], r["part"], r["value"] + 1) for r in old.to_pylist())))

    def work() -> None:
        mine = Table.open(url, settings=SETTINGS)
        conflicts.extend(transact(mine, bump, retries=100).conflicts for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert content(table) == {(n, "ab"[n % 2], 20 if n % 2 == 0 else 0) for n in range(6)}
    assert len(conflicts) == 20
    assert table.timeline().pending_writes == ()


class Intruder(LocalBackend):
    """Lets another act just before the first write whose path ends in `before`."""

    def __init__(self, before: str, act: Callable[[str], None]) -> None:
        self.before, self.act, self.met = before, act, ""

    async def put(self, write: Write, data: bytes, *args: Any, **kwargs: Any) -> Any:
        if write.path.endswith(self.before) and not self.met:
            self.met = write.path.rpartition("/")[2].partition(".")[0]
            self.act(self.met)
        return await super().put(write, data, *args, **kwargs)


def test_writer_gives_up_a_begin_time_taken_by_a_rollback(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    upsert(Table.create(str(folder), SPEC, settings=SETTINGS), (1, "a", 1))

    def roll_back_something(time: str) -> None:
        for name in (f"{time}.rollback.requested", f"{time}.rollback.inflight", f"{time}_{time}.rollback"):
            (folder / ".hoodie" / "timeline" / name).touch()

    backend = Intruder(".commit.requested", roll_back_something)
    result = upsert(Table(Store(backend, str(folder)), str(folder), settings=SETTINGS), (1, "a", 2))
    assert result.instant > backend.met > ""
    assert by_hudi_rs(str(folder)) == {(1, "a", 2)}
    assert not list((folder / ".hoodie" / "timeline").glob(f"{backend.met}.commit*"))


def test_rollback_does_not_take_the_begin_time_of_a_writer(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    table = Table.create(str(folder), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1))
    writers = []

    def begin(time: str) -> None:
        heartbeat = WriterHeartbeat(table.store, time, SETTINGS.heartbeat, table.world)
        assert not heartbeat.start(), "the rollback has this time: a writer cannot have it too"
        writers.append(time)

    other = Table(Store(Intruder(".rollback.requested", begin), str(folder)), str(folder), settings=SETTINGS)
    lost = Transaction(other)
    engine.write(lost, upserts=rows((1, "a", 3)))
    upsert(table, (1, "a", 2))
    with pytest.raises(WriteConflict):
        lost.commit()
    lost.leave()
    rollback.roll_back(other, lost.begin)
    assert len(writers) == 1
    assert table.timeline().pending_rollbacks == ()
    assert not list((folder / ".hoodie" / ".heartbeat").iterdir())


class HoldsInflight(LocalBackend):
    """Behind a network; the inflight file does not get on until it is let go."""

    blocking = False

    def __init__(self) -> None:
        self.go, self.put_there = threading.Event(), list[str]()

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        if write.path.endswith(".inflight"):
            await asyncio.to_thread(self.go.wait)
        self.put_there.append(write.path.rpartition("/")[2])
        return await super().put(write, *args, **kwargs)


def held_at_its_inflight(folder: Path) -> tuple[Transaction, HoldsInflight]:
    made = Table.create(str(folder / "t"), SPEC, settings=SETTINGS)
    backend = HoldsInflight()
    return Transaction(Table(Store(backend, made.url), made.url, settings=SETTINGS)), backend


def test_file_is_announced_before_and_written_after_its_inflight_state(tmp_path: Path) -> None:
    txn, backend = held_at_its_inflight(tmp_path)
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(engine.write, txn, upserts=rows((1, "a", 1)))
        try:
            until(lambda: any(".marker." in name for name in backend.put_there))
            assert not [name for name in backend.put_there if name.endswith((".parquet", ".inflight"))]
        finally:
            backend.go.set()
        writing.result()
    txn.commit()
    wanted = [name for name in backend.put_there if name.endswith((".parquet", ".inflight"))]
    assert [name.rpartition(".")[2] for name in wanted] == ["inflight", "parquet"]
    assert content(txn.table) == {(1, "a", 1)}  # type: ignore[arg-type]


def test_instant_rolled_back_while_becoming_inflight_leaves_nothing(tmp_path: Path) -> None:
    txn, backend = held_at_its_inflight(tmp_path)
    txn.start_here()
    with ThreadPoolExecutor() as threads:
        ending = threads.submit(txn.rollback)
        wait([ending], timeout=0.3)  # one that did not wait for the file would be done by then
        backend.go.set()
        ending.result()
    assert list((tmp_path / "t/.hoodie/timeline").glob(f"{txn.begin}*")) == []
    assert f"{txn.begin}.inflight" in backend.put_there


class NeverAnswers(LocalBackend):
    """Each write of a path that this pattern matches is lost, and not answered."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        return NoAnswer("cut") if re.search(self.pattern, write.path) else await super().put(write, *args, **kwargs)


@pytest.mark.parametrize("begin", [Transaction.start, lambda txn: engine.write(txn, upserts=rows((1, "a", 1)))])
def test_no_data_file_is_written_without_an_inflight_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Transaction], object]
) -> None:
    """A JVM rollback of an instant that was only requested looks for no data files."""
    monkeypatch.setattr(lifecycle, "_REQUEST_S", 0.05)
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    txn = Transaction(Table(Store(NeverAnswers(r"/\d+\.inflight$"), made.url), made.url, settings=SETTINGS))
    with pytest.raises(Aborted, match="inflight file"):
        begin(txn)
    txn.rollback()
    assert (data_files(tmp_path / "t"), made.timeline().pending_writes) == (set(), ())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    create = Store.put_if_absent

    def soon(*given: Any, **named: Any) -> Any:
        return create(*given, **{**named, "timeout": 0.2})

    monkeypatch.setattr(Store, "put_if_absent", soon)


@pytest.mark.usefixtures("impatient")
def test_unanswered_properties_are_not_called_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Store(NeverAnswers(r"hoodie\.properties$"), str(tmp_path))
    monkeypatch.setattr(Store, "from_url", lambda *_: silent)
    with pytest.raises(OutcomeUnknown, match=r"hoodie\.properties"):
        Table.create(str(tmp_path), SPEC, settings=SETTINGS)


@pytest.mark.usefixtures("impatient")
def test_unanswered_metafile_of_a_partition_ends_the_write(tmp_path: Path) -> None:
    """Taken for another writer's, the partition would stay without it, and JVM readers would miss it."""
    made = Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    silent = Table(Store(NeverAnswers("hoodie_partition_metadata$"), made.url), made.url, settings=SETTINGS)
    txn = Transaction(silent)
    with pytest.raises(OutcomeUnknown, match="partition_metadata"):
        engine.write(txn, upserts=rows((1, "a", 1)))
    txn.rollback()
    assert data_files(tmp_path) == set()


def test_conflict_is_raised_when_the_retries_are_used_up(table: Table) -> None:
    upsert(table, (1, "a", 1))

    def overtaken(txn: object) -> None:
        engine.write(txn, upserts=rows((1, "a", 100)))
        upsert(table, (1, "a", 10))

    with pytest.raises(WriteConflict) as caught:
        transact(table, overtaken, retries=2)
    advice = r"tried 3 times, .*retries=\), or take turns: .*table\.under\(lease\)"
    assert re.search(advice, str(caught.value))
    assert (caught.value.tries, str(pickle.loads(pickle.dumps(caught.value)))) == (3, str(caught.value))
    with pytest.raises(WriteConflict, match="tried once: give more tries"):
        transact(table, overtaken)
    assert content(table) == {(1, "a", 10)}
    assert table.timeline().pending_writes == ()


def test_function_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1))
    before = data_files(tmp_path / "t")

    def broken(txn: object) -> None:
        engine.write(txn, upserts=rows((1, "a", 2), (2, "b", 2)))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        transact(table, broken)
    assert data_files(tmp_path / "t") == before
    assert not list((tmp_path / "t" / ".hoodie" / ".temp").rglob("*.marker.*"))
    assert not list((tmp_path / "t" / ".hoodie" / ".heartbeat").iterdir())
    assert content(table) == by_hudi_rs(str(tmp_path / "t")) == {(1, "a", 1)}


def test_insert_after_replaced_partitions_is_recorded_as_an_overwrite(table: Table) -> None:
    txn = Transaction(table)
    txn.end_partitions(["a"])
    engine.insert(txn, rows((1, "a", 1)))
    assert txn.operation == "INSERT"
    txn.commit()
    assert table.metadata_of(table.timeline().writes[-1]).operation == "INSERT_OVERWRITE"


def test_overwrite_asked_for_twice_ends_each_file_group_once(table: Table) -> None:
    """As one repeated after a failed begin; JVM Hudi's readers fail on a file group that a commit ends twice."""
    ((partition, file_id),) = upsert(table, (1, "a", 1)).file_groups
    txn = Transaction(table)
    for _ in range(2):
        txn.end_partitions(["a"])
    engine.insert(txn, rows((2, "a", 2)))
    txn.commit()
    assert table.metadata_of(table.timeline().writes[-1]).replaced == {partition: (file_id,)}
    assert content(table) == {(2, "a", 2)}


def test_writer_whose_heartbeat_expired_writes_no_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    txn = Transaction(table)
    txn.start_here()
    monkeypatch.setattr(WriterHeartbeat, "alive", False)
    with pytest.raises(Aborted, match=f"heartbeat of instant {txn.begin} expired"):
        engine.write(txn, upserts=rows((1, "a", 1)))
    assert data_files(tmp_path / "t") == set()


def test_writer_that_was_rolled_back_cannot_commit_any_more(table: Table) -> None:
    upsert(table, (1, "a", 1))
    slow = Transaction(table)
    engine.write(slow, upserts=rows((1, "a", 100)))
    slow.heartbeat.stop()  # as a paused process would: the file is gone, so it counts as dead
    upsert(Table(table.store, table.url, settings=SETTINGS), (2, "b", 2))  # its first looks for dead ones
    with pytest.raises(Aborted, match="rolled back"):
        slow.commit()
    assert content(table) == {(1, "a", 1), (2, "b", 2)}


def test_files_of_a_failed_task_attempt_are_not_part_of_the_commit(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    txn = Transaction(table)

    writer = start_for_tasks(txn, table.schema())
    plain, keys, _ = writer.keyed(rows((1, "a", 1)))
    writer.insert("a", plain, keys, "0-0-0")
    txn.add([writer.insert("a", plain, keys, "0-0-1")])
    txn.commit()
    assert len(data_files(tmp_path / "t")) == 1
    assert by_hudi_rs(str(tmp_path / "t")) == {(1, "a", 1)}


def test_table_of_another_version_is_refused_and_not_touched(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    with table.lock.acquire():
        properties.write_text(properties.read_text().replace("hoodie.table.version=8", "hoodie.table.version=6"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnsupportedTable, match=r"version=6"):
        Table.open(table.url)
    with pytest.raises(UnsupportedTable, match=r"version=6"):
        Transaction(table)
    assert sorted(tmp_path.rglob("*")) == before


def test_handle_that_saw_an_unwritable_table_writes_it_once_it_is_writable(tmp_path: Path) -> None:
    """What a handle remembers of the properties starts a write, and refuses none."""
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    before = properties.read_text()
    properties.write_text(f"{before}hoodie.table.cdc.enabled=true\n")
    mine = Table.open(table.url, settings=SETTINGS)
    assert mine.count() == 0
    with pytest.raises(UnsupportedTable, match="cdc"):
        mine.append(rows((1, "a", 1)))
    properties.write_text(before)
    mine.append(rows((1, "a", 1)))
    assert content(table) == {(1, "a", 1)}


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, buckets=2)], ids=["plain", "buckets"])
@pytest.mark.parametrize("first", [None, ["a"]], ids=["first of all", "first of a"])
@pytest.mark.parametrize("later", [None, ["a"], ["c"]], ids=["later of all", "later of a", "later of c"])
def test_later_of_two_overwrites_of_an_empty_partition_gives_way(
    tmp_path: Path, spec: TableSpec, first: list[str] | None, later: list[str] | None
) -> None:
    """Neither replaces a file group, and both would leave their rows."""
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    table.append(rows((9, "b", 9)))
    mine, other = (Table.open(table.url, settings=SETTINGS).transaction() for _ in range(2))
    part = "c" if later == ["c"] else "a"
    mine.overwrite(rows((1, "a", 1)), first)
    other.overwrite(rows((2, part, 2)), later)
    mine.commit()
    if later == ["c"]:
        other.commit()
        assert {(1, "a", 1), (2, "c", 2)} <= content(table)
        return
    with pytest.raises(WriteConflict, match="replacecommit"):
        other.commit()
    other.rollback()
    table.overwrite(rows((2, "a", 2)), later)
    assert content(table) == {(2, "a", 2)} | ({(9, "b", 9)} if first and later else set())


@pytest.mark.parametrize("verb", ["append", "upsert", "transact"])
def test_write_begins_once_by_properties_that_changed_within_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A log keeps the view of a handle, and the start of a write compares its properties with those of the view."""
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    mine = Table.open(table.url)
    mine.append(rows((1, "a", 1)))
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    before = properties.read_text()
    properties.write_text(f"{before}hoodie.table.cdc.enabled=true\n")
    assert mine.count() == 1
    properties.write_text(before)
    record = mine.lock.look()
    assert record is not None
    assert mine.knowledge.view_at(record.log) is not None
    takes, real = list[object](), lifecycle._take

    def take(*given: Any) -> Any:
        takes.append(given)
        assert len(takes) < 5, "it begins again and again"
        return real(*given)

    monkeypatch.setattr(lifecycle, "_take", take)
    more = rows((2, "a", 1))
    getattr(mine, verb)((lambda txn: txn.append(more)) if verb == "transact" else more)
    assert len(takes) == 1
    assert content(table) == {(1, "a", 1), (2, "a", 1)}


def test_properties_that_change_before_every_begin_end_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    pauses: list[float] = []
    monkeypatch.setattr(type(table.world), "sleep", lambda _, seconds: pauses.append(seconds))

    def change(_: object, __: object, ___: str, heartbeat: WriterHeartbeat, ____: float) -> object:
        assert len(pauses) < 100, "it begins again and again"
        heartbeat.stop()
        raise PropertiesChanged("the table's properties were changed")

    monkeypatch.setattr(lifecycle, "_take", change)
    with pytest.raises(PropertiesChanged):
        table.append(rows((1, "a", 1)))
    assert len(pauses) == 10


def test_properties_that_change_under_a_transaction_abort_it(tmp_path: Path) -> None:
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    world = Later()
    table = Table(made.store, made.url, settings=SETTINGS, world=world)
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", 1)))
    world.passed_s = 1.0
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text().replace("hoodie.table.version=8", "hoodie.table.version=9"))
    with pytest.raises(Aborted, match="properties"):
        txn.commit()
    assert content(table) == set()


def test_update_is_lost_without_the_conflict_check(tmp_path: Path) -> None:
    """The wrong twin: if this passed with the check, the check would be for nothing."""
    unchecked = replace(SETTINGS, resolution=lambda mine, others: None)
    table = Table.create(str(tmp_path / "t"), SPEC, settings=unchecked)
    upsert(table, (1, "a", 0), (2, "a", 0))
    first, second = Transaction(table), Transaction(table)
    engine.write(first, upserts=rows((1, "a", 1)))
    engine.write(second, upserts=rows((2, "a", 1)))
    first.commit()
    second.commit()
    assert content(table) != {(1, "a", 1), (2, "a", 1)}
    assert orphans(tmp_path / "t") == set()
