"""Shapes of which owners of Hudi tables reported doubled or lost rows, with two engines or releases on one table.

Each is made by JVM Hudi. Then we write the row again that the report lost or doubled: it is in the table once, for
them and for us, or our write is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from table.tables import SCHEMA, SETTINGS, SPEC, content, rows, upsert

from jvm.artifacts import HUDI
from jvm.key_texts import CONSISTENT, DRIVER, QUICK, ROW_WRITER, alone
from jvm.spark import HudiError, HudiSpark
from lockprovider.table import Table, TableSpec, UnsupportedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.jvm
BULK = {"hoodie.datasource.write.operation": "bulk_insert", ROW_WRITER: "true"}
UPSERT = {"hoodie.datasource.write.operation": "upsert"}
ENCODING = "hoodie.write.complex.keygen.new.encoding"
OURS = {"hoodie.datasource.write.hive_style_partitioning": "false", "hoodie.table.name": SPEC.name}
UNCHECKED = {"hoodie.write.complex.keygen.validation.enable": "false"}
SPELLED = "has the key 'id:1,at:2024-01-02 03:04:05.0'"
ROWS = "select 1 as id, 7L as user, timestamp'2024-01-02 03:04:05' as at, 'a' as part, {0}L as value"


@dataclass(frozen=True)
class Report:
    """What JVM Hudi is told, and how our write of the same row is answered."""

    keys: str
    generator: str = ""
    first: Mapping[str, str] = field(default_factory=dict)
    refused: str | None = None
    part: str = "part"


def named(generator: str) -> str:
    return f"org.apache.hudi.keygen.{generator}"


REPORTS = {
    "hudi 10508: one key, complex generator, a partition": Report("id", "ComplexKeyGenerator", UPSERT | UNCHECKED),
    "hudi 10508: the same, and the encoding of 0.14.1": Report(
        "id", "ComplexKeyGenerator", UPSERT | UNCHECKED | {ENCODING: "true", "hoodie.write.table.version": "8"}
    ),
    "hudi 9091: two keys, no partition, bulk_insert": Report("id,user", "NonpartitionedKeyGenerator", BULK, part=""),
    "hudi 8981: one key, no partition, bulk_insert": Report("id", "NonpartitionedKeyGenerator", BULK, part=""),
    "hudi 10303, 3313: a time in the key, bulk_insert": Report("id,at", "", BULK, refused=SPELLED),
    "hudi PR 7894: the same, consistent": Report("id,at", "", BULK | CONSISTENT, refused=SPELLED),
    "hudi PR 7894: a time in the key, upsert": Report("id,at", "", UPSERT),
    "hudi 6070: hive style": Report("id", "", BULK | {"hoodie.datasource.write.hive_style_partitioning": "true"}),
    "hudi 12910: a custom generator": Report(
        "id", "CustomKeyGenerator", UPSERT, part="part:simple", refused="keygenerator.type=CUSTOM"
    ),
    "hudi 6966: a generator of times": Report(
        "id",
        "TimestampBasedKeyGenerator",
        UPSERT
        | {
            "hoodie.keygen.timebased.timestamp.type": "SCALAR",
            "hoodie.keygen.timebased.timestamp.scalar.time.unit": "days",
            "hoodie.keygen.timebased.output.dateformat": "yyyy/MM/dd",
        },
        part="value",
        refused="keygenerator.type=TIMESTAMP",
    ),
}


@pytest.fixture(scope="module")
def hudi(start_release: Callable[..., HudiSpark], tmp_path_factory: pytest.TempPathFactory) -> Iterator[HudiSpark]:
    with start_release(HUDI, tmp_path_factory.mktemp("reports"), **DRIVER) as hudi:
        yield hudi


@pytest.mark.parametrize("name", REPORTS)
def test_row_written_again_by_python_exists_once_or_is_refused_by_name(
    hudi: HudiSpark, tmp_path: Path, name: str
) -> None:
    report, url = REPORTS[name], str(tmp_path / "t")
    fields = {
        "hoodie.table.name": "t",
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.datasource.write.recordkey.field": report.keys,
        "hoodie.datasource.write.partitionpath.field": report.part,
        **({"hoodie.datasource.write.keygenerator.class": named(report.generator)} if report.generator else {}),
    }
    hudi.save(ROWS.format(1), url, {**QUICK, **fields, **report.first})
    table = Table.open(url, settings=SETTINGS)
    row = table.to_arrow()
    row = row.set_column(row.schema.get_field_index("value"), "value", pa.array([2], pa.int64()))
    if report.refused:
        with pytest.raises(UnsupportedTable, match=report.refused):
            table.upsert(row)
        assert hudi.read(url, ["id"]) == [(1,)]
    else:
        table.upsert(row)
        assert hudi.read(url, ["id", "value"]) == [(1, 2)]
        hudi.save(ROWS.format(3), url, {**QUICK, **fields, **report.first, **UPSERT})
        assert [(one["id"], one["value"]) for one in Table.open(url).to_arrow().to_pylist()] == [(1, 3)]


def test_rows_inserted_into_nonempty_buckets_are_all_kept(hudi: HudiSpark, tmp_path: Path) -> None:
    """Hudi 9742: an `insert` into a bucket with a file group lost its rows."""
    url = str(tmp_path / "t")
    table = alone(Table.create(url, replace(SPEC, buckets=2), settings=SETTINGS))
    upsert(table, *((key, "a", key) for key in range(4)))
    given = QUICK | OURS
    query = "select * from values (4L, 'a', 4L), (5L, 'a', 5L) as t(id, part, value)"
    hudi.save(query, url, given | {"hoodie.datasource.write.operation": "insert"})
    table = Table.open(url, settings=SETTINGS)  # the JVM has upgraded it to version 9
    upsert(table, (5, "a", 50), (6, "a", 6))
    expected = {*((key, "a", key) for key in (0, 1, 2, 3, 4, 6)), (5, "a", 50)}
    assert content(table) == set(hudi.read(url, SCHEMA.names)) == expected


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_row_moved_to_another_partition_by_global_index_exists_once(hudi: HudiSpark, tmp_path: Path, kind: str) -> None:
    """Hudi 13153: readers saw a row in both partitions."""
    url = str(tmp_path / "t")
    table = alone(Table.create(url, replace(SPEC, table_type=kind), settings=SETTINGS))
    upsert(table, (1, "a", 1), (2, "a", 2))
    moving = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true"}
    given = QUICK | OURS
    hudi.save("select 1L as id, 'b' as part, 10L as value", url, given | UPSERT | moving)
    assert content(table) == set(hudi.read(url, SCHEMA.names)) == {(1, "b", 10), (2, "a", 2)}
    upsert(table, (1, "b", 11))
    table.delete(rows((2, "a", 0)))
    assert content(table) == set(hudi.read(url, SCHEMA.names)) == {(1, "b", 11)}


@pytest.mark.parametrize("old_lists", [None, "false"])
def test_jvm_rewrites_list_with_null_with_the_setting_from_the_readme(
    start_release: Callable[..., HudiSpark], tmp_path: Path, old_lists: str | None
) -> None:
    """Its merge writes lists in an older form, which has no place for a null."""
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.int64())), ("value", pa.int64())])
    url = str(tmp_path / "t")
    table = alone(Table.create(url, TableSpec("t", schema, "id"), settings=SETTINGS))
    table.upsert(pa.Table.from_pylist([{"id": 1, "tags": [1, None], "value": 1}, {"id": 2, "value": 2}], schema=schema))
    told = {} if old_lists is None else {"spark.hadoop.parquet.avro.write-old-list-structure": old_lists}
    query = "select 2L as id, array(7L) as tags, 20L as value"
    options = {**QUICK, **OURS, "hoodie.table.name": "t", **UPSERT}
    with start_release(HUDI, tmp_path, **DRIVER, **told) as hudi:
        if old_lists is None:
            with pytest.raises(HudiError):
                hudi.save(query, url, options)
        else:
            hudi.save(query, url, options)
    found = {(one["id"], one["value"]) for one in Table.open(url).to_arrow().to_pylist()}
    assert found == {(1, 1), (2, 2 if old_lists is None else 20)}
