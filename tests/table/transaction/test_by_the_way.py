"""Commits by the way, that are decided and not there yet: nobody is told of more, or of less, than comes to be."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from noting import Later, record
from table.state.test_cache import COMPLETED, NOISE, Died, another, dying, taken_by_jvm
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from fsspec_cas import Store, Unavailable
from fsspec_cas.answer import Page
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from lockprovider import LockSettings, PublishUnknown
from lockprovider.table import Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.errors import AlreadyCommitted, WriteConflict
from lockprovider.table.state.events import TableEvent
from lockprovider.table.timeline.conflict import BatchId
from lockprovider.table.transaction.lifecycle import State
from lockprovider.table.transaction.transaction import Transaction

# Whoever dies does so in the thread in which it decides.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

BATCH = BatchId("a stream", 5)


class Down(LocalBackend):
    """Puts no completed files, while it is down; and time passes until its writer has given up."""

    down = False

    def __init__(self) -> None:
        self.world = Later()

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        if self.down and COMPLETED in Path(write.path).name and "timeline" in write.path:
            self.world.passed_s += 11
            raise Unavailable("the store is down")
        return await super().put(write, *args, **kwargs)


class Behind(LocalBackend):
    """Files come while the timeline is being listed, and the listing has not the one that is hidden."""

    hidden = ""
    meanwhile: Callable[[], object] | None = None

    async def list_page(self, prefix: str, *args: Any, **kwargs: Any) -> Page:
        meanwhile, hidden = self.meanwhile, self.hidden
        if meanwhile is None or not prefix.endswith("/timeline/"):
            return await super().list_page(prefix, *args, **kwargs)
        self.meanwhile = None
        meanwhile()
        page = await super().list_page(prefix, *args, **kwargs)
        return replace(page, entries=tuple(entry for entry in page.entries if not entry.path.endswith(hidden)))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """With a lock that has a log."""
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(made, (1, "a", 1))
    upsert(made, (2, "b", 1))
    return made


def over(table: Table, backend: LocalBackend) -> Table:
    world = backend.world if isinstance(backend, Down) else None
    settings = replace(table.settings, lock=LockSettings(timeout=10)) if world else table.settings
    return Table(Store(backend, table.url), table.url, settings=settings, world=world)


def batch(table: Table) -> Transaction:
    txn = Transaction(table)
    txn.exactly_once(BATCH)
    engine.write(txn, upserts=rows((5, "z", 5)))
    return txn


def die_in_the_batch(table: Table) -> None:
    """It is decided, and not there."""
    txn = batch(dying(table, COMPLETED))
    with pytest.raises((Died, Unavailable, PublishUnknown)):  # of the thread that decides, or of this one
        txn.commit()
    txn.leave()
    assert record(table.store).released_pending
    assert record(table.store).all_pending


def test_listing_with_only_the_later_of_two_commits_shows_neither(table: Table) -> None:
    for row in ((1, "a", 11), (2, "b", 11)):
        backend = Down()
        txn = Transaction(over(table, backend))
        engine.write(txn, upserts=rows(row))
        backend.down = True
        with pytest.raises(PublishUnknown):
            txn.commit()
        txn.leave()
    earlier, _ = record(table.store).all_pending
    behind = Behind()
    reader = over(table, behind)
    behind.hidden, behind.meanwhile = earlier.path, lambda: table.lock.acquire(keeps_log=True).release()
    txn = Transaction(reader)
    assert behind.meanwhile is None
    assert [*txn.timeline.writes] == [*table.timeline().writes[:-2]]
    upsert(reader, (1, "a", 12))
    assert content(reader) == by_hudi_rs(table.url) == {(1, "a", 12), (2, "b", 11)}


def test_batch_dropped_by_a_jvm_writer_is_written_again(table: Table) -> None:
    knows_it_by_the_log = over(table, LocalBackend())
    content(knows_it_by_the_log)
    die_in_the_batch(table)
    again = Transaction(knows_it_by_the_log)
    again.exactly_once(BATCH)
    taken_by_jvm(table)
    engine.write(again, upserts=rows((5, "z", 5)))
    with pytest.raises(WriteConflict, match="undid commits that it had read"):
        again.commit()
    again.rollback()
    batch(again.table).commit()
    assert by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 1), (5, "z", 5)}


def test_batch_is_reported_committed_only_once_applied(table: Table) -> None:
    again = batch(over(table, LocalBackend()))
    die_in_the_batch(table)
    with pytest.raises(AlreadyCommitted):
        again.commit()
    assert by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 1), (5, "z", 5)}
    again.rollback()


@pytest.mark.parametrize("resumed", [False, True], ids=["again", "resumed"])
def test_commit_decided_earlier_returns_only_once_applied(table: Table, resumed: bool) -> None:
    backend = Down()
    txn = Transaction(over(table, backend))
    engine.write(txn, upserts=rows((3, "c", 1)))
    backend.down = True
    with pytest.raises(PublishUnknown):
        txn.commit()
    backend.down, stats = False, txn._stats
    if resumed:
        assert stats is not None
        txn.leave()
        txn = Transaction.resume(another(table), txn.begin)
        txn.add(stats)
    txn.commit()
    assert by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 1), (3, "c", 1)}


@pytest.mark.parametrize("extra", [{}, NOISE], ids=["its bytes go along", "its bytes are staged"])
def test_commit_that_may_be_decided_is_not_reported_aborted(table: Table, extra: dict[str, str]) -> None:
    backend = Down()
    txn = Transaction(over(table, backend))
    txn.extra.update(extra)
    engine.write(txn, upserts=rows((3, "c", 1)))
    backend.down = True
    with pytest.raises(PublishUnknown, match="may have been published"):
        txn.commit()
    txn.leave()
    table.lock.acquire().release()
    assert by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 1), (3, "c", 1)}


def test_listing_older_than_the_own_inflight_file_is_no_rollback(table: Table) -> None:
    backend = Behind()
    mine = over(table, backend)
    transaction = Transaction(mine)

    def each_time() -> None:
        backend.meanwhile = each_time

    backend.hidden, backend.meanwhile = ".inflight", each_time
    engine.write(transaction, upserts=rows((3, "a", 1)))
    backend.meanwhile = None
    transaction.commit()
    assert (3, "a", 1) in content(table)


def test_writer_that_could_not_begin_stops_its_heartbeat(table: Table) -> None:
    before = {thread for thread in threading.enumerate() if thread.name.startswith("writer-heartbeat")}
    failing = dying(table, ".requested")
    with pytest.raises(Died):
        upsert(failing, (3, "c", 1))
    after = {thread for thread in threading.enumerate() if thread.name.startswith("writer-heartbeat")}
    assert after <= before


def test_failing_watcher_keeps_no_client_from_the_lock(table: Table) -> None:
    def watch(event: TableEvent) -> None:
        if event.kind == "lock_held" and raises:
            raise ValueError(event.kind)

    table.lock.acquire().release()  # the log has ended, so the next is committed under the lock
    raises = True
    settings = replace(SETTINGS, lock=LockSettings(timeout=1))
    watched = Table(Store(LocalBackend(), table.url), table.url, settings=settings, watcher=watch)
    with pytest.raises(ValueError, match="lock_held"):
        upsert(watched, (3, "c", 1))
    raises = False
    upsert(watched, (4, "d", 1))
    assert by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 1), (4, "d", 1)}


@pytest.mark.parametrize("kind", ["committed", "lock_released"])
@pytest.mark.parametrize("held", [False, True])
def test_failing_watcher_makes_no_commit_look_failed(
    table: Table, caplog: pytest.LogCaptureFixture, kind: str, held: bool
) -> None:
    def watch(event: TableEvent) -> None:
        if event.kind == kind:
            raise ValueError(event.kind)

    if held:
        table.lock.acquire().release()  # the log has ended, so the next is committed under the lock
    watched = Table(Store(LocalBackend(), table.url), table.url, settings=SETTINGS, watcher=watch)
    upsert(watched, (3, "c", 1))
    assert by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 1), (3, "c", 1)}
    assert table.timeline().pending_writes == ()
    assert ("the watcher failed" in caplog.text) is (held or kind == "committed")


AFTER_MAIN = """
import concurrent.futures.thread as pools, sys, threading, time
from table.tables import SETTINGS, content, upsert
from fsspec_cas import Store
from fsspec_cas.backends.local import LocalBackend
from lockprovider.table import Table

class Net(LocalBackend):
    blocking = False

def opened():
    return Table(Store(Net(), sys.argv[1]), sys.argv[1], settings=SETTINGS)

table = opened()
upsert(table, (3, "c", 1))

def work():
    while not pools._shutdown:
        time.sleep(0.01)
    upsert(table, (4, "d", 1))
    upsert(opened(), (5, "e", 1))
    print(len(content(table)))

threading.Thread(target=work).start()
"""


def test_thread_still_running_at_interpreter_exit_commits(table: Table) -> None:
    tests = Path(__file__).resolve().parents[2]
    program = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tests)!r})\n{AFTER_MAIN}", table.url]
    seen = subprocess.run(program, check=True, timeout=120, stdout=subprocess.PIPE).stdout
    assert by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 1), (3, "c", 1), (4, "d", 1), (5, "e", 1)}
    assert seen.split() == [b"5"]


@pytest.mark.parametrize("is_known", [True, False], ids=["as it is", "a wrong twin"])
def test_commit_that_may_be_decided_is_not_undone_without_the_lock(table: Table, *, is_known: bool) -> None:
    backend = Down()
    txn = Transaction(over(table, backend))
    engine.write(txn, upserts=rows((3, "c", 1)))
    backend.down = True
    with pytest.raises(PublishUnknown):
        txn.commit()
    backend.down = False
    assert txn.state is State.ASKED
    txn.state = State.ASKED if is_known else State.REFUSED
    txn.rollback()
    table.lock.acquire(keeps_log=True).release()
    files = [entry.path for entry in table.data_files()]
    assert table.timeline().written_at(txn.begin) is not None
    assert any(txn.begin in path for path in files) == is_known, "else a commit without its files"
