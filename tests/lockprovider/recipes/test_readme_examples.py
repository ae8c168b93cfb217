"""The first example and the pipelines of each recipe's section are run as they stand, on local disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from patience import until
from test_documents import blocks

import lockprovider
from lockprovider.state import Fenced
from lockprovider.table import Table, TableSpec

README = "lockprovider/recipes/README.md"
ELECTION = "lockprovider/guides/elect-a-leader.md"


def run(begins: str, names: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The one block in which this stands."""
    (body,) = [one for one in blocks(README, "python") if begins in one]
    body = body.replace("s3://bucket", f"file://{folder}").replace("playground", f"file://{folder}")
    exec(compile(body, README, "exec"), names)  # noqa: S102 - that is the point
    return names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


class Batch:
    """What Spark hands to `foreachBatch`, as far as the examples ask it."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def count(self) -> int:
        return self.rows

    def agg(self, _: dict[str, str]) -> Batch:
        return self

    def first(self) -> list[str]:
        return ["2026-11-22"]


def test_state_example_keeps_watermark_when_a_batch_is_repeated(folder, capsys) -> None:
    for _ in range(2):
        names = run("state = lockprovider.state.open(", {}, folder)
    assert [one.serial for one in names["state"].history()] == [1], "the same watermark again writes nothing"
    assert "2026-11-22" in capsys.readouterr().out
    names["state"].put({"batch": -1, "rows": 0})
    write = run('lambda s: UNCHANGED if s["batch"]', names, folder)["write"]
    for batch_id, rows in ((0, 5), (1, 7), (1, 7), (2, 1), (0, 5)):
        write(Batch(rows), batch_id)
    assert names["state"].read().value == {"batch": 2, "rows": 13}


def test_queue_example_backfills_each_day_once_when_restarted(folder, capsys) -> None:
    for _ in range(2):  # as after a crash
        names = run("queue = lockprovider.queue.create(", {"lockprovider": lockprovider}, folder)
    assert sorted(capsys.readouterr().out.split()) == ["mon", "tue"]
    stat = names["queue"].stat()
    assert (stat.put, stat.ready, stat.claimed, stat.dead) == (2, 0, 0, 0)


def test_log_example_keeps_offsets_when_a_batch_is_repeated(folder) -> None:
    for _ in range(2):
        names = run("log = lockprovider.wal.create(", {"lockprovider": lockprovider}, folder)
    assert names["log"].end().offset == 1
    names["json"] = __import__("json")
    write = run('with log.appender("orders-stream")', names, folder)["write"]
    for batch_id in (0, 1, 1, 2, 2):
        write(Batch(4), batch_id)
    told = [names["json"].loads(record) for batch in names["log"].read() for record in batch.records][1:]
    assert [one["batch"] for one in told] == [0, 1, 2]


def test_election_example_refuses_a_deposed_compactor(folder, capsys) -> None:
    names = run("election = lockprovider.election.open(", {"lockprovider": lockprovider}, folder)
    assert capsys.readouterr().out.startswith("vm-7 ")
    schema = pa.schema([("id", pa.int64()), ("ts", pa.int64())])
    spec = TableSpec("trips", schema, "id", ordering="ts", buckets=1, table_type="merge_on_read")
    table = Table.create(f"file://{folder}/trips", spec)

    def upsert(table: Table, ts: int) -> None:
        table.upsert(pa.Table.from_pylist([{"id": 1, "ts": ts}], schema=schema), retries=9)

    upsert(table, 1)
    upsert(table, 2)

    def follow() -> None:
        until(lambda: table.timeline().writes[-1].action.value == "commit")
        upsert(table.under(("compactor", 1 << 52)), 3)  # somebody has led since

    body = next(one for one in blocks(ELECTION, "python") if "def main(term):" in one)
    main = body.partition("election.run")[0].replace("wait(60)", "wait(0)").replace("s3://bucket", f"file://{folder}")
    exec(compile(main, ELECTION, "exec"), names)  # noqa: S102 - that is the point
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        with pytest.raises(Fenced, match="of 'compactor' is over"):
            names["election"].run(names["main"])
        following.result()
    assert table.to_arrow().column("ts").to_pylist() == [3]
