"""What came between what a commit goes by and its decision is met by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from table.tables import SETTINGS, SPEC, content, rows, upsert

from fsspec_cas import Store
from fsspec_cas.backends.local import LocalBackend
from lockprovider import PublishUnknown
from lockprovider.table import Table, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction.decider import TableDecider

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # one dies in it


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


def test_without_judging_again_an_update_is_lost(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong twin."""
    monkeypatch.setattr(TableDecider, "refuse", lambda *_: None)
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
        with pytest.raises((Stopped, PublishUnknown)):  # of this thread, or of the one that decides
            txn.commit()
        dead.append(txn)

    with pytest.raises(WriteConflict):
        overtaken(table, decided_but_not_applied)
    upsert(table, (2, "b", 2))
    assert content(table) == {(1, "a", 10), (2, "b", 2)}
    dead[0]._instant.heartbeat.leave()


class Stopped(BaseException):
    """The process is gone."""


class Stops(LocalBackend):
    """Dies when it is about to put the completed file there, and says nothing to the lock but that it is free."""

    armed = False

    async def put(self, path: str, *args: Any, **kwargs: Any) -> Any:
        if self.armed and path.endswith(".commit"):
            raise Stopped
        return await super().put(path, *args, **kwargs)
