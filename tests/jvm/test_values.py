"""Values at the edges: what JVM Hudi reads of them is what we wrote, and what it wrote we read and change."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from table.tables import SCHEMA, SETTINGS, by_hudi_rs, content, rows

from jvm.spark import SHARED, HudiError, HudiSpark
from lockprovider.table import InvalidRecords, Table, TableSpec
from lockprovider.table.files import encoding
from lockprovider.table.files.base_file import SPARK_KEY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.jvm
STYLES = pytest.mark.parametrize(("hive", "encode"), [(False, False), (True, False), (False, True), (True, True)])
ODD = [
    *(None, "", ".", "..", "./a", "/a", "a/", "a//b", "a/b", "http://x", "a:b", "x/a:b", ".hoodie", ".hoodie/x"),
    *(".hidden", "a\tb", "a\nb", "\x01", "\x7f", "%2F", "a%41", "%zz", "%", "p=a", "part=a", "=", "a=", "_x"),
    *("é", "日本", "\U0001f600", "e\u0301", "\u0085", "\ufeff", "a ", " a", "a.", "default", "null", "true", "1"),
    *("a+b", "it's", 'a"b', "a#b", "a?b", "a*b", "[a]", "{a}", "a\\b", "a^b", "a&b", "~", "x.parquet"),
    "__HIVE_DEFAULT_PARTITION__",
]  # fmt: skip


def made(folder: Path, *, hive: bool, encode: bool) -> Table:
    spec = TableSpec("t", SCHEMA, ("id",), ("part",), hive_style=hive, url_encode=encode)
    return Table.create(str(folder / "table"), spec, settings=SETTINGS)


def accepted(table: Table, seed: int) -> list[tuple[int, Any, int]]:
    chosen = random.Random(seed)
    texts = ["".join(chosen.choices("ab./:%=2F é\t\\#", k=chosen.randint(1, 5))) for _ in range(40)]
    found: list[tuple[int, Any, int]] = []
    for key, part in enumerate(dict.fromkeys([*ODD, *texts])):
        try:
            table.config().partition_style.folder_for("part", part)
        except InvalidRecords:
            continue
        found.append((key, part, key))
    inside = {part for _, part, _ in found if part and any(str(other).startswith(f"{part}/") for _, other, _ in found)}
    return [row for row in found if row[1] not in inside or table.config().url_encode]


def theirs(hudi: HudiSpark, url: str) -> set[tuple[Any, ...]]:
    return set(hudi.read(url, SCHEMA.names))


@STYLES
def test_jvm_hudi_finds_every_partition_value_that_is_not_refused(
    hudi: HudiSpark, tmp_path: Path, hive: bool, encode: bool
) -> None:
    table = made(tmp_path, hive=hive, encode=encode)
    there = accepted(table, seed=hive + 2 * encode)
    table.append(rows(*there))
    assert theirs(hudi, table.url) == by_hudi_rs(table.url) == content(table) == set(there)
    assert len(there) > (70 if encode else 30)


@pytest.mark.parametrize("hive", [False, True])
def test_table_that_jvm_hudi_made_with_url_encoding_is_read_and_changed(
    hudi: HudiSpark, tmp_path: Path, hive: bool
) -> None:
    url = str(tmp_path / "theirs")
    options = {key: value for key, value in SHARED.items() if "lock" not in key and "concurrency" not in key} | {
        "hoodie.table.name": "theirs",
        "hoodie.write.table.version": "8",
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "part",
        "hoodie.datasource.write.partitionpath.urlencode": "true",
        "hoodie.datasource.write.hive_style_partitioning": str(hive).lower(),
        "hoodie.upsert.shuffle.parallelism": "2",
    }
    ddl = "id bigint, part string, value bigint"
    there = [
        (key, part, key) for key, part in enumerate(["a/b", "c:d", "%2F", "p=a", "é x", "http://x", "plain", "it's"])
    ]
    hudi.write(url, ddl, there, options)
    table = Table.open(url, settings=SETTINGS)
    assert content(table) == by_hudi_rs(url) == theirs(hudi, url) == set(there)
    table.upsert(rows(*((key, part, key + 10) for key, part, _ in there)))
    table.delete(rows(there[0]))
    changed = {(key, part, key + 10) for key, part, _ in there[1:]}
    assert content(table) == by_hudi_rs(url) == theirs(hudi, url) == changed
    hudi.write(url, ddl, [(key, part, -key) for key, part, _ in there[2:]], options)
    expected = {(key, part, -key) for key, part, _ in there[2:]} | {(1, "c:d", 11)}
    assert content(Table.open(url)) == by_hudi_rs(url) == theirs(hudi, url) == expected


# -- dates before the calendar's change of 1582 ------------------------------------------------------------------------

ANCIENT = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])
DAYS = ["0001-01-01", "1500-02-28", "1582-10-04", "1582-10-14", "1582-10-15", "1899-12-31", "2020-02-29"]
AS_TEXT = ["id", "cast(day as string)", "cast(at as string)"]  # Python has no moment in the year 1 that Spark can make


def ancient(folder: Path) -> Table:
    table = Table.create(str(folder / "ancient"), TableSpec("ancient", ANCIENT, ("id",)), settings=SETTINGS)
    at = [dt.datetime.fromisoformat(f"{day}T01:02:03+00:00") for day in DAYS]
    days = [dt.date.fromisoformat(day) for day in DAYS]
    table.append(pa.table([list(range(len(DAYS))), days, at], schema=ANCIENT))
    return table


def expected() -> list[tuple[Any, ...]]:
    return [(key, day, f"{day} 01:02:03") for key, day in enumerate(DAYS)]


def test_jvm_reads_ancient_dates_as_written_also_after_an_upsert(hudi: HudiSpark, tmp_path: Path) -> None:
    table = ancient(tmp_path)
    assert sorted(hudi.read(table.url, AS_TEXT)) == expected()
    table.upsert(table.to_arrow())
    assert sorted(hudi.read(table.url, AS_TEXT)) == expected()


def test_jvm_refuses_ancient_dates_without_the_mark_in_the_footer(
    hudi: HudiSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_mark = encoding._footer
    monkeypatch.setattr(
        encoding,
        "_footer",
        lambda *told: {key: text for key, text in with_mark(*told).items() if key != SPARK_KEY},
    )
    with pytest.raises(HudiError, match="SparkUpgradeException"):
        hudi.read(ancient(tmp_path).url, AS_TEXT)
