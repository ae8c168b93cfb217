"""Rules of the metadata table's listing whose breach loses rows, or fails a reader: each with a twin that breaks it.

D1, D3 and D4 have theirs in `test_listing`, `test_listing_of_logs`; what JVM Hudi's own readers make of D2, D5 and D10
is in `tests/jvm/test_spark_listing_twins.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from io import BytesIO
from itertools import permutations
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.compute as pc
import pytest
from hudi import HudiReadOptions, HudiTableBuilder
from table.listed_tables import with_listing
from table.metadata_written import ROOT, unpacked, with_files_alone
from table.services.test_compact_listing import agreed, by_hudi_rs, compact_now
from table.services.test_listing import BEFORE, KEEPS, NAME, Row, content, open_, rows
from table.state.test_metadata_table import listed, sizes_there
from table.tables import SETTINGS
from table.test_crash_at_every_step import let_time_pass

from lockprovider.table import Aborted, Table, TableSpec, UnsupportedTable
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format import compatibility, hfile, metadata_table
from lockprovider.table.format.hfile import decode_hfile
from lockprovider.table.format.log_block import BlockKind, decode_blocks
from lockprovider.table.format.metadata_table import FilesRecord, ListedFile, metadata_schema
from lockprovider.table.read import scan
from lockprovider.table.services import plans, rollback
from lockprovider.table.transaction import decision
from lockprovider.table.transaction.transaction import Transaction

NEW: Row = (8, "b", "more", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_files_alone(NAME, tmp_path / "table")


def test_listing_written_by_python_is_read_by_all(folder: Path) -> None:
    open_(folder).append(rows(NEW))
    assert agreed(folder) == BEFORE | {NEW}


Range = tuple[Any, Any]


def partition_statistics(folder: Path) -> Iterator[tuple[str, str, Range]]:
    """Of each record of the partition `partition_stats`: its partition, its column, least and greatest value."""
    schema = fastavro.parse_schema(json.loads(metadata_schema()))
    for path in (folder / ROOT / "partition_stats").iterdir():
        blocks = decode_blocks(path.read_bytes(), path.name) if ".log." in path.name else ()
        files = [block.content for block in blocks if block.kind is BlockKind.HFILE]
        for file in [*files, *([path.read_bytes()] if path.suffix == ".hfile" else ())]:
            for _, value in decode_hfile(file, path.name).entries:
                record: Any = fastavro.schemaless_reader(BytesIO(value), schema, None)
                said = record["ColumnStatsMetadata"]
                least, most = ((said[end] or {}).get("value") for end in ("minValue", "maxValue"))
                yield said["fileName"], said["columnName"], (least, most)


def skipping(folder: Path, value: str) -> set[Row]:
    """The rows with this `v` for a reader that skips partitions as JVM Hudi does: if `partition_stats` are named."""
    ranges: dict[str, list[Range]] = {}
    if "partition_stats" in Table.open(str(folder)).config().named_metadata:
        for partition, column, found in partition_statistics(folder):
            if column == "v" and found[0] is not None:
                ranges.setdefault(partition, []).append(found)

    def is_read(partition: str) -> bool:
        found = ranges.get(f"part={partition}")
        return found is None or min(one[0] for one in found) <= value <= max(one[1] for one in found)

    return {row for row in content(folder) if row[2] == value and is_read(row[1])}


def test_d2_stale_statistics_lose_rows_to_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, twin = (unpacked(NAME, tmp_path / name) for name in ("ours", "twin"))
    assert skipping(ours, "x2") == {(1, "a", "x2", 2)}
    with pytest.raises(UnsupportedTable, match="drops column_stats and partition_stats"):
        open_(ours).upsert(rows((1, "a", "zz", 5)))
    open_(ours).share()
    monkeypatch.setattr(compatibility, "listing_fault", lambda *_, **__: ("", ""))
    expected: set[Row] = {(1, "a", "zz", 5), (3, "b", None, 2)}
    for folder in (ours, twin):
        open_(folder).upsert(rows((1, "a", "zz", 5)))
        assert agreed(folder) == expected, "only filters are wrong"
    assert skipping(ours, "zz") == {(1, "a", "zz", 5)}
    assert skipping(twin, "zz") == set()


def _last_counts(records: Iterable[FilesRecord]) -> dict[str, int]:
    return {name: file.size for record in records for name, file in record.files.items()}


def test_d5_sizes_merge_to_the_same_in_any_order() -> None:
    whole = FilesRecord(metadata_table.ALL_PARTITIONS, {"a": ListedFile(0, is_deleted=False)})
    grown = [FilesRecord("a", {"x": ListedFile(size, is_deleted=False)}) for size in (1, 3, 2)]
    orders = [list(order) for order in permutations(grown)]
    assert {metadata_table.merge_files([whole, *order]).sizes["a/x"] for order in orders} == {3}
    assert {_last_counts(order)["x"] for order in orders} == {1, 2, 3}, "the wrong twin reads a part of a file"


def of_partition(folder: Path, partition: str) -> set[Row]:
    """By hudi-rs, which looks this partition's key up and reads no other."""
    options = HudiReadOptions(filters=[("part", "=", partition)])
    found = HudiTableBuilder.from_base_uri(str(folder)).build().read(options)
    return {(r["id"], r["part"], r["v"], r["ts"]) for batch in found for r in batch.to_pylist()}


def _backwards(keys: Iterable[bytes]) -> list[bytes]:
    return sorted(keys, reverse=True)


@pytest.mark.parametrize("compacts", [False, True], ids=["log", "base file"])
@pytest.mark.parametrize("order", [sorted, _backwards])
def test_d6_keys_not_in_byte_order_are_not_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, order: Callable[[Iterable[bytes]], list[bytes]], compacts: bool
) -> None:
    monkeypatch.setattr(hfile, "sorted", order, raising=False)
    table = open_(folder)
    new: set[Row] = {(8, "b", "more", 1), (9, "c", "more", 1)}
    table.append(rows(*new))
    assert not compacts or compact_now(table)
    assert by_hudi_rs(folder) == BEFORE | new, "who reads all keys does not see it"
    found = {row for partition in "abc" for row in of_partition(folder, partition)}
    assert (found == BEFORE | new) == (order is sorted)
    assert found <= BEFORE | new


def test_d7_write_token_with_letters_hides_the_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_table, "_WRITER", "a-b-c")
    open_(folder).append(rows(NEW))
    with pytest.raises(AssertionError):
        agreed(folder)


def _by_the_properties_of_its_begin(table: Any, proposal: Any, basis: Any, heartbeat: Any, seen: Any) -> None:
    ALIVE(table, proposal, basis, heartbeat, replace(seen, config=basis.config))


ALIVE = decision._check_alive


@pytest.mark.parametrize("looks", [True, False], ids=["ours", "the wrong twin"])
def test_d8_listing_created_during_a_commit_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """A JVM writer may begin to keep one at any commit."""
    table = Table.create(tmp_path / "t", TableSpec("t", rows().schema, ("id",), ("part",)), settings=SETTINGS)
    table.append(rows(*BEFORE))
    txn = Transaction(table)
    with_listing(tmp_path / "t")
    engine.write(txn, upserts=rows(NEW))
    if looks:
        with pytest.raises(UnsupportedTable, match="would hide these commits"):
            txn.commit()
        txn.rollback()
        Table.open(table.url, settings=KEEPS).append(rows(NEW))
        assert by_hudi_rs(tmp_path / "t") == BEFORE | {NEW}
    else:
        monkeypatch.setattr(decision, "_check_alive", _by_the_properties_of_its_begin)
        txn.commit()
        assert {tuple(row.values()) for row in Table.open(table.url).to_arrow().to_pylist()} == BEFORE | {NEW}
        assert by_hudi_rs(tmp_path / "t") == BEFORE


@pytest.mark.parametrize("looks", [True, False], ids=["ours", "the wrong twin"])
def test_d8_statistics_enabled_again_during_a_commit_lose_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """A JVM writer that began before they were dropped brings them back at its commit."""
    folder, before = unpacked(NAME, tmp_path / "t"), unpacked(NAME, tmp_path / "before")
    open_(folder).share()
    txn = Transaction(open_(folder))
    engine.write(txn, upserts=rows((1, "a", "zz", 5)))
    for name in (".hoodie/hoodie.properties", f"{ROOT}partition_stats", f"{ROOT}column_stats"):
        (before / name).rename(folder / name)
    if looks:
        with pytest.raises(UnsupportedTable, match="drops column_stats and partition_stats"):
            txn.commit()
        txn.rollback()
        open_(folder).share()
        open_(folder).upsert(rows((1, "a", "zz", 5)))
    else:
        monkeypatch.setattr(decision, "_check_alive", _by_the_properties_of_its_begin)
        txn.commit()
    assert content(folder) == {(1, "a", "zz", 5), (3, "b", None, 2)}
    assert skipping(folder, "zz") == ({(1, "a", "zz", 5)} if looks else set())


@pytest.mark.parametrize("removes", [True, False], ids=["ours", "the wrong twin"])
def test_d9_files_written_after_a_rollback_are_removed_by_their_writer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, removes: bool
) -> None:
    txn = Transaction(open_(folder))
    engine.write(txn, upserts=rows((1, "a", "late", 9)))
    (late,) = folder.rglob(f"*{txn.begin}*.parquet")
    data = late.read_bytes()
    let_time_pass(folder)
    open_(folder).sweep()
    assert not late.exists()
    late.write_bytes(data)  # its last task comes after that
    if not removes:
        monkeypatch.setattr(rollback, "files_of", lambda *_: ())
    with pytest.raises(Aborted):
        txn.commit()
    txn.rollback()
    assert late.exists() == (not removes)
    assert (listed(folder) == sizes_there(folder)) == removes, "archival would make it visible, and only to some"


def test_d11_smaller_schema_fails_hudi_rs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(metadata_schema())
    kept = [one for one in whole["fields"] if one["name"] in ("key", "type", "filesystemMetadata")]
    small = json.dumps({**whole, "fields": kept})
    monkeypatch.setattr(plans, "own_schema", lambda *_: small)
    open_(folder).append(rows(NEW))
    with pytest.raises(Exception, match="missing"):
        agreed(folder)


class _AsJvmHudi:
    """A file whose row groups are left out if its statistics do not have the prefix itself as a value."""

    def __init__(self, fragment: Any) -> None:
        self._fragment = fragment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fragment, name)

    def subset(self, **given: Any) -> Any:
        return self._fragment.subset(**given | {"filter": pc.field("v") == "new"})


@pytest.mark.parametrize("twin", [False, True], ids=["ours", "the wrong twin"])
def test_d10_statistics_lose_no_row_of_a_prefix_filter(
    folder: Path, monkeypatch: pytest.MonkeyPatch, twin: bool
) -> None:
    open_(folder).append(rows((8, "b", "newpart", 1)))
    if twin:
        found = scan._fragment
        monkeypatch.setattr(scan, "_fragment", lambda *given: _AsJvmHudi(found(*given)))
    read = Table.open(str(folder)).to_arrow(["id"], filter=pc.starts_with(pc.field("v"), "new"))
    assert read["id"].to_pylist() == ([] if twin else [8])
