"""A lock and a table by way of obstore, with clients in other processes, and beside clients that use aiobotocore."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import lockprovider
from lockprovider import NotAcquired
from lockprovider.table import Table, TableSpec

SCHEMA = pa.schema([("id", pa.int64()), ("by", pa.string())])


def elsewhere(call: Any, *args: Any) -> Any:
    """In a process that was started anew: one that is forked cannot use obstore's threads."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        return processes.submit(call, *args).result()


def rows(*ids: int, by: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "by": [by] * len(ids)}, schema=SCHEMA)


def epoch_of(lock: lockprovider.Lock) -> int | None:
    try:
        with lock.acquire(blocking=False) as lease:
            return lease.epoch
    except NotAcquired:
        return None


def upserted(table: Table, *ids: int) -> None:
    table.upsert(rows(*ids, by="child"))


def test_lock_excludes_other_processes_and_other_clients(over_obstore, seaweedfs):
    url = over_obstore.new_prefix()
    mine, sent = (lockprovider.lock(url, storage_options=over_obstore.storage_options) for _ in range(2))
    usual = lockprovider.lock(url, storage_options=seaweedfs.storage_options)
    with mine.acquire() as lease:
        assert elsewhere(epoch_of, sent) is None
        assert epoch_of(usual) is None
        held = lease.epoch
    after = elsewhere(epoch_of, sent)
    assert after is not None
    assert held < after
    assert after < epoch_of(usual)


def test_table_is_written_by_processes_and_other_clients(over_obstore, seaweedfs):
    url = over_obstore.new_prefix()
    spec = TableSpec("t", SCHEMA, record_keys=("id",))
    mine = Table.create(url, spec, storage_options=over_obstore.storage_options)
    usual = Table.open(url, storage_options=seaweedfs.storage_options)
    mine.append(rows(1, 2, 3, by="me"))
    elsewhere(upserted, mine, 2, 4)
    usual.upsert(rows(3, by="the usual client"))
    mine.delete("id = 1")
    expected = {2: "child", 3: "the usual client", 4: "child"}
    for table in (mine, usual):
        found = table.to_arrow(["id", "by"])
        assert dict(zip(found["id"].to_pylist(), found["by"].to_pylist(), strict=True)) == expected
    with pytest.raises(FileNotFoundError):
        mine.store.read("nothing")
