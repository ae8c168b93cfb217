"""Slices with large logs: their keys are taken in parts, and the rows are the same in less memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from table.mor_written import FOLDER, NAMES
from table.test_jvm_tables import comparable, unpacked

from lockprovider.table import Table, TableSpec
from lockprovider.table.errors import UnsupportedSchema
from lockprovider.table.files import slice_rows
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.slice_rows import KeyPart
from lockprovider.table.format.layout import Action

COLUMNS = pa.schema([("id", pa.int64()), ("value", pa.string()), ("ts", pa.int64())])


def in_parts(table: Table, parts: int, patch: pytest.MonkeyPatch) -> None:
    most = max(map(slice_rows.log_bytes, table.snapshot().slices))
    patch.setattr(slice_rows, "_PART_BYTES", -(-most // parts))


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_the_jvms_tables_are_the_same_in_parts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.open(unpacked(f"{FOLDER}/{name}", tmp_path / name))
    whole = comparable(table.to_arrow().to_pylist())
    in_parts(table, 3, monkeypatch)
    assert comparable(table.to_arrow().to_pylist()) == whole
    if table.config().bucket_index is None and not table.timeline().pending(Action.CLUSTERING):
        table.compact()
        assert comparable(table.to_arrow(read_optimized=True).to_pylist()) == whole


def test_each_key_is_in_one_part() -> None:
    keys = pa.array([f"id:{n}" for n in range(1000)])
    each = [KeyPart(number, 4).among(keys).to_numpy(zero_copy_only=False) for number in range(4)]
    assert np.sum(each, axis=0).tolist() == [1] * 1000
    assert all(150 < part.sum() < 350 for part in each)


@pytest.mark.parametrize("column", ["value.at", "dropped"])
def test_merge_by_a_column_that_the_table_lacks_is_refused_by_name(column: str) -> None:
    with pytest.raises(UnsupportedSchema, match=f"{column}.*read it read-optimized"):
        slice_rows.columns_to_merge(COLUMNS, MergeRule((column,)))


def peak(table: Table) -> tuple[int, int]:
    """How many rows a scan has, and the most bytes that Arrow held meanwhile."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        return sum(batch.num_rows for batch in table.scan().to_reader()), pool.max_memory()
    finally:
        pa.set_memory_pool(before)


def test_logs_of_a_slice_need_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TableSpec("t", COLUMNS, ("id",), ordering="ts", table_type="merge_on_read", buckets=1)
    table = Table.create(str(tmp_path / "t"), spec)
    count, texts = 40_000, np.random.default_rng(1)
    for turn in range(16):  # each key comes twice
        ids = np.arange(count // 8) * 8 + turn % 8
        values = [texts.bytes(100).hex() for _ in ids]
        table.upsert(pa.table({"id": ids, "value": values, "ts": np.full(len(ids), turn)}))
    whole, at_once = peak(table)
    in_parts(table, 8, monkeypatch)
    found, by_parts = peak(table)
    assert found == whole == count
    assert by_parts < at_once / 2
