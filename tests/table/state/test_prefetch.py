"""What a commit reads while it is taking the lock is what it would read under it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from table.tables import SETTINGS, SPEC, content, rows, upsert

from fsspec_cas import Store
from fsspec_cas.backends.local import LocalBackend
from lockprovider import Lock, LockRecord
from lockprovider.table import Table, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.state.prefetch import at_once
from lockprovider.table.transaction.commit import Committing


class Held(LocalBackend):
    """Lets another act right before the first request that takes the lock after `armed` is set."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act, self.armed, self.acted = act, False, 0

    async def put(self, path: str, data: bytes, *args: Any, **kwargs: Any) -> Any:
        if self.armed and path.endswith("table_lock.json"):
            self.armed, self.acted = False, self.acted + 1
            self.act()
        return await super().put(path, data, *args, **kwargs)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(made, (1, "a", 1))
    return made


def overtaken(table: Table, other: Callable[[], object]) -> Any:
    """A transaction that updates key 1, and is overtaken between its reads and the lock."""
    backend = Held(other)
    txn = Table(Store(backend, table.url), table.url, settings=SETTINGS).transaction()
    engine.write(txn, upserts=rows((1, "a", 100)))
    backend.armed = True
    try:
        return txn.commit()
    finally:
        assert backend.acted == 1


def test_one_that_is_overtaken_between_its_reads_and_the_lock_reads_again(table: Table) -> None:
    with pytest.raises(WriteConflict):
        overtaken(table, lambda: upsert(table, (1, "a", 10)))
    assert content(table) == {(1, "a", 10)}


def test_the_completion_time_exceeds_that_of_the_one_that_came_between(table: Table) -> None:
    other: list[Any] = []
    mine = overtaken(table, lambda: other.append(upsert(table, (2, "b", 2))))
    assert mine.completion > other[0].completion
    assert content(table) == {(1, "a", 100), (2, "b", 2)}


def test_without_reading_again_an_update_is_lost(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong twin."""
    look, looked = Committing._look, dict[str, Any]()

    def look_once(self: Committing, record: LockRecord) -> Any:
        begin = self._proposal.begin
        if begin not in looked:
            looked[begin] = look(self, record)
        return looked[begin]

    monkeypatch.setattr(Committing, "_look", look_once)
    assert overtaken(table, lambda: upsert(table, (1, "a", 10))).updated == 1
    assert content(table) == {(1, "a", 10)}, "100 was reported as written, and is not there"


def test_a_publish_that_has_to_be_rolled_forward_first_is_seen(table: Table) -> None:
    """What was decided by one that died before it was there: it counts, and the next commit puts it there first."""
    dead: list[Any] = []

    def decided_but_not_applied() -> None:
        backend = Stops()
        txn = Table(Store(backend, table.url), table.url, settings=SETTINGS).transaction()
        engine.write(txn, upserts=rows((1, "a", 10)))
        backend.armed = True
        with pytest.raises(Stopped):
            txn.commit()
        dead.append(txn)

    with pytest.raises(WriteConflict):
        overtaken(table, decided_but_not_applied)
    upsert(table, (2, "b", 2))
    assert content(table) == {(1, "a", 10), (2, "b", 2)}
    dead[0]._instant.heartbeat.leave()


def test_nothing_is_read_along_when_the_lock_is_taken_from_one_that_let_it_lapse(table: Table, tmp_path: Path) -> None:
    """It may still be at work."""
    lock = tmp_path / "t" / ".hoodie" / ".locks" / "table_lock.json"
    heard: list[str] = []

    class Heard:
        def start(self, seen: LockRecord) -> None:
            assert seen.expired
            heard.append("start")

        def drop(self) -> None:
            heard.append("drop")

    client = Lock(Store(LocalBackend(), table.url))
    client.acquire(meanwhile=Heard()).release()
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"validUntil": 0, "expired": False}))
    Lock(Store(LocalBackend(), table.url)).acquire(meanwhile=Heard()).release()
    assert (heard[0], heard[-1]) == ("start", "drop")  # between may be a try by what was known before


class Stopped(BaseException):
    """The process is gone."""


class Stops(LocalBackend):
    """Dies when it is about to put the completed file there, and says nothing to the lock but that it is free."""

    armed = False

    async def put(self, path: str, *args: Any, **kwargs: Any) -> Any:
        if self.armed and path.endswith(".commit"):
            raise Stopped
        return await super().put(path, *args, **kwargs)


def test_several_requests_at_a_time_answer_in_their_order(table: Table) -> None:
    assert at_once(table.store, []) == []
    store = Store(NotBlocking(), table.url)
    assert at_once(store, [partial(divmod, n, 3) for n in range(20)]) == [divmod(n, 3) for n in range(20)]


class NotBlocking(LocalBackend):
    blocking = False
