"""Overwrites and table services, each read back by the independent reader after each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from table.services import overwrite, timeline_names
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from lockprovider.table import Aborted, InvalidRecords, Mode, Table, TableSettings, WriteConflict
from lockprovider.table.conflict import prefer_writer
from lockprovider.table.engines import arrow as engine
from lockprovider.table.metadata import decode_commit, one_record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
def table(folder: Path) -> Table:
    return Table.create(str(folder), SPEC, settings=SETTINGS)


def same(table: Table) -> set[tuple[int, str, int]]:
    """The rows, on which both readers agree."""
    found = content(table)
    assert by_hudi_rs(table.url) == found
    return found


# --- overwrites -----------------------------------------------------------------------------------------------------


def test_an_overwrite_replaces_the_rows_of_its_partitions_and_no_others(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1), (2, "a", 2), (3, "b", 3))
    result = overwrite(table, ["a"], (9, "a", 9))
    assert same(table) == {(9, "a", 9), (3, "b", 3)}
    assert f"{result.instant}_{result.completion}.replacecommit" in timeline_names(folder)
    assert {f"{result.instant}.replacecommit.{state}" for state in ("requested", "inflight")} <= timeline_names(folder)
    upsert(table, (9, "a", 10), (1, "a", 1))
    assert same(table) == {(9, "a", 10), (1, "a", 1), (3, "b", 3)}


def test_an_overwrite_without_rows_empties_its_partitions(table: Table) -> None:
    upsert(table, (1, "a", 1), (3, "b", 3))
    overwrite(table, ["a", "none such"])
    assert same(table) == {(3, "b", 3)}
    assert table.history()[-1].operation == "DELETE_PARTITION"


def test_an_overwrite_lists_what_it_replaced_as_hudi_does(table: Table, folder: Path) -> None:
    old = upsert(table, (1, "a", 1)).file_groups
    result = overwrite(table, ["a"], (2, "a", 2))
    name = f"{result.instant}_{result.completion}.replacecommit"
    metadata = decode_commit((folder / ".hoodie" / "timeline" / name).read_bytes(), name)
    assert {(p, f) for p, ids in metadata.replaced.items() for f in ids} == set(old)
    assert metadata.operation == "INSERT_OVERWRITE"
    assert set(old) < set(result.file_groups)


def test_an_overwrite_and_an_update_of_the_same_partition_conflict_in_both_orders(table: Table) -> None:
    upsert(table, (1, "a", 1), (3, "b", 3))
    late = table.transaction()
    engine.write(late, upserts=rows((1, "a", 100)))
    overwrite(table, ["a"], (2, "a", 2))
    with pytest.raises(WriteConflict, match="replacecommit"):
        late.commit()
    late.rollback()
    late = table.transaction()
    late.overwrite(["a"])
    upsert(table, (2, "a", 20))
    late.add(())
    with pytest.raises(WriteConflict):
        late.commit()
    late.rollback()
    assert same(table) == {(2, "a", 20), (3, "b", 3)}
    assert table.timeline().pending_writes == ()


def test_rows_that_came_in_meanwhile_outlive_an_overwrite(table: Table) -> None:
    """As the later of two serial writes: by file group, an insert never conflicts."""
    upsert(table, (1, "a", 1))
    slow = table.transaction()
    slow.overwrite(["a"])
    slow.add(())
    upsert(table, (5, "a", 5))
    slow.commit()
    assert same(table) == {(5, "a", 5)}


def test_an_overwrite_comes_first_and_writes_no_file_group_that_it_ends(table: Table) -> None:
    upsert(table, (1, "a", 1))
    txn = table.transaction()
    txn.start()
    with pytest.raises(InvalidRecords, match="first"):
        txn.overwrite(["a"])
    txn.rollback()
    txn = table.transaction()
    txn.overwrite(["a"])
    with pytest.raises(InvalidRecords, match="are overwritten"):
        engine.write(txn, upserts=rows((1, "a", 2)))
    txn.rollback()
    txn = table.transaction()
    with pytest.raises(InvalidRecords, match="UPSERT"):
        txn.overwrite(["a"], "UPSERT")
    assert same(table) == {(1, "a", 1)}


def test_a_dead_overwrite_is_rolled_back_as_one(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1))
    dead = table.transaction()
    dead.overwrite(["a"])
    dead.start()
    dead._heartbeat.stop()
    upsert(table, (2, "b", 2))
    assert table.timeline().pending_writes == ()
    assert not list((folder / ".hoodie" / "timeline").glob(f"{dead.begin}.*"))
    assert same(table) == {(1, "a", 1), (2, "b", 2)}
    dead.add(())
    with pytest.raises(Aborted):
        dead.commit()


# --- clusterings of JVM writers -------------------------------------------------------------------------------------


def plan_clustering(folder: Path, begin: str, *groups: tuple[str, str]) -> None:
    """What a JVM writer puts on the timeline when it schedules a clustering of these file groups."""
    slices = [{"fileId": file_id, "partitionPath": partition} for partition, file_id in groups]
    plan: dict[str, Any] = {"clusteringPlan": {"inputGroups": [{"slices": slices}]}, "operationType": "CLUSTER"}
    timeline = folder / ".hoodie" / "timeline"
    (timeline / f"{begin}.clustering.requested").write_bytes(one_record("HoodieRequestedReplaceMetadata", plan))
    (timeline / f"{begin}.clustering.inflight").touch()


def test_a_planned_clustering_wins_over_an_update_of_its_file_groups(table: Table, folder: Path) -> None:
    groups = upsert(table, (1, "a", 1), (2, "b", 2)).file_groups
    late = table.transaction()
    engine.write(late, upserts=rows((1, "a", 100)))
    begin = table.timeline().next_time(0)
    plan_clustering(folder, begin, *(group for group in groups if group[0] == "a"))
    with pytest.raises(WriteConflict, match=f"lost to {begin}.clustering.requested"):
        late.commit()
    late.rollback()
    other = table.transaction()
    engine.write(other, upserts=rows((2, "b", 20)))
    other.commit()
    assert same(table) == {(1, "a", 1), (2, "b", 20)}


def test_writers_may_be_preferred_over_a_planned_clustering(table: Table, folder: Path) -> None:
    groups = upsert(table, (1, "a", 1)).file_groups
    plan_clustering(folder, table.timeline().next_time(0), *groups)
    preferred = Table.open(table.url, settings=replace(SETTINGS, resolution=prefer_writer))
    upsert(preferred, (1, "a", 2))
    assert same(table) == {(1, "a", 2)}


def test_a_table_service_gives_way_to_a_writer_that_is_preferred(table: Table) -> None:
    groups = upsert(table, (1, "a", 1), (2, "b", 2)).file_groups
    preferred = Table.open(table.url, settings=replace(SETTINGS, resolution=prefer_writer))
    writer = table.transaction()
    engine.write(writer, upserts=rows((1, "a", 10)))
    service = preferred.transaction()
    service.overwrite(["a"], "CLUSTER")
    service.add(())
    with pytest.raises(WriteConflict) as caught:
        service.commit()
    assert caught.value.file_groups == tuple(group for group in groups if group[0] == "a")
    service.rollback()
    writer.commit()
    assert same(table) == {(1, "a", 10), (2, "b", 2)}


# --- modes ----------------------------------------------------------------------------------------------------------


def test_a_single_writer_rolls_back_at_once_what_is_pending_and_a_lazy_one_spares_the_living(table: Table) -> None:
    upsert(table, (1, "a", 1))
    living = table.transaction()
    engine.write(living, upserts=rows((2, "b", 2)))
    upsert(table, (3, "c", 3))
    assert table.timeline().pending_writes == (living.begin,)
    alone = Table.open(table.url, settings=TableSettings(mode=Mode.SINGLE_WRITER))
    upsert(alone, (4, "d", 4))
    assert table.timeline().pending_writes == ()
    with pytest.raises(Aborted, match="rolled back"):
        living.commit()
    assert same(table) == {(1, "a", 1), (3, "c", 3), (4, "d", 4)}


def test_two_single_writers_by_mistake_lose_no_commit(table: Table) -> None:
    upsert(table, (1, "a", 1))
    alone = TableSettings(mode=Mode.SINGLE_WRITER)
    first, second = Table.open(table.url, settings=alone), Table.open(table.url, settings=alone)
    mine = first.transaction()
    upsert(second, (1, "a", 10))
    engine.write(mine, upserts=rows((1, "a", 100)))
    with pytest.raises(WriteConflict):
        mine.commit()
    mine.rollback()
    assert same(table) == {(1, "a", 10)}
