"""All readers of a table, ours, hudi-rs and JVM Hudi, by listing and by the metadata table: they see the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from hudi import HudiReadOptions, HudiTableBuilder
from table.tables import SCHEMA

from jvm.shared_table import Triple
from jvm.test_spark_without_settings import PLAIN
from lockprovider.demo.proof import reader_options
from lockprovider.table import Table
from lockprovider.table.format.compatibility import METADATA_KEY

if TYPE_CHECKING:
    from jvm.spark import HudiSpark

Read = Callable[[str | None, int | None], set[Triple]]


def all_see(readers: dict[str, Read]) -> set[Triple]:
    """All rows; on them, and on what filters have of them, the readers agree."""
    (_, first), *others = readers.items()
    found = first(None, None)
    middle = sorted(value for _, _, value in found)[len(found) // 2]
    parts = sorted({part for _, part, _ in found})
    for part, least in [(None, None), *((part, None) for part in parts), (None, middle), ("a", middle), ("b", 0)]:
        expected = {one for one in found if part in (None, one[1]) and (least is None or one[2] >= least)}
        assert first(part, least) == expected
        for name, read in others:
            assert read(part, least) == expected, f"{name}, of partition {part}, from {least}"
    return found


def readers_of(table: Table, hudi: HudiSpark | None) -> dict[str, Read]:
    """By name; each gives the rows of a partition, if it is named, with at least a value, if there is one."""
    by_metadata = Table.open(
        table.url, storage_options=table.storage_options, settings=replace(PLAIN, read_from_metadata=True)
    )
    options = reader_options(table.url, table.storage_options, {})

    def ours(of: Table) -> Read:
        def read(part: str | None, least: int | None) -> set[Triple]:
            where = pc.scalar(True) if part is None else pc.field("part") == part
            where = where if least is None else where & (pc.field("value") >= least)
            return once(tuple(row.values()) for row in of.to_arrow(SCHEMA.names, filter=where).to_pylist())

        return read

    def rust(part: str | None, least: int | None) -> set[Triple]:
        asked = [("part", "=", part)] if part is not None else []
        asked += [("value", ">=", str(least))] if least is not None else []
        batches = HudiTableBuilder.from_base_uri(table.url).with_options(options).build()
        found = [r for b in batches.read(HudiReadOptions(filters=asked)) for r in b.to_pylist()]
        # Its filters leave out files, not rows.
        found = [r for r in found if (part is None or r["part"] == part) and (least is None or r["value"] >= least)]
        return once(tuple(row[name] for name in SCHEMA.names) for row in found)

    def jvm(of: HudiSpark, is_on: str) -> Read:
        def read(part: str | None, least: int | None) -> set[Triple]:
            said = [f"part = '{part}'"] if part is not None else []
            said += [f"value >= {least}"] if least is not None else []
            return once(of.read(table.url, SCHEMA.names, " and ".join(said) or "true", **{METADATA_KEY: is_on}))

        return read

    found = {"ours": ours(table), "ours, by the metadata table": ours(by_metadata), "hudi-rs": rust}
    if hudi is not None:
        found |= {f"the JVM, metadata table {is_on}": jvm(hudi, is_on) for is_on in ("true", "false")}
    return found


def once(found: Iterable[tuple[Any, ...]]) -> set[Triple]:
    rows_ = [(int(key), str(part), int(value)) for key, part, value in found]
    assert len({key for key, _, _ in rows_}) == len(rows_), "a key is there twice"
    return set(rows_)
