"""Staged rows come to the same as the same rows given to `Table`, whatever the table is; without a session of Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, orphans, rows, upsert

from lockprovider.table import InvalidRecords, Table, TableSpec
from lockprovider.table.engines import changes
from lockprovider.table.engines.spark.options import WriteOperation
from lockprovider.table.engines.spark.staged import Stage, commit_staged, remove_staged
from lockprovider.table.errors import Aborted
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format.layout import MARKERS

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unpartitioned": {"partition_by": ()},
    "merge on read": {"table_type": "MERGE_ON_READ"},
    "ordered": {"ordering": "value"},
    "buckets": {"buckets": 3},
    "buckets, merge on read": {"buckets": 3, "table_type": "MERGE_ON_READ"},
}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "BYTES_PER_FILE", 200)


def made(folder: Path, kind: str) -> Table:
    given = {"partition_by": SPEC.partition_by} | KINDS[kind]
    return Table.create(str(folder), TableSpec("t", SCHEMA, "id", **given), settings=SETTINGS)


def stage_of(table: Table, operation: WriteOperation) -> Stage:
    return Stage(GroupWriter(table.place, "", table.config(), table.schema()), operation, valued=False)


def written(table: Table, operation: WriteOperation, *parts: pa.Table) -> Any:
    """By as many tasks as there are parts."""
    stage = stage_of(table, operation)
    files = [file for part in parts for file in stage.write(iter(part.to_batches(max_chunksize=3)))]
    try:
        return commit_staged(table, stage, files)
    finally:
        remove_staged(table.place, [stage.folder])


def drawn(dice: random.Random, count: int) -> pa.Table:
    return rows(*((dice.randrange(40), "ab"[dice.randrange(2)], dice.randrange(1000)) for _ in range(count)))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("kind", KINDS)
def test_staged_changes_give_the_same_rows_as_direct_ones(tmp_path: Path, kind: str, seed: int) -> None:
    dice = random.Random(seed)
    mine, other = made(tmp_path / "mine", kind), made(tmp_path / "other", kind)
    for _ in range(4):
        first, second = drawn(dice, 15), drawn(dice, 8)
        done = written(mine, WriteOperation.UPSERT, first, second)
        same = other.upsert(pa.concat_tables([first, second]))
        # A key whose row was deleted by a log file is new to one, and an update of its old group to the other.
        assert done.inserted + done.updated == same.inserted + same.updated
        keys = drawn(dice, 5).drop_columns(["value"])
        written(mine, WriteOperation.DELETE, keys)
        other.delete(keys)
        assert content(mine) == content(other) == by_hudi_rs(mine.url)
    only = drawn(dice, 1)
    written(mine, WriteOperation.INSERT_OVERWRITE, only)
    (new,) = (tuple(row.values()) for row in only.to_pylist())
    kept = {row for row in content(other) if KINDS[kind].get("partition_by") != () and row[1] != new[1]}
    assert content(mine) == by_hudi_rs(mine.url) == kept | {new}
    assert orphans(Path(mine.url)) == set()
    assert mine.store.list(f"{MARKERS}/staged") == []


@pytest.mark.usefixtures("_small")
def test_key_in_several_file_groups_is_changed_in_each(tmp_path: Path) -> None:
    table = made(tmp_path / "t", "plain")
    for value in (1, 2):
        table.append(rows((1, "a", value)))
    written(table, WriteOperation.UPSERT, rows((1, "a", 3), (2, "a", 4)))
    assert sorted(row["value"] for row in table.to_arrow().to_pylist()) == [3, 3, 4]
    written(table, WriteOperation.DELETE, rows((1, "a", 0)))
    assert content(table) == {(2, "a", 4)}


@pytest.mark.usefixtures("_small")
def test_overwrite_with_a_key_twice_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    table = made(tmp_path / "t", "plain")
    upsert(table, (1, "a", 1))
    with pytest.raises(InvalidRecords, match="'2' comes more than once in partition 'a'"):
        written(table, WriteOperation.INSERT_OVERWRITE, rows((2, "a", 1)), rows((2, "a", 2)))
    assert content(table) == {(1, "a", 1)}
    assert orphans(Path(table.url)) == set()


def test_column_added_during_a_write_ends_it(tmp_path: Path) -> None:
    table = made(tmp_path / "t", "plain")
    stage = stage_of(table, WriteOperation.UPSERT)
    files = stage.write(iter(rows((1, "a", 1)).to_batches()))
    table.add_columns(pa.schema([("note", pa.string())]))
    for one in (stage, stage_of(table, WriteOperation.UPSERT)):
        with pytest.raises(Aborted, match="run the write again"):
            commit_staged(table, one, files)
    assert content(table) == set()
