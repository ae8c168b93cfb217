"""JVM Hudi's non-blocking writer beside ours: no conflict, and all readers see the greatest ordering value."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from patience import PATIENCE_S
from table.mor_tables import COLUMNS, Row, content, rows
from table.test_non_blocking import BUCKETS, IN_BUCKET_0, as_the_jvm_does

from jvm.shared_table import OPTIONS, SETTINGS
from jvm.test_spark_writes import Writing
from lockprovider.demo.proof import reader_options
from lockprovider.table import Aborted, Mode, Table, TableSpec
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.bucket import fixed_file_id
from lockprovider.table.format.compatibility import METADATA_KEY, MODE_KEY, STATISTICS_KEY
from lockprovider.table.services import anchors, plans
from lockprovider.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    from pathlib import Path

    from servers.seaweedfs import SeaweedFS

    from jvm.spark import HudiSpark

pytestmark = pytest.mark.jvm
BLIND = replace(SETTINGS, mode=Mode.NON_BLOCKING)
SPEC = TableSpec("t", COLUMNS, ("id",), ("part",), ordering="ts", buckets=BUCKETS, table_type="merge_on_read")
DDL = "id bigint, part string, value string, ts bigint"
THEIRS = OPTIONS | {
    "hoodie.table.name": "t",
    MODE_KEY: "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.compact.inline": "false",  # else they run what we have scheduled
}


@pytest.fixture
def table(seaweedfs: SeaweedFS) -> Table:
    return Table.create(seaweedfs.new_prefix(), SPEC, settings=BLIND, storage_options=seaweedfs.storage_options)


def another(table: Table, **changed: Any) -> Table:
    return Table.open(table.url, storage_options=table.storage_options, settings=replace(BLIND, **changed))


def by_hudi_rs(table: Table) -> list[Row]:
    from hudi import HudiTableBuilder

    options = dict(reader_options(table.url, table.storage_options, {}))
    batches = HudiTableBuilder.from_base_uri(table.url).with_options(options).build().read()
    return sorted(tuple(row[name] for name in COLUMNS.names) for batch in batches for row in batch.to_pylist())  # type: ignore[misc]


def theirs(hudi: HudiSpark, table: Table) -> list[Row]:
    return sorted(tuple(row) for row in hudi.read(table.url, COLUMNS.names))  # type: ignore[misc]


def agreed(hudi: HudiSpark, table: Table) -> list[Row]:
    found = content(another(table))
    assert theirs(hudi, table) == by_hudi_rs(table) == found
    return found


def begun(table: Table, *given: Row) -> Any:
    txn = Transaction(another(table), pinned=False)
    engine.write(txn, rows(*given))
    return txn


def test_jvm_and_python_write_at_once_with_a_compaction_in_between(hudi: HudiSpark, table: Table) -> None:
    first = begun(table, (1, "a", "ours", 5), (2, "a", "ours", 1), (3, "a", "ours", 50))
    hudi.write(table.url, DDL, [(1, "a", "theirs", 4), (2, "a", "theirs", 2), (4, "b", "theirs", 1)], THEIRS)
    assert agreed(hudi, table) == [(1, "a", "theirs", 4), (2, "a", "theirs", 2), (4, "b", "theirs", 1)]
    planned = table.schedule_compaction()
    assert planned is not None
    hudi.write(table.url, DDL, [(3, "a", "theirs", 49), (4, "b", "theirs", 3)], THEIRS)
    table.run_compaction(planned)
    first.commit()
    expected = [(1, "a", "ours", 5), (2, "a", "theirs", 2), (3, "a", "ours", 50), (4, "b", "theirs", 3)]
    assert agreed(hudi, table) == expected


def test_jvm_and_python_keep_the_metadata_table_of_the_jvm(hudi: HudiSpark, table: Table) -> None:
    kept = {METADATA_KEY: "true", STATISTICS_KEY: "false"}
    with table.lock.acquire() as lease:
        plans.change_properties(table, lease, lambda config: replace(config, raw={**config.raw, **kept}))
    told = {key: value for key, value in THEIRS.items() if key != METADATA_KEY}
    hudi.write(table.url, DDL, [(1, "a", "theirs", 1), (2, "a", "theirs", 1)], told)
    assert table.config().named_metadata == ("files",)
    first = begun(table, (1, "a", "ours", 5), (2, "a", "ours", 1), (3, "a", "ours", 50))
    hudi.write(table.url, DDL, [(1, "a", "theirs", 4), (2, "a", "theirs", 2), (4, "b", "theirs", 1)], told)
    another(table).upsert(rows((9, "c", "ours", 1)))
    planned = table.schedule_compaction()
    assert planned is not None
    hudi.write(table.url, DDL, [(3, "a", "theirs", 49), (4, "b", "theirs", 3)], told)
    table.run_compaction(planned)
    first.commit()
    expected: list[Row] = [(1, "a", "ours", 5), (2, "a", "theirs", 2), (3, "a", "ours", 50), (4, "b", "theirs", 3)]
    expected.append((9, "c", "ours", 1))
    assert agreed(hudi, table) == expected
    by_listing = hudi.read(table.url, COLUMNS.names, **{METADATA_KEY: "true"})
    assert sorted(tuple(row) for row in by_listing) == expected
    assert content(another(table, read_from_metadata=True)) == expected
    said = {rule: findings for rule, _, findings in diagnose(another(table))}
    assert said["metadata"] == ()


def test_jvm_writes_into_python_groups_without_a_setting_of_the_mode(hudi: HudiSpark, table: Table) -> None:
    table.upsert(rows(*((n, "a", "ours", 1) for n in range(4))))
    before = {one.file_id for one in table.snapshot().slices}
    told = {key: value for key, value in THEIRS.items() if key != MODE_KEY}
    hudi.write(table.url, DDL, [(1, "a", "theirs", 2), (7, "a", "theirs", 2)], told)
    assert {one.file_id for one in another(table).snapshot().slices} == before == {fixed_file_id(n) for n in range(2)}
    assert [row for row in agreed(hudi, table) if row[2] == "theirs"] == [(1, "a", "theirs", 2), (7, "a", "theirs", 2)]


def test_pending_jvm_write_and_python_write_both_commit(hudi: HudiSpark, table: Table, tmp_path: Path) -> None:
    table.upsert(rows((1, "a", "old", 1), (2, "a", "old", 1)))
    given: Any = [(1, "a", "theirs", 9), (2, "a", "theirs", 3)]
    with Writing(hudi, table, given, tmp_path / "gate", THEIRS, ddl=DDL) as write:
        table.upsert(rows((1, "a", "ours", 8), (2, "a", "ours", 4)))
        table.compact()
        write.finish()
    assert agreed(hudi, table) == [(1, "a", "theirs", 9), (2, "a", "ours", 4)]


@pytest.mark.parametrize("is_anchored", [True, False], ids=["anchored", "twin without an anchor"])
def test_m1_jvm_readers_see_commits_while_an_earlier_write_is_pending(
    hudi: HudiSpark, table: Table, is_anchored: bool
) -> None:
    if is_anchored:
        anchors.ensure_anchors(table, ["a"])
    pending = as_the_jvm_does(table, (IN_BUCKET_0, "a", "pending", 1))
    as_the_jvm_does(table, (IN_BUCKET_0, "a", "done", 2)).commit()
    found = [(IN_BUCKET_0, "a", "done", 2)]
    assert content(another(table)) == by_hudi_rs(table) == found
    assert theirs(hudi, table) == (found if is_anchored else [])
    pending.rollback()
    assert agreed(hudi, table) == found


def test_jvm_rolls_back_dead_python_writer_with_one_marker_object(hudi: HudiSpark, table: Table) -> None:
    table.upsert(rows(*((n, part, "ours", 1) for n in range(4) for part in "ab")))
    dead = begun(table, *((n, part, "dead", 9) for n in range(4) for part in "ab"))
    dead.leave()
    left = [entry.path for entry in table.store.list("") if dead.begin in entry.path]
    assert sum(".log." in path for path in left) == 4
    assert sorted(path.rpartition("/")[2] for path in left if "/.temp/" in path) == ["MARKERS.type", "MARKERS0"]
    turns, deadline = 0, time.monotonic() + PATIENCE_S
    while dead.begin in table.timeline().pending_writes:
        assert time.monotonic() < deadline
        turns += 1
        hudi.write(table.url, DDL, [(9, "b", "theirs", turns)], THEIRS)
    assert [entry.path for entry in table.store.list("") if dead.begin in entry.path] == []
    expected = sorted([(9, "b", "theirs", turns), *((n, part, "ours", 1) for n in range(4) for part in "ab")])
    assert agreed(hudi, table) == expected
    with pytest.raises(Aborted):
        dead.commit()


def test_m10_jvm_rows_after_python_overwrite_are_visible(hudi: HudiSpark, table: Table) -> None:
    table.upsert(rows(*((n, "a", "ours", 1) for n in range(6))))
    another(table, mode=Mode.OPTIMISTIC).overwrite(rows(), ["a"])
    assert agreed(hudi, table) == []
    hudi.write(table.url, DDL, [(n, "a", "theirs", 2) for n in range(6)], THEIRS)
    assert agreed(hudi, table) == [(n, "a", "theirs", 2) for n in range(6)]
    assert {one.file_id for one in another(table).snapshot().slices} == {fixed_file_id(n, 1) for n in range(2)}
