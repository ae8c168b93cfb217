"""Small merge-on-read tables, of every kind that is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from hudi import HudiTableBuilder

from lockprovider import LockSettings
from lockprovider.table import HeartbeatSettings, Table, TableSettings, TableSpec

COLUMNS = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.string()), ("ts", pa.int64())])
SETTINGS = TableSettings(lock=LockSettings(timeout=20), heartbeat=HeartbeatSettings(interval_s=30))
KINDS: dict[str, dict[str, Any]] = {
    "by commit": {},
    "by event": {"ordering": "ts"},
    "by commit, buckets": {"buckets": 2},
    "by event, buckets": {"ordering": "ts", "buckets": 2},
}
Row = tuple[int, str, str, int]


def a_table(folder: Path | str, kind: str, storage_options: dict[str, Any] | None = None) -> Table:
    spec = TableSpec("t", COLUMNS, ("id",), ("part",), table_type="merge_on_read", **KINDS[kind])
    return Table.create(str(folder), spec, settings=SETTINGS, storage_options=storage_options)


def rows(*given: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(COLUMNS.names, one, strict=True)) for one in given], schema=COLUMNS)


def keys(*given: tuple[int, str]) -> pa.Table:
    return pa.table({"id": pa.array([one for one, _ in given], pa.int64()), "part": [part for _, part in given]})


def content(table: Table, **options: Any) -> list[Row]:
    return sorted(tuple(row.values()) for row in table.to_arrow(**options).to_pylist())  # type: ignore[misc]


def by_hudi_rs(table: Table) -> list[Row]:
    batches = HudiTableBuilder.from_base_uri(table.url).build().read()
    return sorted(
        tuple(row.values())
        for batch in batches
        for row in pa.record_batch(batch).select(COLUMNS.names).to_pylist()  # type: ignore[misc]
    )


def log_files(table: Table) -> list[str]:
    return sorted(
        str(path.relative_to(table.url))
        for path in Path(table.url).rglob(".*.log.*")
        if ".hoodie" not in str(path.relative_to(table.url))
    )
