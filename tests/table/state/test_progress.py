"""Each engine tells how far it is; a terminal gets a bar, anything else lines of the log."""

from __future__ import annotations

import io
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from table.tables import SETTINGS, SPEC, rows

from lockprovider.table import ShowProgress, Table, TableEvent

Seen = list[tuple[object, ...]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(events: list[TableEvent]) -> Seen:
    found = [
        tuple(event.detail[name] for name in ("number", "of", "step", "done", "total"))
        for event in events
        if event.kind == "progress"
    ]
    events.clear()
    return found


@pytest.fixture
def events() -> list[TableEvent]:
    return []


@pytest.fixture
def table(tmp_path: Path, events: list[TableEvent]) -> Table:
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS, watcher=events.append)
    events.clear()
    return made


def test_arrow_writes_and_reads_report_each_file_and_partition(table: Table, events: list[TableEvent]) -> None:
    table.append(rows((1, "a", 1), (2, "b", 2)))
    assert told(events) == [(1, 1, "write files", done, 2) for done in (1, 2)]
    table.upsert(rows((1, "a", 5), (2, "b", 5)))
    assert told(events) == [(1, 1, "merge partitions", done, 2) for done in (1, 2)]
    table.upsert(rows((1, "a", 6)))
    assert told(events) == [(1, 1, "merge file groups", 1, 1)]
    assert table.to_arrow().num_rows == 2
    assert told(events) == [(1, 1, "read file groups", done, 2) for done in (1, 2)]


def test_dask_writes_report_each_task(table: Table, events: list[TableEvent]) -> None:
    frames: Any = pytest.importorskip("dask.dataframe")
    from lockprovider.table.engines import dask as engine

    given = frames.from_pandas(rows(*((n, "ab"[n % 2], n) for n in range(4))).to_pandas(), npartitions=2)
    engine.append(table, given)
    assert told(events) == [(1, 1, "write files", done, 2) for done in (0, 1, 2)]
    engine.upsert(table, given)
    steps = [(1, "find the partitions of rows"), (2, "merge partitions")]
    assert told(events) == [(number, 2, step, done, 2) for number, step in steps for done in (0, 1, 2)]


def test_terminal_has_one_line_with_a_bar_and_none_afterwards(tmp_path: Path) -> None:
    stream = Terminal()
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS, watcher=ShowProgress(stream))
    table.append(rows((1, "a", 1), (2, "b", 2)))
    assert "\n" not in stream.getvalue()
    assert [part.removesuffix("\x1b[K") for part in stream.getvalue().split("\r")] == [
        "",
        f"hudi: 1 of 1, write files 1/2 [{'#' * 12}{'.' * 12}]",
        f"hudi: 1 of 1, write files 2/2 [{'#' * 24}]",
        "",
    ]


def test_log_has_each_tenth_of_a_step(caplog: pytest.LogCaptureFixture) -> None:
    show = ShowProgress(io.StringIO())
    assert isinstance(pickle.loads(pickle.dumps(show)), ShowProgress)
    with caplog.at_level(logging.INFO, "lockprovider.table"):
        for done in range(1, 1001):
            detail: dict[str, object] = {"step": "merge", "number": 2, "of": 2, "done": done, "total": 1000}
            show(TableEvent("progress", 0, "20260101000000000", detail))
        nothing: dict[str, object] = {"step": "count", "number": 1, "of": 3, "done": None, "total": None}
        show(TableEvent("progress", 0, "20260101000000001", nothing))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:2] == ["hudi: 2 of 2, merge 1/1000", "hudi: 2 of 2, merge 100/1000"]
    assert lines[-2:] == ["hudi: 2 of 2, merge 1000/1000", "hudi: 1 of 3, count"]
    assert len(lines) == 12
