"""Rules of the metadata table's listing whose breach loses rows, or fails a reader: each with a twin that breaks it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from table.metadata_written import with_files_alone
from table.services.test_compact_listing import agreed
from table.services.test_listing import BEFORE, NAME, Row, open_, rows
from table.state.test_metadata_table import listed, sizes_there
from table.test_crash_at_every_step import let_time_pass

from lockprovider.table import Aborted
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.metadata_table import files_records, listing_commit
from lockprovider.table.format.metadata_table.files_records import metadata_schema
from lockprovider.table.services import rollback
from lockprovider.table.transaction.transaction import Transaction

NEW: Row = (8, "b", "more", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_files_alone(NAME, tmp_path / "table")


def test_ours_is_read_by_all(folder: Path) -> None:
    open_(folder).append(rows(NEW))
    assert agreed(folder) == BEFORE | {NEW}


def test_d7_a_write_token_with_letters_hides_the_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_commit, "_WRITER", "a-b-c")
    open_(folder).append(rows(NEW))
    with pytest.raises(AssertionError):
        agreed(folder)


@pytest.mark.parametrize("removes", [True, False], ids=["ours", "the wrong twin"])
def test_d9_what_is_written_after_a_rollback_is_removed_by_its_writer(
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


def test_d11_a_smaller_schema_fails_hudi_rs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(metadata_schema())
    kept = [one for one in whole["fields"] if one["name"] in ("key", "type", "filesystemMetadata")]
    small = json.dumps({**whole, "fields": kept})
    for module in (files_records, listing_commit):
        monkeypatch.setattr(module, "metadata_schema", lambda: small)
    open_(folder).append(rows(NEW))
    with pytest.raises(Exception, match="missing"):
        agreed(folder)
