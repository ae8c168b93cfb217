"""A batch that is committed again, in order or at the same time, is in the table once; an instant can change hands."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from patience import until
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, orphans, rows, upsert

from fsspec_cas import InvalidInput, Machine, Unavailable
from fsspec_cas.machine import Worker
from lockprovider.table import HeartbeatSettings, Table, TableTransaction
from lockprovider.table.engines import arrow
from lockprovider.table.engines.writer import start_for_tasks
from lockprovider.table.errors import Aborted, AlreadyCommitted, InvalidRecords, WrongCheckpoint
from lockprovider.table.format.layout import heartbeat_path
from lockprovider.table.format.metadata import SINK_KEY, batches_by_stream
from lockprovider.table.state import checkpoint
from lockprovider.table.state.current import CurrentState
from lockprovider.table.state.heartbeat import WriterHeartbeat, claim
from lockprovider.table.timeline.conflict import BatchId
from lockprovider.table.transaction.transaction import Transaction


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def begun(table: Table, once: BatchId, id_: int) -> Transaction:
    txn = Transaction(table)
    txn.exactly_once(once)
    arrow.write(txn, upserts=rows((id_, "a", id_)))
    return txn


def test_repeated_batch_is_refused_and_the_next_one_is_not(table: Table) -> None:
    begun(table, BatchId("orders", 7), 1).commit()
    upsert(table, (5, "b", 5))
    for batch in (7, 6):
        with pytest.raises(AlreadyCommitted, match=f"batch {batch} of stream orders is in 2"):
            begun(table, BatchId("orders", batch), 2)
    begun(table, BatchId("orders", 8), 3).commit()
    begun(table, BatchId("payments", 0), 4).commit()
    assert content(table) == by_hudi_rs(table.url) == {(n, p, n) for n, p in ((1, "a"), (5, "b"), (3, "a"), (4, "a"))}
    assert table.history()[-1].extra[SINK_KEY] == '{"payments": "0"}'


def test_second_write_of_a_batch_is_a_separate_write(table: Table) -> None:
    for batch in (0, 1):
        begun(table, BatchId("orders", batch, "q", 1), 10 + batch).commit()
        begun(table, BatchId("orders", batch, "q", 2), 20 + batch).commit()
    begun(table, BatchId("orders", 2, "q", 1), 12).commit()
    with pytest.raises(AlreadyCommitted, match="batch 2 of stream orders is in 2"):
        begun(table, BatchId("orders", 2, "q", 1), 12)
    begun(table, BatchId("orders", 2, "q", 2), 22).commit()
    with pytest.raises(AlreadyCommitted, match="write 2 of batch 2 of stream orders is in 2"):
        begun(table, BatchId("orders", 2, "q", 2), 22)
    assert {row[0] for row in content(table)} == {10, 20, 11, 21, 12, 22}


@pytest.mark.parametrize(("batch", "run"), [(0, "another"), (8, "another"), (6, "q")])
def test_stream_with_another_checkpoint_is_refused_with_two_ways_out(table: Table, batch: int, run: str) -> None:
    begun(table, BatchId("orders", 7, "q"), 1).commit()
    upsert(table, (5, "b", 5))
    with pytest.raises(WrongCheckpoint, match=r"committed batch 7.*that it had, or give it a new stream_id"):
        begun(table, BatchId("orders", batch, run), 2)
    assert {row[0] for row in content(table)} == {1, 5}


def test_stream_with_another_checkpoint_is_refused_at_the_commit(table: Table) -> None:
    first, second = begun(table, BatchId("orders", 0, "q"), 1), begun(table, BatchId("orders", 0, "another"), 2)
    first.commit()
    with pytest.raises(WrongCheckpoint):
        second.commit()
    second.rollback()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}
    assert orphans(Path(table.url)) == set()


def test_transaction_of_any_engine_is_committed_exactly_once(table: Table) -> None:
    def load(txn: TableTransaction) -> None:
        txn.exactly_once("orders", 3)
        txn.append(rows((1, "a", 1)).to_pandas())

    table.transact(load)
    with pytest.raises(AlreadyCommitted, match="batch 3 of stream orders"):
        table.transact(load)
    for stream, batch in ((7, 0), ("a@b", 0), ("", 0), ("orders", -1), ("orders", "3")):
        with pytest.raises(InvalidInput, match="stream_id=|batch="), table.transaction() as txn:
            txn.exactly_once(stream, batch)  # type: ignore[arg-type]


def test_one_of_two_concurrent_writers_of_a_batch_commits(table: Table) -> None:
    first, second = begun(table, BatchId("orders", 0), 1), begun(table, BatchId("orders", 0), 2)
    first.commit()
    with pytest.raises(AlreadyCommitted):
        second.commit()
    second.rollback()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}
    assert orphans(Path(table.url)) == set()


@pytest.mark.parametrize("text", ['{"orders": "x"}', "[]", "no json", '{"others": "1"}'])
def test_extra_metadata_of_other_writers_is_no_batch(text: str) -> None:
    assert "orders" not in batches_by_stream({SINK_KEY: text})


def test_instant_begun_by_one_process_is_committed_by_another(table: Table) -> None:
    begins = Transaction(table)
    writer = start_for_tasks(begins, table.schema())
    plain, keys, _ = writer.keyed(rows((1, "a", 1)))
    stat = writer.insert("a", plain, keys, "0-0-0")
    commits = Transaction.resume(Table.open(table.url, settings=SETTINGS), begins.begin)
    commits.add([stat])
    commits.commit()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}
    with pytest.raises(Aborted, match="not pending any more"):
        Transaction.resume(table, begins.begin)


def test_instant_that_others_rolled_back_cannot_be_taken_up(table: Table) -> None:
    begins = Transaction(table)
    begins.start()
    begins.rollback()
    with pytest.raises(Aborted, match=f"instant {begins.begin} is not pending any more"):
        Transaction.resume(table, begins.begin)


@pytest.mark.parametrize("is_found_by_log", [False, True])
def test_overwrite_begun_by_one_process_replaces_all_rows_by_another(
    table: Table, monkeypatch: pytest.MonkeyPatch, is_found_by_log: bool
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY", 4 if is_found_by_log else 1000)
    for number in range(9):
        table.append(rows((number, "a", number)))
    fresh = Table.open(table.url, settings=SETTINGS)
    until(lambda: not is_found_by_log or any(table.store.list(checkpoint.CHECKPOINTS)))
    assert fresh.now().listed is not is_found_by_log
    begins = Transaction(table)
    begins.end_partitions(["a"], "INSERT_OVERWRITE_TABLE")
    begins.start()
    commits = Transaction.resume(fresh, begins.begin)
    commits.add(())
    commits.commit()
    begins.leave()
    assert content(table) == by_hudi_rs(table.url) == set()
    assert not table.listed_timeline().pending_writes


def test_resume_that_fails_leaves_no_heartbeat(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    begins = Transaction(table)
    begins.end_partitions(["a"])
    begins.start()
    begins.leave()

    def fail(*_: object) -> object:
        raise Unavailable("the store is out of reach")

    monkeypatch.setattr(CurrentState, "current_files", fail)
    with pytest.raises(Unavailable):
        Transaction.resume(table, begins.begin)
    name = f"writer-heartbeat-{begins.begin}"
    assert not [thread for thread in threading.enumerate() if thread.name == name]


def test_transaction_of_two_batches_is_refused(table: Table) -> None:
    txn = Transaction(table)
    txn.exactly_once(BatchId("orders", 1))
    txn.exactly_once(BatchId("orders", 1))
    with pytest.raises(InvalidRecords, match="writes batch 1 of stream orders; write batch 2 of stream orders in"):
        txn.exactly_once(BatchId("orders", 2))
    with pytest.raises(InvalidRecords, match="write batch 1 of stream payments in another one"):
        txn.exactly_once(BatchId("payments", 1))


def test_process_working_for_an_instant_keeps_it_alive_until_it_leaves(table: Table) -> None:
    settings, begin, world = HeartbeatSettings(interval_s=0.1), "20260101000000000", Machine()
    assert claim(table.store, begin) is not None

    def beat() -> object:
        return table.store.head(heartbeat_path(begin)).version

    before = beat()
    helper = WriterHeartbeat(table.store, begin, settings, world)
    helper.accompany()
    until(lambda: beat() != before, "a beat")
    helper.leave()
    assert beat() == beat(), "the file must stay: the instant goes on"


def test_process_that_resumes_a_live_instant_counts_as_alive(table: Table, monkeypatch: Any) -> None:
    begin, world, store = "20260101000000000", Machine(), table.store
    assert claim(store, begin) is not None
    put, path = store.put_if_match, heartbeat_path(begin)
    meddled: list[str] = []

    def meddling(name: str, data: bytes, version: Any, **more: Any) -> Any:
        if not meddled:
            meddled.append(name)
            put(path, data, store.head(path).version).unwrap()  # the other process, between my look and my beat
        return put(name, data, version, **more)

    monkeypatch.setattr(store, "put_if_match", meddling)
    mine = WriterHeartbeat(store, begin, HeartbeatSettings(), world)
    assert mine.resume()
    assert mine.alive
    assert meddled
    mine.stop()


def test_heartbeat_whose_thread_does_not_start_leaves_no_file(table: Table, monkeypatch: Any) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    begin = "20260101000000000"
    monkeypatch.setattr(Worker, "start", full)
    with pytest.raises(RuntimeError, match="can't start"):
        WriterHeartbeat(table.store, begin, HeartbeatSettings(), Machine()).start()
    assert table.store.read_or_none(heartbeat_path(begin)) is None
