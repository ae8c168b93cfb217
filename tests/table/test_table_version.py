"""Tables of version 9, made here: written and read as those of version 8, by us and by hudi-rs; and its properties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from table.jvm_written import contents
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from lockprovider.table import Corrupt, Table, TableNotFound, TableSpec
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.layout import PROPERTIES, PROPERTIES_BACKUP
from lockprovider.table.format.properties import parse_properties

NINE = replace(SPEC, version=9)
KINDS = {
    "copy on write": NINE,
    "ordered": replace(NINE, ordering="value"),
    "merge on read": replace(NINE, table_type="merge_on_read", ordering="value"),
    "buckets": replace(NINE, buckets=2),
    "not partitioned": replace(NINE, partition_by=()),
    "several folders": replace(NINE, partition_by=("part", "value"), ordering=None),
}


@pytest.mark.parametrize("spec", KINDS.values(), ids=list(KINDS))
def test_version_9_table_is_written_and_read_also_by_hudi_rs(spec: TableSpec, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", spec, settings=SETTINGS)
    assert table.config().version == 9
    upsert(table, (1, "a", 1), (2, "b", 2), (3, "b", 3))
    if "value" not in spec.partition_by:
        upsert(table, (1, "a", 10))
    table.delete(rows((3, "b", 3)))
    first = 1 if "value" in spec.partition_by else 10
    assert content(table) == by_hudi_rs(str(tmp_path / "t")) == {(1, "a", first), (2, "b", 2)}
    if spec.table_type == "merge_on_read":
        table.compact()
        assert content(table) == by_hudi_rs(str(tmp_path / "t")) == {(1, "a", 10), (2, "b", 2)}
    findings = [one for _, _, found in diagnose(table) for one in found]
    assert [one.what for one in findings if one.state == "wrong"] == []
    assert any("Hudi 1.0 cannot open" in one.what for one in findings)


def test_version_9_table_has_only_properties_of_the_jvm(tmp_path: Path) -> None:
    theirs = contents("metadata_table/mdt_v9_default")[PROPERTIES]
    table = Table.create(tmp_path / "t", replace(NINE, ordering="value"), settings=SETTINGS)
    mine = set(table.config().raw)
    known = set(parse_properties(theirs).raw)
    assert "hoodie.table.ordering.fields" in mine & known
    assert not {
        key for key in mine - known if key.startswith(("hoodie.table.pre", "hoodie.record", "hoodie.compaction"))
    }


def test_create_accepts_a_table_upgraded_at_the_same_time(tmp_path: Path) -> None:
    Table.create(tmp_path / "t", NINE, settings=SETTINGS)
    assert Table.create(tmp_path / "t", SPEC, settings=SETTINGS, exist_ok=True).config().version == 9


def test_backup_is_read_while_a_jvm_writer_replaces_the_properties(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SPEC, settings=SETTINGS)
    there, backup = tmp_path / "t" / PROPERTIES, tmp_path / "t" / PROPERTIES_BACKUP
    backup.write_bytes(there.read_bytes())
    config = table.config()
    for cut in (b"", there.read_bytes()[:40]):
        there.write_bytes(cut)
        assert table.config() == config
    there.unlink()
    assert table.config() == config
    backup.unlink()
    with pytest.raises(TableNotFound):
        table.config()
    there.write_bytes(b"#")
    with pytest.raises(Corrupt):
        table.config()
