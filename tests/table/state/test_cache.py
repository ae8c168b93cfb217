"""What a process remembers of a table by the lock's log is what a process that knows nothing would find."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from noting import record, rewritten
from table.asked_for import at_rest, counted
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, let_beat_age, rows, upsert

from fsspec_cas import Store, Unavailable
from fsspec_cas.backends.local import LocalBackend
from lockprovider import HUDI_LOCK_PATH, PublishUnknown
from lockprovider.table import HeartbeatSettings, Table, TableSpec, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.timeline.view import Snapshot
from lockprovider.table.transaction.transaction import Transaction, transact

# Whoever dies does so in the thread in which it decides.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

SELDOM = replace(SETTINGS, heartbeat=HeartbeatSettings(interval_s=6000))  # looks for dead writers once, at the first
NOISE = {"note": random.Random(1).randbytes(20_000).hex()}  # so much does not go along in the lock record
COMPLETED = "_"  # only the names of completed instants have it


class Died(BaseException):
    """The process is gone."""


class Dies:
    """A local backend of a process that ends right before it creates such a file of the timeline."""

    name, capabilities, blocking = LocalBackend.name, LocalBackend.capabilities, True

    def __init__(self, part: str) -> None:
        self.inner, self.part, self.dead = LocalBackend(), part, False

    def __getattr__(self, name: str) -> Any:
        request = getattr(self.inner, name)
        if name in ("adapt", "close"):
            return request

        async def send(*args: Any, **kwargs: Any) -> Any:
            return await self._send(name, getattr(args[0], "path", args[0]), request(*args, **kwargs))

        return send

    async def _send(self, name: str, path: str, request: Awaitable[Any]) -> Any:
        folder, _, file = path.rpartition("/")
        if not self.dead and not (name == "put" and folder.endswith("timeline") and self.part in file):
            return await request
        request.close()  # type: ignore[attr-defined]
        if self.dead:  # threads of a dead process
            raise Unavailable("the process is dead")
        self.dead = True
        raise Died


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SELDOM)
    upsert(made, (1, "a", 1))
    return made


def another(table: Table) -> Table:
    """As another process opens it."""
    return Table.open(table.url, settings=table.settings)


def dying(table: Table, part: str) -> Table:
    """As of a process that will die."""
    return Table(Store(Dies(part), table.url), table.url, settings=table.settings)  # type: ignore[arg-type] # by name


def append_and_die(table: Table, *triples: tuple[int, str, int], **extra: str) -> None:
    """The commit is decided, and not applied."""
    txn = Transaction(table)
    txn.extra.update(extra)
    engine.insert(txn, rows(*triples))
    with pytest.raises((Died, Unavailable, PublishUnknown)):  # of the thread that decides, or of this one
        txn.commit()
    txn.leave()


def let_time_pass(table: Table, alive: str = "") -> None:
    """As if hours had gone by: a dead process's lease has lapsed, and its heartbeats are old."""
    rewritten(table.store, validUntil=0)
    for beat in Path(table.url, ".hoodie", ".heartbeat").glob("*"):
        if beat.name != alive:
            let_beat_age(beat)


def taken_by_jvm(table: Table) -> None:
    """A JVM writer has had the lock: it writes Hudi's fields only, and over nobody's write."""
    record = json.dumps({"owner": "jvm", "validUntil": 1_700_000_000_000, "expired": True})
    Store.from_url(table.url).update(HUDI_LOCK_PATH, lambda _: record.encode())


def commit_without_the_lock(table: Table, *triples: tuple[int, str, int]) -> None:
    """Made in a copy of the table; its files come over, its lock record does not."""
    at_rest(table)
    copy = f"{table.url}-copy"
    shutil.copytree(table.url, copy)
    changed = Table.open(copy, settings=SELDOM)
    upsert(changed, *triples)
    at_rest(changed)
    shutil.copytree(copy, table.url, dirs_exist_ok=True, ignore=shutil.ignore_patterns("table_lock.json"))
    shutil.rmtree(copy)


def slices(snapshot: Snapshot | None) -> list[tuple[str, str, str, str]]:
    assert snapshot is not None
    return [(s.partition, s.file_id, s.begin, s.path) for s in snapshot.slices]


# -- what is decided, and not there yet --------------------------------------------------------------------------------


def test_commit_without_its_bytes_in_the_log_is_read_from_the_timeline(table: Table) -> None:
    reader = another(table)
    assert content(reader) == {(1, "a", 1)}
    append_and_die(dying(table, COMPLETED), (2, "b", 2), **NOISE)
    left = record(table.store)
    assert left.pending is not None
    assert (left.pending.data, left.log_has_pending, left.expired) == (None, False, False)
    assert content(reader) == content(another(table)) == {(1, "a", 1)}
    assert another(table).to_arrow().num_rows == 1
    assert reader.schema(Transaction(reader).timeline).names == ["id", "part", "value"]
    let_time_pass(table)
    assert content(reader) == {(1, "a", 1)}
    upsert(reader, (5, "a", 5))
    upsert(another(table), (5, "a", 6))
    after = {(1, "a", 1), (2, "b", 2), (5, "a", 6)}
    assert content(reader) == content(another(table)) == by_hudi_rs(table.url) == after


def test_next_writer_uses_a_large_commit_only_once_applied(table: Table) -> None:
    txn = Transaction(another(table))
    engine.write(txn, upserts=rows((1, "a", 2)))
    append_and_die(dying(table, COMPLETED), (2, "b", 2), **NOISE)
    assert not record(table.store).log_has_pending
    let_time_pass(table, alive=txn.begin)
    txn.commit()
    assert by_hudi_rs(table.url) == {(1, "a", 2), (2, "b", 2)}


def test_next_writer_gives_way_to_a_large_commit_that_it_applies(table: Table) -> None:
    txn, dead = Transaction(another(table)), Transaction(dying(table, COMPLETED))
    engine.write(txn, upserts=rows((1, "a", 2)))
    dead.extra.update(NOISE)
    engine.write(dead, upserts=rows((1, "a", 100)))
    with pytest.raises(Died):
        dead.commit()
    dead.leave()
    let_time_pass(table, alive=txn.begin)
    with pytest.raises(WriteConflict):
        txn.commit()
    txn.rollback()
    assert by_hudi_rs(table.url) == {(1, "a", 100)}


def test_commit_dropped_by_a_jvm_writer_was_never_read(table: Table) -> None:
    reader = another(table)
    assert content(reader) == {(1, "a", 1)}
    append_and_die(dying(table, COMPLETED), (2, "b", 2))
    assert record(table.store).log_has_pending, "the log alone would show it to the reader"
    assert content(reader) == {(1, "a", 1)}
    taken_by_jvm(table)
    assert content(reader) == {(1, "a", 1)}
    upsert(reader, (1, "a", 3))
    assert content(reader) == by_hudi_rs(table.url) == {(1, "a", 3)}


def test_commit_missing_from_a_listing_is_learned_from_the_log(table: Table) -> None:
    append_and_die(dying(table, COMPLETED), (2, "b", 2))
    reader = another(table)
    assert content(reader) == {(1, "a", 1)}
    rewritten(table.store, validUntil=0)
    upsert(table, (5, "a", 5))
    now = reader.now()
    assert not now.listed
    assert now.timeline.written == another(table).timeline().written
    assert content(reader) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 2), (5, "a", 5)}


def test_restore_applied_after_a_new_log_stops_earlier_writers(table: Table) -> None:
    good = table.timeline().writes[-1].begin
    upsert(table, (1, "a", 666), (2, "a", 666))
    with pytest.raises(Died):
        dying(table, "restore.requested").restore(good)
    let_time_pass(table)
    append_and_die(dying(table, "restore.requested"), (9, "z", 9))  # which is to put the plan there first
    left = record(table.store)
    assert left.log is not None
    assert left.pending is not None
    assert left.pending.path.endswith("restore.requested")
    assert left.log.has(left.pending), "who begins by this log is told of the plan"
    txn = Transaction(another(table))
    engine.write(txn, upserts=rows((2, "a", 3)))
    let_time_pass(table, alive=txn.begin)
    with pytest.raises(WriteConflict, match="restore"):
        txn.commit()
    txn.rollback()
    assert content(another(table)) == by_hudi_rs(table.url) == {(1, "a", 1)}


# -- what others do, and the log does not tell -------------------------------------------------------------------------


def test_snapshot_by_the_log_that_was_archived_since_is_a_conflict(table: Table) -> None:
    """What others had pending is not in a log, so that nobody can tell which of them was among the archived."""
    mine, other = another(table), Transaction(another(table))
    mine.now()
    mine.begin_dead_check_if_due()
    engine.write(other, upserts=rows((1, "a", 100)))
    for number in range(3):
        upsert(table, (50 + number, "q", number))
    txn = Transaction(mine)
    assert other.begin not in txn.timeline.pending_writes, "by the log"
    engine.write(txn, upserts=rows((1, "a", 7)))
    other.commit()
    archive_up_to(table, other.begin)
    with pytest.raises(WriteConflict, match="archived"):
        txn.commit()
    txn.rollback()
    assert (1, "a", 100) in content(another(table))


def archive_up_to(table: Table, begin: str) -> None:
    """By a JVM writer, under the lock."""
    with table.lock.acquire():
        for path in Path(table.url, ".hoodie", "timeline").iterdir():
            if path.is_file() and path.name[:17] <= begin:
                path.unlink()


def test_commit_that_was_made_without_the_lock_is_seen_by_an_open_reader(table: Table) -> None:
    reader = another(table)
    assert content(reader) == {(1, "a", 1)}
    at_rest(table)
    before = record(table.store)
    commit_without_the_lock(table, (2, "b", 2))
    assert record(table.store) == before
    assert content(reader) == content(reader) == {(1, "a", 1), (2, "b", 2)}


def test_commit_of_a_jvm_writer_is_listed_by_the_next_commit(table: Table) -> None:
    mine, asked = counted(table, SELDOM)
    for value in (2, 3):
        upsert(mine, (1, "a", value))
    commit_without_the_lock(mine, (1, "a", 50))
    taken_by_jvm(mine)
    asked.names.clear()
    txn = Transaction(mine)
    assert "list_page timeline" in asked.names
    assert content(mine) == {(1, "a", 50)}
    engine.write(txn, upserts=rows((1, "a", 51)))
    txn.commit()
    assert by_hudi_rs(mine.url) == {(1, "a", 51)}


def test_unreadable_lock_record_does_not_stop_a_reader(table: Table) -> None:
    reader = another(table)
    assert content(reader) == {(1, "a", 1)}
    Path(table.url, HUDI_LOCK_PATH).write_text("")
    assert content(reader) == content(another(table)) == {(1, "a", 1)}


# -- by memory ---------------------------------------------------------------------------------------------------------


def test_older_record_restores_no_replaced_slice(table: Table) -> None:
    """One thread has read the record, and lists later; another goes on from there by what stands in the log."""
    first = record(table.store)
    upsert(table, (2, "b", 2))
    second = record(table.store)

    def empty(txn: Any) -> None:
        txn.end_partitions(["b"])
        txn.add(())

    transact(table, empty)
    mine = another(table)
    listed = mine.now(first)
    expected = slices(mine.knowledge.cache_files(mine.snapshot(listed.timeline)))
    assert {partition for partition, *_ in expected} == {"a"}
    for found in (second, record(table.store)):
        now = mine.now(found)
        assert now.timeline.written == listed.timeline.written
        assert slices(mine.knowledge.snapshot(now.timeline)) == expected


def test_upserts_in_a_loop_list_neither_the_timeline_nor_the_files(table: Table) -> None:
    mine, asked = counted(table, SELDOM)
    upsert(mine, (1, "a", 2), (2, "b", 2))
    asked.names.clear()
    for value in range(5):
        upsert(mine, (1, "a", value), (2, "b", value))
    assert not {"list_page timeline", "list_page files"} & set(asked.names)
    assert by_hudi_rs(mine.url) == {(1, "a", 4), (2, "b", 4)}


def overwritten(drawn: random.Random, *triples: tuple[int, str, int]) -> Callable[[Any], None]:
    def work(txn: Any) -> None:
        txn.end_partitions([drawn.choice(txn.snapshot.partitions or ("",))])
        if drawn.random() < 0.6:
            engine.insert(txn, rows(*triples))
        else:
            txn.add(())

    return work


def change(table: Table, drawn: random.Random, number: int) -> None:
    """One commit of any kind; keys of inserts are new."""
    keys = drawn.sample(range(12), drawn.randrange(1, 4))
    changed = [(key, drawn.choice(["a", "b c", "ü/x", "p-1"]), drawn.randrange(99)) for key in keys]
    new = [(100 + 10 * number + key, part, value) for key, part, value in changed]
    match drawn.choice(["upsert", "upsert", "append", "delete", "overwrite"]):
        case "upsert":
            upsert(table, *changed)
        case "append":
            table.append(rows(*new))
        case "delete":
            table.delete(rows(*changed))
        case _:
            transact(table, overwritten(drawn, *new))


@pytest.mark.parametrize(
    "spec",
    [SPEC, replace(SPEC, buckets=3), TableSpec("whole", SCHEMA, record_keys=("id",))],
    ids=["partitions", "buckets", "no partitions"],
)
def test_cached_snapshot_equals_that_of_a_listing(tmp_path: Path, spec: TableSpec) -> None:
    writer, drawn, by_memory = Table.create(str(tmp_path / "t"), spec, settings=SELDOM), random.Random(spec.name), 0
    reader = another(writer)
    reader.snapshot()
    for number in range(12):
        change(writer, drawn, number)
        known, listed = reader.knowledge.snapshot(reader.now().timeline), another(writer).snapshot()
        by_memory += known is not None
        seen = known or reader.snapshot()
        assert slices(seen) == slices(listed)
        assert seen.timeline.written == listed.timeline.written
    assert by_memory > 6
