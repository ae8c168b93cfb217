"""Every damage has its finding, and a healthy table has none."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table.overwriting import overwrite
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from fsspec_cas import Store
from lockprovider import LockRecord
from lockprovider.storage_lock.record import Pending
from lockprovider.table import KeepActive, KeepCommits, KeepVersions, Table, TableNotFound, TableSpec
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.layout import format_ms, parse_base_file, to_ms
from lockprovider.table.format.metadata import CommitMetadata, encode_commit
from lockprovider.table.services.rollback import roll_back
from lockprovider.table.state import archive_index
from lockprovider.table.transaction.transaction import Transaction

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "template"
    table = Table.create(str(folder), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1), (2, "b", 2))
    upsert(table, (1, "a", 2))
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "t"
    shutil.copytree(template, copy, copy_function=shutil.copy2)
    return copy


def findings(folder: Path, state: str = "wrong", *, keys: bool = False) -> list[tuple[str, str]]:
    """(rule, sentence) pairs."""
    table = Table(Store.from_url(str(folder)), str(folder), settings=SETTINGS)
    report = diagnose(table, keys=keys)
    return [(f.rule, f"{f.what}: {f.mend}") for _, _, found in report for f in found if f.state == state]


def timeline(folder: Path) -> list[Path]:
    return sorted((folder / ".hoodie" / "timeline").iterdir())


def last_commit(folder: Path) -> Path:
    return [path for path in timeline(folder) if path.name.endswith("commit") and "_" in path.name][-1]


def slices(folder: Path, part: str) -> list[Path]:
    return sorted((folder / part).glob("*.parquet"), key=lambda path: path.name.rpartition("_")[2])


def reword(folder: Path, old: str, new: str) -> None:
    path = folder / ".hoodie" / "hoodie.properties"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_healthy_table_has_no_findings_whatever_was_done_to_it(folder: Path) -> None:
    table = Table.open(str(folder), settings=SETTINGS)
    overwrite(table, ["b"], (5, "b", 5))
    table.savepoint()
    upsert(table, (1, "a", 3), (6, "c", 6))
    table.clean(KeepVersions(1))
    lost = Transaction(table)
    engine.write(lost, upserts=rows((1, "a", 100)))
    lost.rollback()
    upsert(table, (6, "c", 7))
    table.restore(table.history()[-2].instant)
    assert findings(folder) == findings(folder, "note") == []
    assert by_hudi_rs(str(folder)) == content(table) == {(1, "a", 3), (5, "b", 5), (6, "c", 6)}


@pytest.mark.parametrize("name", sorted(path.stem for path in DATA.glob("cow*.zip")))
def test_tables_that_jvm_hudi_wrote_are_healthy(tmp_path: Path, name: str) -> None:
    with ZipFile(DATA / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    (folder,) = (path.parent for path in tmp_path.glob("*/.hoodie"))
    assert findings(folder) == []


# --- damages: each function does one, and gives the rule and a part of the sentence --------------------------------


def a_dead_writer(folder: Path) -> tuple[str, str]:
    txn = Transaction(Table.open(str(folder), settings=SETTINGS))
    engine.write(txn, upserts=rows((9, "a", 9)))
    txn.heartbeat.stop()
    return "R1", f"write {txn.begin} did not complete and its writer is dead; it left 1 data files.*table rollback"


def files_without_markers(folder: Path) -> tuple[str, str]:
    txn = Transaction(Table.open(str(folder), settings=SETTINGS))
    engine.write(txn, upserts=rows((9, "a", 9)))
    shutil.rmtree(folder / ".hoodie" / ".temp")
    return "R1", "without a marker: a/"


def an_orphan(folder: Path) -> tuple[str, str]:
    path = slices(folder, "a")[0]
    begin = parse_base_file(path.name).begin
    shutil.copy(path, path.with_name(path.name.replace(begin, format_ms(to_ms(begin) + 1))))
    return "R1", "1 files belong to no instant.*table clean"


def a_metadata_table(folder: Path) -> tuple[str, str]:
    (folder / ".hoodie" / "metadata").mkdir()
    (folder / ".hoodie" / "metadata" / "something").touch()
    with (folder / ".hoodie" / "hoodie.properties").open("a") as properties:
        properties.write("hoodie.table.metadata.partitions=files\n")
    return "R2", "keep its listing, if R4 offers it; or .*hoodie.metadata.enable=false.*retire-metadata URL`"


def a_clock_ahead(folder: Path) -> tuple[str, str]:
    path = last_commit(folder)
    begin, _, rest = path.name.partition("_")
    path.rename(path.with_name(f"{begin}_{format_ms(to_ms(rest[:17]) + 3_600_000)}.commit"))
    return "R3", "1 instants have times ahead of the store's clock"


def a_writer_in_new_york(folder: Path) -> tuple[str, str]:
    path = last_commit(folder)
    done_ms = to_ms(path.name.partition("_")[2][:17])
    os.utime(path, (done_ms / 1000 + 5 * 3600, done_ms / 1000 + 5 * 3600))
    return "R3", "behind the others.*-Duser.timezone=UTC"


def another_zone(folder: Path) -> tuple[str, str]:
    reword(folder, "timezone=UTC", "timezone=LOCAL")
    return "R4", "timezone=LOCAL"


def a_version_of_the_future(folder: Path) -> tuple[str, str]:
    reword(folder, "hoodie.table.version=8", "hoodie.table.version=10")
    return "R4", "version=10 is not 8 or 9.*downgrade_table"


def no_merge_mode(folder: Path) -> tuple[str, str]:
    reword(folder, "hoodie.record.merge.mode=", "hoodie.record.merge.mood=")
    return "R4", "merge.mode is missing.*COMMIT_TIME_ORDERING"


def no_partition_fields(folder: Path) -> tuple[str, str]:
    reword(folder, "hoodie.table.partition.fields=", "hoodie.table.partition.felds=")
    return "R4", "hudi-rs reads no rows"


def properties_cut_short(folder: Path) -> tuple[str, str]:
    reword(folder, "hoodie.table.checksum=", "hoodie.table.checksum=1")
    return "R4", "checksum"


def a_lone_backup(folder: Path) -> tuple[str, str]:
    properties = folder / ".hoodie" / "hoodie.properties"
    properties.rename(properties.with_name("hoodie.properties.backup"))
    return "R4", "only its backup exists.*copy hoodie.properties.backup"


def a_second_attempt(folder: Path) -> tuple[str, str]:
    path = slices(folder, "b")[0]
    shutil.copy(path, path.with_name(path.name.replace("_0-0-0_", "_0-0-1_")))
    return "R5", "has 2 base files of instant .* does not name: b/[^,]*_0-0-1_[^,]*$"


def a_second_attempt_of_an_unreadable_commit(folder: Path) -> tuple[str, str]:
    a_second_attempt(folder)
    path = slices(folder, "b")[0]
    next(file for file in timeline(folder) if file.name.startswith(f"{path.stem.rpartition('_')[2]}_")).write_bytes(b"")
    return "R5", "has 2 base files of instant .*: find out which one its commit wrote, .*_0-0-0_.*_0-0-1_"


def a_completion_twice(folder: Path) -> tuple[str, str]:
    path = last_commit(folder)
    other = Table.open(str(folder)).timeline().writes[-2]
    path.rename(path.with_name(f"{path.name.partition('_')[0]}_{other.completion}.commit"))
    return "R6", "2 commits completed at the same millisecond"


def an_update_that_nobody_saw(folder: Path) -> tuple[str, str]:
    unchecked = Table.open(str(folder), settings=SETTINGS)
    unchecked.settings = unchecked.settings.__class__(resolution=lambda mine, others: None)
    first, second = Transaction(unchecked), Transaction(unchecked)
    engine.write(first, upserts=rows((1, "a", 10)))
    engine.write(second, upserts=rows((1, "a", 100)))
    first.commit()
    second.commit()
    return "R6", f"commit {second.begin} did not see commit {first.begin}.*are lost"


def no_metafile(folder: Path) -> tuple[str, str]:
    (folder / "b" / ".hoodie_partition_metadata").unlink()
    return "R7", "partition 'b' has no .hoodie_partition_metadata.*partitionDepth=1"


def an_empty_commit_file(folder: Path) -> tuple[str, str]:
    last_commit(folder).write_bytes(b"")
    return "commits", last_commit(folder).name


def a_commit_without_schema(folder: Path) -> tuple[str, str]:
    last_commit(folder).write_bytes(encode_commit(CommitMetadata({}, "UPSERT")))
    return "commits", "neither a schema nor a file"


def a_file_that_is_gone(folder: Path) -> tuple[str, str]:
    slices(folder, "a")[-1].unlink()
    return "commits", "1 files that readers need are gone: a/"


def a_file_cut_short(folder: Path) -> tuple[str, str]:
    path = slices(folder, "a")[-1]
    path.write_bytes(path.read_bytes()[:-9])
    return "commits", "differ in size"


def a_ghost(folder: Path) -> tuple[str, str]:
    lost = Transaction(Table.open(str(folder), settings=SETTINGS))
    engine.write(lost, upserts=rows((9, "a", 9)))
    roll_back(lost.table, lost.begin, own=True)  # as if others had
    lost.rollback()
    name = f"{lost.begin}_{format_ms(to_ms(lost.begin) + 1)}.commit"
    (folder / ".hoodie" / "timeline" / name).write_bytes(last_commit(folder).read_bytes())
    return "commits", f"{name} was completed after its rollback"


def a_ghost_of_a_restore(folder: Path) -> tuple[str, str]:
    table, path = Table.open(str(folder), settings=SETTINGS), last_commit(folder)
    data = path.read_bytes()
    table.restore(table.history()[-2].instant)
    path.write_bytes(data)
    return "commits", f"{path.name} was completed after its rollback"


def a_clean_left_unfinished(folder: Path) -> tuple[str, str]:
    done = Table.open(str(folder), settings=SETTINGS).clean(KeepVersions(1))[0]
    (folder / ".hoodie" / "timeline" / f"{done.instant}_{done.completion}.clean").unlink()
    os.utime(folder / ".hoodie" / "timeline" / f"{done.instant}.clean.requested", (1, 1))
    return "services", f"clean {done.instant} did not complete"


def a_lock_that_is_none(folder: Path) -> tuple[str, str]:
    (folder / ".hoodie" / ".locks" / "table_lock.json").write_text("locked!")
    return "lock", "once no writer runs"


DAMAGES = [
    a_dead_writer, files_without_markers, an_orphan, a_metadata_table, a_clock_ahead, a_writer_in_new_york,
    another_zone, a_version_of_the_future, no_merge_mode, no_partition_fields, properties_cut_short, a_lone_backup,
    a_second_attempt, a_second_attempt_of_an_unreadable_commit, a_completion_twice, an_update_that_nobody_saw,
    no_metafile, an_empty_commit_file,
    a_commit_without_schema, a_file_that_is_gone, a_file_cut_short, a_ghost, a_ghost_of_a_restore,
    a_clean_left_unfinished, a_lock_that_is_none,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_found_and_the_finding_says_what_to_do(
    folder: Path, damage: Callable[[Path], tuple[str, str]]
) -> None:
    assert findings(folder) == []
    rule, sentence = damage(folder)
    before = sorted(path for path in folder.rglob("*") if path.is_file())
    found = findings(folder)
    assert [True for known, what in found if known == rule and re.search(sentence, what)], found
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == before


def test_folder_without_a_table_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound, match="table create"):
        diagnose(Table(Store.from_url(str(tmp_path)), str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_staged_rows_are_not_called_markers_of_a_finished_instant(folder: Path) -> None:
    """They may be those of a running write of Spark, which their removal would fail."""
    staged = folder / ".hoodie" / ".temp" / "staged-1"
    staged.mkdir(parents=True)
    (staged / "2.arrow").write_bytes(b"rows")
    [sentence] = [sentence for rule, sentence in findings(folder, "note") if rule == "leftovers"]
    assert "1 Spark writes have staged rows" in sentence
    assert "once no Spark write runs" in sentence


def test_harmless_findings_are_notes(folder: Path) -> None:
    (folder / ".hoodie" / ".heartbeat" / "20200101000000000").touch()
    reword(folder, "hoodie.table.timeline.timezone=UTC", "")
    lease = Table.open(str(folder)).lock.acquire()
    notes = dict(findings(folder, "note"))
    assert set(notes) == {"R3", "leftovers", "lock"}
    assert "the lock is held by" in notes["lock"]
    lease.release()


@pytest.mark.parametrize(
    ("kind", "name", "value", "noted"),
    [
        ("copy_on_write", "tags", [1, None], True),
        ("merge_on_read", "tags", [1, None], False),
        ("copy_on_write", "array", "a", False),
    ],
)
def test_setting_that_a_jvm_needs_for_lists_is_noted(
    tmp_path: Path, kind: str, name: str, value: object, noted: bool
) -> None:
    rows = pa.table({"id": [1], name: [value]})
    table = Table.create(str(tmp_path / "t"), TableSpec("t", rows, "id", table_type=kind), settings=SETTINGS)
    table.upsert(rows)
    found = [sentence for rule, sentence in findings(tmp_path / "t", "note") if rule == "lists"]
    assert ["write-old-list-structure=false" in sentence for sentence in found] == [True] * noted


@pytest.mark.parametrize("kind", ["copy_on_write", "merge_on_read"])
def test_keys_in_several_file_groups_are_counted_if_asked(tmp_path: Path, kind: str) -> None:
    table = Table.create(str(tmp_path / "t"), replace(SPEC, table_type=kind), settings=SETTINGS)
    table.append(rows((1, "a", 1), (2, "a", 2), (1, "b", 1)))
    assert [one for one in table.doctor(keys=True) if one.rule == "keys"] == []
    table.append(rows((1, "a", 10), (3, "a", 3)))
    assert [one for one in table.doctor() if one.rule == "keys"] == []
    found = [one for one in table.doctor(keys=True) if one.rule == "keys"]
    assert [(one.state, one.what.partition(";")[0]) for one in found] == [
        ("wrong", "1 keys of partition 'a' are in several file groups")
    ]
    table.delete(rows((1, "a", 10)))
    assert [one for one in table.doctor(keys=True) if one.rule == "keys"] == []


@pytest.mark.parametrize("buckets", [None, 2])
def test_flink_change_log_is_reported_and_the_other_checks_go_on(tmp_path: Path, buckets: int | None) -> None:
    table = Table.create(str(tmp_path / "t"), replace(SPEC, buckets=buckets), settings=SETTINGS)
    table.append(rows((1, "a", 1), (2, "b", 2)))
    path = slices(tmp_path / "t", "a")[0]
    whole = pq.read_table(path, partitioning=None)
    pq.write_table(whole.add_column(5, "_hoodie_operation", pa.array(["I"])), path)
    (tmp_path / "t" / "b" / ".hoodie_partition_metadata").unlink()
    found = findings(tmp_path / "t", keys=True)
    (unread,) = (what for _, what in found if "1 files cannot be read" in what)
    assert "Flink" in unread
    assert [rule for rule, _ in found] == ["R7", "commits", "commits"]  # unread, and of another size


DAMAGED = {
    "cut": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "json": lambda data: b'{"a": 1}',
    "no_text": lambda data: data.replace(b"_hoodie_", b"_hoodi\xff_"),
    "footer": lambda data: data[:-1008] + bytes(1000) + data[-8:],
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("sample", ["cow_v8_nonpartitioned", "mor_avro_v9_nonpartitioned_rollback"])
def test_doctor_reports_whatever_file_is_damaged(tmp_path: Path, sample: str, damage: str) -> None:
    with ZipFile(DATA / f"{sample}.zip") as archive:
        archive.extractall(tmp_path)
    (folder,) = (path.parent for path in tmp_path.glob("*/.hoodie"))
    read = {Path(part.path).name for part in Table.open(str(folder)).snapshot().slices}
    for path in (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"):
        data = path.read_bytes()
        path.write_bytes(DAMAGED[damage](data))
        found = findings(folder, keys=True)
        if path.name in read and path.read_bytes() != data:
            assert [what for _, what in found if path.name in what]
        path.write_bytes(data)


def test_unreadable_rollback_is_reported(folder: Path) -> None:
    a_ghost(folder)
    (path,) = (path for path in timeline(folder) if path.suffix == ".rollback")
    path.write_bytes(b"Obj")
    (what,) = (what for _, what in findings(folder) if path.name in what)
    assert "1 files cannot be read" in what


def test_decided_commit_is_reported_until_it_is_applied(folder: Path) -> None:
    file = last_commit(folder)
    decided = Pending.of_bytes(str(file.relative_to(folder)), file.read_bytes())
    record = LockRecord("another", to_ms("20990101000000000"), expired=False, released_pending=True, pending=decided)
    (folder / ".hoodie" / ".locks" / "table_lock.json").write_bytes(record.encode())
    assert findings(folder, "note") == []
    file.unlink()
    ((rule, what),) = findings(folder, "note")
    assert rule == "lock"
    assert f"is decided but not applied yet ({decided.path})" in what


def archived_table(tmp_path: Path) -> Path:
    keep = KeepActive(2, 3)
    settings = replace(SETTINGS, retention=KeepCommits(1), archival=keep)
    table = Table.create(str(tmp_path / "a"), SPEC, settings=settings)
    for number in range(6):
        upsert(table, (1, "a", number))
    assert table.archive().instants
    return tmp_path / "a"


def test_archive_that_lost_a_file_or_has_a_torn_manifest_is_wrong(tmp_path: Path) -> None:
    folder = archived_table(tmp_path)
    assert findings(folder) == findings(folder, "note") == []
    history = folder / ".hoodie" / "timeline" / "history"
    (file,) = history.glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    ((rule, what),) = findings(folder)
    assert (rule, file.name in what) == ("archive", True)
    (history / "manifest_1").write_text("{")
    ((rule, what),) = findings(folder)
    assert (rule, "manifest_1 cannot be understood" in what) == ("archive", True)


def test_archival_that_was_not_finished_and_a_long_timeline_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = archived_table(tmp_path)
    table = Table.open(str(folder), settings=SETTINGS)
    (name,) = sorted(archive_index.instants_since(table.knowledge, "0"), key=lambda one: one.begin)[-1:]
    shutil.copy(last_commit(folder), folder / ".hoodie" / "timeline" / name.file_name)
    assert findings(folder) == []
    ((rule, what),) = findings(folder, "note")
    assert (rule, "1 archived instants are still on the timeline" in what) == ("archive", True)
    monkeypatch.setattr("lockprovider.table.doctor.rules._MANY", 2)
    assert any("the timeline has 3 commits" in what for _, what in findings(folder, "note"))
