"""A read of no columns has as many rows as one of all, in each way to read."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from table.tables import SETTINGS, SPEC, upsert

from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import dask as by_dask


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_read_of_no_columns_has_rows(tmp_path: Path, kind: str) -> None:
    spec = TableSpec("t", SPEC.schema, SPEC.record_keys, SPEC.partition_by, table_type=kind)
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    upsert(table, (1, "a", 1), (2, "a", 2), (3, "b", 3))
    upsert(table, (1, "a", 10))
    for where, count in ((None, 3), (pc.field("value") > 2, 2)):
        assert table.to_arrow([], where).num_rows == count
        assert table.to_pandas([], where).shape == (count, 0)
        scan = table.scan([], where)
        assert sum(batch.num_rows for batch in scan.to_reader()) == scan.count() == count
        assert len(by_dask.read(table.scan([], where))) == count
    assert table.to_arrow([]).schema.names == []


@pytest.mark.parametrize("keys", ["", "nested.id"])
def test_table_that_can_only_be_read_is_counted(tmp_path: Path, keys: str) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1), (2, "a", 2))
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    stated = "hoodie.table.recordkey.fields="
    properties.write_text(properties.read_text().replace(f"{stated}id", f"{stated}{keys}"))
    fresh = Table.open(table.url)
    assert (fresh.config().record_keys, fresh.count()) == ((keys,) if keys else (), 2)
