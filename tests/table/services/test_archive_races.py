"""Writers, readers and archivers of one table at once: no update is lost, and no reader sees a row come or go."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from lockprovider.table import HistoryGone, KeepActive, KeepCommits, Scan, Table, TableSettings, TableTransaction
from lockprovider.table.engines import arrow
from lockprovider.table.state import archive_index

FEW = TableSettings(
    lock=SETTINGS.lock, heartbeat=SETTINGS.heartbeat, retention=KeepCommits(1), archival=KeepActive(1, 2)
)
KEYS = 3
INCREMENTS = 15
AT_ONCE = 15  # commits that an archival finds: it keeps the lock for seconds, for what was handed over before
PAUSE_S = 0.05  # between two looks of a reader or an archiver: they are to meet writes, not to take the machine


def increment(table: Table, key: int) -> None:
    def work(txn: TableTransaction) -> None:
        (value,) = (row["value"] for row in Scan(txn).to_arrow().to_pylist() if row["id"] == key)
        arrow.write(txn, upserts=rows((key, "a", value + 1)))

    table.transact(work, retries=200)


def write(url: str, options: Any, key: int) -> None:
    table = Table.open(url, storage_options=options, settings=FEW)
    for number in range(INCREMENTS):
        # Half of them know the table by its log, half list it anew.
        increment(table if number % 2 else Table.open(url, storage_options=options, settings=FEW), key)


def archive(url: str, options: Any, over: threading.Event) -> int:
    table, count = Table.open(url, storage_options=options, settings=FEW), 0
    while not over.wait(PAUSE_S) or not count:
        if len(table.timeline().writes) >= AT_ONCE:
            count += len(table.archive().instants)
        if count % 3 == 0:
            table.clean()
    return count


def read(url: str, options: Any, over: threading.Event) -> int:
    seen, count, checkpoint = 0, 0, ""
    while not over.wait(PAUSE_S) or not count:
        table = Table.open(url, storage_options=options, settings=FEW)
        found = content(table)
        assert sorted(row[0] for row in found) == list(range(KEYS)), "a row came or went"
        total = sum(row[2] for row in found)
        assert total >= seen, "an update went away"
        seen, count = total, count + 1
        try:
            changes = table.changes(checkpoint)
            changes.to_arrow()
            checkpoint = changes.checkpoint
        except HistoryGone:
            checkpoint = ""
    return count


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.soak)])
def test_no_update_is_lost_and_no_row_changes_during_archival(
    request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    server = None if place == "local" else request.getfixturevalue("seaweedfs")
    url, options = (str(tmp_path / "t"), None) if server is None else (server.new_prefix(), server.storage_options)
    table = Table.create(url, SPEC, storage_options=options, settings=FEW)
    upsert(table, *((key, "a", 0) for key in range(KEYS)))
    over = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(archive, url, options, over), pool.submit(read, url, options, over)]
        try:
            for writer in [pool.submit(write, url, options, key) for key in range(KEYS)]:
                writer.result()
        finally:
            over.set()
        counts = [one.result() for one in others]
    assert content(table) == {(key, "a", INCREMENTS) for key in range(KEYS)}
    if server is None:
        assert by_hudi_rs(url) == content(table)
    table.archive()
    names = [i.file_name for i in archive_index.instants_since(table.knowledge, "0") if i.changes_rows]
    assert len(names) == len(set(names))
    assert len(names) + len(table.timeline().writes) == 2 + KEYS * INCREMENTS
    assert min(counts) > 0
