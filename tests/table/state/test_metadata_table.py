"""The metadata table of JVM Hudi, read: it lists what is there, and rows read by it are those that the JVM read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from table.metadata_written import NAMES, ROOT, expected, unpacked

from fsspec_cas import Store
from lockprovider.table import HistoryGone, Table, TableSettings, UnsupportedTable
from lockprovider.table.format.layout import data_file_at
from lockprovider.table.format.log_block import BlockKind, Header, LogBlock, encode_blocks, encode_deletes
from lockprovider.table.state.current import CurrentState
from lockprovider.table.state.metadata_table import listed_files

BY_METADATA = TableSettings(read_from_metadata=True)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows(table: Table, name: str) -> list[list[object]]:
    columns = expected(name)["columns"]
    found = table.to_arrow(columns).to_pylist()
    return sorted(([row[column] for column in columns] for row in found), key=repr)


def sizes_there(folder: Path) -> dict[str, int]:
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {path: file.stat().st_size for path, file in paths.items() if data_file_at(path) is not None}


def listed(folder: Path) -> dict[str, int]:
    return listed_files(Store.from_url(str(folder)), Table.open(str(folder)).timeline()).sizes


def test_metadata_table_lists_the_existing_files(name: str, tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path)
    assert listed(folder) == sizes_there(folder) != {}


def test_read_by_metadata_table_equals_the_jvms_without_listing_folders(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpacked(name, tmp_path)
    by_listing = rows(Table.open(str(folder)), name)
    monkeypatch.setattr(CurrentState, "data_files", lambda _: pytest.fail("the folders were listed"))
    assert rows(Table.open(str(folder), settings=BY_METADATA), name) == by_listing
    assert by_listing == sorted(expected(name)["rows"], key=repr)


def test_past_versions_are_read_by_the_metadata_table(name: str, tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path)
    one, other = Table.open(str(folder)), Table.open(str(folder), settings=BY_METADATA)
    for instant in one.timeline().writes:
        found = [sorted(map(repr, t.to_arrow(as_of=instant.completion).to_pylist())) for t in (one, other)]
        assert found[0] == found[1]


def test_write_pending_in_the_table_is_not_listed(name: str, tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path)
    last = max((folder / ".hoodie/timeline").glob("*_*.commit"))
    begin = last.name.partition("_")[0]
    last.unlink()
    there = {path: size for path, size in sizes_there(folder).items() if f"_{begin}.parquet" not in path}
    assert listed(folder) == there


def test_write_known_only_to_the_metadata_table_is_listed(name: str, tmp_path: Path) -> None:
    """As JVM Hudi does it, which reads a table wrongly whose writer completed it there after a rollback."""
    folder = unpacked(name, tmp_path)
    last = max((folder / ".hoodie/timeline").glob("*_*.commit"))
    begin = last.name.partition("_")[0]
    for path in (folder / ".hoodie/timeline").glob(f"{begin}*"):
        path.unlink()
    assert listed(folder) == sizes_there(folder)


def test_folders_are_listed_without_a_metadata_table(name: str, tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path)
    by_listing = rows(Table.open(str(folder)), name)
    shutil.rmtree(folder / ROOT)  # a writer that retires it has changed the properties before
    with pytest.raises(HistoryGone, match="metadata table was removed"):
        listed(folder)
    assert rows(Table.open(str(folder), settings=BY_METADATA), name) == by_listing


def test_metadata_table_under_removal_is_not_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = unpacked(name, tmp_path)
    table, other = Table.open(str(folder), settings=BY_METADATA), Table.open(str(folder))
    by_listing = rows(other, name)
    read = listed_files

    def retired_meanwhile(store: Store, timeline: object, must_have: object) -> object:
        for path in (folder / ROOT / "files").glob(".files*_2*"):  # half of it is removed, what is left looks whole
            path.unlink()
        properties = folder / ".hoodie/hoodie.properties"
        kept = [one for one in properties.read_text().splitlines() if "metadata.partitions" not in one]
        properties.write_text("\n".join([*kept, ""]))
        return read(store, timeline, must_have)  # type: ignore[arg-type]

    monkeypatch.setattr("lockprovider.table.state.current.listed_files", retired_meanwhile)
    assert rows(table, name) == by_listing


def test_metadata_table_without_a_decided_commit_is_not_used(name: str, tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path)
    with pytest.raises(HistoryGone, match="no commit 20991231235959999 on its timeline"):
        listed_files(Store.from_url(str(folder)), Table.open(str(folder)).timeline(), ["20991231235959999"])


def test_metadata_table_under_construction_is_not_used(name: str, tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path)
    properties = folder / ".hoodie/hoodie.properties"
    text = properties.read_text().replace("hoodie.table.metadata.partitions.inflight=", "#")
    properties.write_text(text.replace("table.metadata.partitions=", "table.metadata.partitions.inflight="))
    shutil.rmtree(folder / ROOT / "files")
    table = Table.open(str(folder), settings=BY_METADATA)
    assert rows(table, name) == sorted(expected(name)["rows"], key=repr)
    with pytest.raises(UnsupportedTable, match="retire_metadata_table"):
        table.append(table.to_arrow())


def test_blocks_that_a_listing_never_has_are_refused(tmp_path: Path) -> None:
    folder = unpacked(NAMES[0], tmp_path)
    log = max((folder / ROOT / "files").glob(".files*.log.*"))
    begin = log.name.split("_")[1].partition(".")[0]
    content = encode_deletes(["part=a"], "files", None)
    log.write_bytes(encode_blocks([LogBlock(BlockKind.DELETE, {Header.INSTANT_TIME: begin}, content)]))
    with pytest.raises(UnsupportedTable, match=r"log\.1.*compact it with JVM Hudi"):
        listed(folder)
