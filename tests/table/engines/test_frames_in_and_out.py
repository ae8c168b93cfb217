"""Frames of pandas, polars, DuckDB and Dask: stored as they are or refused by column, and read back unchanged."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from lockprovider.table import DoesNotFit, InvalidRecords, Table, TableSpec, UnsupportedSchema

pl = pytest.importorskip("polars")

ST = pa.struct([("x", pa.int64()), ("d", pa.decimal128(10, 2))])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("c", pa.string()), ("raw", pa.binary()), ("day", pa.date32()), ("d", pa.decimal128(10, 2)),
        ("st", ST), ("l", pa.list_(pa.float64())), ("deep", pa.list_(ST)), ("m", pa.map_(pa.string(), ST)),
        ("at", pa.list_(pa.timestamp("us", "UTC"))),
    ]
)  # fmt: skip
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=timezone.utc)
BIG = {"x": 2**53 + 1, "d": Decimal("1.50")}
ROWS: list[dict[str, Any]] = [
    {"id": 1, "c": "a", "raw": b"\xff", "day": date(2024, 2, 29), "d": Decimal("0.10"), "st": BIG, "l": [1.5, None],
     "deep": [BIG, None], "m": [("k", BIG), ("l", None)], "at": [NOON, None]},
    {"id": 2, "c": None, "raw": None, "day": None, "d": None, "st": None, "l": [], "deep": [], "m": [], "at": None},
    {"id": 3, "c": "", "raw": b"", "day": date(1, 1, 1), "d": Decimal(-5), "st": {"x": None, "d": None},
     "l": [float("inf")], "deep": None, "m": None, "at": []},
]  # fmt: skip


def made(tmp_path: Path, rows: list[dict[str, Any]] | None = None, schema: pa.Schema = SCHEMA) -> Table:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", schema, "id"))
    if rows:
        table.append(pa.Table.from_pylist(rows, schema))
    return table


def stored(table: Table, columns: list[str] | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_arrow(columns).to_pylist()
    return sorted(rows, key=lambda row: row.get("id", 0))


def test_pandas_read_assign_upsert_changes_only_what_was_assigned(tmp_path: Path) -> None:
    table = made(tmp_path, ROWS)
    frame = table.to_pandas()
    assert str(frame["m"].dtype).startswith("map<string, struct<x: int64")
    table.upsert(frame.assign(c="new"))
    expected = pa.Table.from_pylist(ROWS, SCHEMA).to_pylist()
    assert stored(table) == [{**row, "c": "new"} for row in expected]


def test_dask_reads_dates_decimals_bytes_and_nested_columns_as_they_are(tmp_path: Path) -> None:
    import dask.dataframe  # noqa: F401

    from lockprovider.table.engines import dask as engine

    table = made(tmp_path, ROWS)
    frame = engine.read(table)
    assert frame["d"].sum().compute() == Decimal("-4.90")
    assert frame[frame["day"] == date(2024, 2, 29)]["id"].compute().tolist() == [1]
    engine.upsert(table, frame)
    assert stored(table) == pa.Table.from_pylist(ROWS, SCHEMA).to_pylist()


def polars_frame(**columns: Any) -> Any:
    return pl.DataFrame(
        {"id": [1], **{name: pl.Series(values, dtype=kind) for name, (values, kind) in columns.items()}}
    )


KINDS: dict[str, tuple[pa.DataType, Callable[[], Any], list[Any]]] = {
    "polars categorical": (pa.string(), lambda: polars_frame(v=(["a"], pl.Categorical)), ["a"]),
    "polars enum": (pa.string(), lambda: polars_frame(v=(["b"], pl.Enum(["a", "b"]))), ["b"]),
    "polars list of categorical": (
        pa.list_(pa.string()),
        lambda: polars_frame(v=([["a", None]], pl.List(pl.Categorical))),
        [["a", None]],
    ),
    "polars array": (pa.list_(pa.int64()), lambda: polars_frame(v=([[1, 2]], pl.Array(pl.Int32, 2))), [[1, 2]]),
    "polars null": (ST, lambda: polars_frame(v=([None], pl.Null)), [None]),
    "polars decimal": (
        pa.decimal128(10, 2),
        lambda: polars_frame(v=([Decimal("1.5")], pl.Decimal(38, 1))),
        [Decimal("1.50")],
    ),
    "pandas midnight": (
        pa.date32(),
        lambda: pd.DataFrame({"id": [1], "v": pd.to_datetime(["2024-02-29"])}),
        [date(2024, 2, 29)],
    ),
    "pandas uuid": (
        pa.string(),
        lambda: pd.DataFrame({"id": [1], "v": [uuid.UUID(int=255)]}),
        [str(uuid.UUID(int=255))],
    ),
    "pandas uuid bytes": (
        pa.binary(),
        lambda: pd.DataFrame({"id": [1], "v": [uuid.UUID(int=255)]}),
        [uuid.UUID(int=255).bytes],
    ),
    "pandas empty lists": (pa.list_(ST), lambda: pd.DataFrame({"id": [1], "v": [[]]}), [[]]),
    "pandas null field": (
        ST,
        lambda: pd.DataFrame({"id": [1], "v": [{"x": None, "d": None}]}),
        [{"x": None, "d": None}],
    ),
    "pandas dict as map": (
        pa.map_(pa.string(), pa.int64()),
        lambda: pd.DataFrame({"id": [1], "v": [{"a": 2**53 + 1}]}),
        [[("a", 2**53 + 1)]],
    ),
    "pandas tuples as map": (
        pa.map_(pa.string(), pa.int64()),
        lambda: pd.DataFrame({"id": [1], "v": [[("a", None)]]}),
        [[("a", None)]],
    ),
    "pandas map in struct": (
        pa.struct([("m", pa.map_(pa.string(), pa.int64())), ("n", pa.int32())]),
        lambda: pd.DataFrame({"id": [1], "v": [{"m": {"a": 1}, "n": 2}]}),
        [{"m": [("a", 1)], "n": 2}],
    ),
    "pandas map in list": (
        pa.list_(pa.map_(pa.string(), pa.int64())),
        lambda: pd.DataFrame({"id": [1], "v": [[{"a": 1}, None]]}),
        [[[("a", 1)], None]],
    ),
    "pandas category": (pa.string(), lambda: pd.DataFrame({"id": [1], "v": pd.Categorical(["k"])}), ["k"]),
    "pandas whole floats": (pa.int32(), lambda: pd.DataFrame({"id": [1], "v": [7.0]}), [7]),
    "hudis own columns": (
        pa.string(),
        lambda: pa.table({"_hoodie_commit_time": ["1"], "_hoodie_file_name": ["f"], "id": [1], "v": ["a"]}),
        ["a"],
    ),
    "list view": (
        pa.list_(pa.int64()),
        lambda: pa.table({"id": [1], "v": pa.array([[1]], pa.large_list_view(pa.int64()))}),
        [[1]],
    ),
    "run ends": (
        pa.string(),
        lambda: pa.table({"id": [1], "v": pa.RunEndEncodedArray.from_arrays([1], pa.array(["a"], pa.string_view()))}),
        ["a"],
    ),
}


@pytest.mark.filterwarnings("ignore:columns .* are Hudi's meta columns")
@pytest.mark.parametrize("kind", KINDS)
def test_frame_is_stored_as_the_library_gives_it(kind: str) -> None:
    column, frame, expected = KINDS[kind]
    table = Table.create(
        f"memory://frames/{kind}", TableSpec("t", pa.schema([("id", pa.int64()), ("v", column)]), "id")
    )
    table.append(frame())
    table.upsert(frame())
    assert table.to_arrow(["v"])["v"].to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "frame", "error", "text"),
    [
        (
            pa.binary(),
            lambda: polars_frame(v=([object()], pl.Object)),
            UnsupportedSchema,
            "'v' has polars' type Object",
        ),
        (
            pa.int64(),
            lambda: polars_frame(v=([1], pl.Int128)),
            UnsupportedSchema,
            r"'v' has polars' type Int128.*Decimal",
        ),
        (
            pa.list_(pa.int64()),
            lambda: polars_frame(v=([[1]], pl.List(pl.Int128))),
            UnsupportedSchema,
            r"'v' has polars' type List\(Int128\).*Decimal",
        ),
        (pa.int64(), lambda: pd.DataFrame({"id": [1], "v": [2**70]}), UnsupportedSchema, "'v' of dtype object"),
        (
            pa.date32(),
            lambda: pd.DataFrame({"id": [1], "v": pd.to_datetime(["2024-02-29 01:00"])}),
            DoesNotFit,
            "^v: timestamp",
        ),
        (
            pa.map_(pa.string(), pa.int64()),
            lambda: pd.DataFrame({"id": [1], "v": [{1: 1}]}),
            DoesNotFit,
            "^v.key: int64 does not fit string",
        ),
        (
            pa.map_(pa.string(), pa.int32()),
            lambda: pd.DataFrame({"id": [1], "v": [{"a": 2**40}]}),
            DoesNotFit,
            "^v.value: int64 does not fit int32: 1099511627776, in row 0",
        ),
    ],
)
def test_frame_column_without_a_type_is_refused_by_name(
    tmp_path: Path, column: pa.DataType, frame: Callable[[], Any], error: type[Exception], text: str
) -> None:
    table = made(tmp_path, schema=pa.schema([("id", pa.int64()), ("v", column)]))
    for verb in (table.append, table.upsert):
        with pytest.raises(error, match=text):
            verb(frame())
    assert table.count() == 0


def test_table_spec_of_a_frame_has_its_columns_and_refuses_objects() -> None:
    with pytest.raises(UnsupportedSchema, match="'v' has polars' type Object"):
        TableSpec("t", polars_frame(v=([object()], pl.Object)), "id")
    spec = TableSpec("t", pd.DataFrame({"id": [1], "u": [uuid.UUID(int=1)], "c": pd.Categorical(["a"])}), "id")
    assert [str(one) for one in Table.create("memory://frames/made", spec).schema().types] == [
        "int64",
        "string",
        "string",
    ]


def test_hudis_own_columns_are_left_out_with_a_warning(tmp_path: Path) -> None:
    table = made(tmp_path, schema=pa.schema([("id", pa.int64())]))
    rows = pa.table({"_hoodie_record_key": ["9"], "id": [1]})
    with pytest.warns(UserWarning, match="_hoodie_record_key.*left out") as warned:
        table.append(rows)
    assert [warning.filename for warning in warned] == [__file__]
    assert stored(table) == [{"id": 1}]
    with pytest.raises(InvalidRecords, match="_hoodie_operation is string and not in the table"):
        table.append(pa.table({"_hoodie_operation": ["D"], "id": [1]}))


def test_duckdb_gives_enums_uuids_and_lists(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    columns = pa.schema([("id", pa.int64()), ("e", pa.string()), ("l", pa.list_(pa.int64())), ("h", pa.int64())])
    table = made(tmp_path, schema=columns)
    table.append(duckdb.sql("select 1 id, 'a'::ENUM('a', 'b') e, [1, 2] l, 7::HUGEINT h"))
    assert stored(table) == [{"id": 1, "e": "a", "l": [1, 2], "h": 7}]
    with pytest.raises(DoesNotFit, match="^h: .*interval"):
        table.append(duckdb.sql("select 2 id, interval 1 day h"))
