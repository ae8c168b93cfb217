"""Row groups and files are bounded by bytes, so that a write beside large rows holds few of them in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table.tables import SETTINGS

from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import changes
from lockprovider.table.files import base_file
from lockprovider.table.files.encoding import encode_base_file
from lockprovider.table.format.layout import BaseFile

SPEC = TableSpec("t", pa.schema([("id", pa.int64()), ("t", pa.string())]), "id")


def row_groups(parts: list[pa.Table]) -> list[int]:
    schema = parts[0].schema
    keys = pa.array([str(number) for number in range(sum(part.num_rows for part in parts))])
    own = [pa.array(["1"] * part.num_rows) for part in parts]
    names = ("_hoodie_commit_time", "_hoodie_commit_seqno")
    given = [
        pa.table([column, column, *part.columns], names=[*names, *part.column_names])
        for column, part in zip(own, parts, strict=True)
    ]
    file = BaseFile("f-0", "0-0-0", "20240101000000000")
    written = encode_base_file(given, schema, keys=keys, partition="", base_file=file, table_name="t")
    footer = pq.ParquetFile(pa.BufferReader(written.data)).metadata
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


@pytest.mark.parametrize("in_parts_of", [1, 7, 100])
def test_row_group_ends_where_it_has_enough_rows_or_bytes(monkeypatch: pytest.MonkeyPatch, in_parts_of: int) -> None:
    monkeypatch.setattr(base_file, "ROW_GROUP_ROWS", 40)
    monkeypatch.setattr(base_file, "ROW_GROUP_BYTES", 100_000)
    texts = ["x"] * 60 + ["y" * 30_000] * 7 + ["z" * 300_000] * 2 + ["x"] * 31
    rows = pa.table({"t": texts})
    found = row_groups([rows[start : start + in_parts_of] for start in range(0, len(texts), in_parts_of)])
    assert sum(found) == len(texts)
    assert found[0] == 40
    starts = np.cumsum([0, *found])
    for start, count in zip(starts, found, strict=False):
        assert count == 1 or (count <= 40 and rows[start : start + count].nbytes <= 110_000)
    assert len(found) <= 12


def test_new_files_have_no_more_than_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "BYTES_PER_FILE", 100_000)
    table = Table.create(tmp_path / "t", SPEC, settings=SETTINGS)
    rows = pa.table({"id": range(100), "t": ["x" * 10_000] * 100})
    table.append(rows)
    assert len(table.snapshot().slices) == 10  # of 10 texts, and their numbers
    table.append(
        pa.RecordBatchReader.from_batches(
            rows.schema, rows.set_column(0, "id", pa.array(range(100, 200))).to_batches(5)
        )
    )
    assert len(table.snapshot().slices) == 30  # of two batches they would be too large
    assert table.count() == 200


# Row groups of 32 MB, and rows of 1 MB that compress to nothing smaller.
SCRIPT = """
import resource, sys
import numpy as np, pyarrow as pa
from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import changes
from lockprovider.table.files import base_file, merge

MB = 1 << 20
base_file.ROW_GROUP_BYTES = changes.BYTES_PER_FILE = 32 * MB
merge.BATCH_BYTES = 4 * MB

def rows(first, count):
    texts = np.random.default_rng(first).integers(33, 126, count * MB, dtype=np.uint8)
    offsets = (np.arange(count + 1) * MB).astype(np.int32)
    texts = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts))
    return pa.table({"id": pa.array(range(first, first + count)), "t": texts})

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

url, step = sys.argv[1:]
if step == "make":
    Table.create(url, TableSpec("t", rows(0, 1), "id")).append(rows(0, 64))
else:
    warm = Table.create(url + "-warm", TableSpec("t", rows(0, 1), "id"))
    warm.append(rows(5, 1))
    warm.upsert(rows(5, 1))
    before = peak()
    assert Table.open(url).upsert(rows(5, 1)).updated == 1
    print((peak() - before) / 32)
"""


def test_upsert_next_to_large_rows_holds_less_than_three_row_groups(tmp_path: Path) -> None:
    def run(step: str) -> Any:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "t"), step]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout

    run("make")
    assert float(run("upsert")) < 3
