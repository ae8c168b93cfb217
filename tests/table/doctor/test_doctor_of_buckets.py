"""What the doctor says of tables with a bucket index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from table.bucket_tables import SPEC, bucket
from table.doctor.test_doctor import findings, reword
from table.overwriting import overwritten
from table.tables import SETTINGS, rows, upsert
from table.test_bucket_tables import overwrite

from lockprovider.table import Corrupt, Table, UnsupportedTable
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction.transaction import inside


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(made, *((key, "a", key) for key in range(9)), (1, "b", 1))
    return made


def said(table: Table, state: str = "wrong") -> list[tuple[str, str]]:
    return findings(Path(table.url), state)


def test_healthy_table_has_no_findings(table: Table) -> None:
    overwrite(table, ["a"], (1, "a", 1), (2, "a", 2))
    upsert(table, (2, "a", 20), (3, "a", 3))
    table.delete(rows((1, "b", 1)))
    assert said(table) == said(table, "note") == []


def test_two_file_groups_of_one_bucket_are_found_and_block_writers(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("lockprovider.table.timeline.conflict.by_bucket", lambda resolution: resolution)
        writers = [table.transaction(), table.transaction()]
        for number, txn in enumerate(writers):
            engine.write(txn, upserts=rows((1, "z", number)))
        for txn in writers:
            txn.commit()
    ((rule, sentence),) = said(table)
    assert (rule, sentence.partition(" share")[0]) == ("buckets", "2 file groups")
    assert "share bucket 0 of partition 'z'" in sentence
    with pytest.raises(Corrupt, match="the second one of bucket 0"):
        upsert(table, (4, "z", 4))
    overwrite(table, ["z"], (1, "z", 1))
    assert said(table) == []


def test_rows_that_are_not_in_their_bucket_are_found(table: Table) -> None:
    reword(Path(table.url), "hoodie.bucket.index.num.buckets=4", "hoodie.bucket.index.num.buckets=7")
    found = said(table)
    assert [rule for rule, _ in found] == ["buckets"]
    assert "rows are not in the bucket of their key" in found[0][1]
    reword(Path(table.url), "hoodie.bucket.index.num.buckets=7", "hoodie.bucket.index.num.buckets=2")
    assert "file groups belong to none of the 2 buckets" in said(table)[0][1]


def test_log_rows_that_are_not_in_their_bucket_are_found(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), replace(SPEC, table_type="merge_on_read"), settings=SETTINGS)
    for same in (True, False):  # base files that fit 8 buckets, too; then log files that do not
        upsert(table, *((key, "a", key) for key in range(40) if (bucket(key) == bucket(key, 8)) is same))
    assert said(table) == []
    reword(Path(table.url), "hoodie.bucket.index.num.buckets=4", "hoodie.bucket.index.num.buckets=8")
    (whole,) = said(table)
    for file in tmp_path.glob("t/a/*.parquet"):
        file.unlink()  # as JVM writers leave a bucket that has log files only
    logged = [sentence for rule, sentence in said(table) if rule == "buckets"]
    count = sum(bucket(key) != bucket(key, 8) for key in range(40))
    assert [sentence.partition(" not")[0] for sentence in (whole[1], *logged)] == [f"{count} rows are"] * 2


def test_file_groups_of_no_bucket_are_found(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockprovider.table.transaction.transaction.check_written", lambda config, stats: None)
    table.transact(lambda txn: overwritten(inside(txn), ["b"], (1, "b", 1)))
    assert any("1 file groups belong to none of the 4 buckets" in sentence for _, sentence in said(table))


def test_unknown_bucket_rules_are_found_and_not_adopted(tmp_path: Path) -> None:
    plain = Table.create(str(tmp_path / "p"), replace(SPEC, buckets=None), settings=SETTINGS)
    upsert(plain, (1, "a", 1))
    path = tmp_path / "p" / ".hoodie" / ".bucket_index" / "consistent_hashing_metadata" / "a" / "0.hashing_meta"
    path.parent.mkdir(parents=True)
    path.touch()
    ((rule, sentence),) = said(plain)
    assert (rule, "stored bucket rules" in sentence) == ("buckets", True)
    with pytest.raises(UnsupportedTable, match="has rules for its buckets"):
        plain.adopt_bucket_index(4)


def test_buckets_missing_from_the_properties_are_noted(table: Table) -> None:
    reword(Path(table.url), "hoodie.index.type=BUCKET\n", "")
    assert said(table) == []
    ((rule, sentence),) = said(table, "note")
    assert rule == "buckets"
    assert "adopt-buckets" in sentence
