"""Keys of one row in two spellings would be two rows: what the files hold decides, and two spellings are refused."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table.jvm_written import contents

from lockprovider.table import Table, TableSpec, UnsupportedSchema, UnsupportedTable
from lockprovider.table.files import base_file

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"id": [1, 2], "a": ["x", "x"], "b": ["y", "y"], "v": [10, 20]})
MOMENTS = pa.table(
    {"at": pa.array([datetime(2016, 12, 29, 9, 54, tzinfo=timezone.utc)], pa.timestamp("us", "UTC")), "v": [1]}
)


def unpacked(name: str, folder: Path) -> str:
    for path, data in contents(name).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return str(folder)


def rewrite_keys(folder: Path, change: dict[str, str]) -> None:
    """Give the rows of all base files the keys that another writer of Hudi would have given them."""
    for path in folder.rglob("*.parquet"):
        rows = pq.read_table(path, partitioning=None)
        keys = [change.get(key, key) for key in rows["_hoodie_record_key"].to_pylist()]
        place = rows.column_names.index("_hoodie_record_key")
        pq.write_table(rows.set_column(place, "_hoodie_record_key", pa.array(keys)), path)


@pytest.mark.parametrize("rows", [1, 2])
def test_upsert_finds_rows_of_hudi_102_with_a_complex_key_of_one_column(tmp_path: Path, rows: int) -> None:
    table = Table.open(unpacked("foreign/hudi102_complex_key", tmp_path / "t"))
    before = table.to_arrow()
    changed = before.slice(0, rows)
    changed = changed.set_column(
        changed.column_names.index("value"), "value", pa.array([99] * rows, changed["value"].type)
    )
    table.upsert(changed)
    table.upsert(changed)
    after = table.to_arrow()
    assert after.num_rows == before.num_rows
    assert after["value"].to_pylist().count(99) == rows
    table.share()
    assert table.config().raw["hoodie.write.complex.keygen.new.encoding"] == "true"  # what Hudi 1.2 is told
    table.delete(changed.select(["id", "a"]))
    assert table.count() == before.num_rows - rows


def test_new_table_names_its_single_complex_key_for_later_hudi(tmp_path: Path) -> None:
    table = Table.create(f"{tmp_path}/t", TableSpec("t", ROWS, "id", ("a", "b")))
    table.append(ROWS)
    table.upsert(ROWS)
    assert table.count() == 2
    assert table.config().raw["hoodie.write.complex.keygen.validation.enable"] == "false"
    files = [base_file.open_base_file(str(path)) for path in (tmp_path / "t").rglob("*.parquet")]
    keys = [base_file.read_columns(file)["_hoodie_record_key"] for file in files]
    assert {key for file in keys for key in file.to_pylist()} == {"id:1", "id:2"}


def test_write_is_refused_when_two_files_spell_keys_in_two_ways(tmp_path: Path) -> None:
    url = f"{tmp_path}/t"
    table = Table.create(url, TableSpec("t", ROWS, "id", ("a", "b")))
    table.append(ROWS.slice(0, 1))
    table.append(ROWS.slice(1, 1))
    rewrite_keys(tmp_path, {"id:1": "1"})
    with pytest.raises(UnsupportedTable, match=r"two ways.*'id:2'.*'1'"):
        Table.open(url).upsert(ROWS)


def test_write_is_refused_when_timestamp_keys_are_those_of_the_row_writer(tmp_path: Path) -> None:
    url = f"{tmp_path}/t"
    Table.create(url, TableSpec("t", MOMENTS, "at")).append(MOMENTS)
    Table.open(url).upsert(MOMENTS)
    assert Table.open(url).count() == 1
    rewrite_keys(tmp_path, {"1483005240000000": "2016-12-29 09:54:00.0"})
    with pytest.raises(UnsupportedTable, match=r"'2016-12-29 09:54:00.0'.*'1483005240000000'"):
        Table.open(url).upsert(MOMENTS)


def test_write_is_refused_when_rows_of_another_spelling_have_no_time(tmp_path: Path) -> None:
    url, times = f"{tmp_path}/t", [None, MOMENTS["at"][0].as_py()]
    rows = pa.table({"id": [1, 2], "at": pa.array(times, pa.timestamp("us", "UTC"))})
    Table.create(url, TableSpec("t", rows.schema, ("id", "at"))).append(rows)
    rewrite_keys(tmp_path, {"id:2,at:1483005240000000": "id:2,at:2016-12-29 09:54:00.0"})
    with pytest.raises(UnsupportedTable, match=r"'id:2,at:2016-12-29 09:54:00.0'.*'id:2,at:1483005240000000'"):
        Table.open(url).upsert(rows)


def test_timestamp_partition_is_refused_when_a_table_is_made(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSchema, match="'at'.*partition by a date"):
        Table.create(f"{tmp_path}/t", TableSpec("t", MOMENTS, "v", "at"))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.binary(), pa.list_(pa.int64())], ids=str)
@pytest.mark.parametrize(
    "spec", [{"record_keys": "k"}, {"record_keys": ("v", "k")}, {"record_keys": "v", "partition_by": "k"}]
)
def test_key_without_text_is_refused_when_a_table_is_made(
    tmp_path: Path, spec: dict[str, Any], kind: pa.DataType
) -> None:
    schema = pa.schema([("v", pa.int64()), ("k", kind)])
    with pytest.raises(UnsupportedSchema, match=r"'k' of type .* cannot be a key or partition; cast it"):
        Table.create(f"{tmp_path}/t", TableSpec("t", schema, **spec))
    assert not (tmp_path / "t").exists()


def test_nested_ordering_column_is_refused_when_a_table_is_made(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64()), ("o", pa.list_(pa.int64()))])
    with pytest.raises(UnsupportedSchema, match="ordering column 'o' of type .* cannot be compared"):
        Table.create(f"{tmp_path}/t", TableSpec("t", schema, "v", ordering="o"))
    assert not (tmp_path / "t").exists()


def test_write_is_refused_when_a_jvm_partitioned_by_a_timestamp(tmp_path: Path) -> None:
    table = Table.create(f"{tmp_path}/t", TableSpec("t", MOMENTS, "v"))
    table.append(MOMENTS)
    properties = tmp_path / "t/.hoodie/hoodie.properties"
    partitioned = "hoodie.table.partition.fields=at\nhoodie.table.keygenerator.type=SIMPLE\n"
    properties.write_text(properties.read_text() + partitioned)
    with pytest.raises(UnsupportedSchema, match="'at'"):
        Table.open(table.url).upsert(MOMENTS)
