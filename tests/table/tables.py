"""Small tables for the tests, and what must hold of every table whatever happened to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from hudi import HudiTableBuilder
from patience import PATIENCE_S

from lockprovider import LockSettings
from lockprovider.table import HeartbeatSettings, Table, TableSettings, TableSpec
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.layout import Action, parse_base_file
from lockprovider.table.rewrite import clustering, compaction, executor

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.int64())])
SPEC = TableSpec("counters", SCHEMA, record_keys=("id",), partition_by=("part",))
SETTINGS = TableSettings(lock=LockSettings(timeout=20), heartbeat=HeartbeatSettings(interval_s=30))


def rows(*triples: tuple[int, str, int]) -> pa.Table:
    """Rows of (id, part, value)."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, triple, strict=True)) for triple in triples], schema=SCHEMA)


def let_beat_age(beat: Path) -> None:
    """As if hours had gone by since it was written."""
    beat.write_bytes(b"")  # else it says by which run of the machine it was written, and when
    os.utime(beat, (1, 1))


def upsert(table: Table, *triples: tuple[int, str, int], retries: int = 0) -> Any:
    """One transaction."""
    return table.transact(lambda txn: engine.write(txn, upserts=rows(*triples)), retries=retries)


def executing(table: Table, begin: str) -> AbstractContextManager[executor.Execution[Any]]:
    """Be the executor of a scheduled clustering or compaction, which runs nothing yet."""
    if begin in table.timeline().pending(Action.CLUSTERING):
        read, is_ours = partial(clustering._plan_of, table, begin), partial(clustering._is_ours, begin)
        return executor.executing(table, begin, Action.CLUSTERING, read, is_ours)
    read = partial(_compaction_plan, table, begin)
    return executor.executing(table, begin, Action.COMPACTION, read, compaction._is_ours)


def _compaction_plan(table: Table, begin: str, *_: object) -> Any:
    return compaction._plan_of(table, begin)


def removed(table: Table, below: str = "") -> None:
    """Its folder, or one in it, is gone: not before the freeing of its lock, for which nobody waits, is over."""
    table.lock._client.committer.resting.wait(PATIENCE_S)
    shutil.rmtree(Path(table.url) / below)


def content(table: Table) -> set[tuple[int, str, int]]:
    """All rows, by our own reader."""
    return {tuple(row.values()) for row in table.to_arrow().to_pylist()}


def by_hudi_rs(url: str, options: Mapping[str, str] | None = None) -> set[tuple[int, str, int]]:
    """All rows, by the independent reader; a row that is there twice fails."""
    found = [tuple(row[name] for name in SCHEMA.names) for row in dicts_by_hudi_rs(url, options)]
    assert len(found) == len(set(found)), "hudi-rs saw a row twice"
    return set(found)


def dicts_by_hudi_rs(url: str, options: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    batches = HudiTableBuilder.from_base_uri(url).with_options(dict(options or {})).build().read()
    return [row for batch in batches for row in batch.to_pylist()]


def data_files(folder: Path) -> set[str]:
    """Base files on disk, by the file system itself."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def orphans(folder: Path) -> set[str]:
    """Base files whose instant is not on the timeline at all: archival would make them visible."""
    begins = {path.name[:17] for path in (folder / ".hoodie" / "timeline").iterdir()}
    found = {path: parse_base_file(Path(path).name) for path in data_files(folder)}
    return {path for path, base in found.items() if base is None or base.begin not in begins}
