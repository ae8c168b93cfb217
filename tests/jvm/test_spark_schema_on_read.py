"""Columns that JVM Hudi 1.2 renames by schema-on-read, before and after commits of ours, in both kinds of table."""

# ruff: noqa: S608 - the names are this file's own

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jvm.shared_table import SETTINGS
from lockprovider.table import Table, UnsupportedTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.seaweedfs import SeaweedFS

    from jvm.spark import HudiSpark

pytestmark = pytest.mark.jvm
SESSION = {
    "hoodie.metadata.enable": "false",
    "hoodie.schema.on.read.enable": "true",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.avro.schema.validate": "false",
    "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
}
MADE = "(id int, fare double, n int, ts bigint, day string) using hudi partitioned by (day)"


@pytest.fixture
def evolving(hudi: HudiSpark) -> Iterator[HudiSpark]:
    for key, value in SESSION.items():
        hudi.sql(f"set {key}={value}")
    yield hudi
    for key in SESSION:
        hudi.sql(f"reset {key}")


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_rename_by_jvm_keeps_rows_for_jvm_and_is_refused_by_python(
    evolving: HudiSpark, seaweedfs: SeaweedFS, kind: str
) -> None:
    url, name = seaweedfs.new_prefix(), f"evolving_{kind}"
    keys = f"primaryKey='id', preCombineField='ts', type='{kind}', 'hoodie.embed.timeline.server'='false'"
    evolving.sql(f"create table {name} {MADE} location '{url}' tblproperties ({keys})")
    evolving.sql(f"insert into {name} values (1, 1.5, 10, 1, 'a'), (2, 2.5, 20, 1, 'a')")
    evolving.sql(f"alter table {name} alter column n type bigint")
    evolving.sql(f"insert into {name} values (3, 3.5, 30, 1, 'b')")

    table = Table.open(url, storage_options=seaweedfs.storage_options, settings=SETTINGS)
    row = table.to_arrow(filter="id = 1")
    table.upsert(row.set_column(1, "fare", pa.array([9.0])))
    table.append(row.set_column(0, "id", pa.array([8], pa.int32())))
    ours = sorted((row["id"], row["fare"], row["n"]) for row in table.to_arrow().to_pylist())
    assert ours == [(1, 9.0, 10), (2, 2.5, 20), (3, 3.5, 30), (8, 1.5, 10)]
    assert evolving.sql(f"select id, fare, n from {name} order by id") == ours

    evolving.sql(f"alter table {name} rename column fare to price")
    evolving.sql(f"insert into {name} values (4, 4.5, 40, 1, 'c')")
    assert evolving.sql(f"select id, price, n from {name} order by id") == sorted([*ours, (4, 4.5, 40)])
    renamed = row.rename_columns(["price" if name == "fare" else name for name in row.column_names])
    for use in (table.to_arrow, table.count, lambda: table.upsert(renamed)):
        with pytest.raises(UnsupportedTable, match="'price' is called 'fare' there"):
            use()
    assert evolving.sql(f"select id, price, n from {name} order by id") == sorted([*ours, (4, 4.5, 40)])
