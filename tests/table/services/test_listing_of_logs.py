"""Merge-on-read tables whose metadata table is kept: their log files are listed, too, whatever is done with them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from table.listed_tables import check_listed, with_listing
from table.metadata_written import ROOT
from table.mor_tables import SETTINGS, Row, a_table, by_hudi_rs, content, keys, rows
from table.state.test_metadata_table import listed, sizes_there
from table.test_crash_at_every_step import AT_EACH_REQUEST, Died, DiesAtStep, end_of, let_time_pass
from table.test_non_blocking import BLIND, SPEC

from fsspec_cas import CasError, Store
from lockprovider import LockError
from lockprovider.table import HistoryGone, KeepCommits, Table, TableError
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.compatibility import MODE_KEY, NON_BLOCKING
from lockprovider.table.format.layout import Action
from lockprovider.table.services import plans
from lockprovider.table.transaction.transaction import Transaction

KEEPS = replace(SETTINGS, write_metadata=True)
FIRST: list[Row] = [(1, "a", "first", 1), (2, "b", "first", 1)]


def made(folder: Path, kind: str = "by commit") -> Table:
    a_table(folder, kind).append(rows(*FIRST))
    with_listing(folder)
    return Table.open(str(folder), settings=KEEPS)


def agreed(table: Table) -> list[Row]:
    """The rows, on which all readers agree; what is listed is what is there."""
    found = content(Table.open(table.url, settings=SETTINGS))
    assert content(Table.open(table.url, settings=replace(SETTINGS, read_from_metadata=True))) == found
    assert by_hudi_rs(table) == found
    check_listed(Path(table.url))
    return found


@pytest.mark.parametrize("kind", ["by commit", "by event, buckets"])
def test_log_files_are_listed_with_their_sizes_and_merged_ones_are_not(tmp_path: Path, kind: str) -> None:
    table = made(tmp_path / "t", kind)
    table.upsert(rows((1, "a", "second", 2), (3, "c", "new", 1)))
    table.delete(keys((2, "b")))
    logs = {path: size for path, size in listed(Path(table.url)).items() if ".log." in path}
    assert len(logs) >= 2
    assert logs.items() <= sizes_there(Path(table.url)).items()
    expected: list[Row] = [(1, "a", "second", 2), (3, "c", "new", 1)]
    assert agreed(table) == expected
    assert table.compact()
    assert agreed(table) == expected
    table.upsert(rows((1, "a", "third", 3)))
    table.schedule_compaction()
    table.upsert(rows((3, "c", "third", 3)))
    assert agreed(table) == [(1, "a", "third", 3), (3, "c", "third", 3)]
    (planned,) = table.timeline().pending(Action.COMPACTION)
    table.run_compaction(planned)
    table.clean(KeepCommits(1))
    assert agreed(table) == [(1, "a", "third", 3), (3, "c", "third", 3)]
    assert listed(Path(table.url)) == sizes_there(Path(table.url))
    assert not logs.keys() & listed(Path(table.url)).keys()


def test_clustered_files_are_listed(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    for number in range(3):
        table.append(rows((10 + number, "a", "small", 1)))
    table.compact()
    before = agreed(table)
    assert table.cluster()
    assert agreed(table) == before


def test_write_that_is_rolled_back_is_not_listed(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", "late", 9)))
    txn.rollback()
    assert agreed(table) == FIRST
    assert listed(Path(table.url)) == sizes_there(Path(table.url))


def test_table_for_non_blocking_writers_stays_one(tmp_path: Path) -> None:
    Table.create(str(tmp_path), SPEC, settings=BLIND)
    table = Table.open(str(tmp_path), settings=replace(BLIND, write_metadata=True))
    table.append(rows(*FIRST))
    with_listing(tmp_path)
    before = table.config().raw[MODE_KEY]
    table.share()
    assert table.config().raw[MODE_KEY] == before == NON_BLOCKING
    Table.open(str(tmp_path), settings=BLIND).upsert(rows((1, "a", "second", 2)))
    assert agreed(table) == [(1, "a", "second", 2), (2, "b", "first", 1)]


def _unlisted(table: Table, *given: object, **named: object) -> object:
    return COMPLETE(table, *given, **{**named, "listed": ()})  # type: ignore[arg-type]


COMPLETE = plans.complete


def test_mutant_with_an_unlisted_compaction_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong twin of D1, which readers by the metadata table do not see."""
    table = made(tmp_path / "t")
    table.upsert(rows((1, "a", "second", 2)))
    monkeypatch.setattr(plans, "complete", _unlisted)
    table.compact()
    with pytest.raises(AssertionError):
        agreed(table)


def _upsert(table: Table) -> None:
    table.upsert(rows((1, "a", "mine", 5), (7, "c", "new", 1)))


@pytest.mark.soak
@AT_EACH_REQUEST
@pytest.mark.parametrize("act", [_upsert, Table.compact])
def test_listing_is_complete_after_a_death_at_any_request(
    tmp_path: Path, applied: bool, act: Callable[[Table], object]
) -> None:
    table = made(tmp_path / "made")
    table.upsert(rows((1, "a", "second", 2)))
    before = agreed(table)
    listings = 0
    for step in range(1, 200):
        folder = tmp_path / str(step)
        shutil.copytree(tmp_path / "made", folder)
        backend = DiesAtStep(step, applied=applied)
        table = Table(Store(backend, str(folder)), str(folder), settings=KEEPS)
        try:
            act(table)
            break
        except (Died, CasError, LockError, TableError):
            assert backend.dead
        end_of(table)
        listings += ROOT in backend.asked[-1]
        now = agreed(Table.open(str(folder), settings=KEEPS))
        assert act is _upsert or now == before
        let_time_pass(folder)
        other = Table.open(str(folder), settings=KEEPS)
        other.append(rows((8, "c", "next", 1)), retries=3)
        other.sweep()
        with contextlib.suppress(HistoryGone):
            other.compact()
        later = agreed(other)
        assert set(later) == {*now, (8, "c", "next", 1)} or now == before
        assert other.timeline().pending_writes == ()
    else:
        pytest.fail("it never ended")
    assert listings >= 5
