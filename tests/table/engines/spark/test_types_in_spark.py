"""Every way into a table by Spark takes the types of the table of rules, and stores the values that it was given."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table.engines.spark.spark_tables import to_its_end
from table.tables import SETTINGS, SPEC, upsert

from lockprovider.table import DoesNotFit, Table, TableSpec
from lockprovider.table.convert.columns import REFUSED, WRITE
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.data_source import activate, register
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.spark.jobs import arrow_schema
from lockprovider.table.engines.spark.stream import upserts

TARGETS = {
    "bool": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "dec": pa.decimal128(10, 2), "text": pa.string(), "bytes": pa.binary(), "date": pa.date32(),
    "ntz": pa.timestamp("us"), "utc": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
SOURCES = {  # SQL, and what is stored
    "void": ("null", None), "bool": ("true", True), "byte": ("5Y", 5), "short": ("5S", 5), "int": ("5", 5),
    "long": ("5L", 5), "float": ("cast(5 as float)", 5), "double": ("5.0D", 5), "dec": ("cast(5 as decimal(12,3))", 5),
    "text": ("'7'", "7"), "bytes": ("X'37'", b"7"), "date": ("date'2020-01-02'", dt.date(2020, 1, 2)),
    "ntz": ("timestamp_ntz'2020-01-02 00:00:00'", dt.datetime(2020, 1, 2)),  # noqa: DTZ001 - it has none
    "utc": ("timestamp'2020-01-02 00:00:00Z'", dt.datetime(2020, 1, 2, tzinfo=dt.timezone.utc)),
    "day": ("interval '1' day", None),
}  # fmt: skip
NESTED = {"st": ("named_struct('x', {})", ".x"), "l": ("array({})", ".element"), "m": ("map('k', {})", ".value")}
NESTED_SOURCES = ("long", "text", "ntz", "double")


def pairs() -> dict[str, tuple[str, pa.DataType, str, Any]]:
    """By column: the SQL of its value, the table's type, the path of what does not fit, and the stored value."""
    found: dict[str, tuple[str, pa.DataType, str, Any]] = {}
    for source, (sql, value) in SOURCES.items():
        for target, kind in TARGETS.items():
            name = f"{source}_{target}"
            there = value.date() if source == "ntz" and target == "date" else value
            found[name] = (sql, kind, name, there)
            if source in NESTED_SOURCES:
                of = {"st": pa.struct([("x", kind)]), "l": pa.list_(kind), "m": pa.map_(pa.string(), kind)}
                values = {"st": {"x": there}, "l": [there], "m": [("k", there)]}
                for depth, (text, path) in NESTED.items():
                    inner = f"{name}_{depth}"
                    found[inner] = (text.format(sql), of[depth], inner + path, values[depth])
    return found


PAIRS = pairs()
SOME = [
    name for name, pair in PAIRS.items() if name.startswith(("text_", "ntz_", "double_long")) or pair[1] == pa.int64()
]


@cache
def types_of_sources(spark: Any) -> pa.Schema:
    return arrow_schema(
        spark.sql(f"select {', '.join(f'{sql} as `{name}`' for name, (sql, _) in SOURCES.items())}").schema
    )


def fits(spark: Any, name: str) -> bool:
    """By the table of rules."""
    source, target = name.split("_")[:2]
    return WRITE.rule(types_of_sources(spark).field(source).type, TARGETS[target]) != REFUSED


def sql_of(names: list[str]) -> list[str]:
    return [f"{PAIRS[name][0]} as {name}" for name in names]


def made(folder: Path, names: list[str], **more: Any) -> Table:
    schema = pa.schema([("id", pa.int64()), *((name, PAIRS[name][1]) for name in names)])
    return Table.create(str(folder), TableSpec("t", schema, "id", **more), settings=SETTINGS)


# -- ways in -----------------------------------------------------------------------------------------------------------


def by_function(verb: Callable[..., Any], spark: Any, table: Table, rows: Any, names: list[str]) -> None:
    del spark, names
    verb(table, rows)


def by_transaction(spark: Any, table: Table, rows: Any, names: list[str]) -> None:
    del spark, names
    table.transact(lambda txn: engine.write(txn, upserts=rows))


def by_merge(spark: Any, table: Table, rows: Any, names: list[str]) -> None:
    del spark, names
    engine.merge(table, rows, engine.MatchedUpdate(), engine.NotMatchedInsert())


def by_batch(spark: Any, table: Table, rows: Any, names: list[str]) -> None:
    del spark, names
    upserts(table, stream_id="s")(rows, 0)


def by_sql(text: str, spark: Any, table: Table, rows: Any, names: list[str]) -> None:
    engine.register(spark, table, "typed")
    rows.createOrReplaceTempView("given")
    if text == "update":
        engine.append(table, rows.select("id"))
        text += " typed set " + ", ".join(f"{name} = {PAIRS[name][0]}" for name in names)
    engine.sql(spark, text)


def by_source(options: tuple[str, str], spark: Any, table: Table, rows: Any, names: list[str]) -> None:
    del names
    register(spark)
    activate(spark)
    mode, operation = options
    written = rows.write.format("hudi_cas").mode(mode).option("hoodie.datasource.write.operation", operation)
    with typed_errors():
        written.save(table.url)


def by_sink(folder: Path, spark: Any, table: Table, rows: Any, names: list[str]) -> None:
    del rows
    register(spark)
    source = Table.create(str(folder / "source"), replace(SPEC, partition_by=()), settings=SETTINGS)
    upsert(source, (1, "a", 1))
    stream = spark.readStream.format("hudi_cas").load(source.url).selectExpr("id", *sql_of(names))
    sink = stream.writeStream.format("hudi_cas").option("checkpointLocation", str(folder / "checkpoint"))
    with typed_errors():
        assert to_its_end(partial(sink.trigger(availableNow=True).start, table.url))


WAYS: dict[str, Callable[..., None]] = {
    "append": partial(by_function, engine.append),
    "upsert": partial(by_function, engine.upsert),
    "insert_overwrite": partial(by_function, engine.insert_overwrite),
    "buckets": partial(by_function, engine.append),
    "transaction": by_transaction,
    "merge": by_merge,
    "foreachBatch": by_batch,
    "sql insert": partial(by_sql, "insert into typed by name select * from given"),
    "sql overwrite": partial(by_sql, "insert overwrite typed select * from given"),
    "sql merge": partial(by_sql, "merge into typed t using given s on t.id = s.id when not matched then insert *"),
    "sql update": partial(by_sql, "update"),
    "source insert": partial(by_source, ("append", "insert")),
    "source upsert": partial(by_source, ("append", "upsert")),
    "source insert_overwrite": partial(by_source, ("append", "insert_overwrite")),
    "source overwrite": partial(by_source, ("overwrite", "insert_overwrite_table")),
    "sink": by_sink,
}


@pytest.fixture
def zone(spark: Any) -> Any:
    """A session in another zone than the table's: it changes no value."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


WHOLE = ("append", "upsert", "merge", "source upsert")  # each by conversions of its own; the others by one of theirs


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("way", "among"),
    [pytest.param(way, [*PAIRS] if way in WHOLE else SOME, id=way) for way in WAYS]
    + [pytest.param(way, [*PAIRS], id=f"{way}, all", marks=pytest.mark.soak) for way in WAYS if way not in WHOLE],
)
def test_way_in_takes_the_types_of_the_rules_and_stores_what_was_given(
    spark: Any, tmp_path: Path, way: str, among: list[str]
) -> None:
    write = partial(by_sink, tmp_path) if way == "sink" else WAYS[way]
    more = {"buckets": 2} if way == "buckets" else {}
    takes = {name: fits(spark, name) for name in among}

    names = among
    table = made(tmp_path / "all", names, **more)
    with pytest.raises(DoesNotFit) as raised:
        write(spark, table, spark.range(1, 2).selectExpr("id", *sql_of(names)), names)
    assert refused(raised.value) == {PAIRS[name][2] for name, fit in takes.items() if not fit}
    assert [row for row in table.to_arrow().to_pylist() if row["void_long"] is not None or row["int_long"]] == []

    if way == "sink":
        write = partial(by_sink, tmp_path / "again")
    names = [name for name, fit in takes.items() if fit]
    table = made(tmp_path / "fit", names, **more)
    write(spark, table, spark.range(1, 2).selectExpr("id", *sql_of(names)), names)
    (row,) = table.to_arrow().to_pylist()
    assert row == {"id": 1, **{name: PAIRS[name][3] for name in names}}


def refused(error: DoesNotFit) -> set[str]:
    """The paths that an error names; from a worker it comes as text."""
    if len(error.misfits) > 1:
        return {one.path for one in error.misfits}
    parts = [part for part in str(error).split("; ") if " does not fit " in part or " fits no column" in part]
    return {part.rpartition(": ")[0].split(": ")[0].split("\n")[-1] for part in parts}
