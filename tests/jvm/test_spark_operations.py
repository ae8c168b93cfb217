"""Everything that JVM Hudi's Spark writer does to a table, we can read and go on from; also in tables that it made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from table.tables import SCHEMA, content, rows, upsert

from jvm.shared_table import DDL, OPTIONS, SETTINGS, Triple, new_table, theirs
from jvm.spark import HudiSpark
from lockprovider.table import Table, UnsupportedTable, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format import bloom

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm

START = {(1, "a", 1), (2, "b", 2)}
OPERATIONS: dict[str, tuple[list[Triple], dict[str, str], set[Triple]]] = {
    "insert": ([(3, "a", 3)], {}, START | {(3, "a", 3)}),
    "bulk_insert": ([(3, "c", 3)], {}, START | {(3, "c", 3)}),
    "upsert": ([(1, "a", 10), (3, "a", 3)], {}, {(1, "a", 10), (2, "b", 2), (3, "a", 3)}),
    "delete": ([(1, "a", 0)], {}, {(2, "b", 2)}),
    "insert_overwrite": ([(3, "a", 3)], {}, {(2, "b", 2), (3, "a", 3)}),
    "insert_overwrite_table": ([(3, "c", 3)], {}, {(3, "c", 3)}),
    "delete_partition": ([(1, "a", 1)], {"hoodie.datasource.write.partitions.to.delete": "a"}, {(2, "b", 2)}),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_python_reads_and_writes_after_each_jvm_operation(
    hudi: HudiSpark, seaweedfs: SeaweedFS, operation: str
) -> None:
    table = new_table(seaweedfs)
    written, more, expected = OPERATIONS[operation]
    hudi.write(table.url, DDL, written, OPTIONS | more | {"hoodie.datasource.write.operation": operation})
    assert content(table) == theirs(hudi, table) == expected
    upsert(table, (2, "b", 20), (3, "a", 30), (4, "d", 4))
    assert content(table) == theirs(hudi, table)
    assert {(2, "b", 20), (3, "a", 30), (4, "d", 4)} <= content(table)


@pytest.mark.parametrize("index", ["SIMPLE", "BLOOM", "GLOBAL_SIMPLE"])
def test_jvm_index_finds_python_rows(hudi: HudiSpark, seaweedfs: SeaweedFS, index: str) -> None:
    table = new_table(seaweedfs)
    upsert(table, *((key, "a", key) for key in range(100, 200)))
    hudi.write(table.url, DDL, [(150, "a", -1), (250, "a", 250)], OPTIONS | {"hoodie.index.type": index})
    expected = START | {(key, "a", key) for key in range(100, 200) if key != 150} | {(150, "a", -1), (250, "a", 250)}
    assert content(table) == theirs(hudi, table) == expected


SIZES = {"one": 1, "full": 16, "over": 17, "many": 3000, "most": 70_000}
BY_BLOOM = {  # what the filters do not tell is written into files of its own
    "hoodie.index.type": "BLOOM",
    "hoodie.bloom.index.prune.by.ranges": "false",
    "hoodie.parquet.small.file.limit": "0",
}


def found_by_their_bloom_index(hudi: HudiSpark, seaweedfs: SeaweedFS) -> tuple[list[Triple], list[Triple]]:
    """What there is after they upserted a key of each partition, and what there should be."""
    table = new_table(seaweedfs)
    there = {(number, part, number) for part, size in SIZES.items() for number in range(size)}
    upsert(table, *there)
    hudi.write(
        table.url, DDL, [(0, part, -1) for part in SIZES] + [(99_999, part, 1) for part in SIZES], OPTIONS | BY_BLOOM
    )
    expected = {(key, part, -1 if key == 0 else value) for key, part, value in there}
    expected |= START | {(99_999, part, 1) for part in SIZES}
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist()), sorted(expected)


def test_jvm_bloom_index_accepts_python_filters_of_any_size(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    found, expected = found_by_their_bloom_index(hudi, seaweedfs)
    assert found == expected


def test_jvm_bloom_index_uses_python_filters(
    hudi: HudiSpark, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would notice filters that say too little."""
    of_others = bloom.encode_filter(["another"])
    monkeypatch.setattr(bloom, "encode_filter", lambda *_, **__: of_others)
    found, expected = found_by_their_bloom_index(hudi, seaweedfs)
    assert len(found) == len(expected) + len(SIZES)


def test_python_reads_and_writes_after_jvm_clustering(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    table = new_table(seaweedfs)
    upsert(table, (3, "a", 3))
    clustering = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}
    hudi.write(table.url, DDL, [(4, "a", 4)], OPTIONS | clustering)
    assert "CLUSTER" in {commit.operation for commit in table.history()}
    assert content(table) == theirs(hudi, table) == START | {(3, "a", 3), (4, "a", 4)}
    upsert(table, (3, "a", 30))
    hudi.write(table.url, DDL, [(4, "a", 40)], OPTIONS)
    assert content(table) == theirs(hudi, table) == START | {(3, "a", 30), (4, "a", 40)}


SHORT = OPTIONS | {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.commits.archival.batch": "1",
}


def test_python_reads_and_writes_after_jvm_cleaned_and_archived(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    table = new_table(seaweedfs)
    before = table.timeline().written
    for turn in range(6):
        upsert(table, (2, "b", turn))
        hudi.write(table.url, DDL, [(1, "a", turn)], SHORT)
    assert content(table) == theirs(hudi, table) == {(1, "a", 5), (2, "b", 5)}
    assert before - table.timeline().written, "something was archived"
    upsert(table, (1, "a", 50), (3, "a", 3))
    assert content(table) == theirs(hudi, table) == {(1, "a", 50), (2, "b", 5), (3, "a", 3)}


def test_python_gets_conflict_with_commit_archived_by_jvm(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    table = new_table(seaweedfs)
    mine = table.transaction()
    assert mine.to_arrow().num_rows == 2  # and thinks
    keeping = SHORT | {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "3"}
    hudi.write(table.url, DDL, [(1, "a", 10)], keeping)
    theirs_one = table.timeline().written - mine.timeline.written
    for turn in range(6):
        hudi.write(table.url, DDL, [(100 + turn, f"p{turn}", turn)], keeping)
    assert not theirs_one & table.timeline().written, "archived"
    engine.write(mine, upserts=rows((1, "a", 100)))
    with pytest.raises(WriteConflict, match="archived"):
        mine.commit()
    mine.rollback()
    others = {(100 + turn, f"p{turn}", turn) for turn in range(6)}
    assert content(table) == theirs(hudi, table) == {(1, "a", 10), (2, "b", 2)} | others


MADE = OPTIONS | {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "part",
    "hoodie.table.timeline.timezone": "UTC",
}


@pytest.mark.parametrize("version", ["8", "9"])
def test_python_writes_tables_made_by_jvm(hudi: HudiSpark, seaweedfs: SeaweedFS, version: str) -> None:
    url = seaweedfs.new_prefix()
    made = MADE | {"hoodie.write.table.version": version}
    hudi.write(url, DDL, sorted(START), made)
    table = Table.open(url, storage_options=seaweedfs.storage_options, settings=SETTINGS)
    assert f"hoodie.table.version={version}" in table.store.read(".hoodie/hoodie.properties").data.decode()
    assert content(table) == START
    assert table.schema().names == SCHEMA.names
    upsert(table, (1, "a", 10), (3, "c", 3))
    hudi.write(url, DDL, [(3, "c", 30)], made)
    assert content(table) == theirs(hudi, table) == {(1, "a", 10), (2, "b", 2), (3, "c", 30)}


def test_jvm_table_with_local_times_or_metadata_table_is_refused(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    for unfit in ({"hoodie.table.timeline.timezone": "LOCAL"}, {"hoodie.metadata.enable": "true"}):
        url = seaweedfs.new_prefix()
        hudi.write(url, DDL, sorted(START), MADE | {"hoodie.write.table.version": "8"} | unfit)
        with pytest.raises(UnsupportedTable):
            upsert(Table.open(url, storage_options=seaweedfs.storage_options, settings=SETTINGS), (1, "a", 10))
        assert {tuple(row) for row in hudi.read(url, SCHEMA.names)} == START
