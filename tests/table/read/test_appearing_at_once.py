"""A table whose commits appear in any order: of two, readers of ours never see the later one alone, and miss none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from noting import record
from patience import until
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from fsspec_cas import InvalidInput, Store
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from lockprovider.table import Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.format.properties import ORDERED, UNORDERED, VISIBILITY_KEY
from lockprovider.table.state.current import CurrentState
from lockprovider.table.transaction.transaction import Transaction


class Holding(LocalBackend):
    """Behind a network. The completed file of one commit does not get on until it is let go, whoever puts it."""

    blocking = False

    def __init__(self) -> None:
        self.held, self.waits = "", 0
        self.go = threading.Event()

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        if self.held and Path(write.path).name.startswith(f"{self.held}_"):
            self.waits += 1
            await asyncio.to_thread(self.go.wait)
        return await super().put(write, *args, **kwargs)


@dataclass
class Race:
    """Two commits that were decided, of which the earlier is not there yet."""

    table: Table
    backend: Holding
    earlier: Future[Any]
    later: Future[Any]
    names: tuple[str, str]

    @property
    def is_there(self) -> bool:
        """The later one."""
        return (Path(self.table.url) / self.names[1]).exists()

    def end(self) -> None:
        self.backend.go.set()
        self.earlier.result()
        self.later.result()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def race(folder: Path, threads: ThreadPoolExecutor, visibility: str) -> Race:
    made = Table.create(str(folder / "t"), replace(SPEC, visibility=visibility), settings=SETTINGS)
    upsert(made, (1, "a", 1))
    upsert(made, (2, "b", 1))  # by now the lock has a log
    backend = Holding()
    one, other = (Table(Store(backend, made.url), made.url, settings=SETTINGS) for _ in range(2))
    txn = Transaction(one)
    engine.write(txn, upserts=rows((1, "a", 11)))
    backend.held = txn.begin
    earlier = threads.submit(txn.commit)
    until(lambda: backend.waits)
    later = threads.submit(upsert, other, (2, "b", 11))
    until(lambda: len(record(made.store).all_pending) == 2)
    first, second = (pending.path for pending in record(made.store).all_pending)
    return Race(made, backend, earlier, later, (first, second))


def opened(table: Table) -> Table:
    return Table.open(table.url)


def test_readers_see_two_commits_only_once_the_earlier_is_applied(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    before = race(tmp_path, threads, UNORDERED)
    table, backend = before.table, before.backend
    until(lambda: before.is_there)
    try:
        assert by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 11)}, "who only lists sees the later one alone"
        for reader in (table, opened(table)):
            assert content(reader) == {(1, "a", 1), (2, "b", 1)}
            seen = reader.version
            assert reader.to_arrow(as_of=seen).num_rows == 2
            assert reader.history()[-1].completion == seen
            assert reader.changes(after=seen).commits == ()
            assert reader.changes().checkpoint == seen
        assert not before.later.done(), "it is told when readers see it"
    finally:
        before.end()
    given = table.changes(after=seen)
    names = [f".hoodie/timeline/{instant.file_name}" for instant in given.commits]
    assert names == [*before.names]
    assert sorted(given.to_arrow().column("value").to_pylist()) == [11, 11]
    assert content(table) == content(opened(table)) == {(1, "a", 11), (2, "b", 11)}
    assert backend.waits == 2, "each of the two writers puts it there"


def test_mutant_without_the_rule_shows_the_later_commit_alone(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above does see it."""
    before = race(tmp_path, threads, UNORDERED)
    until(lambda: before.is_there)
    monkeypatch.setattr(CurrentState, "visible", lambda self, *, noted=False: self.listed())
    try:
        given = opened(before.table).changes()
    finally:
        before.end()
    assert [f".hoodie/timeline/{instant.file_name}" for instant in given.commits][-1] == before.names[1]
    missed = opened(before.table).changes(after=given.checkpoint)
    assert missed.commits == ()


def test_later_commit_waits_for_the_earlier_in_ordered_tables(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    before = race(tmp_path, threads, ORDERED)
    until(lambda: before.backend.waits == 2)  # both writers are at the earlier one
    try:
        assert not before.is_there
        assert by_hudi_rs(before.table.url) == {(1, "a", 1), (2, "b", 1)}
    finally:
        before.end()
    assert content(before.table) == {(1, "a", 11), (2, "b", 11)}


def test_doctor_names_readers_that_may_miss_unordered_commits(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    assert VISIBILITY_KEY not in table.config().raw
    table.set_visibility(UNORDERED)
    assert table.config().raw[VISIBILITY_KEY] == UNORDERED
    upsert(table, (1, "a", 1))
    said = [one for _, _, found in diagnose(opened(table)) for one in found if "unordered" in one.what]
    assert [(finding.rule, finding.state) for finding in said] == [("R4", "note")]
    table.set_visibility(ORDERED)
    assert VISIBILITY_KEY not in opened(table).config().raw
    with pytest.raises(InvalidInput, match="visibility='soon' is not valid"):
        table.set_visibility("soon")
    with pytest.raises(InvalidRecords, match="visibility='soon' is none"):
        replace(SPEC, visibility="soon")
