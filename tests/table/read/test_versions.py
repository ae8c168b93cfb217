"""One kind of version: `as_of`, `changes`, `savepoint` and `restore` mean the same state by it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table.tables import SETTINGS

from fsspec_cas import InvalidInput
from lockprovider.table import AsOf, CommitResult, HistoryGone, Table, TableSpec
from lockprovider.table.format.layout import Action, Instant, InstantState
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import Order, checkpoint_of, commit_of, moment_of_version

ROWS = pa.table({"id": [1]})


def row(number: int) -> pa.Table:
    return pa.table({"id": [number]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", TableSpec("t", ROWS, "id"), settings=SETTINGS)


def moment(digits: str) -> datetime:
    return datetime.strptime(digits, "%Y%m%d%H%M%S%f").replace(tzinfo=timezone.utc)


NAMES: dict[str, Callable[[Table, CommitResult], Any]] = {
    "result": lambda _, done: done,
    "commit of the history": lambda table, done: next(c for c in table.history() if c.instant == done.instant),
    "completion": lambda _, done: done.completion,
    "begin": lambda _, done: done.instant,
    "savepoint": lambda table, done: table.savepoint(done),
    "savepoint by its time": lambda table, done: table.savepoint(moment(done.completion)),
    "datetime": lambda _, done: moment(done.completion),
    "iso text": lambda _, done: moment(done.completion).isoformat(),
    "as of": lambda _, done: AsOf(done.completion),
}


@pytest.mark.parametrize("name", NAMES)
def test_version_means_the_table_after_its_commit_to_every_verb(table: Table, name: str) -> None:
    done = [table.append(row(number)) for number in range(3)]
    version = NAMES[name](table, done[1])
    assert sorted(table.to_arrow(as_of=version)["id"].to_pylist()) == [0, 1]
    assert table.changes(after=version).to_arrow()["id"].to_pylist() == [2]
    assert sorted(table.changes(until=version).to_arrow()["id"].to_pylist()) == [0, 1]
    assert table.savepoint(version) == done[1].instant
    assert list(table.savepoints()) == [done[1].instant]
    result = table.restore(version)
    assert (result.target, result.completion) == (done[1].instant, done[1].completion)
    assert result.taken_back == (done[2].instant,)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1]
    assert table.delete_savepoint(version)
    assert table.savepoints() == {}


def test_version_of_the_table_is_its_last_commit(table: Table) -> None:
    table.append(row(0))
    before = table.version
    assert table.changes(after=before).commits == ()
    done = table.append(row(1))
    assert table.restore(before).taken_back == (done.instant,)
    assert table.restore(table.version).taken_back == ()
    assert table.version == before


def test_time_between_two_commits_is_after_the_first(table: Table) -> None:
    first = table.append(row(0))
    between = moment(first.completion) + timedelta(milliseconds=1)
    while datetime.now(timezone.utc) <= between + timedelta(milliseconds=2):
        pass
    second = table.append(row(1))
    assert table.count(as_of=between) == 1
    assert table.restore(between).taken_back == (second.instant,)


def test_invalid_version_of_a_table_is_refused(table: Table, tmp_path: Path) -> None:
    other = Table.create(tmp_path / "u", TableSpec("t", ROWS, "id"), settings=SETTINGS)
    strange = other.append(row(1))
    lost = table.append(row(0))
    table.restore(table.history()[0])
    for given in (strange, lost):
        for ask in (table.savepoint, table.restore, table.changes, lambda v: table.count(as_of=v)):
            with pytest.raises(HistoryGone, match="is not in the table: it was taken back, or it is another table's"):
                ask(given)
    for given in ("soon", 7, datetime(2026, 1, 1)):  # noqa: DTZ001
        for ask in (table.savepoint, table.restore, table.changes, lambda v: table.count(as_of=v)):
            with pytest.raises(InvalidInput, match="is not a time"):
                ask(given)
    with pytest.raises(InvalidInput, match="None is no version"):
        table.restore(None)  # type: ignore[arg-type]
    with pytest.raises(HistoryGone, match="no commit began or completed at 20200101000000000; "):
        table.restore("20200101000000000")
    with pytest.raises(HistoryGone, match="no commit began or completed at 20990101000000000; "):
        table.savepoint("20990101000000000")
    with pytest.raises(HistoryGone, match="no commit completed by 20200101000000000; "):
        table.restore("2020-01-01T00:00:00Z")
    with pytest.raises(InvalidInput, match="no state after a commit"):
        table.restore(AsOf(table.version, "begin"))
    with pytest.raises(InvalidInput, match="cannot be compared with the times of order"):
        table.changes(AsOf(table.version, "begin"))


# -- times that two commits have ---------------------------------------------------------------------------------------

A = Instant("20260101000000001", Action.COMMIT, InstantState.COMPLETED, "20260101000000005")
B = Instant("20260101000000005", Action.COMMIT, InstantState.COMPLETED, "20260101000000009")
C = Instant("20260101000000007", Action.COMMIT, InstantState.COMPLETED, "20260101000000008")
NOW = Timeline((A, B, C))


def test_checkpoint_equal_to_a_begin_time_means_its_own_commit() -> None:
    time = B.begin
    assert checkpoint_of(NOW, time, Order.COMPLETION, lambda: "") == A.completion
    assert checkpoint_of(NOW, time, Order.BEGIN, lambda: "") == B.begin
    assert moment_of_version(NOW, C.begin, lambda: "") == AsOf(C.completion or "")
    assert commit_of(NOW, C.begin, lambda: "") == C
    assert commit_of(NOW, None, lambda: "") == B


def test_time_is_no_begin_time_when_such_commits_may_be_archived() -> None:
    without = Timeline((B, C))
    assert checkpoint_of(without, B.begin, Order.COMPLETION, lambda: A.completion or "") == B.begin
    assert checkpoint_of(without, B.begin, Order.COMPLETION, lambda: "") == B.completion
    result = CommitResult(A.begin, A.completion or "", 0, 0, 0, (), 1, 0, 0.0)
    assert checkpoint_of(without, result, Order.COMPLETION, lambda: A.completion or "") == A.completion
    assert checkpoint_of(without, result, Order.FENCED, lambda: A.completion or "") == A.begin
    with pytest.raises(HistoryGone, match="those up to 20260101000000005 are archived"):
        commit_of(without, result, lambda: A.completion or "")
