"""JVM Hudi's writer in Spark, told nothing but where the table is: the table itself tells it how to share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patience import PATIENCE_S
from table.tables import SPEC, by_hudi_rs, content, upsert

from jvm.shared_table import DDL, Triple, new_table, theirs
from jvm.spark import HudiError, HudiSpark
from jvm.test_spark_races import race
from lockprovider import LockSettings
from lockprovider.demo.proof import reader_options
from lockprovider.table import Table, TableSettings, UnsupportedTable
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.compatibility import FAILED_KEYS, LOCK_KEY, METADATA_KEY, MODE_KEY, SHARED, ZONE_KEY
from lockprovider.table.format.layout import METADATA_TABLE, PROPERTIES, to_ms
from lockprovider.table.format.properties import pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm

# Heartbeats and all else are the defaults of both sides.
PLAIN = TableSettings(lock=LockSettings(timeout=PATIENCE_S))
NOTHING: dict[str, str] = {}
HOUR_MS = 3_600_000


@pytest.fixture
def table(seaweedfs: SeaweedFS) -> Table:
    return new_table(seaweedfs, settings=PLAIN)


def properties(table: Table) -> dict[str, str]:
    return dict(pairs(table.store.read(PROPERTIES).data.decode("latin-1")))


def say(table: Table, **changed: str | None) -> None:
    """Write other properties, as a user who edits the file."""
    found = {key: value for key, value in {**properties(table), **changed}.items() if value is not None}
    text = "".join(f"{key}={value}\n" for key, value in found.items())
    version = table.store.read(PROPERTIES).version
    table.store.put_if_match(PROPERTIES, text.encode(), version).unwrap()


def by_rust(table: Table) -> set[Triple]:
    return by_hudi_rs(table.url, reader_options(table.url, table.storage_options, {}))


def same(hudi: HudiSpark, table: Table) -> set[Triple]:
    """The rows, on which three readers agree; and doctor has nothing to say."""
    found = {(row["id"], row["part"], row["value"]) for row in table.to_arrow().to_pylist()}  # SQL orders columns anew
    assert theirs(hudi, table) == by_rust(table) == found
    assert [one.what for _, _, all_found in diagnose(table) for one in all_found if one.state == "wrong"] == []
    return found


def test_jvm_write_without_settings_takes_the_lock_and_keeps_the_table(hudi: HudiSpark, table: Table) -> None:
    before, looks = table.store.read(PROPERTIES).data, hudi.looks_at_lock(table.url)
    hudi.write(table.url, DDL, [(1, "a", 10), (3, "c", 3)], NOTHING)
    assert hudi.looks_at_lock(table.url) > looks
    upsert(table, (3, "c", 30))
    assert same(hudi, table) == {(1, "a", 10), (2, "b", 2), (3, "c", 30)}
    assert table.store.read(PROPERTIES).data == before
    assert table.store.list(f"{METADATA_TABLE}/") == []


def test_jvm_write_to_unshared_table_takes_no_lock_and_hides_python_commits(hudi: HudiSpark, table: Table) -> None:
    """The wrong twin: what the table's settings are for, and how it is shared again."""
    say(table, **dict.fromkeys(SHARED))
    looks = hudi.looks_at_lock(table.url)
    hudi.write(table.url, DDL, [(1, "a", 10)], NOTHING)
    assert hudi.looks_at_lock(table.url) == looks
    assert properties(table)["hoodie.table.version"] == "9"
    assert table.store.list(f"{METADATA_TABLE}/")
    with pytest.raises(UnsupportedTable, match="would hide these commits"):
        upsert(table, (2, "b", 20))
    assert table.retire_metadata_table()
    assert {one.key for one in table.share()} == {*SHARED} - {METADATA_KEY}
    hudi.write(table.url, DDL, [(1, "a", 100)], NOTHING)
    assert hudi.looks_at_lock(table.url) > looks
    upsert(table, (2, "b", 20))
    assert same(hudi, table) == {(1, "a", 100), (2, "b", 20)}
    assert table.store.list(f"{METADATA_TABLE}/") == []


MADE = {
    "hoodie.table.name": SPEC.name,
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "part",
}


def opened(url: str, server: SeaweedFS) -> Table:
    return Table.open(url, storage_options=server.storage_options, settings=PLAIN)


def test_table_made_by_jvm_with_defaults_can_be_shared(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    url = seaweedfs.new_prefix()
    hudi.write(url, DDL, [(1, "a", 1), (2, "b", 2)], MADE)
    table = opened(url, seaweedfs)
    with pytest.raises(UnsupportedTable, match="retire_metadata_table"):
        table.share()
    assert table.retire_metadata_table()
    assert {(one.key, one.found) for one in table.share()} >= {(ZONE_KEY, "LOCAL"), (LOCK_KEY, None)}
    hudi.write(url, DDL, [(1, "a", 10)], NOTHING)
    upsert(table, (2, "b", 20))
    assert same(hudi, table) == {(1, "a", 10), (2, "b", 20)}


def test_table_of_version_6_is_refused_with_the_call_that_upgrades_it(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    url = seaweedfs.new_prefix()
    older = {"hoodie.write.table.version": "6", "hoodie.metadata.enable": "false"}
    hudi.write(url, DDL, [(1, "a", 1), (2, "b", 2)], MADE | older)
    with pytest.raises(UnsupportedTable) as refused:
        opened(url, seaweedfs)
    _, call, _ = str(refused.value).split("`")
    hudi.sql(f"create table older using hudi location '{url}'")
    hudi.sql(call.replace("...", "older"))
    hudi.sql("drop table older")
    table = opened(url, seaweedfs)
    table.share()
    hudi.write(url, DDL, [(1, "a", 10)], NOTHING)
    upsert(table, (2, "b", 20))
    assert same(hudi, table) == {(1, "a", 10), (2, "b", 20)}


OTHERWISE = {
    LOCK_KEY: "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
    MODE_KEY: "single_writer",
    **dict.fromkeys(FAILED_KEYS, "EAGER"),
    METADATA_KEY: "true",
    "hoodie.write.auto.upgrade": "true",
    "hoodie.rollback.avoid.duplicate.plan": "false",
}


def test_hudi_refuses_job_that_contradicts_the_table_settings(hudi: HudiSpark, table: Table) -> None:
    assert {*OTHERWISE} == {*SHARED}
    before = table.timeline().written
    for key, value in OTHERWISE.items():
        with pytest.raises(HudiError, match=rf"(?s)Config conflict.*{key}"):
            hudi.write(table.url, DDL, [(1, "a", -1)], {key: value})
    assert table.timeline().written == before


STATEMENTS = (
    "insert into trips (id, value, part) values (3, 3, 'c')",
    "update trips set value = 10 where id = 1",
    """merge into trips t using (select 2L as id, 'b' as part, 22L as value union all select 4L, 'd', 4L) s
    on t.id = s.id when matched then update set t.value = s.value
    when not matched then insert (id, value, part) values (s.id, s.value, s.part)""",
    "delete from trips where id = 3",
    "call create_savepoint(table => 'trips')",
    "call run_clustering(table => 'trips')",
    "call run_clean(table => 'trips', clean_policy => 'KEEP_LATEST_FILE_VERSIONS', file_versions_retained => 1)",
    "insert overwrite trips partition (part) select 5L as id, 5L as value, 'e' as part",
)


def test_jvm_statements_and_procedures_take_the_lock(hudi: HudiSpark, table: Table) -> None:
    hudi.sql(f"create table trips using hudi location '{table.url}'")
    before = table.store.read(PROPERTIES).data
    for statement in STATEMENTS:
        looks = hudi.looks_at_lock(table.url)
        hudi.sql(statement)
        assert hudi.looks_at_lock(table.url) > looks, statement
        assert table.store.read(PROPERTIES).data == before, statement
        assert table.store.list(f"{METADATA_TABLE}/") == [], statement
        upsert(table, (2, "b", 20))
    hudi.sql("drop table trips")
    assert {(2, "b", 20), (5, "e", 5)} <= same(hudi, table)


def test_no_update_is_lost_between_python_and_jvm_writer_without_settings(hudi: HudiSpark, table: Table) -> None:
    race(hudi, table, turns=3, options=NOTHING)
    same(hudi, table)


def test_jvm_readers_need_no_class_of_the_lock(hudi: HudiSpark, table: Table) -> None:
    say(table, **{LOCK_KEY: "no.such.LockProvider"})
    assert theirs(hudi, table) == by_rust(table) == content(table) == {(1, "a", 1), (2, "b", 2)}
    with pytest.raises(HudiError, match=r"no\.such\.LockProvider"):
        hudi.write(table.url, DDL, [(1, "a", 10)], NOTHING)


def test_jvm_writer_in_another_time_zone_uses_the_zone_of_the_table(
    start_hudi: Callable[..., HudiSpark], table: Table, seaweedfs: SeaweedFS
) -> None:
    far = start_hudi("America/New_York")
    other = Table.create(seaweedfs.new_prefix(), SPEC, settings=PLAIN, storage_options=seaweedfs.storage_options)
    say(other, **{ZONE_KEY: None})
    # This one first: a driver never goes back behind the latest time that it gave, in any table, and waits instead.
    far.write(other.url, DDL, [(1, "a", 1)], NOTHING)
    far.write(table.url, DDL, [(1, "a", 10)], NOTHING)
    begun = [sorted(to_ms(instant.begin) for instant in one.timeline().writes) for one in (other, table)]
    assert begun[0][1] - begun[0][0] > 3 * HOUR_MS, "without it times are of New York"
    assert 0 < begun[1][-1] - begun[1][0] < HOUR_MS
