"""A table that tells JVM Hudi's writers how to share it, and one that is told to."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from table.metadata_written import unpacked
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from lockprovider.table import Aborted, Table, UnsupportedTable
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.compatibility import METADATA_KEY, MODE_KEY, SHARED, ZONE_KEY
from lockprovider.table.format.properties import pairs
from lockprovider.table.transaction.transaction import Transaction

MEANT = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.metadata.enable": "false",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.rollback.avoid.duplicate.plan": "true",
    "hoodie.table.timeline.timezone": "UTC",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
def table(folder: Path) -> Table:
    return Table.create(str(folder), SPEC, settings=SETTINGS)


def said(folder: Path) -> dict[str, str]:
    return dict(pairs((folder / ".hoodie" / "hoodie.properties").read_text()))


def edit(folder: Path, **changed: str | None) -> None:
    found = {key: value for key, value in {**said(folder), **changed}.items() if value is not None}
    (folder / ".hoodie" / "hoodie.properties").write_text("".join(f"{key}={value}\n" for key, value in found.items()))


def findings(table: Table) -> list[tuple[str, str, str]]:
    return [(one.rule, one.state, f"{one.what}; {one.mend}") for _, _, found in diagnose(table) for one in found]


def test_new_table_is_shared(table: Table, folder: Path) -> None:
    assert MEANT.items() <= said(folder).items()
    assert table.share() == table.share(dry_run=True) == ()
    upsert(table, (1, "a", 1))
    assert by_hudi_rs(table.url) == content(table) == {(1, "a", 1)}
    assert findings(table) == []


def test_older_table_is_shared_when_asked_and_not_by_a_dry_run(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1))
    edit(folder, **dict.fromkeys(MEANT), **{"hoodie.parquet.setting": "theirs"})
    (folder / ".hoodie" / ".hoodie.properties.crc").write_bytes(b"Hadoop's")
    before = said(folder)
    assert [(rule, state, "table share" in what) for rule, state, what in findings(table)] == [
        ("R3", "note", True),
        ("R4", "note", True),
    ]
    changes = table.share(dry_run=True)
    assert {change.key: (change.found, change.wanted) for change in changes} == {k: (None, v) for k, v in MEANT.items()}
    assert said(folder) == before
    assert table.share() == changes
    assert said(folder) == before | MEANT
    assert not (folder / ".hoodie" / ".hoodie.properties.crc").exists()
    assert table.share() == ()
    assert findings(table) == []
    Table.open(table.url, settings=SETTINGS).append(rows((2, "b", 2)))
    assert by_hudi_rs(table.url) == content(table) == {(1, "a", 1), (2, "b", 2)}


def test_other_settings_are_wrong_and_replaced(table: Table, folder: Path) -> None:
    edit(folder, **{MODE_KEY: "SINGLE_WRITER", METADATA_KEY: "FALSE"})
    ((rule, state, what),) = findings(table)
    assert (rule, state) == ("R4", "wrong")
    assert f"{MODE_KEY}=SINGLE_WRITER" in what
    assert "table share" in what
    (change,) = table.share()
    assert (change.key, change.found, change.wanted) == (MODE_KEY, "SINGLE_WRITER", MEANT[MODE_KEY])
    assert said(folder)[MODE_KEY] == MEANT[MODE_KEY]


def test_unwritable_table_is_not_shared(table: Table, folder: Path) -> None:
    edit(folder, **dict.fromkeys(SHARED), **{"hoodie.table.metadata.partitions": "files"})
    before = said(folder)
    for dry_run in (True, False):
        with pytest.raises(UnsupportedTable, match="retire_metadata_table"):
            table.share(dry_run=dry_run)
    assert said(folder) == before


def test_local_times_are_taken_for_utc_only_when_they_were_utc(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1))
    edit(folder, **{ZONE_KEY: "LOCAL"})
    with pytest.raises(UnsupportedTable, match="share"):
        Table.open(table.url, settings=SETTINGS).append(rows((2, "b", 2)))
    last = max((folder / ".hoodie" / "timeline").glob("*_*.commit"))
    written_s = last.stat().st_mtime
    for hours in (-5, 9):
        os.utime(last, (written_s, written_s + hours * 3600))
        with pytest.raises(UnsupportedTable, match=f"1 times that differ from UTC.*{last.name}"):
            table.share()
        assert said(folder)[ZONE_KEY] == "LOCAL"
    assert [one.wanted for one in table.share(dry_run=True, all_in_utc=True)] == ["UTC"]  # a copy has other times (I5)
    os.utime(last, (written_s, written_s))
    (change,) = table.share()
    assert (change.key, change.found, change.wanted) == (ZONE_KEY, "LOCAL", "UTC")
    Table.open(table.url, settings=SETTINGS).append(rows((2, "b", 2)))
    assert by_hudi_rs(table.url) == content(table) == {(1, "a", 1), (2, "b", 2)}
    assert findings(table) == []


def test_transaction_in_flight_is_reported_and_others_go_on(table: Table, folder: Path) -> None:
    edit(folder, **dict.fromkeys(SHARED))
    other, idle = (Table.open(table.url, settings=SETTINGS) for _ in range(2))
    mine = other.transaction()
    idle.append(rows((1, "a", 1)))
    engine.write(mine, upserts=rows((2, "b", 2)))
    assert Table.open(table.url, settings=SETTINGS).share()
    with pytest.raises(Aborted, match="properties"):
        mine.commit()
    mine.rollback()
    idle.append(rows((3, "c", 3)))
    assert content(table) == {(1, "a", 1), (3, "c", 3)}


def test_retire_records_that_no_metadata_table_is_to_be_made(table: Table, folder: Path) -> None:
    edit(folder, **dict.fromkeys(SHARED), **{"hoodie.table.metadata.partitions": "files"})
    assert table.retire_metadata_table() == 0
    assert said(folder)[METADATA_KEY] == "false"
    assert "hoodie.table.metadata.partitions" not in said(folder)


def test_metadata_table_is_not_retired_while_a_writer_may_build_it(table: Table, folder: Path) -> None:
    pending = table.transaction()
    engine.write(pending, upserts=rows((1, "a", 1)))
    edit(folder, **{"hoodie.table.metadata.partitions": "files"})
    before = said(folder)
    for dry_run in (True, False):
        with pytest.raises(Aborted, match=rf"write {pending.begin} is pending.*table rollback"):
            table.retire_metadata_table(dry_run=dry_run)
    assert said(folder) == before
    table.roll_back(pending.begin, force=True)
    assert table.retire_metadata_table() == 0


def test_settings_are_not_removed_while_a_writer_goes_by_them(table: Table) -> None:
    table.share()
    pending = table.transaction()
    engine.write(pending, upserts=rows((1, "a", 1)))
    with pytest.raises(Aborted, match=rf"write {pending.begin} is pending, and its writer goes by the table's present"):
        table.unshare()
    pending.rollback()
    assert table.unshare()


def made_by_the_jvm(folder: Path) -> Table:
    return Table.open(str(unpacked("mdt_v9_default", folder)), settings=replace(SETTINGS, write_metadata=True))


def test_metadata_table_stays_if_it_is_kept_without_its_statistics(folder: Path) -> None:
    table = made_by_the_jvm(folder)
    metadata = folder / ".hoodie" / "metadata"
    changed = table.share(dry_run=True)
    assert ("hoodie.table.metadata.partitions", "column_stats,files,partition_stats", "files") in [
        (one.key, one.found, one.wanted) for one in changed
    ]
    assert (metadata / "column_stats").exists()
    assert table.share() == changed
    kept = {"hoodie.metadata.enable": "true", "hoodie.metadata.index.column.stats.enable": "false"}
    assert (MEANT | kept).items() <= said(folder).items()
    assert table.config().named_metadata == ("files",)
    assert not [one for name in ("column_stats", "partition_stats") for one in (metadata / name).glob("*")]
    assert table.share() == ()
    assert [one for one in findings(table) if one[1] == "wrong"] == []
    rows_before = table.to_arrow()
    table.append(rows_before.slice(0, 1))
    assert table.to_arrow().num_rows == rows_before.num_rows + 1


def test_statistics_are_not_dropped_while_a_writer_may_be_building_them(folder: Path) -> None:
    table = made_by_the_jvm(folder)
    (folder / ".hoodie" / "timeline" / "20261122040000000.commit.requested").write_bytes(b"")
    before = said(folder)
    for dry_run in (True, False):
        with pytest.raises(Aborted, match="is pending"):
            table.share(dry_run=dry_run)
    assert said(folder) == before


def test_unmaintained_indexes_are_named(folder: Path) -> None:
    table = Table.open(str(unpacked("mdt_v9_record_index", folder)), settings=replace(SETTINGS, write_metadata=True))
    before = said(folder)
    with pytest.raises(UnsupportedTable, match="DROP INDEX record_index"):
        table.share()
    with pytest.raises(UnsupportedTable, match="DROP INDEX record_index"):
        table.append(table.to_arrow())
    assert said(folder) == before


def test_unshare_reverts_share(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1))
    before = said(folder)
    taken = table.unshare(dry_run=True)
    assert said(folder) == before
    assert {change.key for change in taken} == {*SHARED}
    assert table.unshare() == taken
    assert not {*SHARED} & said(folder).keys()
    assert said(folder)[ZONE_KEY] == "UTC"
    assert table.unshare() == ()
    table.share()
    assert said(folder) == before


def test_unshare_is_refused_while_a_write_is_pending(table: Table, folder: Path) -> None:
    txn = Transaction(table)
    txn.start()
    before = said(folder)
    for dry_run in (True, False):
        with pytest.raises(Aborted, match="is pending"):
            table.unshare(dry_run=dry_run)
    assert said(folder) == before
    txn.rollback()


def test_doctor_gives_findings_as_objects(table: Table, folder: Path) -> None:
    assert [finding for finding in table.doctor() if finding.state == "wrong"] == []
    edit(folder, **{"hoodie.table.cdc.enabled": "true"})
    (found,) = [finding for finding in table.doctor() if finding.state == "wrong"]
    assert (found.rule, found.mend) == ("R4", "use the engine that made it")
    assert "hoodie.table.cdc.enabled=true" in found.what


def test_doctor_names_what_it_did_not_check(table: Table, folder: Path) -> None:
    edit(folder, **{"hoodie.table.version": "6"})
    wrong, note = table.doctor()
    assert ("CALL upgrade_table" in wrong.mend, wrong.state) == (True, "wrong")
    assert "all other checks were skipped" in note.what
