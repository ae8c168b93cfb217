"""The metadata table's listing, compacted by our writers: nothing of it changes, whoever dies at it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hudi import HudiTableBuilder
from table.metadata_written import ROOT, with_files_alone
from table.services.test_listing import BEFORE, KEEPS, NAME, Row, all_is_listed, content, open_, rows
from table.test_crash_at_every_step import AT_EACH_REQUEST, Died, DiesAtStep, deaths, end_of, let_time_pass

from fsspec_cas import CasError, Store
from lockprovider import LockError
from lockprovider.table import KeepActive, KeepCommits, Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.services import metadata_table
from lockprovider.table.services.metadata_table import MOST_LOGS
from lockprovider.table.state.metadata_table import compacted_at, own_slices, own_timeline, uncompacted
from lockprovider.table.transaction.transaction import Transaction


def by_hudi_rs(folder: Path) -> set[Row]:
    found = HudiTableBuilder.from_base_uri(str(folder)).build().read()
    return {(r["id"], r["part"], r["v"], r["ts"]) for batch in found for r in batch.to_pylist()}


def compact_now(table: Table) -> str | None:
    with table.lock.acquire() as lease:
        return metadata_table.compact(table, lease, own_timeline(table.store))


def logs(folder: Path) -> int:
    store = Store.from_url(str(folder))
    (one,) = own_slices(store, own_timeline(store))
    return len(one.logs)


def agreed(folder: Path) -> set[Row]:
    """The rows, on which all readers agree; what is listed is what is there."""
    found = content(folder)
    assert by_hudi_rs(folder) == found
    all_is_listed(folder)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_files_alone(NAME, tmp_path / "table")


def test_readers_read_few_log_files_however_many_commits_there_are(folder: Path) -> None:
    table = open_(folder)
    expected = set(BEFORE)
    for turn in range(3 * MOST_LOGS + 2):
        table.append(rows((100 + turn, "ab"[turn % 2], "new", 1)))
        expected.add((100 + turn, "ab"[turn % 2], "new", 1))
        assert logs(folder) <= MOST_LOGS
    assert agreed(folder) == expected
    files = [path.name for path in (folder / ROOT / "files").iterdir()]
    assert len([name for name in files if name.endswith(".hfile")]) == 3
    assert len(files) < 3 * MOST_LOGS + 2


def test_compaction_in_vain_is_tried_again_after_ten_commits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base,) = (folder / ROOT / "files").glob("files-0000-*.hfile")
    shutil.copy(base, base.with_name(base.name.replace("files-0000", "files-0001")))  # two file groups
    compact, tried = metadata_table.compact, list[int]()

    def noted(*args: Any) -> str | None:
        tried.append(turn)
        return compact(*args)

    monkeypatch.setattr(metadata_table, "compact", noted)
    table, expected = open_(folder), set(BEFORE)
    for turn in range(3 * MOST_LOGS):
        table.append(rows((100 + turn, "a", "new", 1)))
        expected.add((100 + turn, "a", "new", 1))
    assert len(tried) > 1
    assert all(after - before == MOST_LOGS for before, after in pairwise(tried))
    assert content(folder) == expected


def timeline_of(folder: Path) -> set[str]:
    """Names on the metadata table's own timeline."""
    return {path.name for path in (folder / ROOT / ".hoodie/timeline").iterdir() if path.is_file()}


def test_timeline_of_the_listing_stays_short_over_many_commits(folder: Path) -> None:
    table, expected, sizes = open_(folder), set(BEFORE), []
    late = Transaction(open_(folder))
    engine.write(late, upserts=rows((3, "b", "late", 9)))
    for turn in range(8):
        table.append(rows((100 + turn, "c", "new", 1)))
        expected.add((100 + turn, "c", "new", 1))
        assert compact_now(table)
        sizes.append(len(timeline_of(folder)))
        if turn == 4:
            late.commit()  # began before all that is there
            expected = expected - {(3, "b", None, 2)} | {(3, "b", "late", 9)}
            assert agreed(folder) == expected
    assert sizes[3] == sizes[4] == sizes[-1] < min(sizes[5:7]), sizes
    assert agreed(folder) == expected
    assert "never compacted" not in table.archive(KeepActive(1, 2)).held
    assert agreed(folder) == expected


def test_deleted_file_stays_deleted_after_compaction_of_the_listing(folder: Path) -> None:
    table = open_(folder)
    for turn in range(3):
        table.upsert(rows((1, "a", f"v{turn}", 5 + turn)))
    table.clean(KeepCommits(1))
    assert compact_now(table)
    assert logs(folder) == 0
    assert agreed(folder) == {(1, "a", "v2", 7), (3, "b", None, 2)}
    table.overwrite(rows((9, "c", "over", 1)))
    assert compact_now(table)
    assert agreed(folder) == {(9, "c", "over", 1)}


def test_compacted_instants_of_the_listing_are_archived(folder: Path) -> None:
    table = Table.open(str(folder), settings=replace(KEEPS, retention=KeepCommits(1)))
    for turn in range(4):
        table.append(rows((10 + turn, "a", "small", 1)))
    before = agreed(folder)
    assert "never compacted" in table.archive(KeepActive(1, 2)).held
    assert compact_now(table)
    assert table.archive(KeepActive(1, 2)).instants
    assert agreed(folder) == before


def test_process_with_a_cached_listing_goes_on_after_its_compaction(folder: Path) -> None:
    """Its completion time there exceeds those of the compaction, of which the lock's log says nothing."""
    one, other = open_(folder), open_(folder)
    other.append(rows((10, "a", "small", 1)))
    one.append(rows((11, "b", "small", 1)))
    compacted = compact_now(one)
    done = other.append(rows((12, "a", "small", 1)))
    assert compacted is not None
    assert logs(folder) == 1
    own = own_timeline(one.store)
    assert max(i.completion or "" for i in own.instants if i.begin == compacted) < own.completions[done.instant]
    assert agreed(folder) == BEFORE | {(10, "a", "small", 1), (11, "b", "small", 1), (12, "a", "small", 1)}


def made_pending(folder: Path) -> str:
    """The begin time of a commit that is completed in the metadata table, and pending in the table."""
    done = open_(folder).append(rows((20, "a", "pending", 1)))
    (folder / ".hoodie/timeline" / f"{done.instant}_{done.completion}.commit").unlink()
    return done.instant


@pytest.mark.parametrize("waits", [True, False], ids=["ours", "the wrong twin"])
def test_write_pending_only_in_the_table_is_not_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    begin = made_pending(folder)
    completed = f"{begin}_20991231000000000.commit"
    metadata = open_(folder)
    if not waits:  # all count, and none of those that do not is in the base file
        valid = metadata_table.is_valid

        class All:
            def __init__(self, *given: object) -> None:
                self.valid, self.asked = valid(*given), 0  # type: ignore[arg-type]

            def __call__(self, one: str) -> bool:
                self.asked += one == begin
                return self.asked == 1 if one == begin and self.asked == 1 else self.valid(one)

        monkeypatch.setattr(metadata_table, "is_valid", All)
    assert (compact_now(metadata) is None) == waits
    monkeypatch.undo()
    source = max((folder / ".hoodie/timeline").glob("*_*.commit"))
    shutil.copy(source, folder / ".hoodie/timeline" / completed)  # its JVM writer ends it
    if waits:
        assert (20, "a", "pending", 1) in content(folder)
    else:
        with pytest.raises(AssertionError):
            content(folder)


def first_there(made: Path, folder: Path) -> int:
    """The request before those of the metadata table; none before it is other than in other services."""
    shutil.copytree(made, folder)
    backend = DiesAtStep(1000, applied=True)
    compact_now(Table(Store(backend, str(folder)), str(folder), settings=KEEPS))
    return next(at for at, what in enumerate(backend.asked) if ROOT in what)


@AT_EACH_REQUEST
def test_listing_is_complete_after_a_death_at_any_request(tmp_path: Path, applied: bool) -> None:
    made = with_files_alone(NAME, tmp_path / "made")
    for turn in range(4):
        open_(made).upsert(rows((1, "a", f"v{turn}", 5 + turn)))
        assert turn == 3 or compact_now(open_(made))  # so that the next one removes files and instants
    open_(made).clean(KeepCommits(1))
    before, there = content(made), 0
    for step in deaths(applied=applied, every=3, first=first_there(made, tmp_path / "whole")):
        folder = tmp_path / str(step)
        shutil.copytree(made, folder)
        backend = DiesAtStep(step, applied=applied)
        table = Table(Store(backend, str(folder)), str(folder), settings=KEEPS)
        try:
            compact_now(table)
            break
        except (Died, CasError, LockError):
            assert backend.dead
        end_of(table)
        there += ROOT in backend.asked[-1]
        assert content(folder) == before, backend.asked[-3:]
        let_time_pass(folder)
        instants = timeline_of(folder)
        assert {name.partition(".")[0] for name in instants if "_" not in name} <= {
            name.partition("_")[0] for name in instants if "_" in name
        } | ({max(instants)[:17]} - {""}), "what a JVM writer would roll back"
        other = open_(folder)
        other.append(rows((30, "c", "next", 1)))  # a log file that is completed after what was planned
        assert content(folder) == before | {(30, "c", "next", 1)}, backend.asked[-3:]
        assert compact_now(other)
        assert logs(folder) == 0
        assert agreed(folder) == before | {(30, "c", "next", 1)}, backend.asked[-3:]
        assert len(timeline_of(folder)) <= 6 * 5
    else:
        pytest.fail("the compaction never ended")
    assert there >= 4


def _of_logs_alone(store: Store, slices: object, valid: Callable[[str], bool]) -> object:
    return MERGED(store, [replace(one, path="", logs=one.logs[-1:]) for one in slices], valid)  # type: ignore[attr-defined]


MERGED = metadata_table.merged_listing


def test_mutant_compaction_that_omits_a_file_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_table, "merged_listing", _of_logs_alone)
    with pytest.raises(AssertionError), contextlib.suppress(Died):
        test_listing_is_complete_after_a_death_at_any_request(tmp_path, applied=False)


def test_only_uncompacted_commits_of_the_listing_are_counted(folder: Path) -> None:
    store = Store.from_url(str(folder))
    assert compacted_at(own_timeline(store)) == ""
    many = uncompacted(own_timeline(store))
    table = open_(folder)
    table.append(rows((10, "a", "small", 1)))
    assert uncompacted(own_timeline(store)) == many + 1 == table.knowledge.listing.logs
    begin = compact_now(table)
    assert (compacted_at(own_timeline(store)), uncompacted(own_timeline(store))) == (begin, 0)
