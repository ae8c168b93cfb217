"""JVM Hudi 1.2 reads the merge-on-read tables that we write and compact, and sees what we and hudi-rs see."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from table.mor_tables import COLUMNS, KINDS, Row, a_table, by_hudi_rs, content, keys, log_files, rows

from jvm.spark import SHARED, HudiError
from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import arrow, changes
from lockprovider.table.files import encoding, group_writer
from lockprovider.table.format import layout
from lockprovider.table.format.layout import Action

if TYPE_CHECKING:
    from pathlib import Path

    from servers.seaweedfs import SeaweedFS

    from jvm.spark import HudiSpark

pytestmark = pytest.mark.jvm
MERGE_ON_READ: dict[str, Any] = {"table_type": "merge_on_read"}
OPTIMIZED = {"hoodie.datasource.query.type": "read_optimized"}


def theirs(hudi: HudiSpark, table: Table, **options: str) -> list[Row]:
    return sorted(tuple(row) for row in hudi.read(table.url, COLUMNS.names, **options))  # type: ignore[misc]


def changed(table: Table) -> Table:
    """With updates, late ones, deletes that stay and that do not, Avro and Parquet blocks, and new rows."""
    table.upsert(rows(*((n, "ab"[n % 2], "first", 10) for n in range(1, 9))))
    table.upsert(rows((1, "b", "second", 20), (2, "a", "late", 5), (3, "b", "tie", 10), (9, "c", "new", 10)))
    table.delete(keys((4, "a"), (5, "b"), (77, "a")))
    table.upsert(rows((4, "a", "low", 7), (5, "b", "again", 30)))
    many = encoding.PARQUET_ROWS + 8
    table.upsert(rows(*((n, "c", "many", 11) for n in range(9, many))))
    table.upsert(rows(*((n, "c", "more", 12) for n in range(10, many))))
    table.delete(keys(*((n, "c") for n in range(20, many))))
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_jvm_hudi_and_hudi_rs_and_python_read_the_same_rows(hudi: HudiSpark, tmp_path: Path, kind: str) -> None:
    table = changed(a_table(tmp_path / "t", kind))
    assert theirs(hudi, table) == content(table) == by_hudi_rs(table)
    assert theirs(hudi, table, **OPTIMIZED) == content(table, read_optimized=True)
    assert len(log_files(table)) > 5


@pytest.mark.parametrize("kind", ["by event", "by commit, buckets"])
def test_jvm_reads_compacted_table_and_one_with_a_scheduled_compaction(
    hudi: HudiSpark, tmp_path: Path, kind: str
) -> None:
    table = changed(a_table(tmp_path / "t", kind))
    seen = content(table)
    table.compact()
    assert theirs(hudi, table) == theirs(hudi, table, **OPTIMIZED) == content(table) == seen
    table.upsert(rows((3, "b", "ours", 60), (2, "a", "ours", 60)))
    assert table.schedule_compaction() is not None
    assert theirs(hudi, table) == content(table) == by_hudi_rs(table)


def test_jvm_and_python_run_each_others_compaction_plans(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    table = changed(a_table(seaweedfs.new_prefix(), "by event", seaweedfs.storage_options))
    seen = content(table)
    begin = table.schedule_compaction()
    assert begin is not None
    at_once = {"hoodie.compact.inline.max.delta.commits": "1"}
    options = ",".join(f"{key}={value}" for key, value in {**SHARED, **at_once}.items())
    given = f"path => '{table.url}', options => '{options}'"
    hudi.sql(f"call run_compaction(op => 'run', timestamp => {begin}, {given})")
    assert table.timeline().pending(Action.COMPACTION) == ()
    assert theirs(hudi, table) == theirs(hudi, table, **OPTIMIZED) == content(table) == seen
    table.upsert(rows((3, "b", "ours", 60), (2, "a", "ours", 60)))
    hudi.sql(f"call run_compaction(op => 'schedule', {given})")
    (planned,) = table.timeline().pending(Action.COMPACTION)
    assert table.run_compaction(planned).log_files == 2
    found = content(table)
    assert theirs(hudi, table) == theirs(hudi, table, **OPTIMIZED) == found == content(table, read_optimized=True)


def test_m5_mutant_with_deletes_of_another_type_fails_jvm_readers(
    hudi: HudiSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = pa.schema([("id", pa.int64()), ("ts", pa.int32())])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", columns, ("id",), ordering="ts", **MERGE_ON_READ))
    given = pa.table({"id": [1, 2], "ts": [5, 5]}, schema=columns)
    table.upsert(given)
    table.delete(given.slice(1).select(["id"]))
    assert hudi.read(table.url, ["id"]) == [(1,)]
    monkeypatch.setattr(encoding, "wrapper_of", lambda kind: "LongWrapper")
    table.delete(given.slice(0, 1).select(["id"]))
    with pytest.raises(HudiError, match="ClassCastException"):
        hudi.read(table.url, ["id"])


def test_m6_mutant_with_row_without_ordering_value_fails_jvm_readers(
    hudi: HudiSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = a_table(tmp_path / "t", "by event")
    table.upsert(rows((1, "a", "x", 10)))
    for module in (changes, group_writer, encoding):
        monkeypatch.setattr(module, "refuse_unordered", lambda *_: None)
    table.upsert(rows((1, "a", "y", 0)).set_column(3, "ts", pa.nulls(1, pa.int64())))
    assert content(table) == by_hudi_rs(table) == [(1, "a", "x", 10)]
    with pytest.raises(HudiError, match="ClassCastException"):
        theirs(hudi, table)


def test_m7_mutant_with_letters_in_log_name_is_invisible_to_jvm_readers(
    hudi: HudiSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = a_table(tmp_path / "t", "by event")
    table.upsert(rows((1, "a", "x", 10)))
    lettered = layout._LOG_FILE.pattern.replace("[0-9]+-[0-9]+-[0-9]+", "[a-z0-9]+-[0-9]+-[0-9]+")
    monkeypatch.setattr(layout, "_LOG_FILE", re.compile(lettered))
    monkeypatch.setattr(arrow, "_TASK", "task-0-0")
    table.upsert(rows((1, "a", "y", 11)))
    assert content(table) == [(1, "a", "y", 11)]
    assert theirs(hudi, table) == [(1, "a", "x", 10)], "silently the old row"
