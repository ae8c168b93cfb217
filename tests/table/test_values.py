"""Values in, values out: what a column would change is refused by the path of its field, in every way in."""

from __future__ import annotations

import pickle
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hudi import HudiTableBuilder

from lockprovider.table import DoesNotFit, InvalidRecords, Table, TableSpec, UnsupportedSchema

ST = pa.struct([("x", pa.int64()), ("y", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("d", pa.decimal128(10, 2)),
        ("f", pa.float64()),
        ("st", ST),
        ("l", pa.list_(ST)),
        ("m", pa.map_(pa.string(), pa.int32())),
    ]
)


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    return Table.create(f"memory://values/{request.node.name}", TableSpec("t", SCHEMA, "id"))


def filled(**columns: Any) -> pa.Table:
    """One row of the table, with these columns in place of null ones."""
    nulls = {one.name: pa.nulls(1, one.type) for one in SCHEMA}
    return pa.table({**nulls, "id": pa.array([1]), **columns})


@pytest.mark.parametrize("values", [["x"], [1.5], [True], [date(2026, 1, 1)], [Decimal("1.5")]])
def test_call_that_an_unknown_column_advises_adds_it(table: Table, values: list[Any]) -> None:
    rows = filled(extra=pa.array(values))
    with pytest.raises(DoesNotFit) as caught:
        table.append(rows)
    call = str(caught.value).partition("first call ")[2]
    eval(call, {"pa": pa, "table": table, "TYPE": rows.schema.field("extra").type})  # noqa: S307 - our own text
    assert table.append(rows).inserted == 1


@pytest.mark.parametrize("write", ["append", "upsert", "delete"])
def test_key_in_the_index_of_a_frame_names_reset_index(table: Table, write: str) -> None:
    indexed = pd.DataFrame({"id": [1], "f": [1.5]}).set_index("id")
    with pytest.raises(
        DoesNotFit, match=r"(?m)id is missing, .* identifies each row; .* call reset_index\(\)$"
    ) as caught:
        getattr(table, write)(indexed)
    assert "null" not in str(next(misfit for misfit in caught.value.misfits if misfit.path == "id"))
    with pytest.raises(InvalidRecords, match=r"\['id'\].* by reset_index\(\)$"):
        Table.create("memory://values/indexed", TableSpec("t", indexed, "id"))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"st": pa.array([{"x": 5, "y": "a", "lost": "b"}])}, "st.lost is string and not in the table, whose st has"),
        ({"st": pa.array([{"X": 5, "y": "a"}])}, "st.X is int64 and not in the table, whose st has `x`; rename it"),
        ({"st": pa.array([{"x": 5}])}, "st.y is missing, of type string"),
        ({"st": pa.array([{"x": "5", "y": "a"}])}, "st.x: string does not fit int64; cast it first"),
        ({"l": pa.array([[{"x": 1.5, "y": ""}]])}, "l.element.x: double does not fit int64: 1.5, in row 0; cast it"),
        (
            {"m": pa.array([[("a", 2**40)]], pa.map_(pa.string(), pa.int64()))},
            "m.value: int64 does not fit int32: 10995",
        ),
        (
            {"m": pa.array([[("a", 1), ("a", 2)]], SCHEMA.field("m").type)},
            "m.key: equal keys in one map: 'a', in row 0",
        ),
        ({"d": pa.array([1.999])}, "d: double does not fit decimal128(10, 2): 1.999, in row 0"),
        ({"id": pa.array([1.5])}, "id: double does not fit int64: 1.5, in row 0"),
    ],
)
@pytest.mark.parametrize("verb", ["upsert", "transaction"])
def test_upsert_names_the_path_of_a_field_that_does_not_fit(
    table: Table, columns: dict[str, Any], text: str, verb: str
) -> None:
    with pytest.raises(DoesNotFit) as caught, table.transaction() as txn:
        (table if verb == "upsert" else txn).upsert(filled(**columns))
    assert str(caught.value.misfits[0]).startswith(text)
    assert isinstance(caught.value, (InvalidRecords, UnsupportedSchema))
    assert pickle.loads(pickle.dumps(caught.value)).misfits == caught.value.misfits
    assert table.count() == 0


def test_append_fills_missing_nested_fields_with_null(table: Table) -> None:
    table.append(pa.table({"id": [1], "st": [{"x": 5}], "l": [[{"y": "a"}, None]]}))
    (row,) = table.to_arrow(["st", "l"]).to_pylist()
    assert row == {"st": {"x": 5, "y": None}, "l": [{"x": None, "y": "a"}, None]}


def test_numbers_that_lose_nothing_are_stored_as_given(table: Table) -> None:
    table.upsert(filled(d=pa.array([5]), f=pa.array([Decimal("46980911.48")])))
    (row,) = table.to_arrow(["d", "f"]).to_pylist()
    assert row == {"d": Decimal("5.00"), "f": 46980911.48}


def test_delete_by_a_float_never_removes_the_row_of_another_decimal_key() -> None:
    rows = pa.table({"id": pa.array([Decimal("1.00")], pa.decimal128(10, 2))})
    table = Table.create("memory://values/decimal-key", TableSpec("t", rows, "id"))
    table.append(rows)
    with pytest.raises(DoesNotFit, match=r"^id: double does not fit decimal128\(10, 2\): 1.004, in row 0"):
        table.delete(pa.table({"id": [1.004]}))
    assert table.count() == 1
    table.delete(pa.table({"id": [1.0]}))
    assert table.count() == 0


def test_all_fields_that_do_not_fit_are_named_at_once(table: Table) -> None:
    with pytest.raises(DoesNotFit) as caught:
        table.append(pa.table({"id": ["1"], "st": [{"z": 1}], "more": [1]}))
    assert [one.path for one in caught.value.misfits] == ["more", "id", "st.z"]


def test_frames_of_one_transaction_are_converted_one_by_one(table: Table) -> None:
    with table.transaction() as txn:
        txn.append(pa.table({"id": [2**53 + 1]}))
        txn.append(pa.table({"id": [1.0]}))
    assert sorted(table.to_arrow(["id"])["id"].to_pylist()) == [1, 2**53 + 1]


# -- fields that are added inside columns --------------------------------------------------------------------------


@pytest.mark.parametrize("table_type", ["copy_on_write", "merge_on_read"])
def test_field_is_added_inside_struct_list_and_map(tmp_path: Path, table_type: str) -> None:
    inner = pa.struct([("x", pa.int64())])
    columns = pa.schema([("id", pa.int64()), ("st", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    spec = TableSpec("t", columns, "id", table_type=table_type)
    table = Table.create(str(tmp_path / "t"), spec)
    old = {"st": {"x": 1}, "l": [{"x": 2}, None], "m": [("k", {"x": 3})]}
    table.append(pa.Table.from_pylist([{"id": 1, **old}, {"id": 2, **old}, {"id": 3, "st": None}], columns))
    table.upsert(pa.Table.from_pylist([{"id": 2, **old}], columns))
    table.add_columns(pa.schema([("st.y", pa.string()), ("l.element.y", pa.string()), ("m.value.y", pa.string())]))
    widened = {"st": {"x": 1, "y": None}, "l": [{"x": 2, "y": None}, None], "m": [("k", {"x": 3, "y": None})]}
    expected = [{"id": 1, **widened}, {"id": 2, **widened}, {"id": 3, "st": None, "l": None, "m": None}]
    assert in_order(table) == expected
    with pytest.raises(
        DoesNotFit, match=r"st\.y is missing(.|\n)*l\.element\.y is missing(.|\n)*m\.value\.y is missing"
    ):
        table.upsert(pa.Table.from_pylist([{"id": 1, **old}], columns))
    assert table.count("st is null") == 1
    new = {"st": {"x": 1, "y": "a"}, "l": [{"x": 2, "y": "b"}], "m": [("k", {"x": 3, "y": "c"})]}
    table.upsert(pa.Table.from_pylist([{"id": 2, **new}], table.schema()))
    table.append(pa.Table.from_pylist([{"id": 4, **old}], columns))
    expected = [expected[0], {"id": 2, **new}, expected[2], {"id": 4, **widened}]
    assert in_order(table) == expected
    if table_type == "merge_on_read":
        table.compact()
        assert in_order(table) == expected
    assert in_order(Table.open(table.url)) == expected
    assert by_hudi_rs(table) == expected, "of a merge-on-read table after a compaction only"


def by_hudi_rs(table: Table) -> list[dict[str, Any]]:
    names, batches = table.schema().names, HudiTableBuilder.from_base_uri(table.url).build().read()
    return sorted((row for batch in batches for row in batch.select(names).to_pylist()), key=lambda row: row["id"])


def in_order(table: Table) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])


def test_filter_of_a_nested_field_finds_rows_of_files_older_than_it(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("st", pa.struct([("x", pa.int64())]))])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", columns, "id"))
    table.append(pa.table({"id": [1], "st": [{"x": 1}]}))
    table.add_columns(pa.schema([("st.y", pa.string())]))
    table.append(pa.table({"id": [2], "st": [{"x": 1, "y": "a"}]}))
    assert table.to_arrow(["id"], pc.field("st", "x") == 1).num_rows == 2
    assert table.to_arrow(["id"], pc.field("st", "y") == "a")["id"].to_pylist() == [2]
    assert table.to_arrow(["id"], pc.field("st", "y").is_null())["id"].to_pylist() == [1]


def test_keys_partitions_and_ordering_are_those_of_converted_values(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us")), ("v", pa.string())])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", columns, "id", "day", ordering="at"))
    first, later = pd.Timestamp("2024-02-29"), pd.Timestamp("2024-02-29 12:00")
    table.append(pd.DataFrame({"id": [5, 7], "day": [first] * 2, "at": [later] * 2, "v": pd.Categorical(["a", "b"])}))
    table.upsert(pd.DataFrame({"id": [5.0], "day": [first], "at": [first], "v": ["older"]}))
    assert table.to_arrow(["id", "day", "v"]).sort_by("id").to_pylist() == [
        {"id": 5, "day": date(2024, 2, 29), "v": "a"}, {"id": 7, "day": date(2024, 2, 29), "v": "b"},
    ]  # fmt: skip
    with pytest.raises(DoesNotFit, match="^id: .*string does not fit int64"):
        table.delete(pd.DataFrame({"id": ["007"], "day": [first]}))
    with pytest.raises(DoesNotFit, match=r"^day: timestamp\[.s\] does not fit date32"):
        table.delete(pd.DataFrame({"id": [7], "day": [later]}))
    assert table.delete(pd.DataFrame({"id": [7.0], "day": [first]})).deleted == 1
    assert table.count() == 1
