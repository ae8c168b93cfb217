"""What others do while a write takes its instant: its rows are there once or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from patience import until
from table.tables import SETTINGS, SPEC, content, orphans, rows

from fsspec_cas import Machine, Store, Unavailable
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from lockprovider.table import Table, TableEvent, UnsupportedTable
from lockprovider.table.state import context
from lockprovider.table.transaction.transaction import Transaction


class Meanwhile(LocalBackend):
    """Lets something happen before the next `.requested` is there; of a network, so that others go on."""

    blocking = False

    def __init__(self) -> None:
        self.once: Callable[[], object] | None = None
        self.put_there: list[str] = []

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        if write.path.endswith(".requested") and self.once is not None:
            once, self.once = self.once, None
            await asyncio.to_thread(once)
        self.put_there.append(write.path.rpartition("/")[2])
        return await super().put(write, *args, **kwargs)


class Ahead(Machine):
    """This machine, with a clock that may be wrong."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.fixture
def backend() -> Meanwhile:
    return Meanwhile()


@pytest.fixture
def table(tmp_path: Path, backend: Meanwhile) -> Table:
    clock = Ahead()
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    table = Table(Store(backend, made.url, world=clock), made.url, settings=SETTINGS, world=clock)
    table.append(rows((1, "a", 1)))
    table.append(rows((2, "a", 2)))
    until(lambda: left(table) == [])
    backend.put_there.clear()
    return table


def other(table: Table) -> Table:
    return Table.open(table.url, settings=SETTINGS)


def left(table: Table) -> list[str]:
    """What is of no use: markers, heartbeats, data files of no commit, instants that are not completed."""
    folder = Path(table.url) / ".hoodie"
    files = [path for part in (".temp", ".heartbeat") for path in (folder / part).rglob("*") if path.is_file()]
    pending = sorted(table.listed_timeline().pending_writes)
    return [path.name for path in files] + [*map(str, orphans(Path(table.url)))] + pending


def test_append_begins_again_after_a_later_completed_write(table: Table, backend: Meanwhile) -> None:
    backend.once = lambda: other(table).append(rows((9, "b", 9)))
    done = table.append(rows((3, "a", 3)))
    assert done.conflicts == 0
    assert content(other(table)) == {(1, "a", 1), (2, "a", 2), (9, "b", 9), (3, "a", 3)}
    assert len([name for name in backend.put_there if name.endswith(".parquet")]) == 1
    until(lambda: left(table) == [])


def test_append_begins_again_with_a_column_added_by_another(table: Table, backend: Meanwhile) -> None:
    backend.once = lambda: other(table).add_columns(pa.schema([("note", pa.string())]))
    done = table.append(rows((3, "a", 3)))
    assert done.conflicts == 0
    assert other(table).to_arrow(["id", "note"]).sort_by("id").column("note").to_pylist() == [None, None, None]
    assert len([name for name in backend.put_there if name.endswith(".parquet")]) == 1
    until(lambda: left(table) == [])


def test_append_begins_again_when_another_removed_its_partition(
    table: Table, backend: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = table.timeline().writes[-1]
    table.append(rows((3, "b", 3)))
    metafile = Path(table.url) / "b" / ".hoodie_partition_metadata"
    assert metafile.exists()

    def remove() -> None:
        other(table).restore(first.begin)
        metafile.unlink(missing_ok=True)  # as a clean does with an empty partition

    monkeypatch.setattr(Ahead, "ahead_ms", 3_600_000)  # the other began first: the time of the append will do
    backend.once = remove
    done = table.append(rows((4, "b", 4)))
    assert done.conflicts == 0
    assert metafile.exists(), "else a JVM reader does not see the rows"
    assert content(other(table)) == {(1, "a", 1), (2, "a", 2), (4, "b", 4)}
    until(lambda: left(table) == [])


def test_append_begins_again_when_the_properties_changed(table: Table, backend: Meanwhile) -> None:
    def change() -> None:
        path = Path(table.url) / ".hoodie/hoodie.properties"
        path.write_text(path.read_text() + "hoodie.parquet.note=changed\n")
        other(table).lock.acquire().release()  # as who changes them does: with the log all knowledge of them ends

    backend.once = change
    table.append(rows((3, "a", 3)))
    assert content(other(table)) == {(1, "a", 1), (2, "a", 2), (3, "a", 3)}
    until(lambda: left(table) == [])


def test_store_error_at_begin_is_raised_and_nothing_is_written(table: Table, backend: Meanwhile) -> None:
    def fail() -> None:
        raise Unavailable("the store is out of reach")

    backend.once = fail
    with pytest.raises(Unavailable, match="out of reach"):
        table.append(rows((3, "a", 3)))
    assert not [name for name in backend.put_there if name.endswith((".parquet", ".inflight"))]
    until(lambda: not [name for name in left(table) if ".marker." in name])
    assert content(other(table)) == {(1, "a", 1), (2, "a", 2)}


@pytest.mark.parametrize("verb", ["append", "upsert"])
def test_unwritable_table_is_refused_before_the_first_file(
    table: Table, backend: Meanwhile, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def refuse(txn: Any) -> None:
        raise UnsupportedTable(f"buckets of a JVM writer, seen by {txn.begin}")

    monkeypatch.setattr(Transaction, "_refuse_unmarked_buckets", refuse)
    with pytest.raises(UnsupportedTable, match="of a JVM writer"):
        getattr(table, verb)(rows((3, "a", 3)))
    assert not [name for name in backend.put_there if name.endswith(".parquet")]
    until(lambda: left(table) == [])


def test_upsert_waits_for_its_instant_before_it_announces_a_file(table: Table, backend: Meanwhile) -> None:
    backend.once = lambda: other(table).append(rows((9, "b", 9)))
    table.upsert(rows((2, "a", 20), (3, "a", 3)))
    names = [name for name in backend.put_there if ".marker." in name or name.endswith(".requested")]
    assert all(".marker." in name for name in names[2:])
    assert content(other(table)) == {(1, "a", 1), (2, "a", 20), (9, "b", 9), (3, "a", 3)}
    until(lambda: left(table) == [])


@pytest.mark.parametrize("verb", ["append", "upsert"])
@pytest.mark.parametrize("step", ["begin", "written", "lock_wait", "committed"])
def test_interrupted_write_is_complete_or_absent(table: Table, step: str, verb: str) -> None:
    def interrupt(event: TableEvent) -> None:
        if event.kind == step:
            raise KeyboardInterrupt

    interrupted = Table(table.store, table.url, settings=SETTINGS, watcher=interrupt)
    with pytest.raises(KeyboardInterrupt):
        getattr(interrupted, verb)(rows((3, "a", 3)))
    other(table).append(rows((4, "b", 4)))
    expected = {(1, "a", 1), (2, "a", 2), (4, "b", 4)} | ({(3, "a", 3)} if step == "committed" else set())
    assert content(other(table)) == expected
    until(lambda: step == "committed" or left(table) == [])  # what a commit leaves is harmless, and for a sweep


def test_rows_readable_only_once_wait_for_their_instant(table: Table, backend: Meanwhile) -> None:
    backend.once = lambda: other(table).append(rows((9, "b", 9)))
    table.append(rows((3, "a", 3)).to_reader())
    names = [name for name in backend.put_there if ".marker." in name or name.endswith(".inflight")]
    assert ".marker." in names[-1]
    assert content(other(table)) == {(1, "a", 1), (2, "a", 2), (9, "b", 9), (3, "a", 3)}


def test_properties_are_judged_once_until_they_change(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    judge = context.check_writable
    monkeypatch.setattr(context, "check_writable", lambda config, **more: (judged.append(config.name), judge(config)))
    table.knowledge.writable = None
    for number in range(3):
        table.append(rows((number + 3, "a", 3)))
    assert len(judged) == 1
    other(table).set_visibility("unordered")
    table.append(rows((9, "a", 3)))
    assert len(judged) > 1
