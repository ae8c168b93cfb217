"""Dask with workers that are processes of their own, one of which is killed while it writes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, orphans

from lockprovider.table import Table, TableEvent, TableSpec
from lockprovider.table.engines import dask as engine

ROWS = 20_000
PARTS = 8


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            local_directory=str(tmp_path / "workers"),
            memory_limit="1GB",
        ) as made,
        Client(made) as client,
    ):
        yield client


def frame(value: int) -> Any:
    ids = np.arange(ROWS)
    part = pd.Series(ids % 3).map({0: "a", 1: "b", 2: "c"})
    return dd.from_pandas(pd.DataFrame({"id": ids, "part": part, "value": value}), npartitions=PARTS)


def dying(part: pd.DataFrame, once: str) -> pd.DataFrame:
    """The first worker that comes to the rows of id 0 is killed, as by the machine's memory."""
    if (part["id"] == 0).any():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
    return part


def failing(part: pd.DataFrame) -> pd.DataFrame:
    if len(part):
        raise ValueError("on a worker")
    return part


def test_cluster_reports_each_finished_task_and_raises_a_tasks_error(tmp_path: Path, cluster: Any) -> None:
    events: list[TableEvent] = []
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS, watcher=events.append)
    engine.append(table, frame(1))
    progress = [event.detail for event in events if event.kind == "progress"]
    assert [detail["done"] for detail in progress] == [*range(PARTS + 1)]
    assert {detail["total"] for detail in progress} == {PARTS}
    with pytest.raises(ValueError, match="on a worker"):
        engine.append(table, frame(2).map_partitions(failing, meta=frame(2)._meta))
    assert len(cluster.scheduler_info()["workers"]) == 2
    assert {row[2] for row in content(table)} == {1}


def test_task_of_a_full_cluster_writes_by_tasks(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as made,
        Client(made) as client,
    ):
        assert client.submit(lambda: engine.append(Table.open(table.url), frame(1)).inserted).result(60) == ROWS


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["append", "upsert"])
def test_worker_that_is_killed_loses_and_doubles_no_row(tmp_path: Path, cluster: Any, verb: str) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    if verb == "upsert":
        engine.append(table, frame(1))
    once = tmp_path / "killed"
    rows = frame(2)
    done = getattr(engine, verb)(table, rows.map_partitions(dying, str(once), meta=rows._meta))
    assert once.exists(), "no worker was killed"
    assert (done.inserted, done.updated) == ((ROWS, 0) if verb == "append" else (0, ROWS))
    found = content(table)
    assert found == by_hudi_rs(table.url)
    assert {(row[0], row[2]) for row in found} == {(number, 2) for number in range(ROWS)}
    assert int(engine.read(table).value.sum().compute()) == 2 * ROWS
    assert len(cluster.scheduler_info()["workers"]) >= 1
    assert orphans(Path(table.url)) == set()


CHUNK_ROWS = 500_000  # 50 MB with its texts
CHUNKS_A_MINUTE = 12  # 3 GB in the five minutes of `--soak`


def chunk(number: int, once: str) -> pd.DataFrame:
    ids = np.arange(number * CHUNK_ROWS, (number + 1) * CHUNK_ROWS)
    text = pd.Series(ids).astype(str).str.rjust(60, "x")
    made = pd.DataFrame({"id": ids, "part": "ab"[number % 2], "value": ids % 7, "text": text})
    return dying(made, once)


@pytest.mark.soak
def test_frame_larger_than_memory_is_appended_though_a_worker_is_killed(
    tmp_path: Path, cluster: Any, request: pytest.FixtureRequest
) -> None:
    count = max(2, int(request.config.getoption("--soak") * CHUNKS_A_MINUTE))
    spec = TableSpec("large", chunk(1, "").head(1), "id", "part")
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    once = tmp_path / "killed"
    rows = dd.from_map(chunk, range(count), once=str(once), meta=chunk(1, "").head(0))
    done = engine.append(table, rows)
    assert once.exists(), "no worker was killed"
    assert done.inserted == count * CHUNK_ROWS == table.count()
    read = engine.read(table)
    assert int(read["value"].sum().compute()) == int((np.arange(count * CHUNK_ROWS) % 7).sum())
    assert int(read["id"].max().compute()) == count * CHUNK_ROWS - 1
    assert orphans(Path(table.url)) == set()
    assert len(cluster.scheduler_info()["workers"]) >= 1
