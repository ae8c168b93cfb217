"""The matrix of types again, by each way into a table: stored as given, or every column refused by its path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hudi import HudiTableBuilder
from table.convert.oracle import REFUSED, SOURCES, TARGETS, array, expected, same
from table.convert.test_matrix import DEPTHS

from lockprovider.table import DoesNotFit, Table, TableSpec
from lockprovider.table.convert import WRITE
from lockprovider.table.convert.columns import REFUSED as REFUSED_RULE

pl = pytest.importorskip("polars")

ROWS = 3
# What the libraries give as Arrow has it. Other types become one of these, or do not exist there.
PLAIN = (
    "bool", "date32", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
    "string", "large_string", "binary", "large_binary", "decimal128(38, 18)", "decimal128(19, 2)",
    *(f"timestamp {unit} {zone}" for unit in ("ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")),
)  # fmt: skip
IN_ARROW = tuple(name for name in SOURCES if name != "interval")


def by_dask(table: Table, rows: pa.Table) -> None:
    import dask.dataframe as dd

    from lockprovider.table.engines import dask as engine

    engine.append(table, dd.from_pandas(rows.to_pandas(types_mapper=pd.ArrowDtype), npartitions=2))


def by_transaction(table: Table, rows: pa.Table) -> None:
    with table.transaction() as txn:
        txn.append(rows.slice(0, 1))
        txn.append(rows.slice(1))


Way = tuple[Callable[[Table, pa.Table], Any], tuple[str, ...], tuple[str, ...]]
WAYS: dict[str, Way] = {
    "append": (lambda table, rows: table.append(rows), IN_ARROW, tuple(DEPTHS)),
    "reader": (lambda table, rows: table.append(rows.to_reader()), IN_ARROW, tuple(DEPTHS)),
    "upsert": (lambda table, rows: table.upsert(rows), IN_ARROW, tuple(DEPTHS)),
    "overwrite": (lambda table, rows: table.overwrite(rows), IN_ARROW, tuple(DEPTHS)),
    "transaction": (by_transaction, IN_ARROW, tuple(DEPTHS)),
    "pandas": (
        lambda table, rows: table.append(rows.to_pandas(types_mapper=pd.ArrowDtype)), PLAIN, tuple(DEPTHS),
    ),
    "polars": (lambda table, rows: table.append(pl.from_arrow(rows)), PLAIN, ("top", "struct", "list")),
    "dask": (by_dask, PLAIN, ("top", "map", "key")),
}  # fmt: skip


def cells(sources: tuple[str, ...], depths: tuple[str, ...], *, refused: bool) -> Iterator[tuple[Any, ...]]:
    """Of each cell the values to give, the column's type, the values to read, and the path."""
    for source in sources:
        given, values = SOURCES[source]
        for depth in depths:
            around, kind_of, value_of, path = DEPTHS[depth]
            for target in {"string": pa.string()}.values() if depth == "key" else TARGETS.values():
                if (WRITE.rule(given, target) == REFUSED_RULE) != refused:
                    continue
                fitting = [one for one in values if refused or expected(one, given, target) is not REFUSED]
                if not fitting or (depth == "key" and fitting == [None]):
                    continue
                chosen = [fitting[0], fitting[-1], fitting[len(fitting) // 2]]
                wanted = None if refused else [value_of(expected(one, given, target)) for one in chosen]
                yield around(array(chosen, given)), kind_of(target), wanted, path


def made(tmp_path: Path, kinds: list[pa.DataType], **more: Any) -> Table:
    schema = pa.schema([("id", pa.int64()), *((f"c{number}", kind) for number, kind in enumerate(kinds))])
    return Table.create(str(tmp_path / "t"), TableSpec("t", schema, "id", **more))


def rows_of(columns: list[pa.Array]) -> pa.Table:
    return pa.table([pa.array(range(ROWS)), *columns], ["id", *(f"c{number}" for number in range(len(columns)))])


@pytest.mark.parametrize("way", WAYS)
def test_values_are_stored_as_given_by_every_way(tmp_path: Path, way: str) -> None:
    write, sources, depths = WAYS[way]
    given, kinds, wanted, _ = zip(*cells(sources, depths, refused=False), strict=True)
    table = made(tmp_path, list(kinds))
    write(table, rows_of(list(given)))
    found = table.to_arrow().sort_by("id")
    for number, values in enumerate(wanted):
        assert same(found.column(f"c{number}").to_pylist(), values), (given[number].type, kinds[number])


@pytest.mark.parametrize("way", WAYS)
def test_types_that_do_not_fit_are_refused_by_every_way(tmp_path: Path, way: str) -> None:
    write, sources, depths = WAYS[way]
    given, kinds, _, paths = zip(*cells(sources, depths, refused=True), strict=True)
    table = made(tmp_path, list(kinds))
    with pytest.raises(DoesNotFit) as caught:
        write(table, rows_of(list(given)))
    assert {one.path for one in caught.value.misfits} == {f"c{number}{path}" for number, path in enumerate(paths)}
    assert table.count() == 0


@pytest.mark.parametrize("way", WAYS)
def test_first_value_that_would_change_is_named_by_every_way(tmp_path: Path, way: str) -> None:
    table = made(tmp_path, [pa.struct([("x", pa.decimal128(10, 2))])])
    values = pa.StructArray.from_arrays([pa.array([1.25, 1.004, 1.004])], ["x"])
    with pytest.raises(DoesNotFit, match=r"^c0\.x: double does not fit decimal128\(10, 2\): 1\.004, in row") as caught:
        WAYS[way][0](table, rows_of([values]))
    assert caught.value.value == 1.004
    assert table.count() == 0


def as_hudi_rs_reads(table: Table) -> list[dict[str, Any]]:
    names = table.schema().names
    found = [b.select(names) for b in HudiTableBuilder.from_base_uri(table.url).build().read()]
    return sorted((row for batch in found for row in batch.to_pylist()), key=lambda row: row["id"])


@pytest.mark.parametrize("table_type", ["copy_on_write", "merge_on_read"])
def test_hudi_rs_reads_the_values_that_were_given(tmp_path: Path, table_type: str) -> None:
    """hudi-rs 0.5 cannot open a table with timestamps that have no zone."""
    every = [one for one in cells(IN_ARROW, tuple(DEPTHS), refused=False) if "timestamp[us]" not in str(one[1])]
    given, kinds, _, _ = zip(*every, strict=True)
    table = made(tmp_path, list(kinds), table_type=table_type)
    table.append(rows_of(list(given)))
    assert same(as_hudi_rs_reads(table), table.to_arrow().sort_by("id").to_pylist())
