"""The doctor compares the metadata table with what is there: whatever its readers would miss or fail at is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from table.metadata_written import NAMES, ROOT, unpacked

from lockprovider.table import Table
from lockprovider.table.doctor.rules import diagnose

Damage = Callable[[Path], str]


def found(folder: Path) -> list[tuple[str, str]]:
    """What is said of the metadata table's listing, and how to mend it."""
    report = {rule: findings for rule, _, findings in diagnose(Table.open(str(folder)))}
    return [(one.what, one.mend) for one in report["metadata"]]


def data_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("part=*/*.parquet"))


def log_of_the_last_commit(folder: Path) -> Path:
    return max((folder / ROOT / "files").glob(".files*.log.*"), key=lambda path: path.name)


def a_commit_that_it_was_not_told_of(folder: Path) -> str:
    log_of_the_last_commit(folder).unlink()
    return "1 files are not listed: its readers miss their rows: part="


def a_file_that_was_removed(folder: Path) -> str:
    data_files(folder)[0].unlink()
    return "1 files are listed but gone: its readers fail: part="


def a_file_that_was_cut(folder: Path) -> str:
    path = data_files(folder)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    return "1 files differ in size from the listing"


def a_base_file_of_its_own_that_was_cut(folder: Path) -> str:
    path = next((folder / ROOT / "files").glob("*.hfile"))
    path.write_bytes(path.read_bytes()[:100])
    return "cannot be read: HFile 'files/files-0000-0"


def a_removed_one_that_readers_are_told_of(folder: Path) -> str:
    for path in (folder / ROOT / "files").iterdir():
        path.unlink()
    return "has no listing of the files any more"


@pytest.mark.parametrize("name", NAMES)
def test_metadata_tables_of_the_jvm_have_no_findings(name: str, tmp_path: Path) -> None:
    assert found(unpacked(name, tmp_path)) == []


@pytest.mark.parametrize(
    "damage",
    [
        a_commit_that_it_was_not_told_of,
        a_file_that_was_removed,
        a_file_that_was_cut,
        a_base_file_of_its_own_that_was_cut,
        a_removed_one_that_readers_are_told_of,
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_each_difference_is_reported_with_the_next_step(name: str, damage: Damage, tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path)
    sentence = damage(folder)
    ((what, mend),) = found(folder)
    assert sentence in what
    assert "lockprovider table retire-metadata URL" in mend


def test_files_removed_by_a_running_clean_are_no_difference(tmp_path: Path) -> None:
    folder = unpacked(NAMES[0], tmp_path)
    a_file_that_was_removed(folder)
    (folder / ".hoodie/timeline/20301122030719105.clean.requested").write_bytes(b"")
    assert found(folder) == []


def test_metadata_table_that_readers_do_not_use_is_not_compared(tmp_path: Path) -> None:
    folder = unpacked(NAMES[0], tmp_path)
    Table.open(str(folder)).retire_metadata_table()
    assert found(folder) == []
