"""Compaction: rows stay as they are, whatever is written, killed or taken over meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table.mor_tables import KINDS, SETTINGS, Row, a_table, by_hudi_rs, content, keys, log_files, rows
from table.mor_written import FOLDER
from table.tables import SPEC, data_files, executing
from table.test_crash_at_every_step import AT_EACH_REQUEST, Died, DiesAtStep, deaths, end_of, let_time_pass
from table.test_jvm_tables import unpacked

from fsspec_cas import CasError, Store
from lockprovider import NotAcquired, PublishUnknown
from lockprovider.table import (
    Aborted,
    HistoryGone,
    KeepActive,
    KeepCommits,
    KeepVersions,
    Table,
    TableSettings,
    UnsupportedTable,
    WriteConflict,
)
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.layout import Action, data_file_at, heartbeat_path, parse_log_file
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.rewrite import compaction
from lockprovider.table.rewrite.executor import RewriteTask, run_in_threads

META = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path"]


class KilledError(Exception):
    """The executor dies."""


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return a_table(tmp_path / "t", request.param)


def changed(table: Table) -> list[Row]:
    table.upsert(rows((1, "a", "x", 5), (2, "a", "x", 5), (3, "b", "x", 5)))
    table.upsert(rows((1, "a", "y", 6), (3, "b", "y", 6)))
    table.delete(keys((2, "a")))
    return content(table)


def test_compaction_keeps_the_rows_and_moves_them_into_base_files(table: Table) -> None:
    seen = changed(table)
    own = sorted(map(repr, table.to_arrow(META).to_pylist()))
    (done,) = table.compact()
    assert done.log_files == 3
    assert content(table) == by_hudi_rs(table) == content(table, read_optimized=True) == seen
    assert sorted(map(repr, table.to_arrow(META).to_pylist())) == own, "a row says of which commit it is"
    assert table.history()[-1].operation == "COMPACT"
    assert not any(one.logs for one in table.snapshot().slices)
    assert table.compact() == ()
    table.upsert(rows((1, "a", "z", 7)))
    assert content(table) == by_hudi_rs(table) == [(1, "a", "z", 7), (3, "b", "y", 6)]
    assert table.changes(done.completion).to_arrow().num_rows == 1, "a compaction changes no row"


def test_group_whose_rows_are_all_deleted_gets_a_base_file_without_rows(table: Table) -> None:
    table.upsert(rows((1, "a", "x", 5)))
    table.delete(keys((1, "a")))
    table.compact()
    assert content(table) == by_hudi_rs(table) == content(table, read_optimized=True) == []
    table.upsert(rows((1, "a", "again", 9)))
    assert content(table) == by_hudi_rs(table) == [(1, "a", "again", 9)]


@pytest.mark.parametrize("kind", ["by event", "by event, buckets"])
def test_m3_compaction_forgets_deletes(kind: str, tmp_path: Path) -> None:
    """As every compaction of Hudi's: who writes late rows after it brings them back. The README says so."""
    table = a_table(tmp_path / "t", kind)
    table.upsert(rows((1, "a", "x", 50)))
    table.delete(keys((1, "a")))
    table.upsert(rows((1, "a", "late", 40)))
    assert content(table) == by_hudi_rs(table) == []
    table.compact()
    table.upsert(rows((1, "a", "later", 40)))
    assert content(table) == by_hudi_rs(table) == [(1, "a", "later", 40)]


def test_m8_write_that_spans_a_compaction_stays(table: Table) -> None:
    changed(table)
    txn = table.transaction()
    engine.write(txn, upserts=rows((1, "a", "straddling", 8)))
    begin = table.schedule_compaction()
    assert begin is not None
    assert txn.begin < begin
    table.upsert(rows((3, "b", "meanwhile", 8)))
    table.run_compaction(begin)
    txn.commit()
    expected = [(1, "a", "straddling", 8), (3, "b", "meanwhile", 8)]
    assert content(table) == by_hudi_rs(table) == expected
    (done,) = Table.open(table.url, settings=SETTINGS).compact()
    assert done.log_files == 2
    assert content(table) == by_hudi_rs(table) == content(table, read_optimized=True) == expected


def test_m8_log_that_is_not_completed_is_in_no_plan(table: Table) -> None:
    changed(table)
    txn = table.transaction()
    engine.write(txn, upserts=rows((1, "a", "pending", 8)))
    begin = table.schedule_compaction()
    assert begin is not None
    planned = [name for one in compaction._plan_of(table, begin) for name in one.logs]
    assert planned
    assert not [name for name in planned if txn.begin in name]
    txn.rollback()


def test_m8_mutant_that_plans_pending_logs_keeps_undone_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = changed(table)
    txn = table.transaction()
    engine.write(txn, upserts=rows((1, "a", "pending", 8)))
    (pending,) = (Path(path).name for path in log_files(table) if txn.begin in path)
    planned = compaction._planned

    def with_it(*given: Any) -> Any:
        file = parse_log_file(pending)
        assert file is not None
        return tuple(
            replace(one, logs=(*one.logs, pending)) if one.file_id == file.file_id else one for one in planned(*given)
        )

    monkeypatch.setattr(compaction, "_planned", with_it)
    table.compact()
    txn.rollback()
    assert content(table) == by_hudi_rs(table) != seen
    assert (1, "a", "pending", 8) in content(table)


def test_group_of_one_plan_is_in_no_other(table: Table) -> None:
    seen = changed(table)
    first = table.schedule_compaction()
    table.upsert(rows((1, "a", "y", 7)))
    assert table.schedule_compaction() is None
    table.upsert(rows((4, "c", "new", 1)))
    table.upsert(rows((4, "c", "newer", 2)))
    second = table.schedule_compaction()
    assert second is not None
    assert first is not None
    assert not {one.group for one in compaction._plan_of(table, first)} & {
        one.group for one in compaction._plan_of(table, second)
    }
    assert [done.instant for done in table.compact()][:2] == [first, second]
    expected = sorted([*[(1, "a", "y", 7) if row[0] == 1 else row for row in seen], (4, "c", "newer", 2)])
    assert content(table) == by_hudi_rs(table) == content(table, read_optimized=True) == expected


def test_scheduled_plan_can_be_cancelled_without_effect(table: Table) -> None:
    seen = changed(table)
    before = sorted(str(path) for path in Path(table.url).rglob("*") if ".locks" not in str(path))
    begin = table.schedule_compaction()
    assert begin is not None
    assert content(table) == by_hudi_rs(table) == seen
    table.unschedule_compaction(begin)
    assert sorted(str(path) for path in Path(table.url).rglob("*") if ".locks" not in str(path)) == before
    for call in (table.unschedule_compaction, table.run_compaction):
        with pytest.raises(HistoryGone, match="no compaction"):
            call(begin)
    table.compact()
    assert content(table) == by_hudi_rs(table) == seen


def test_live_executor_is_left_alone_and_a_dead_one_is_taken_over(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = changed(table)
    begin = table.schedule_compaction()
    assert begin is not None
    with executing(table, begin):
        other = Table.open(table.url, settings=SETTINGS)
        for call in (other.run_compaction, other.unschedule_compaction):
            with pytest.raises(Aborted, match="another executor runs"):
                call(begin)
        assert other.compact() == ()
    write = compaction.write_compacted

    def dies(*given: Any) -> Any:
        if given[1].partition == "b":
            raise KilledError
        return write(*given)

    monkeypatch.setattr(compaction, "write_compacted", dies)
    with pytest.raises(KilledError):
        table.run_compaction(begin)
    assert content(table) == by_hudi_rs(table) == seen
    monkeypatch.setattr(compaction, "write_compacted", write)
    assert Table.open(table.url, settings=SETTINGS).run_compaction(begin).instant == begin
    assert content(table) == by_hudi_rs(table) == content(table, read_optimized=True) == seen
    bases = [path.name for path in Path(table.url).rglob(f"*_{begin}.parquet")]
    assert len(bases) == len({name.split("_")[0] for name in bases})
    assert not (Path(table.url) / heartbeat_path(begin)).exists()


def test_write_of_a_group_that_is_being_compacted_does_not_conflict(table: Table) -> None:
    changed(table)
    txn = table.transaction()
    engine.write(txn, upserts=rows((1, "a", "beside", 9)))
    Table.open(table.url, settings=SETTINGS).compact()
    txn.commit()
    assert content(table) == by_hudi_rs(table) == [(1, "a", "beside", 9), (3, "b", "y", 6)]


def test_clean_keeps_files_of_a_compaction_planned_during_an_overwrite(table: Table) -> None:
    for value in "xy":
        table.upsert(rows((1, "a", value, 5)))
    with table.transaction() as overwriting:
        overwriting.overwrite(rows((2, "a", "y", 5)), ["a"])
        overwriting._write()
        assert table.schedule_compaction()
    table.clean(KeepVersions(3))
    table.compact()
    assert content(table) == by_hudi_rs(table) == [(2, "a", "y", 5)]


def test_clean_after_compaction_removes_whole_slices(table: Table) -> None:
    changed(table)
    past = table.history()[-1].completion
    table.compact()
    after = content(table)
    assert content(table, as_of=past) == after
    late = table.transaction()
    engine.write(late, upserts=rows((1, "a", "late finisher", 9)))
    table.upsert(rows((3, "b", "z", 9)))
    late.commit()
    table.compact()
    for number in range(3):
        table.upsert(rows((9, "z", str(number), number)))
    (done,) = table.clean(KeepCommits(1))
    assert any(".log." in name for names in done.files.values() for name in names)
    assert content(table) == by_hudi_rs(table) == sorted(
        [(1, "a", "late finisher", 9), (3, "b", "z", 9), (9, "z", "2", 2)]
    )  # fmt: skip
    with pytest.raises(HistoryGone, match="a clean removed"):
        content(table, as_of=past)


def test_committed_compaction_is_returned_though_its_markers_cannot_be_removed(tmp_path: Path) -> None:
    table = a_table(tmp_path / "t", "by commit")
    before, temp = changed(table), tmp_path / "t" / ".hoodie" / ".temp"

    def write_and_break_the_folder_of_markers(tasks: Sequence[RewriteTask]) -> list[WriteStat]:
        stats = list(run_in_threads(tasks))
        shutil.rmtree(temp)
        temp.symlink_to(temp.name)
        return stats

    (done,) = compaction.compact_table(table, write_and_break_the_folder_of_markers)
    temp.unlink()
    assert table.history()[-1].instant == done.instant
    assert content(table) == before


def test_restore_over_a_compaction_takes_its_base_files_back(table: Table) -> None:
    seen = changed(table)
    target = table.history()[-1].instant
    table.compact()
    table.upsert(rows((1, "a", "later", 9)))
    table.restore(target)
    assert content(table) == by_hudi_rs(table) == seen
    assert log_files(table)
    table.compact()
    assert content(table) == by_hudi_rs(table) == content(table, read_optimized=True) == seen


def test_m11_archival_keeps_instants_that_hudi_rs_needs(tmp_path: Path) -> None:
    """A log that was begun before its base file: hudi-rs, which reads no archive, takes it for the slice before's."""
    table = a_table(tmp_path / "t", "by event")
    changed(table)
    txn = table.transaction()
    engine.write(txn, upserts=rows((1, "a", "straddling", 8)))
    table.compact()
    txn.commit()
    for number in range(6):
        table.upsert(rows((9, "z", str(number), number + 10)))
    archiver = Table.open(table.url, settings=TableSettings(retention=KeepCommits(1)))
    archiver.clean()
    done = archiver.archive(KeepActive(1, 2))
    assert txn.begin in {instant.begin for instant in table.timeline().writes}
    assert f"log files of {txn.begin} are not compacted" in done.held
    expected = [(1, "a", "straddling", 8), (3, "b", "y", 6), (9, "z", "5", 15)]
    assert content(archiver) == by_hudi_rs(archiver) == expected
    archiver.compact()
    archiver.upsert(rows((9, "z", "6", 16)))
    archiver.clean()
    assert archiver.archive(KeepActive(1, 2)).instants
    expected[-1] = (9, "z", "6", 16)
    assert content(archiver) == by_hudi_rs(archiver) == expected


def test_m11_mutant_without_that_rule_makes_hudi_rs_lose_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockprovider.table.services import archive

    table = a_table(tmp_path / "t", "by event")
    changed(table)
    txn = table.transaction()
    engine.write(txn, upserts=rows((1, "a", "straddling", 8)))
    table.compact()
    txn.commit()
    for number in range(6):
        table.upsert(rows((9, "z", str(number), number + 10)))
    monkeypatch.setattr(archive, "_unsafe_logs", lambda _: frozenset())
    archiver = Table.open(table.url, settings=TableSettings(retention=KeepCommits(1)))
    archiver.clean()
    assert archiver.archive(KeepActive(1, 2)).instants
    assert (1, "a", "straddling", 8) in content(archiver), "we read the archive"
    assert (1, "a", "straddling", 8) not in by_hudi_rs(archiver)


def test_copy_on_write_table_has_nothing_to_compact(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC)
    for call in (table.compact, table.schedule_compaction):
        with pytest.raises(UnsupportedTable, match="copy-on-write"):
            call()


@pytest.mark.parametrize("name", ["mor_v8_pending_compaction", "mor_v8_deletes", "mor_v8_nbcc_two_writers",
                                  "mor_v8_composite_key_evolved", "mor_v8_parquet_log_blocks"])  # fmt: skip
def test_tables_and_plans_of_the_jvm_are_compacted(name: str, tmp_path: Path) -> None:
    table = Table.open(unpacked(f"{FOLDER}/{name}", tmp_path / "t"), settings=SETTINGS)
    names = [META[0], *table.schema().names]
    seen = sorted(map(repr, table.to_arrow(names).to_pylist()))
    pending = table.timeline().pending(Action.COMPACTION)
    done = table.compact()
    assert {*pending} <= {one.instant for one in done}
    assert sorted(map(repr, table.to_arrow(names).to_pylist())) == seen
    table.compact()
    assert sorted(map(repr, table.to_arrow(names, read_optimized=True).to_pylist())) == seen


class History:
    """By event time with ever higher values, so that no order of begin and completion changes what wins."""

    def __init__(self, folder: Path) -> None:
        self.table = a_table(folder, "by event")
        self.state: dict[int, tuple[str, str, int]] = {1: ("a", "0", 0), 2: ("a", "0", 0), 3: ("b", "0", 0)}
        self.table.upsert(rows(*((key, *row) for key, row in self.state.items())))
        self.open: list[tuple[Any, int, tuple[str, str, int]]] = []

    def upsert(self, key: int, number: int) -> None:
        self.state[key] = row = ("b" if key == 3 else "a", "upserted", number)
        self.table.upsert(rows((key, *row)))

    def begin(self, key: int, number: int) -> None:
        row = ("b" if key == 3 else "a", "begun early", number)
        txn = self.table.transaction()
        engine.write(txn, upserts=rows((key, *row)))
        self.open.append((txn, key, row))

    def commit(self, key: int, number: int) -> None:
        for txn, its_key, row in self.open[:1]:
            try:
                txn.commit()
            except WriteConflict:
                txn.rollback()
            else:
                self.state[its_key] = row
        del self.open[:1]

    def delete(self, key: int, number: int) -> None:
        self.table.delete(keys((key, "b" if key == 3 else "a")))
        self.state.pop(key, None)

    def schedule(self, key: int, number: int) -> None:
        self.table.schedule_compaction()

    def run(self, key: int, number: int) -> None:
        for begin in self.table.timeline().pending(Action.COMPACTION)[:1]:
            self.table.run_compaction(begin)

    def unschedule(self, key: int, number: int) -> None:
        for begin in self.table.timeline().pending(Action.COMPACTION)[-1:]:
            self.table.unschedule_compaction(begin)

    def clean(self, key: int, number: int) -> None:
        self.table.clean(KeepCommits(1))

    def archive(self, key: int, number: int) -> None:
        self.table.archive(KeepActive(1, 2))


STEPS = ["upsert", "upsert", "begin", "commit", "delete", "schedule", "run", "unschedule", "clean", "archive"]


@settings(max_examples=15)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 3)), min_size=3, max_size=9))
def test_histories_with_compactions_end_with_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    history = History(tmp_path_factory.mktemp("t") / "t")
    for number, (what, key) in enumerate(steps, 1):
        getattr(history, what)(key, number)
        expected = sorted((one, *row) for one, row in history.state.items())
        assert content(history.table) == by_hudi_rs(history.table) == expected


# -- an executor that dies at any request ------------------------------------------------------------------------------


def begin_of(path: str) -> str:
    at = data_file_at(path)
    return "" if at is None else at[1].begin


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@AT_EACH_REQUEST
@pytest.mark.parametrize("verb", ["compact", "upsert"])
def test_service_killed_at_any_request_changes_no_row_and_is_continued(
    tmp_path: Path, verb: str, applied: bool
) -> None:
    template = a_table(tmp_path / "template", "by event")
    seen = changed(template)
    more = [(1, "a", "new", 9), (3, "b", "new", 9)]
    for step in deaths(applied=applied, every=3):
        folder = tmp_path / str(step)
        shutil.copytree(template.url, folder)
        backend = DiesAtStep(step, applied=applied)
        dying = Table(Store(backend, str(folder)), str(folder), settings=SETTINGS)
        try:
            dying.compact() if verb == "compact" else dying.upsert(rows(*more))
        except (Died, CasError, NotAcquired, PublishUnknown):
            end_of(dying)  # threads of a dead process get no answer
        else:
            end_of(dying)
            break
        table, after = Table.open(str(folder), settings=SETTINGS), backend.asked[-1]
        now = by_hudi_rs(table)
        assert now in ([seen] if verb == "compact" else [seen, more]), f"a torn table after {after}"
        let_time_pass(folder)
        table.upsert(rows((9, "c", "z", 1)), retries=3)
        table.compact()
        found = content(table)
        assert found == by_hudi_rs(table) == content(table, read_optimized=True), after
        # What was decided, and not there yet, is put there by the next one.
        assert found in [sorted([*one, (9, "c", "z", 1)]) for one in ([seen] if verb == "compact" else [now, more])], (
            after
        )
        assert table.timeline().unfinished == (), after
        begins = {instant.begin for instant in table.timeline().instants}
        strays = [path for path in (*data_files(folder), *log_files(table)) if begin_of(path) not in begins]
        assert strays == [], f"left after {after}"
    else:
        pytest.fail("it never ended")
    assert step > 5
