"""JVM Hudi goes on where our table services were, and they where it was: on an object store, under its own scheme."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from table.overwriting import overwrite
from table.tables import SCHEMA, SPEC, content, upsert

from jvm.spark import SHARED, HudiSpark
from lockprovider import LockSettings
from lockprovider.table import HistoryGone, KeepCommits, KeepVersions, Table, TableSettings
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.layout import Action
from lockprovider.table.services import clean as cleaner

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm

DDL = "id bigint, part string, value bigint"
OPTIONS = {
    **SHARED,
    "hoodie.table.name": SPEC.name,
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "1",
    "hoodie.upsert.shuffle.parallelism": "2",
}


@pytest.fixture
def table(seaweedfs: SeaweedFS) -> Table:
    settings = TableSettings(lock=LockSettings(timeout=240))
    options = seaweedfs.storage_options
    table = Table.create(seaweedfs.new_prefix(), SPEC, settings=settings, storage_options=options)
    upsert(table, (1, "a", 1), (2, "b", 2))
    return table


def theirs(hudi: HudiSpark, table: Table) -> set[tuple[int, str, int]]:
    found = hudi.read(_s3a(table), SCHEMA.names)
    assert len(found) == len(set(found))
    return {(int(key), str(part), int(value)) for key, part, value in found}


def _s3a(table: Table) -> str:
    return table.url.replace("s3://", "s3a://")


def same(hudi: HudiSpark, table: Table) -> set[tuple[int, str, int]]:
    found = content(table)
    assert theirs(hudi, table) == found
    wrong = [one.what for _, _, found_ in diagnose(table) for one in found_ if one.state == "wrong"]
    assert wrong == []
    return found


def test_jvm_reads_and_writes_after_each_python_service(hudi: HudiSpark, table: Table) -> None:
    kept = upsert(table, (1, "a", 10)).instant
    table.savepoint(kept, comment="before")
    overwrite(table, ["b"], (3, "b", 3))
    upsert(table, (1, "a", 100))
    assert table.clean(KeepVersions(1))
    assert same(hudi, table) == {(1, "a", 100), (3, "b", 3)}
    assert table.restore(kept).taken_back
    assert same(hudi, table) == {(1, "a", 10), (2, "b", 2)}
    hudi.write(_s3a(table), DDL, [(1, "a", 1000), (4, "d", 4)], OPTIONS)
    assert same(hudi, table) == {(1, "a", 1000), (2, "b", 2), (4, "d", 4)}


def test_jvm_finishes_clean_planned_by_python(hudi: HudiSpark, table: Table) -> None:
    for value in range(10, 13):
        upsert(table, (1, "a", value))
    with ExitStack() as alive:
        planned = cleaner._schedule(table, KeepVersions(1), alive)
    assert planned is not None
    going = planned[1].paths
    assert going <= {entry.path for entry in table.data_files()}
    hudi.write(_s3a(table), DDL, [(5, "e", 5)], OPTIONS)
    assert table.timeline().pending(Action.CLEAN) == ()
    assert not going & {entry.path for entry in table.data_files()}
    assert same(hudi, table) == {(1, "a", 12), (2, "b", 2), (5, "e", 5)}


def test_jvm_clean_spares_python_savepoint_and_python_knows_its_removals(hudi: HudiSpark, table: Table) -> None:
    kept, lost = (upsert(table, (1, "a", value)) for value in (10, 11))
    table.savepoint(kept.instant)
    for value in range(12, 15):
        hudi.write(_s3a(table), DDL, [(1, "a", value)], OPTIONS)
    assert [i for i in table.timeline().instants if i.action is Action.CLEAN and i.is_completed]
    assert (1, "a", 10) in {tuple(row.values()) for row in table.to_arrow(as_of=kept.completion).to_pylist()}
    with pytest.raises(HistoryGone):
        table.savepoint(lost.instant)
    assert table.clean(KeepCommits(20)) == ()
    assert table.restore(kept.instant).taken_back
    assert same(hudi, table) == {(1, "a", 10), (2, "b", 2)}
