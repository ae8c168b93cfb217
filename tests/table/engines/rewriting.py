"""Tables that are compacted or clustered in another engine's tasks, and once more here: both come to the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from table.mor_tables import SETTINGS, a_table, by_hudi_rs, content, rows
from table.tables import data_files

from lockprovider.table import Table
from lockprovider.table.rewrite.clustering import run_clustering
from lockprovider.table.rewrite.compaction import run_compaction
from lockprovider.table.rewrite.executor import RewriteTask, Runner

SORT = ("value",)


class DiedError(Exception):
    """The executor dies."""


def with_plan(folder: Path, *, compaction: bool) -> tuple[Table, Table, str]:
    """A table of three partitions with logs and small files, and a copy of it, in which the same plan is scheduled."""
    table = a_table(folder / "t", "by event")
    for number in range(4):
        table.upsert(rows(*((id_, "abc"[id_ % 3], f"v{(7 * id_) % 5}", number) for id_ in range(number, 12))))
    table.append(rows((20, "a", "v0", 9), (21, "b", "v9", 9)))
    begin = table.schedule_compaction() if compaction else table.schedule_clustering(SORT)
    assert begin is not None
    shutil.copytree(table.url, folder / "copy")
    return table, Table.open(str(folder / "copy"), settings=SETTINGS), begin


def check_same(table: Table, copy: Table, begin: str) -> None:
    """Both have the same files, row by row, and what hudi-rs reads there are the rows that we do."""
    new = {path for path in data_files(Path(table.url)) if path.endswith(f"_{begin}.parquet")}
    assert new == {path for path in data_files(Path(copy.url)) if path.endswith(f"_{begin}.parquet")} != set()
    for path in new:
        assert pq.read_table(Path(table.url) / path).equals(pq.read_table(Path(copy.url) / path))
    assert content(table) == by_hudi_rs(table) == content(copy)
    assert len(content(table)) == 14
    last = [found.history()[-1] for found in (table, copy)]
    assert [one.instant for one in last] == [begin] * 2
    assert last[0].operation == last[1].operation
    assert table.timeline().pending_writes == ()


def check_goes_on(folder: Path, runner: Runner, finish: Callable[[Table], object], *, compaction: bool) -> None:
    """An executor that dies after half of its tasks leaves what the next one goes on with."""
    table, copy, begin = with_plan(folder, compaction=compaction)

    def half(work: Sequence[RewriteTask]) -> list[object]:
        assert len(work) > 1
        list(runner(work[: len(work) // 2]))
        raise DiedError

    run = run_compaction if compaction else run_clustering
    with pytest.raises(DiedError):
        run(table, begin, half)  # type: ignore[arg-type]
    finish(table)
    run(copy, begin)
    check_same(table, copy, begin)
