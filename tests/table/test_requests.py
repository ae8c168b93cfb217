"""What one transaction asks of its store, request by request."""

from __future__ import annotations

import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from budgets import APPEND, BEGIN, COMMIT, NON_BLOCKING, UPSERT_READS
from noting import rewritten
from patience import PATIENCE_S
from table import mor_tables
from table.asked_for import Asked, at_rest, counted
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, data_files, orphans, rows, upsert
from table.test_non_blocking import BLIND, gone
from table.test_non_blocking import SPEC as LOGGED

from lockprovider import table as table_package
from lockprovider.table import Corrupt, InvalidRecords, Table, TableSettings, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.engines.arrow import plan_write, start_here
from lockprovider.table.engines.writer import start_for_tasks
from lockprovider.table.files.group_writer import group_id
from lockprovider.table.state import current
from lockprovider.table.transaction.transaction import Transaction, transact


def in_order(names: list[str]) -> tuple[list[str], list[str]]:
    """All requests, and those that write in their order; reads may be on their way together.

    The properties count once: a slow machine reads them again, as they may be too old. A marker comes before its file,
    and after the heartbeat.
    """
    once = [name for name in names if name != "get properties"] + ["get properties"] * ("get properties" in names)
    assert "put marker" not in names[names.index("put data") :] if "put data" in names else True
    return sorted(once), [name for name in names if name.startswith("put") and name != "put marker"]


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any] | None]:
    if request.param == "local":
        return str(tmp_path / "t"), None
    server = request.getfixturevalue("seaweedfs")
    return server.new_prefix(), server.storage_options


@pytest.fixture
def opened(place: tuple[str, dict[str, Any] | None]) -> tuple[Table, Asked]:
    """A table that has been written to by this process, as in a loop."""
    url, options = place
    table, asked = counted(Table.create(url, SPEC, storage_options=options, settings=SETTINGS), SETTINGS)
    table.append(rows((1, "a", 1)))
    at_rest(table)
    asked.names.clear()
    return table, asked


def test_small_append_takes_eleven_requests(opened: tuple[Table, Asked]) -> None:
    table, asked = opened
    table.append(rows((2, "a", 2)))
    at_rest(table)
    assert in_order(asked.names) == in_order(APPEND)
    assert content(table) == {(1, "a", 1), (2, "a", 2)}


def test_specification_shows_the_requests_of_an_append_in_their_order() -> None:
    text = (Path(table_package.__file__).parent / "SPECIFICATION.md").read_text(encoding="utf-8")
    life = text.partition("## The life of an upsert")[2].partition("### Begin")[0]
    shown = re.findall(r"^\|[^|]*\| `([^`]+)` \|", life, re.MULTILINE)
    assert shown == APPEND


@pytest.mark.parametrize("duty_ms", [0, 1])
def test_properties_are_read_by_the_batch_leader_and_not_by_each_writer(tmp_path: Path, duty_ms: int) -> None:
    table, asked = counted(Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS), SETTINGS)
    table.append(rows((1, "a", 1)))
    at_rest(table)
    rewritten(Table.open(table.url).store, combinerMs=duty_ms)
    asked.names.clear()
    txn = Transaction(table, pinned=False)
    txn.start()
    assert ("get properties" in asked.names) == (duty_ms == 0)
    txn.rollback()


def test_append_into_many_partitions_takes_two_writes_per_file(tmp_path: Path) -> None:
    table, asked = counted(Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS), SETTINGS)
    many = [(20 * part + n, f"p{part:02d}", n) for part in range(30) for n in range(20)]
    table.append(rows(*many))
    table.lock._client.committer.resting.wait(PATIENCE_S)  # the freeing, which nobody waits for
    assert {name: asked.names.count(name) for name in ("put marker", "put metafile", "put data")} == {
        "put marker": 2,
        "put metafile": 30,
        "put data": 30,
    }
    assert [name for name in asked.names if "notes" in name] == ["put notes", "list_page notes"]
    assert sum(name.startswith("put") for name in asked.names) == 2 * 30 + 2 + 6 + 1
    assert content(table) == set(many) == by_hudi_rs(table.url)
    assert not [path for path in (tmp_path / "t" / ".hoodie" / ".temp").rglob("*") if path.is_file()]
    assert sum((tmp_path / "t" / path).stat().st_size for path in data_files(tmp_path / "t")) < 30 * 6_000


@pytest.mark.parametrize("write", ["append", "upsert"])
def test_many_new_partitions_take_one_listing_and_known_ones_none(tmp_path: Path, write: str) -> None:
    table, asked = counted(Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS), SETTINGS)
    table.upsert(rows((0, "a", 0)))  # from here on an upsert knows all files
    asked.names.clear()
    getattr(table, write)(rows(*((n, f"p{n:02d}", n) for n in range(30))))
    assert [name for name in asked.names if name == "list_page files"] == ["list_page files"]
    getattr(table, write)(rows(*((100 + n, f"p{n:02d}", n) for n in range(30))))
    assert len([name for name in asked.names if name == "list_page files"]) == 1
    assert sum(name == "put metafile" for name in asked.names) == 30
    assert len(content(table)) == 61


def test_properties_changed_by_another_are_noticed_before_any_write(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    table.append(rows((1, "a", 1)))
    Table.open(table.url, settings=SETTINGS).lock.acquire().release()
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text() + "hoodie.parquet.compression.codec=gzip\n")
    table.append(rows((2, "a", 2)))
    assert content(table) == {(1, "a", 1), (2, "a", 2)}
    assert not list((tmp_path / "t" / ".hoodie" / ".heartbeat").iterdir())
    assert table.timeline().pending_writes == ()


def test_small_upsert_also_reads_the_files(opened: tuple[Table, Asked]) -> None:
    table, asked = opened
    table.upsert(rows((1, "a", 2)))
    at_rest(table)
    reads = [name for name in asked.names if name in ("list_page files", "get data")]
    others = [name for name in asked.names if name not in reads]
    assert in_order(others) == in_order(APPEND)
    assert len(reads) <= UPSERT_READS
    assert content(table) == {(1, "a", 2)}


def test_commits_of_other_writers_are_in_the_lock_record(opened: tuple[Table, Asked]) -> None:
    table, asked = opened
    other = Table.open(table.url, storage_options=table.storage_options, settings=SETTINGS)
    for number in range(5):
        other.append(rows((10 + number, "a", 0)))
    table.append(rows((2, "a", 2)))
    assert not {"get completed", "list_page timeline"} & set(asked.names)
    assert len(content(table)) == 7


def test_commits_during_an_append_cost_it_no_request(opened: tuple[Table, Asked]) -> None:
    table, asked = opened
    other = Table.open(table.url, storage_options=table.storage_options, settings=SETTINGS)

    def work(txn: Any) -> None:
        engine.insert(txn, rows((2, "a", 2)))
        for number in range(5):
            other.append(rows((10 + number, "a", 0)))

    transact(table, work, pinned=False)
    assert not {"get completed", "list_page timeline"} & set(asked.names)


def test_partition_s_metafile_is_made_once_and_again_after_a_clean(tmp_path: Path) -> None:
    table, asked = counted(Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS), SETTINGS)
    for number in range(4):
        upsert(table, (1, "a", number))
    table.append(rows((2, "a", 0)))
    table.append(rows((3, "b", 0)))
    assert asked.names.count("put metafile") == 2
    from lockprovider.table import KeepVersions

    assert table.clean(KeepVersions(1))
    (tmp_path / "t" / "a" / ".hoodie_partition_metadata").unlink()  # as a JVM clean of a partition does
    table.append(rows((4, "a", 0)))
    assert (tmp_path / "t" / "a" / ".hoodie_partition_metadata").exists()


def test_files_of_a_refused_second_write_are_not_committed(tmp_path: Path) -> None:
    """A function that swallows the refusal of its second write: nobody else would know of the files."""
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)

    def work(txn: Any) -> None:
        engine.insert(txn, rows((1, "a", 1)))
        with pytest.raises(InvalidRecords, match="one write"):
            engine.insert(txn, rows((2, "b", 2)))

    transact(table, work)
    assert by_hudi_rs(table.url) == {(1, "a", 1)}
    assert len(data_files(tmp_path / "t")) == 1
    assert orphans(tmp_path / "t") == set()
    assert not list((tmp_path / "t" / ".hoodie" / ".temp").rglob("*.marker.*"))


def test_announced_and_uncommitted_files_of_an_append_are_removed(tmp_path: Path) -> None:
    """A function that swallows that its first write failed halfway, and writes other rows."""
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    markers = tmp_path / "t" / ".hoodie" / ".temp"

    def work(txn: Any) -> None:
        begin = txn.start()
        for part in ("c", "d"):
            (tmp_path / "t" / part).mkdir()
        name = f"{group_id(begin, 'd', '0-0-0', 0, 0)}_0-0-0_{begin}.parquet"
        (tmp_path / "t" / "d" / name).write_bytes(b"of another attempt")
        with pytest.raises(Corrupt):
            engine.insert(txn, rows(*((n, part, n) for n, part in enumerate("abcd"))))
        assert {path.name for path in (markers / begin).iterdir()} == {"MARKERS.type", "MARKERS0"}
        assert (markers / begin / "MARKERS.type").read_text() == "TIMELINE_SERVER_BASED"
        announced = (markers / begin / "MARKERS0").read_text().split()
        assert sorted(line.partition("/")[0] for line in announced) == [*"abcd"]
        assert f"d/{name}.marker.CREATE" in announced
        engine.insert(txn, rows((9, "e", 9)))
        assert len((markers / begin / "MARKERS2").read_text().split()) == 1  # the JVM reads markers of one kind only

    transact(table, work)
    assert by_hudi_rs(table.url) == {(9, "e", 9)}
    assert len(data_files(tmp_path / "t")) == 1
    assert orphans(tmp_path / "t") == set()
    assert not [path for path in markers.rglob("*") if path.is_file()]


def test_files_of_other_processes_are_found_when_this_one_wrote_too(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)

    def work(txn: Any) -> None:
        writer = start_for_tasks(txn, table.schema())
        plain, keys, _ = writer.keyed(rows((2, "a", 2)))
        writer.insert("a", plain, keys, "9-0-1")  # of a task attempt that failed
        engine.insert(txn, rows((1, "a", 1)))

    transact(table, work)
    assert by_hudi_rs(table.url) == {(1, "a", 1)}


def test_writer_bound_to_one_process_cannot_be_sent_elsewhere(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    txn = Transaction(table)
    writer = start_here(txn, plan_write(txn, lambda _: None))[0]
    with pytest.raises(TypeError, match=r"writer\.start_for_tasks"):
        pickle.dumps(writer)
    txn.rollback()


def test_snapshot_of_a_transaction_is_pinned_when_it_is_begun(tmp_path: Path) -> None:
    """Rows that were read from the table after `transaction()` may be written back by it."""
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1))
    txn = Transaction(table)
    read = content(table)
    upsert(table, (1, "a", 10))
    engine.write(txn, upserts=rows(*((key, part, value + 1) for key, part, value in read)))
    with pytest.raises(WriteConflict):
        txn.commit()
    txn.rollback()
    assert content(table) == {(1, "a", 10)}


def test_bad_input_is_refused_before_any_write_also_from_the_cache(
    opened: tuple[Table, Asked],
) -> None:
    table, asked = opened
    with pytest.raises(InvalidRecords):
        table.upsert(rows((1, "a", 2)).drop(["value"]))
    assert [name for name in asked.names if name.startswith("put")] == []


def test_column_that_another_writer_added_is_known_at_once(tmp_path: Path) -> None:
    import pyarrow as pa

    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    table.append(rows((1, "a", 1)))
    other = Table.open(table.url, settings=SETTINGS)
    other.add_columns(pa.schema([("more", pa.string())]))
    table.append(rows((2, "a", 2)).append_column("more", pa.array(["x"])))
    with pytest.raises(InvalidRecords):
        Table.open(table.url, settings=SETTINGS).upsert(rows((1, "a", 5)))
    assert table.to_arrow(["id", "more"]).sort_by("id").to_pylist() == [
        {"id": 1, "more": None},
        {"id": 2, "more": "x"},
    ]


def test_long_timeline_is_listed_in_parts_and_completely(
    place: tuple[str, dict[str, Any] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current, "_PAGE", 90)  # a tenth, and so many files
    url, options = place
    table, asked = counted(Table.create(url, SPEC, storage_options=options, settings=SETTINGS), SETTINGS)
    names = {f"20200101{number:09d}_20200101{number:09d}.clean" for number in range(250)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: table.store.put_if_absent(f".hoodie/timeline/{name}", b""), names))
    whole = table.timeline()
    assert {instant.file_name for instant in whole.instants} >= names
    asked.names.clear()
    late = "20200101000000090_20200101000009999.clean"  # where two parts meet
    table.store.put_if_absent(f".hoodie/timeline/{late}", b"")
    again = table.timeline()
    assert {i.file_name for i in again.instants} - {i.file_name for i in whole.instants} == {late}
    assert asked.names.count("list_page timeline") == (3 if options else 1)


def opened_many(place: tuple[str, dict[str, Any] | None], settings: TableSettings = BLIND) -> tuple[Table, Any]:
    """A table of 16 buckets, all of which this process has written into, and what is asked of it from now on."""
    url, options = place
    Table.create(url, replace(LOGGED, buckets=16), settings=BLIND, storage_options=options)
    table, asked = counted(Table.open(url, settings=settings, storage_options=options), settings)
    for number in range(2):  # after the anchors the lock's log is a new one
        table.upsert(mor_tables.rows(*((n, "a", "x", number) for n in range(400))))
    at_rest(table)
    asked.names.clear()
    return table, asked


@pytest.mark.parametrize("write", ["upsert", "append", "delete", "both"])
def test_non_blocking_commit_takes_one_put_per_bucket_and_eleven_requests(
    place: tuple[str, dict[str, Any] | None], write: str
) -> None:
    table, asked = opened_many(place)
    changes, ended = (
        mor_tables.rows(*((n, "a", "y", 9) for n in range(200))),
        gone(*((n, "a", 9) for n in range(200, 400))),
    )
    match write:
        case "delete":
            done = table.delete(ended)
        case "both":
            done = table.upsert(changes, deletes=ended)
        case _:
            done = getattr(table, write)(changes)
    at_rest(table)
    assert len(done.file_groups) == 16
    expected = [*BEGIN, *["put marker"] * 2, *["put files"] * 16, *COMMIT[:-1], "delete heartbeat, marker, marker"]
    assert in_order(asked.names) == in_order(expected)
    assert len(expected) == 16 + NON_BLOCKING
    left = [row for row in mor_tables.content(table) if row[2] == "y"]
    assert len(left) == {"upsert": 200, "append": 200, "delete": 0, "both": 200}[write]
    assert len(mor_tables.content(table)) == (400 if write in ("upsert", "append") else 200)


def test_deletes_that_are_looked_for_have_markers_of_their_own(tmp_path: Path) -> None:
    """Of rows that are not there no log is written."""
    table, asked = opened_many((str(tmp_path / "t"), None), mor_tables.SETTINGS)
    done = table.delete(mor_tables.keys((1, "a"), (2, "a"), (3, "a"), *((n, "a") for n in range(1000, 1100))))
    assert asked.names.count("put marker") == asked.names.count("put files") == len(done.file_groups) in (1, 2, 3)
    asked.names.clear()
    table.upsert(mor_tables.rows(*((n, "b", "x", 1) for n in range(400)), *((n, "a", "y", 5) for n in range(400))))
    assert [asked.names.count(f"put {what}") for what in ("marker", "data", "files")] == [2, 16, 16], "first files, too"
    assert len(mor_tables.content(table)) == 800
    assert not [path for path in (Path(table.url) / ".hoodie/.temp").rglob("*") if path.is_file()]
