"""Tables of other releases of JVM Hudi, written by them and by us in turn: no row is there twice, none is lost."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from table.tables import SETTINGS, dicts_by_hudi_rs

from jvm.key_texts import DRIVER, QUICK, alone
from jvm.spark import HudiSpark
from lockprovider.table import Table, TableSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.jvm
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("day", pa.date32()),
        ("price", pa.decimal128(20, 10)),
        ("part", pa.bool_()),
        ("value", pa.int64()),
    ]
)
SHAPE = {
    "hoodie.datasource.write.recordkey.field": "name,day,price",
    "hoodie.datasource.write.partitionpath.field": "part",
    "hoodie.table.timeline.timezone": "UTC",
}
BUCKETS = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "SIMPLE",
    "hoodie.bucket.index.num.buckets": "4",
    "hoodie.bucket.index.hash.field": "name,day,price",
}
Row = tuple[str | None, dt.date, Decimal, bool, int]


@pytest.fixture(scope="module", params=["1.0.2", "1.1.1"])
def release(
    request: pytest.FixtureRequest, start_release: Callable[..., HudiSpark], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HudiSpark]:
    with start_release(request.param, tmp_path_factory.mktemp("release"), **DRIVER) as hudi:
        yield hudi


def row(number: int, value: int) -> Row:
    """Keys of each kind: a null, a decimal that Java writes with an exponent."""
    name = None if number == 0 else f"n{number}"
    return (name, dt.date(2020, 1, 1 + number), Decimal(number).scaleb(-10), number % 2 == 0, value)


def query(rows: Iterable[Row]) -> str:
    each = (
        f"(cast({'null' if name is None else repr(name)} as string), date'{day}', "
        f"cast('{price:f}' as decimal(20,10)), {str(part).lower()}, {value}L)"
        for name, day, price, part, value in rows
    )
    return f"select * from values {', '.join(each)} as t({', '.join(SCHEMA.names)})"  # noqa: S608 (ours)


def arrow(rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, one, strict=True)) for one in rows], schema=SCHEMA)


def seen(hudi: HudiSpark, url: str) -> dict[int, int]:
    """The value of each row by its number; three readers find the same, and no row is there twice."""
    ours, by_rust = (
        sorted((one["day"].day - 1, one["value"]) for one in found)
        for found in (Table.open(url).to_arrow().to_pylist(), dicts_by_hudi_rs(url))
    )
    theirs: list[tuple[Any, ...]] = hudi.read(url, ["day(day) - 1", "value"])
    assert sorted(theirs) == ours == by_rust
    assert len(dict(ours)) == len(ours)
    return dict(ours)


@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.parametrize("buckets", [None, 4])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_row_exists_once_in_table_written_by_another_release_and_python(
    release: HudiSpark, tmp_path: Path, kind: str, buckets: int | None, first: str
) -> None:
    url = str(tmp_path / "t")
    options = QUICK | {"hoodie.table.name": "t"}
    if first == "ours":  # its properties tell the rest
        fields = {"record_keys": ("name", "day", "price"), "partition_by": "part", "buckets": buckets}
        spec = TableSpec("t", SCHEMA, hive_style=True, table_type=kind, **fields)
        alone(Table.create(url, spec, settings=SETTINGS)).upsert(arrow(row(n, n) for n in range(6)))
    else:
        options |= SHAPE | {"hoodie.datasource.write.table.type": kind} | (BUCKETS if buckets else {})
        release.save(query(row(n, n) for n in range(6)), url, options)
        if buckets:
            Table.open(url).adopt_bucket_index(buckets)
    upserts = options | {"hoodie.datasource.write.operation": "upsert"}
    deletes = options | {"hoodie.datasource.write.operation": "delete"}

    table = Table.open(url, settings=SETTINGS)
    table.upsert(arrow(row(n, 10 + n) for n in range(4, 8)))
    table.delete(arrow([row(0, 0)]))
    expected = {1: 1, 2: 2, 3: 3, 4: 14, 5: 15, 6: 16, 7: 17}
    assert seen(release, url) == expected

    release.save(query(row(n, 20 + n) for n in (3, 4, 7, 8)), url, upserts)
    release.save(query(row(n, 0) for n in (2, 6)), url, deletes)
    expected = {1: 1, 3: 23, 4: 24, 5: 15, 7: 27, 8: 28}
    assert seen(release, url) == expected

    Table.open(url, settings=SETTINGS).upsert(arrow(row(n, 30 + n) for n in (1, 2, 8, 0)))
    expected |= {n: 30 + n for n in (1, 2, 8, 0)}
    assert seen(release, url) == expected
