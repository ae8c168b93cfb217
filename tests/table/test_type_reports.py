"""What people reported of types and nested columns in neighbouring systems, tried here; each test names its report."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from table.tables import removed

from lockprovider.table import DoesNotFit, Table, TableSpec
from lockprovider.table.convert import read_as
from lockprovider.table.format.metadata import decode_commit, encode_commit
from lockprovider.table.format.schema import to_avro

pl = pytest.importorskip("polars")


def made(tmp_path: Path, column: pa.DataType, **more: Any) -> Table:
    return Table.create(
        str(tmp_path / "t"), TableSpec("t", pa.schema([("id", pa.int64()), ("v", column)]), "id", **more)
    )


def stored(table: Table) -> list[Any]:
    found: list[Any] = table.to_arrow().sort_by("id")["v"].to_pylist()
    return found


def test_old_struct_is_read_by_name_where_a_field_came_between() -> None:
    """iceberg-rust #2617, #3255: children were matched by position; fields of one type changed places."""
    between = pa.struct([("a", pa.string()), ("b", pa.struct([("x", pa.int32())])), ("c", pa.string())])
    old = pa.table({"v": [{"a": "1", "c": "3"}]})
    assert read_as(old, pa.schema([("v", between)])).to_pylist() == [{"v": {"a": "1", "b": None, "c": "3"}}]
    swapped = pa.schema([("v", pa.list_(pa.struct([("c", pa.string()), ("a", pa.string())])))])
    assert read_as(pa.table({"v": [[{"a": "1", "c": "3"}]]}), swapped).to_pylist() == [{"v": [{"c": "3", "a": "1"}]}]


def test_nested_fields_in_another_order_are_written_by_name(tmp_path: Path) -> None:
    """apache/iceberg #886: fields out of order were refused; where they pass by position, values change places."""
    table = made(tmp_path, pa.struct([("f1", pa.string()), ("f2", pa.string())]))
    table.upsert(pa.table({"v": [{"f2": "2", "f1": "1"}], "id": [1]}))
    assert stored(table) == [{"f1": "1", "f2": "2"}]


def test_empty_list_inside_a_struct_stays_empty(tmp_path: Path) -> None:
    """pola-rs/polars #24250: it became a list with one struct of nulls."""
    frame = pl.DataFrame({"id": [1, 2], "v": [{"k": [{"item": 50, "item2": 10}]}, {"k": []}]})
    table = Table.create(str(tmp_path / "t"), TableSpec("t", frame, "id"))
    table.append(frame)
    assert stored(table) == [{"k": [{"item": 50, "item2": 10}]}, {"k": []}]
    assert table.to_polars().sort("id")["v"].to_list() == stored(table)


def test_all_empty_lists_of_one_batch_are_taken(tmp_path: Path) -> None:
    """pola-rs/polars #24250, second half: a batch whose lists are all empty has no element type."""
    table = made(tmp_path, pa.struct([("k", pa.list_(pa.struct([("item", pa.int64())])))]))
    table.append(pd.DataFrame({"id": [1], "v": [{"k": []}]}))
    table.upsert(pl.DataFrame({"id": [2], "v": [{"k": []}]}))
    assert stored(table) == [{"k": []}, {"k": []}]


def test_added_struct_with_required_fields_is_null_in_old_rows(tmp_path: Path) -> None:
    """delta-io/delta #6428: refused, as its inner field is required; #796: reading such a field failed."""
    table = made(tmp_path, pa.struct([("x", pa.int64())]))
    table.append(pa.table({"id": [1], "v": [{"x": 1}]}))
    table.add_columns(
        pa.schema([("st", pa.struct([pa.field("inner", pa.string(), nullable=False)])), ("v.y", pa.int8())])
    )
    assert table.to_arrow(["v", "st"]).to_pylist() == [{"v": {"x": 1, "y": None}, "st": None}]


@pytest.mark.parametrize("table_type", ["copy_on_write", "merge_on_read"])
def test_elements_that_became_required_or_nullable_do_not_stop_an_upsert(tmp_path: Path, table_type: str) -> None:
    """apache/hudi #8920: the merge failed, once the element of an array was nullable in one schema only."""
    table = made(tmp_path, pa.list_(pa.int64()), table_type=table_type)
    done = table.append(pa.table({"id": [1, 2], "v": [[1], [2]]}))
    required = pa.list_(pa.field("element", pa.int64(), nullable=False))
    written = table.timeline().written_at(done.instant)
    assert written is not None
    path = tmp_path / "t/.hoodie/timeline" / written.file_name
    said = decode_commit(path.read_bytes(), path.name)
    schema = pa.schema([("id", pa.int64()), ("v", required)])
    path.write_bytes(encode_commit(replace(said, schema_json=to_avro(schema, "t"))))
    removed(table, ".hoodie/.locks")  # the log knows the commit as it was; the JVM's have none
    jvms = Table.open(table.url)
    assert jvms.schema().field("v").type == required
    jvms.upsert(pa.table({"id": [2], "v": pa.array([[3]], pa.list_(pa.int64()))}))
    assert stored(jvms) == [[1], [3]]
    with pytest.raises(DoesNotFit, match="^v.element: null does not fit"):
        jvms.upsert(pa.table({"id": [2], "v": [[3, None]]}))


def test_column_whose_type_changed_is_refused_and_never_nulled(tmp_path: Path) -> None:
    """delta-io/delta #1551: a merge with evolving schemas made nulls of it."""
    table = made(tmp_path, pa.struct([("int2str", pa.int64())]))
    with pytest.raises(DoesNotFit, match="^v.int2str: string does not fit int64"):
        table.upsert(pa.table({"id": [1], "v": [{"int2str": "str"}]}))


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["apple", "pear"])])
def test_categories_of_polars_are_written_and_read_back(tmp_path: Path, kind: Any) -> None:
    """delta-io/delta-rs #3284 (a panic), #1326; pola-rs/polars #20438 (the table could not be read)."""
    frame = pl.DataFrame({"id": [1, 2], "v": pl.Series(["apple", None], dtype=kind)})
    table = Table.create(str(tmp_path / "t"), TableSpec("t", frame, "id"))
    table.append(frame)
    table.upsert(frame)
    assert table.to_polars().sort("id")["v"].to_list() == ["apple", None]


def test_large_whole_floats_are_the_same_number_as_decimals(tmp_path: Path) -> None:
    """apache/arrow #35576: 545803904 of float32 came out as 545803886.97, and its shortest text is 545803900."""
    table = made(tmp_path, pa.decimal128(38, 18))
    values = [float(545803904), float(2**60)]
    table.append(pa.table({"id": [1, 2], "v": pa.array(values, pa.float32())}))
    assert stored(table) == [Decimal(545803904), Decimal(2**60)]


def test_numbers_of_many_digits_are_refused_and_never_wrap_around(tmp_path: Path) -> None:
    """apache/arrow #44356: a text of many digits becomes any decimal; 1e300 became 0."""
    table = made(tmp_path, pa.decimal128(38, 10))
    with pytest.raises(DoesNotFit, match=r"^v: double does not fit decimal128\(38, 10\): 1e\+300, in row 0"):
        table.append(pa.table({"id": [1], "v": [1e300]}))


def test_decimals_become_the_nearest_double(tmp_path: Path) -> None:
    """apache/arrow-rs #10508, spiceai #13993: 1E-37 and 47.5 came out one bit off."""
    table = made(tmp_path, pa.float64())
    for number, value in enumerate(["1E-37", "47.5", "0.07", "46980911.48", "1"]):
        table.append(
            pa.table({"id": [number], "v": pa.array([Decimal(value)], pa.decimal128(38, 37 if "E" in value else 2))})
        )
    assert stored(table) == [1e-37, 47.5, 0.07, 46980911.48, 1.0]


def test_nanoseconds_are_accepted_unless_precision_would_be_lost(tmp_path: Path) -> None:
    """delta-io/delta-rs #685, apache/iceberg-python #541: pandas' timestamps were refused, or cut without a word."""
    table = made(tmp_path, pa.timestamp("us", "UTC"))
    table.append(pd.DataFrame({"id": [1], "v": [pd.Timestamp("2022-01-01", tz="America/New_York")]}))
    assert stored(table) == [datetime(2022, 1, 1, 5, tzinfo=timezone.utc)]
    with pytest.raises(DoesNotFit, match=r"^v: timestamp\[ns, tz=UTC\] does not fit.*in row 0"):
        table.append(pd.DataFrame({"id": [2], "v": [pd.Timestamp("2022-01-01", tz="UTC") + pd.Timedelta(1, "ns")]}))
