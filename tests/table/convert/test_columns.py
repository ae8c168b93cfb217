"""The types that new columns get, and what becomes of a table's schema when fields are added."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fsspec_cas import InvalidInput
from lockprovider.table.convert.columns import leaf_types, new_fields, new_table_schema, with_columns
from lockprovider.table.errors import UnsupportedSchema
from lockprovider.table.format.schema import META_COLUMNS

UTC_US, LOCAL_US = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("given_type", "stored"),
    [
        (pa.int8(), pa.int32()), (pa.uint16(), pa.int32()), (pa.uint32(), pa.int64()), (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()), (pa.string_view(), pa.string()), (pa.binary(4), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()), (pa.date64(), pa.date32()),
        (pa.timestamp("ns", "Europe/Oslo"), UTC_US), (pa.timestamp("s"), LOCAL_US),
        (pa.decimal256(20, 2), pa.decimal128(20, 2)), (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.large_list(pa.int8()), pa.list_(pa.field("element", pa.int32()))),
        (pa.list_(pa.int8(), 3), pa.list_(pa.field("element", pa.int32()))),
        (pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.int32())),
        (pa.struct([pa.field("a", pa.int8(), nullable=False)]), pa.struct([("a", pa.int32())])),
    ],
)  # fmt: skip
def test_types_are_widened_to_those_in_use(given_type: pa.DataType, stored: pa.DataType) -> None:
    assert new_table_schema(pa.schema([pa.field("c", given_type, nullable=False)])) == pa.schema([("c", stored)])


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.uint64(), "int64 or decimal128"),
        (pa.decimal256(50, 2), "at most 38 digits"),
        (pa.decimal128(5, -2), "a scale within them"),
        (pa.duration("us"), "int64"),
        (pa.time64("us"), "int64"),
        (pa.null(), "the type that the column will have"),
        (pa.map_(pa.int32(), pa.int32()), "keys to string"),
        (pa.month_day_nano_interval(), "string or binary"),
        (pa.list_(pa.uint64()), r"'c\.element'.*decimal128"),
    ],
)
def test_value_that_cannot_be_stored_is_named_with_a_way_out(kind: pa.DataType, advice: str) -> None:
    with pytest.raises(UnsupportedSchema, match=advice):
        new_table_schema(pa.schema([("c", kind)]))


@pytest.mark.parametrize("columns", [["a b"], ["é"], ["1a"], [""], ["a", "A"], ["a", "a"]])
def test_column_names_that_engines_cannot_handle_are_refused(columns: list[str]) -> None:
    with pytest.raises(UnsupportedSchema, match="rename"):
        new_table_schema(pa.schema([pa.field(name, pa.int32()) for name in columns]))


def test_hudis_own_columns_are_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="_hoodie_record_key.*left out"):
        found = new_table_schema(pa.schema([("_hoodie_record_key", pa.string()), ("id", pa.int64())]))
    assert found.names == ["id"]


DEEP = pa.schema(
    [
        ("id", pa.int64()),
        ("st", pa.struct([("x", pa.int64())])),
        ("l", pa.list_(pa.field("element", pa.struct([("x", pa.int64())]), nullable=False))),
        ("m", pa.map_(pa.string(), pa.struct([("x", pa.list_(pa.field("element", pa.struct([("z", pa.int32())]))))]))),
    ]
)


@pytest.mark.parametrize(
    ("path", "column", "kind"),
    [
        ("st.y", "st", "struct<x: int64, y: string>"),
        ("l.element.y", "l", "list<element: struct<x: int64, y: string> not null>"),
        ("m.value.y", "m", "map<string, struct<x: list<element: struct<z: int32>>, y: string>>"),
        ("m.value.x.element.y", "m", "map<string, struct<x: list<element: struct<z: int32, y: string>>>>"),
        ("more", "more", "string"),
    ],
)
def test_path_adds_one_field_inside_a_column(path: str, column: str, kind: str) -> None:
    found = with_columns(DEEP, pa.schema([(path, pa.large_string())]))
    assert str(found.field(column).type) == kind
    assert leaf_types(found) != leaf_types(DEEP)
    assert with_columns(found, pa.schema([(path, pa.string())])) == found, "again changes nothing"
    assert all(found.field(one.name) == one for one in DEEP if one.name != column)


def test_wider_struct_adds_what_is_new_at_the_end() -> None:
    wider = pa.struct([("y", pa.string()), ("x", pa.int32()), ("in", pa.struct([("a", pa.int8())]))])
    found = with_columns(DEEP, pa.schema([("st", wider), ("id", pa.int32())]))
    assert str(found.field("st").type) == "struct<x: int64, y: string, in: struct<a: int32>>"
    assert found.names == DEEP.names


@pytest.mark.parametrize(
    ("added", "error", "text"),
    [
        ([("st", pa.struct([("x", pa.string())]))], UnsupportedSchema, "'st.x' is int64 in the table, not string"),
        ([("st.X", pa.string())], UnsupportedSchema, "'x' and 'X' in 'st' are one"),
        ([("st.a b", pa.string())], UnsupportedSchema, "'a b' in 'st' cannot be used"),
        ([("st.d", pa.duration("s"))], UnsupportedSchema, "'st.d' has type duration"),
        ([("st", pa.list_(pa.int64()))], UnsupportedSchema, "'st' is struct<x: int64> in the table"),
        ([("id", pa.string())], UnsupportedSchema, "'id' is int64 in the table, not string"),
        ([("no.y", pa.string())], InvalidInput, "there is no 'no' to add 'y' to"),
        ([("id.y", pa.string())], InvalidInput, "id is int64 and has no 'y'"),
        ([("l.y", pa.string())], InvalidInput, "l is list.* and has no 'y'.*`.element`"),
        ([("l.element", pa.string())], InvalidInput, "l is list.* and has no 'element'"),
        ([("m.key.y", pa.string())], InvalidInput, "m is map.* and has no 'key'"),
    ],
)
def test_fields_that_cannot_be_added_are_refused(
    added: list[tuple[str, pa.DataType]], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        with_columns(DEEP, pa.schema(added))


def test_outline_shows_fields_and_types_without_nullability() -> None:
    required = pa.schema([pa.field("st", pa.struct([pa.field("x", pa.int64(), nullable=False)]))])
    assert leaf_types(required) == leaf_types(pa.schema([("st", pa.struct([("x", pa.int64())]))]))
    assert leaf_types(required) != leaf_types(pa.schema([("st", pa.struct([("x", pa.int32())]))]))


def test_new_fields_of_rows_are_found_at_every_depth() -> None:
    wider = pa.struct([("y", pa.string()), ("x", pa.int32())])
    deep = pa.struct([("x", pa.large_list(pa.struct([("z", pa.int8()), ("a", pa.date32())])))])
    given = pa.schema([("st", wider), ("l", pa.list_(wider)), ("m", pa.map_(pa.string(), deep)), ("n", pa.int8())])
    more = new_fields(DEEP, given)
    assert more.names == ["st.y", "l.element.y", "m.value.x.element.a", "n"]
    assert new_fields(with_columns(DEEP, more), given).names == []


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (pa.schema([("1a", pa.int64())]), "column name '1a' cannot be used: .* and no digit first"),
        (pa.schema([("st", pa.struct([("1a", pa.int64())]))]), "column name '1a' in 'st' cannot be used"),
        (pa.schema([("st", pa.struct([(META_COLUMNS[0], pa.string())]))]), "in 'st' is one of Hudi's meta columns"),
        (pa.schema([("_hoodie_operation", pa.string())]), "'_hoodie_operation' is one of Hudi's meta columns"),
        (pa.schema([("_HOODIE_file_name", pa.string())]), "'_HOODIE_file_name' is one of Hudi's meta columns"),
    ],
)
def test_column_name_that_cannot_be_used_is_refused_with_its_place(schema: pa.Schema, text: str) -> None:
    with pytest.raises(UnsupportedSchema, match=text):
        new_table_schema(schema)
