"""Tables of every shape that we can write, each made in a few commits."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from table.overwriting import overwrite
from table.tables import SCHEMA, SETTINGS, SPEC, rows, upsert

from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import arrow as engine
from lockprovider.table.timeline.retention import KeepVersions

Open = Callable[[TableSpec], Table]
TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("on", pa.bool_()),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("attrs", pa.map_(pa.string(), pa.int32())),
        ("place", pa.struct([("x", pa.float64()), ("name", pa.string())])),
    ]
)


def upserts(make: Open) -> Table:
    table = make(SPEC)
    upsert(table, (1, "a", 1), (2, "a", 2), (3, "b", 3))
    upsert(table, (2, "a", 20), (4, "b", 4), (5, "a", 5))
    upsert(table, (3, "b", 30), (6, "c", 6))
    return table


def deletes(make: Open) -> Table:
    table = upserts(make)
    table.transact(lambda txn: engine.write(txn, upserts=rows((5, "a", 50)), deletes=rows((1, "a", 0), (6, "c", 0))))
    upsert(table, (1, "a", 100))
    return table


def no_rows_at_all(make: Open) -> Table:
    return make(SPEC)


def all_deleted(make: Open) -> Table:
    table = make(SPEC)
    upsert(table, (1, "a", 1))
    table.transact(lambda txn: engine.write(txn, deletes=rows((1, "a", 0))))
    return table


def no_partitions(make: Open) -> Table:
    table = make(TableSpec("counters", SCHEMA, record_keys=("id",)))
    upsert(table, (1, "a", 1), (2, "b", 2))
    upsert(table, (2, "b", 20), (3, "b", 3))
    return table


def two_keys_and_hive_folders_on_two_levels(make: Open) -> Table:
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("year", pa.int32()), ("city", pa.string())])
    spec = TableSpec("places", schema, record_keys=("id", "kind"), partition_by=("year", "city"), hive_style=True)
    table = make(spec)

    def of(*found: tuple[int, str, int, str]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in found], schema=schema)

    table.upsert(of((1, "x", 2025, "ulm"), (1, "y", 2025, "ulm"), (2, "x", 2026, "bonn")))
    table.upsert(of((1, "y", 2025, "ulm"), (3, "x", 2026, "bonn")), deletes=of((2, "x", 2026, "bonn")))
    return table


def ordered_by_value(make: Open) -> Table:
    table = make(TableSpec("counters", SCHEMA, record_keys=("id",), partition_by=("part",), ordering="value"))
    upsert(table, (1, "a", 10), (2, "a", 10))
    upsert(table, (1, "a", 5), (2, "a", 15))
    return table


def partitions_overwritten_and_emptied(make: Open) -> Table:
    table = upserts(make)
    overwrite(table, ["a"], (7, "a", 7))
    overwrite(table, ["b"])
    upsert(table, (7, "a", 70), (8, "b", 8))
    return table


def cleaned(make: Open) -> Table:
    table = upserts(make)
    upsert(table, (2, "a", 21))
    assert table.clean(KeepVersions(1))
    return table


def restored_to_a_savepoint(make: Open) -> Table:
    table = upserts(make)
    saved = table.savepoint(comment="before the flood")
    upsert(table, (1, "a", -1), (9, "z", -1))
    table.restore(saved)
    upsert(table, (4, "b", 40))
    return table


def rolled_back(make: Open) -> Table:
    table = upserts(make)
    failed = table.transaction()
    engine.write(failed, upserts=rows((1, "a", -1), (9, "z", -1)))
    failed.rollback()
    upsert(table, (1, "a", 11))
    return table


def pending(make: Open) -> Table:
    """A writer is in the middle of it; what it wrote is nobody's business yet."""
    table = upserts(make)
    engine.write(table.transaction(), upserts=rows((1, "a", -1), (9, "z", -1)))
    return table


def all_types_and_nulls(make: Open) -> Table:
    table = make(TableSpec("types", TYPES, record_keys=("id",)))
    utc = dt.timezone.utc
    full = {
        "id": 1, "i": -2, "f": 0.5, "d": 1e300, "on": True, "s": "Grüße, 世界", "raw": b"\x00\xff",
        "day": dt.date(1969, 7, 20), "at": dt.datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=utc),
        "price": decimal.Decimal("-12345678.90"), "tags": ["a", ""], "attrs": [("k", 1), ("l", 2)],
        "place": {"x": 1.5, "name": "here"},
    }  # fmt: skip
    empty = {"id": 2} | {name: None for name in TYPES.names if name != "id"}
    table.upsert(pa.Table.from_pylist([full, empty], schema=TYPES))
    table.upsert(pa.Table.from_pylist([full | {"id": 3, "tags": []}, empty], schema=TYPES))
    return table


def many_commits(make: Open) -> Table:
    table = make(SPEC)
    for turn in range(25):
        upsert(table, (turn % 7, "ab"[turn % 2], turn))
    return table


SHAPES: Mapping[str, Callable[[Open], Table]] = MappingProxyType(
    {
        shape.__name__: shape
        for shape in (
            upserts,
            deletes,
            no_rows_at_all,
            all_deleted,
            no_partitions,
            two_keys_and_hive_folders_on_two_levels,
            ordered_by_value,
            partitions_overwritten_and_emptied,
            cleaned,
            restored_to_a_savepoint,
            rolled_back,
            pending,
            all_types_and_nulls,
            many_commits,
        )
    }
)


def local(url: str) -> Open:
    return lambda spec: Table.create(url, spec, settings=SETTINGS)


def stored(url: str, options: dict[str, Any]) -> Open:
    return lambda spec: Table.create(url, spec, settings=SETTINGS, storage_options=options)
