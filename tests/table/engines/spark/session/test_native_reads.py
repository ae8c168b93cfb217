"""Base files that Spark's own reader reads: the rows are those that Python reads, of every table of the tests."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import types
from pyspark.sql.functions import lit
from table.conftest import QUICK
from table.engines.spark.spark_tables import filled, frame
from table.files.test_calendar import DAY, OLD, OLD_DAY, TIME, written
from table.jvm_written import TABLES
from table.mor_written import FOLDER, NAMES
from table.tables import SETTINGS, SPEC, content, removed, rows, upsert
from table.test_jvm_tables import META, comparable, unpacked

from fsspec_cas import InvalidInput
from lockprovider.table import HistoryGone, KeepVersions, Table, TableSpec, UnsupportedTable
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.spark.functions import has_alike
from lockprovider.table.files.base_file import LEGACY_KEY, SPARK_KEY

UTC = dt.timezone.utc
EVERY = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
        ("large", pa.decimal128(38, 10)),
        ("many", pa.list_(pa.field("element", pa.int32()))),
        ("one", pa.struct([("a", pa.string()), ("b", pa.list_(pa.field("element", pa.struct([("c", pa.int64())]))))])),
        ("named", pa.map_(pa.string(), pa.int64())),
    ]
)
GAP, NO_DAY = (dt.datetime(*at, tzinfo=UTC).replace(tzinfo=None) for at in ((2026, 3, 29, 2, 30), (1582, 10, 10)))
WHERE = (
    "single = 0", "double > 1", "double = 'NaN'", "at < '1970-01-01'", "text = ''", "price < 0", "one.a is null",
    "id = 9",
)  # fmt: skip
VALUES: list[dict[str, Any]] = [
    {
        "id": 1, "small": -1, "single": 0.1, "double": float("inf"), "flag": True, "text": "ä😀", "data": b"\x00\xff",
        "day": dt.date(2026, 11, 23), "at": dt.datetime(2026, 3, 29, 1, 30, 0, 7, UTC),
        "local": GAP, "price": Decimal("-1.25"), "large": Decimal("0.0000000001"),
        "many": [1, None], "one": {"a": None, "b": [{"c": 1}, None]}, "named": {"x": 1, "y": None},
    },
    {"id": 2, "double": 5e-324},
    {
        "id": 3, "single": -0.0, "double": float("nan"), "text": "", "data": b"", "day": dt.date(1, 1, 1),
        "at": dt.datetime(1, 1, 1, tzinfo=UTC), "local": NO_DAY, "price": Decimal("99999999.99"),
        "many": [], "one": {"a": "", "b": []}, "named": {},
    },
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it(spark: Any) -> Any:
    """Spark reads by other code where it compiles no plans."""
    for key in QUICK:
        spark.conf.unset(key)
    yield
    for key, value in QUICK.items():
        spark.conf.set(key, value)


def by_spark(spark: Any, table: Table, columns: list[str] | None = None, **options: Any) -> tuple[pa.Table, int]:
    """All rows, which Python reads alike, and how many files Spark read itself."""
    found = engine.read(spark, table, columns, **options)
    other = engine.read(spark, table, columns, **options, native_reads=False)
    assert other.inputFiles() == []
    assert [(one.name, one.dataType) for one in found.schema] == [(one.name, one.dataType) for one in other.schema]
    mine = found.toArrow()
    assert comparable(mine.to_pylist()) == comparable(other.toArrow().to_pylist())
    return mine, len(found.inputFiles())


def slices(table: Table) -> tuple[int, int]:
    """How many there are, and how many of them have no log files."""
    found = table.snapshot().slices
    return len(found), sum(not one.logs for one in found)


@pytest.mark.parametrize(
    ("name", "optimized"),
    [(name, False) for name in (*TABLES, f"{FOLDER}/mor_v8_compacted_later_logs", f"{FOLDER}/mor_v8_deletes")]
    + [(f"{FOLDER}/mor_v8_compacted_later_logs", True)]
    + [pytest.param(f"{FOLDER}/{name}", only, marks=pytest.mark.soak) for name in NAMES for only in (False, True)],
)
def test_native_reads_of_jvm_tables_have_the_same_rows(spark: Any, tmp_path: Path, name: str, optimized: bool) -> None:
    table = Table.open(unpacked(name, tmp_path / "t"))
    columns = [*META, *table.schema().names]
    found, files = by_spark(spark, table, columns, read_optimized=optimized)
    expected = table.to_arrow(columns, read_optimized=optimized)
    assert found.num_rows == expected.num_rows
    assert files <= (slices(table)[0] if optimized else slices(table)[1])
    if not any(types.is_nested(kind) for kind in table.schema().types):
        assert files == len([one for one in table.snapshot().slices if one.path and (optimized or not one.logs)])


def test_values_of_every_type_are_the_same(spark: Any, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", EVERY, "id"), settings=SETTINGS)
    table.append(pa.Table.from_pylist(VALUES, schema=EVERY))
    found, files = by_spark(spark, table)
    assert files == 1
    assert comparable(found.to_pylist()) == comparable(table.to_arrow().to_pylist())
    mine, other = (
        reduce(
            lambda one, next_: one.unionAll(next_),
            (engine.read(spark, table, ["id"], filter=w, native_reads=said).withColumn("w", lit(w)) for w in WHERE),
        )
        for said in ("auto", False)
    )
    assert {tuple(row) for row in mine.collect()} == {tuple(row) for row in other.collect()}


def test_float_filters_by_file_statistics_would_lose_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", EVERY, "id"), settings=SETTINGS)
    table.append(pa.Table.from_pylist(VALUES, schema=EVERY))
    whole = engine.read(spark, table)
    monkeypatch.setattr("lockprovider.table.engines.spark.functions._by_row", lambda column: column.name)
    assert (whole.where("single = 0").count(), engine.read(spark, table).where("single = 0").count()) == (1, 0)


def test_missing_column_is_null_and_changed_type_is_read_by_python(spark: Any, tmp_path: Path) -> None:
    old = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("f", pa.float32())])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", old, "id"), settings=SETTINGS)
    table.append(pa.table([[1], [1], [0.1]], schema=old))
    table.add_columns(pa.schema([("note", pa.string())]))
    table.append(pa.table([[2], [2], [0.1], ["new"]], schema=table.schema()))
    found, files = by_spark(spark, table)
    assert (files, sorted(found["note"].to_pylist(), key=str)) == (2, [None, "new"])
    (first,) = (path for path in Path(table.url).glob("*.parquet") if "note" not in pq.read_schema(path).names)
    whole = pq.read_table(first, partitioning=None)
    pq.write_table(whole.set_column(whole.column_names.index("n"), "n", pa.array([1], pa.int16())), first)
    assert by_spark(spark, table)[1] == 1, "the other one is Python's"
    assert by_spark(spark, table, ["id", "f"])[1] == 2, "that column is not read"


@pytest.mark.parametrize(
    ("stored", "is_alike"),
    [
        ([("a", pa.int32())], True),
        ([("b", pa.string())], True),
        ([("a", pa.int64())], False),
        ([("A", pa.int32())], False),
        ([("a", pa.int32()), ("A", pa.int32())], False),
        ([("a", pa.int32()), ("B", pa.int32()), ("b", pa.int32())], True),
    ],
)
def test_columns_are_alike_by_name_and_type(stored: list[tuple[str, pa.DataType]], is_alike: bool) -> None:
    assert has_alike(pa.schema(stored), pa.schema([("a", pa.int32())])) is is_alike


def test_slices_with_logs_are_read_by_python_and_others_by_spark(spark: Any, tmp_path: Path) -> None:
    table = filled(tmp_path / "t", replace(SPEC, table_type="merge_on_read"))
    upsert(table, (1, "a", 10))
    read = engine.read(spark, table)
    assert (slices(table), len(read.inputFiles())) == ((3, 2), 2)
    expected = {(1, "a", 10), (2, "a", 2), (3, "b", 3), (4, "c", 4)}
    assert {tuple(row) for row in read.collect()} == content(table) == expected
    assert {tuple(row) for row in engine.read(spark, table, filter="value > 3").collect()} == {
        (1, "a", 10),
        (4, "c", 4),
    }
    assert by_spark(spark, table, ["value"], partitions=["a", "b"])[1] == 1
    assert by_spark(spark, table, read_optimized=True)[1] == 3


@pytest.mark.parametrize(
    "mark",
    [
        ("3.5.0",),
        ("3.5.0", ""),
        ("3.5.0", "", "old"),
        *(pytest.param(m, marks=pytest.mark.soak) for m in ((), ("2.4.0",))),
    ],
)
def test_dates_of_another_calendar_are_read_by_python(spark: Any, tmp_path: Path, mark: tuple[str, ...]) -> None:
    keys = dict(zip((SPARK_KEY, LEGACY_KEY), mark, strict=False))
    is_old = len(mark) != 2
    table, expected = written(tmp_path, day=OLD_DAY if is_old else DAY, at=OLD if is_old else TIME)
    (path,) = Path(table.url).glob("*.parquet")
    whole = pq.read_table(path, partitioning=None)
    with pq.ParquetWriter(path, whole.schema, store_schema=False) as writer:
        writer.write_table(whole)
        writer.add_key_value_metadata(keys)
    assert engine.read(spark, table).inputFiles() == [] or mark in {(), ("3.5.0",)}
    if len(mark) < 3:
        assert by_spark(spark, table)[0].sort_by("id").to_pylist() == expected.to_pylist()
        return
    with pytest.raises(UnsupportedTable, match="old dates"), typed_errors():
        engine.read(spark, table).collect()


@pytest.mark.parametrize("hive_style", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_folder_names_add_no_columns_and_lose_no_rows(spark: Any, tmp_path: Path, hive_style: bool) -> None:
    spec = replace(SPEC, hive_style=hive_style, url_encode=True)
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    parts = ["a b", "007", "value=1", "_x", ".y", "a*b", "[c]", "{d}", "e?", "50%20", "ü", "f,g", "h:i", "2026-01-01"]
    table.append(rows(*((number, part, number) for number, part in enumerate(parts))))
    found, files = by_spark(spark, table)
    assert sorted(found["part"].to_pylist()) == sorted(parts)
    assert files >= 9
    by_spark(spark, table, ["value"])


def test_frame_reads_the_snapshot_of_its_creation(spark: Any, tmp_path: Path) -> None:
    table = filled(tmp_path / "t", SPEC)
    before, frozen = content(table), engine.read(spark, table)
    upsert(table, (1, "a", 10), (9, "z", 9))
    table.overwrite(rows((7, "a", 7)))
    assert {tuple(row) for row in frozen.collect()} == before
    assert {tuple(row) for row in engine.read(spark, table).collect()} == {(7, "a", 7)}


@pytest.mark.parametrize("ignores", [pytest.param("false", marks=pytest.mark.soak), "true"])
def test_cleaned_file_raises_and_its_rows_are_not_left_out(spark: Any, tmp_path: Path, ignores: str) -> None:
    table = filled(tmp_path / "t", SPEC)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", ignores)
    try:
        late = engine.read(spark, table)
        upsert(table, (1, "a", 10))
        table.clean(KeepVersions(1))
        assert not all(Path(path.removeprefix("file://")).exists() for path in late.inputFiles())
        with pytest.raises(HistoryGone, match="was cleaned before it was read"), typed_errors():
            late.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
    with pytest.raises(HistoryGone, match="was cleaned before it was read"):
        engine.append(table, late)
    assert engine.read(spark, table).count() == 4


def test_invalid_parquet_file_is_reported_by_python(spark: Any, tmp_path: Path) -> None:
    table = filled(tmp_path / "t", SPEC)
    path = next(Path(table.url).glob("a/*.parquet"))
    path.write_bytes(b"nothing")
    found = engine.read(spark, table)
    assert len(found.inputFiles()) == 2
    with pytest.raises(Exception, match="cannot be read"), typed_errors():
        found.collect()


def test_reader_can_be_chosen(spark: Any, tmp_path: Path) -> None:
    table, link = filled(tmp_path / "t", SPEC), tmp_path / "link"
    link.symlink_to(tmp_path / "t")
    for said, folder in ((True, table.url), ("auto", table.url), (f"file://{link}/", str(link))):
        found = engine.read(spark, table, native_reads=said)
        assert len(found.inputFiles()) == 3
        assert all(path.startswith(f"file://{folder}/") for path in found.inputFiles())
        assert {tuple(row) for row in found.collect()} == content(table)
    assert engine.read(spark, table, native_reads=False).inputFiles() == []
    with pytest.raises(InvalidInput, match="native_reads='yes' is not a URL"):
        engine.read(spark, table, native_reads="yes")


def test_nested_floats_are_read_by_python(spark: Any, tmp_path: Path) -> None:
    inside = pa.schema([("id", pa.int64()), ("one", pa.struct([("x", pa.float64())]))])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", inside, "id"), settings=SETTINGS)
    table.append(pa.table([[1, 2], [{"x": -0.0}, {"x": float("nan")}]], schema=inside))
    for where, count in (("one.x = 0", 1), ("one.x > 0", 1)):
        assert engine.read(spark, table).where(where).count() == count
    assert (by_spark(spark, table)[1], by_spark(spark, table, ["id"])[1]) == (0, 1)


def test_column_that_spark_fills_with_row_numbers_is_read_by_python(spark: Any, tmp_path: Path) -> None:
    given = pa.table({"id": [1, 2], "_tmp_metadata_row_index": [7, 5]})
    table = Table.create(str(tmp_path / "t"), TableSpec("t", given, "id"), settings=SETTINGS)
    table.append(given)
    assert by_spark(spark, table) == (given, 0)


def test_filter_not_expressible_in_sql_is_applied_by_python(spark: Any, tmp_path: Path) -> None:
    table = filled(tmp_path / "t", SPEC)
    for where in (pc.field("value") > 2, [("value", ">", 2)]):
        found = engine.read(spark, table, filter=where)
        assert found.inputFiles() == []
        assert found.count() == 2


def test_table_on_an_object_store_is_read_by_python_by_default(spark: Any) -> None:
    table = Table.create("memory://native/t", SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1))
    assert engine.read(spark, table).inputFiles() == []


def test_query_of_a_view_reads_the_columns_and_rows_that_it_needs(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = filled(tmp_path / "t", SPEC)
    engine.register(spark, table, "native")
    spark.sql("select value from native where id > 1").explain()
    told = capsys.readouterr().out
    assert "ReadSchema: struct<id:bigint,value:bigint>" in told
    assert "GreaterThan(id,1)" in told
    engine.sql(spark, "update native set value = 20 where id = 1")
    assert spark.sql("select sum(value) from native").collect()[0][0] == 29
    engine.register(spark, table, "ours", native_reads=False)
    engine.sql(spark, "delete from ours where id = 1")
    assert spark.table("ours").inputFiles() == []


def test_transaction_reads_the_rows_that_it_changes(spark: Any, tmp_path: Path) -> None:
    table = filled(tmp_path / "t", SPEC)

    def double(txn: Any) -> None:
        engine.write(txn, engine.read(spark, txn, partitions=["a"]).selectExpr("id", "part", "2 * value as value"))

    table.transact(double)
    engine.insert_overwrite(table, engine.read(spark, table, partitions=["b"]).union(frame(spark, (8, "b", 8))))
    assert content(table) == {(1, "a", 2), (2, "a", 4), (3, "b", 3), (8, "b", 8), (4, "c", 4)}
    removed(table)
