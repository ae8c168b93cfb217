"""JVM Hudi 1.2 reads the merge-on-read tables that we write, writes and compacts them, and we read what it made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from table.mor_tables import COLUMNS, KINDS, Row, a_table, by_hudi_rs, content, keys, log_files, rows

from lockprovider.table.files import write_log

if TYPE_CHECKING:
    from pathlib import Path

    from jvm.spark import HudiSpark
    from lockprovider.table import Table

pytestmark = pytest.mark.jvm
DDL = "id bigint, part string, value string, ts bigint"
OPTIMIZED = {"hoodie.datasource.query.type": "read_optimized"}
ALONE = {
    "hoodie.write.auto.upgrade": "false",
    "hoodie.metadata.enable": "false",
    "hoodie.table.name": "t",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.compact.inline": "false",
}
COMPACTING = {**ALONE, "hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}


def theirs(hudi: HudiSpark, table: Table, **options: str) -> list[Row]:
    return sorted(tuple(row) for row in hudi.read(table.url, COLUMNS.names, **options))  # type: ignore[misc]


def changed(folder: Path, kind: str) -> Table:
    """With updates, late ones, deletes that stay and that do not, Avro and Parquet blocks, and new rows."""
    table = a_table(folder / "t", kind)
    table.upsert(rows(*((n, "ab"[n % 2], "first", 10) for n in range(1, 9))))
    table.upsert(rows((1, "b", "second", 20), (2, "a", "late", 5), (3, "b", "tie", 10), (9, "c", "new", 10)))
    table.delete(keys((4, "a"), (5, "b"), (77, "a")))
    table.upsert(rows((4, "a", "low", 7), (5, "b", "again", 30)))
    many = write_log.PARQUET_ROWS + 8
    table.upsert(rows(*((n, "c", "many", 11) for n in range(9, many))))
    table.upsert(rows(*((n, "c", "more", 12) for n in range(10, many))))
    table.delete(keys(*((n, "c") for n in range(20, many))))
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_jvm_hudi_hudi_rs_and_we_see_the_same_rows(hudi: HudiSpark, tmp_path: Path, kind: str) -> None:
    table = changed(tmp_path, kind)
    assert theirs(hudi, table) == content(table) == by_hudi_rs(table)
    assert theirs(hudi, table, **OPTIMIZED) == content(table, read_optimized=True)
    assert len(log_files(table)) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_jvm_hudi_writes_and_compacts_what_we_wrote_and_we_go_on(hudi: HudiSpark, tmp_path: Path, kind: str) -> None:
    table = changed(tmp_path, kind)
    before = content(table)
    bucketed: dict[str, Any] = {}
    hudi.write(table.url, DDL, [[3, "b", "jvm", 50], [4, "a", "jvm", 50]], {**COMPACTING, **bucketed})
    seen = theirs(hudi, table)
    assert {(3, "b", "jvm", 50), (4, "a", "jvm", 50)} <= set(seen)
    assert {row for row in before if row[:2] not in {(3, "b"), (4, "a")}} <= set(seen)
    assert seen == content(table) == by_hudi_rs(table) == content(table, read_optimized=True)
    table.upsert(rows((3, "b", "ours", 60), (100, "a", "new", 1)))
    table.delete(keys((4, "a")))
    assert theirs(hudi, table) == content(table) == by_hudi_rs(table)
    hudi.write(table.url, DDL, [[3, "b", "jvm again", 70], [100, "a", "jvm", 2]], ALONE)
    assert theirs(hudi, table) == content(table) == by_hudi_rs(table)
