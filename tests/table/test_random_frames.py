"""Random nested frames: written by one engine, read by each other one and by hudi-rs, and written again by it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hudi import HudiTableBuilder
from table.convert.nested import Tree, tree
from table.convert.oracle import REFUSED, same
from table.test_values_by_every_way import by_dask

from lockprovider.table import Table, TableSpec

duckdb, pl = pytest.importorskip("duckdb"), pytest.importorskip("polars")

ROWS, COLUMNS = 12, 4


def by_pandas(table: Table, rows: pa.Table) -> None:
    table.append(rows.to_pandas(types_mapper=pd.ArrowDtype))


WRITERS: dict[str, Callable[[Table, pa.Table], Any]] = {
    "arrow": lambda table, rows: table.append(rows.to_reader(max_chunksize=5)),
    "pandas": by_pandas,
    "dask": by_dask,
}
READERS: dict[str, Callable[[Table], Any]] = {
    "arrow": lambda table: table.scan().to_reader(),
    "pandas": lambda table: table.to_pandas(),
    "polars": lambda table: table.to_polars(),
    "duckdb": lambda table: table.to_duckdb(),
}


def chosen(random: Random, *, zones: bool) -> tuple[Tree, list[Any]]:
    """A random type that can be stored with its values; with `zones` none of its times is without a zone."""
    while True:
        one = tree(random, 3)
        values = [one.pick(random) for _ in range(ROWS)]
        text = str(one.column)
        hidden = zones and ("timestamp[us]" in text or "timestamp[ms]" in text)
        if not hidden and "ms, tz" not in text and all(one.stored(value) is not REFUSED for value in values):
            return one, values


def stored(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_arrow().sort_by("id").to_pylist()
    return rows


@pytest.mark.parametrize("table_type", ["copy_on_write", "merge_on_read"])
@pytest.mark.parametrize("writer", WRITERS)
def test_random_frames_are_read_by_every_engine_as_they_were_given(
    tmp_path: Path, writer: str, table_type: str, seed: int
) -> None:
    random = Random(seed)
    columns = [chosen(random, zones=True) for _ in range(COLUMNS)]
    names = [f"c{number}" for number in range(COLUMNS)]
    schema = pa.schema([("id", pa.int64()), *zip(names, (one.column for one, _ in columns), strict=True)])
    rows = pa.table([pa.array(range(ROWS)), *(one.array(values) for one, values in columns)], ["id", *names])
    wanted = [
        {"id": row, **{name: one.stored(values[row]) for name, (one, values) in zip(names, columns, strict=True)}}
        for row in range(ROWS)
    ]
    if writer != "arrow":  # pandas takes rows of its frames, which pyarrow cannot do with runs and list views
        rows = pa.Table.from_pylist(wanted, schema)
    table = Table.create(str(tmp_path / "t"), TableSpec("t", schema, "id", table_type=table_type))
    WRITERS[writer](table, rows)
    assert same(stored(table), wanted)
    table.upsert(table.to_arrow().slice(0, 5))
    batches = HudiTableBuilder.from_base_uri(table.url).build().read()
    theirs = [row for batch in batches for row in batch.select(schema.names).to_pylist()]
    assert same(sorted(theirs, key=lambda row: row["id"]), wanted)
    for reader, read in READERS.items():
        if reader == "polars" and "map<" in str(schema):
            continue  # polars has no maps
        copy = Table.create(str(tmp_path / reader), TableSpec("t", schema, "id", table_type=table_type))
        copy.upsert(read(table)) if reader != "arrow" else copy.append(read(table))
        expected = [{name: _of_pandas(value) for name, value in row.items()} for row in wanted]
        assert same(stored(copy), expected if reader == "pandas" else wanted), reader


def _of_pandas(value: Any) -> Any:
    """NaN of a plain pandas column is null."""
    return None if isinstance(value, float) and math.isnan(value) else value
