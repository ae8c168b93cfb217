from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table.jvm_written import TABLES, base_files, contents

from lockprovider.table import Table, TableSpec
from lockprovider.table.convert.columns import new_table_schema
from lockprovider.table.errors import Corrupt, UnsupportedSchema
from lockprovider.table.format import schema
from lockprovider.table.format.properties import parse_properties

UTC_US, LOCAL_US = pa.timestamp("us", "UTC"), pa.timestamp("us")

flat = st.sampled_from(
    [
        pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), UTC_US,
        LOCAL_US, pa.decimal128(10, 5), pa.decimal128(38, 0), pa.decimal128(1, 1),
    ]
)  # fmt: skip
names = st.lists(st.text("abcXYZ_", min_size=1, max_size=5), min_size=1, max_size=4, unique_by=str.lower)


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return names.flatmap(
        lambda found: st.tuples(*[inner for _ in found]).map(
            lambda kinds: pa.struct(list(zip(found, kinds, strict=True)))
        )
    )


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    lists = inner.map(lambda kind: pa.list_(pa.field("element", kind)))
    return lists | inner.map(lambda kind: pa.map_(pa.string(), kind)) | structs(inner)


schemas = structs(st.recursive(flat, nested, max_leaves=4)).map(
    lambda kind: pa.schema([kind.field(index) for index in range(kind.num_fields)])
)


def stored_schema(table: str) -> str:
    text = parse_properties(contents(table)[".hoodie/hoodie.properties"]).schema_json
    assert text is not None
    return text


@given(schemas)
def test_schemas_survive_an_avro_round_trip(wanted: pa.Schema) -> None:
    text = schema.to_avro(wanted, "my-table")
    assert schema.from_avro(text) == wanted
    fastavro.parse_schema(json.loads(text))  # valid Avro: no name is defined twice
    assert schema.to_avro(schema.from_avro(text), "my-table") == text


@given(schemas)
def test_canonical_schema_stays_unchanged(wanted: pa.Schema) -> None:
    assert new_table_schema(wanted) == wanted


@pytest.mark.parametrize("table", TABLES)
def test_jvm_schemas_are_read_and_equal_ours_up_to_union_order(table: str) -> None:
    theirs = stored_schema(table)
    found = schema.from_avro(theirs)
    assert len(found) >= 5
    ours = json.loads(schema.to_avro(found, parse_properties(contents(table)[".hoodie/hoodie.properties"]).name))
    assert null_first(json.loads(theirs)) == null_first(ours)


def null_first(avro: object) -> object:
    if isinstance(avro, dict):
        return {key: null_first(value) for key, value in avro.items() if key != "default"}
    if isinstance(avro, list) and "null" in avro:
        return ["null", *(null_first(option) for option in avro if option != "null")]
    return [null_first(one) for one in avro] if isinstance(avro, list) else avro


@pytest.mark.parametrize(("table", "path"), base_files())
def test_stored_schema_matches_the_files(table: str, path: str) -> None:
    in_file = pq.read_schema(io.BytesIO(contents(table)[path])).remove_metadata()
    assert tuple(in_file.names[:5]) == schema.META_COLUMNS
    data = new_table_schema(schema.without_meta(in_file))
    assert data == schema.from_avro(stored_schema(table))
    assert schema.with_meta(data).names == in_file.names


@pytest.mark.parametrize(("digits", "size"), [(1, 1), (2, 1), (3, 2), (10, 5), (15, 7), (18, 8), (19, 9), (38, 16)])
def test_decimals_have_the_least_size_that_holds_them(digits: int, size: int) -> None:
    avro = json.loads(schema.to_avro(pa.schema([("d", pa.decimal128(digits, 0))]), "t"))
    assert avro["fields"][0]["type"][1]["size"] == size
    assert 256**size // 2 > 10**digits - 1 >= 256 ** (size - 1) // 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '"string"', '{"type": "enum", "fields": []}'])
def test_invalid_schema_text_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match="the table schema is"):
        schema.from_avro(text)


@pytest.mark.parametrize("table_type", ["copy_on_write", "merge_on_read"])
def test_rows_of_deep_structs_are_stored(tmp_path: Path, table_type: str) -> None:
    """Each struct takes four levels of the schema's JSON."""
    kind: Any = pa.int64()
    value: Any = 7
    for _ in range(60):
        kind, value = pa.struct([("a", kind)]), {"a": value}
    rows = pa.table({"id": [1], "deep": [value]}, pa.schema([("id", pa.int64()), ("deep", kind)]))
    table = Table.create(str(tmp_path / "t"), TableSpec("t", rows.schema, "id", table_type=table_type))
    table.append(rows)
    table.upsert(rows)
    assert Table.open(table.url).to_arrow().equals(rows)


def test_avro_types_out_of_reach_are_refused_by_name() -> None:
    for kind in ({"type": "int", "logicalType": "time-millis"}, ["null", "int", "string"]):
        record = {"type": "record", "name": "r", "fields": [{"name": "c", "type": kind}]}
        with pytest.raises(UnsupportedSchema, match="'c'"):
            schema.from_avro(json.dumps(record))
