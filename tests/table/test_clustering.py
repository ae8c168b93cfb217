"""Clustering: small files are joined and sorted, no row changes, and no write of their file groups is lost."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table.mor_tables import COLUMNS, SETTINGS, Row, a_table, content, keys, log_files, rows
from table.mor_tables import by_hudi_rs as seen_by_hudi_rs
from table.mor_written import FOLDER
from table.tables import data_files, executing
from table.test_crash_at_every_step import AT_EACH_REQUEST, Died, DiesAtStep, let_time_pass
from table.test_jvm_tables import unpacked

from fsspec_cas import CasError, InvalidInput, Store, Unavailable
from lockprovider import InvalidSettings, NotAcquired
from lockprovider.table import (
    Aborted,
    ClusterEvery,
    CompactEvery,
    HistoryGone,
    KeepActive,
    KeepCommits,
    Table,
    TableSettings,
    TableSpec,
    UnsupportedTable,
    WriteConflict,
)
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.files import group_writer
from lockprovider.table.format.layout import Action, data_file_at, heartbeat_path, markers_dir, markers_file
from lockprovider.table.rewrite import clustering, executor
from lockprovider.table.state.events import TableEvent
from lockprovider.table.timeline.conflict import by_partition, prefer_writer
from lockprovider.table.timeline.rewrite_plan import ClusteringRule, clustering_plan
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, SliceLog, Snapshot
from lockprovider.table.transaction.transaction import Transaction, transact

META = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path"]
KINDS = ["copy on write", "by commit", "by event"]
PREFERRED = replace(SETTINGS, resolution=prefer_writer)


class KilledError(Exception):
    """The executor dies."""


def made(folder: Path, kind: str) -> Table:
    if kind != "copy on write":
        return a_table(folder, kind)
    return Table.create(str(folder), TableSpec("t", COLUMNS, ("id",), ("part",), ordering="ts"), settings=SETTINGS)


def opened(table: Table, settings: Any = SETTINGS) -> Table:
    return Table.open(table.url, settings=settings)


def by_hudi_rs(table: Table) -> list[Row]:
    found = seen_by_hudi_rs(table)
    assert len(found) == len(set(found)), "hudi-rs saw a row twice"
    return found


def insert(table: Table, *given: Row) -> None:
    """New file groups, whatever there is."""
    transact(table, lambda txn: engine.insert(txn, rows(*given)))


def own(table: Table, names: list[str] = META) -> list[str]:
    return sorted(map(repr, table.to_arrow(names).to_pylist()))


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """Three small files in each of two partitions, with changes and a delete."""
    found = made(tmp_path / "t", request.param)
    for number in range(3):
        insert(found, (2 * number + 1, "a", "x", 50 - number), (2 * number + 2, "b", "x", 50 - number))
    found.upsert(rows((1, "a", "y", 60)))
    found.delete(keys((3, "a")))
    return found


START: list[Row] = [(1, "a", "y", 60), (2, "b", "x", 50), (4, "b", "x", 49), (5, "a", "x", 48), (6, "b", "x", 48)]


def files(table: Table) -> list[int]:
    """How many file groups each partition has."""
    return [len(list(found)) for _, found in itertools.groupby(table.snapshot().slices, lambda one: one.partition)]


# -- what it does ------------------------------------------------------------------------------------------------------


def test_small_files_are_one_sorted_file_and_every_row_is_what_it_was(table: Table) -> None:
    before, seen = own(table), table.history()[-1].completion
    assert (content(table), files(table)) == (START, [3, 3])
    (done,) = table.cluster(sort_by=["ts"])
    assert content(table) == by_hudi_rs(table) == content(table, read_optimized=True) == START
    assert own(table) == before, "a row says of which commit it is"
    assert (files(table), len(done.file_groups), len(done.new_file_groups)) == ([1, 1], 6, 2)
    for one in table.snapshot().slices:
        times = table.to_arrow(["ts"], partitions=[one.partition]).column(0).to_pylist()
        assert times == sorted(times)
    assert table.history()[-1].operation == "CLUSTER"
    assert table.changes(seen).to_arrow().num_rows == 0, "a clustering changes no row"
    assert table.cluster(sort_by=["ts"]) == ()
    table.upsert(rows((1, "a", "z", 70), (6, "b", "z", 70), (8, "a", "new", 1)))
    expected = sorted([(1, "a", "z", 70), *START[1:4], (6, "b", "z", 70), (8, "a", "new", 1)])
    assert content(table) == by_hudi_rs(table) == expected
    assert content(table, as_of=seen) == START
    assert content(table, as_of=done.completion) == START


def test_files_that_are_large_or_alone_or_of_a_plan_stay(table: Table) -> None:
    insert(table, *((100 + n, "a", str(n), n) for n in range(3000)))
    sizes = {one.group: one.size for one in table.snapshot().slices}
    large = max(sizes, key=sizes.__getitem__)
    (would,) = table.cluster(small_file_bytes=sizes[large], dry_run=True)
    assert large not in would.file_groups
    assert len(would.file_groups) == 6
    begin = table.schedule_clustering(small_file_bytes=sizes[large])
    assert begin is not None
    assert table.schedule_clustering() is None, "the others are alone"
    (done,) = table.cluster(small_file_bytes=sizes[large])
    assert (done.instant, done.file_groups) == (begin, would.file_groups)
    insert(table, (9999, "c", "alone", 1))
    assert table.cluster(small_file_bytes=sizes[large]) == ()


def test_large_group_makes_target_sized_files_with_disjoint_ranges(tmp_path: Path) -> None:
    table, random = made(tmp_path / "t", "copy on write"), np.random.default_rng(5)
    for part in range(6):
        numbers = random.permutation(1000) + 1000 * part
        insert(table, *((int(n), "a", f"{n:x}" * 9, int(random.integers(10**6))) for n in numbers))
    before, meta = content(table), own(table)
    total = sum(one.size for one in table.snapshot().slices)
    (done,) = table.cluster(sort_by=("ts", "id"), target_file_bytes=total // 4, small_file_bytes=total)
    assert len(done.new_file_groups) in {4, 5}
    assert (content(table), own(table)) == (before, meta)
    assert by_hudi_rs(table) == before
    ranges = sorted(
        (min(times), max(times))
        for one in table.snapshot().slices
        if (times := table.place.read(one.path, ["ts"]).column(0).to_pylist())
    )
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))
    assert table.to_arrow(filter=[("ts", "<", 10**5)]).num_rows == sum(row[3] < 10**5 for row in before)


def test_rows_of_many_files_wait_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of them is in memory than those of one new file, and a part of an old one."""
    table = made(tmp_path / "t", "copy on write")
    for part in range(8):
        insert(table, *((n * 8 + part, "a", "x" * 200, n) for n in range(1000)))
    written: list[int] = []
    write = group_writer._write_sorted

    def measured(writer: Any, partition: str, base: Any, found: pa.Table) -> Any:
        written.append(found.num_rows)
        held.append(pa.total_allocated_bytes() - before)
        return write(writer, partition, base, found)

    held: list[int] = []
    monkeypatch.setattr(group_writer, "_write_sorted", measured)
    total = sum(one.size for one in table.snapshot().slices)
    seen = content(table)
    before = pa.total_allocated_bytes()
    table.cluster(sort_by=["ts"], target_file_bytes=total // 8 + 1, small_file_bytes=total)
    assert written == [1000] * 8
    assert max(held) < 3 * 1000 * 300, "of 8000 rows with 250 bytes each"
    assert content(table) == by_hudi_rs(table) == seen


def test_texts_of_more_than_2_gib_are_sorted() -> None:
    """They do not fit into one array."""
    part = pa.array([f"{number}{'x' * (1 << 24)}" for number in range(5)])
    texts = pa.chunked_array([part] * 27)
    numbers = pa.array([*range(len(texts))][::-1])
    outputs = group_writer._output_of(pa.table({"n": numbers, "text": texts}), len(texts), 3)
    assert outputs.tolist() == [2] * 45 + [1] * 45 + [0] * 45


def test_one_call_makes_as_many_clustering_plans_as_needed(tmp_path: Path) -> None:
    table = made(tmp_path / "t", "copy on write")
    for turn in range(2):
        insert(table, *((2 * n + turn, f"p{n}", "x", n) for n in range(31)))
    seen = content(table)
    first, second = table.cluster()
    assert (len(first.file_groups), len(second.file_groups), len(table.snapshot().slices)) == (60, 2, 31)
    assert content(table) == by_hudi_rs(table) == seen


def test_nulls_sort_first_and_unordered_types_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([*COLUMNS, pa.field("tags", pa.list_(pa.string()))])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", schema, ("id",), ("part",)), settings=SETTINGS)
    for number, ts in enumerate([7, None, 3]):
        table.upsert(pa.table({"id": [number], "part": ["a"], "value": ["x"], "ts": pa.array([ts], pa.int64()),
                               "tags": [["one"]]}))  # fmt: skip
    table.cluster(sort_by=["ts"])
    assert table.to_arrow(["ts"]).column(0).to_pylist() == [None, 3, 7]
    for wrong in ("ts", ["nobody"], ["tags"], [1], iter(["ts"])):
        with pytest.raises(InvalidInput, match="sort_by"):
            table.cluster(sort_by=wrong)
    with pytest.raises(InvalidInput, match="target_file_bytes=0"):
        table.cluster(target_file_bytes=0)


class CountedLogs(tuple[SliceLog, ...]):
    __slots__ = ()
    reads = 0

    def __iter__(self) -> Iterator[SliceLog]:
        CountedLogs.reads += 1
        return super().__iter__()


def test_plan_takes_the_size_of_each_small_slice_a_few_times() -> None:
    slices = [
        FileSlice("p", f"f{n:04}", "20261122083000000", f"p/f{n:04}.parquet", 1, CountedLogs()) for n in range(2000)
    ]
    plan = clustering_plan(Snapshot(Timeline(), tuple(slices)), ClusteringRule.of(), frozenset())
    assert [len(group.slices) for group in plan.groups] == [2000]
    assert CountedLogs.reads < 10 * 2000


def test_table_of_buckets_is_not_clustered(tmp_path: Path) -> None:
    table = a_table(tmp_path / "t", "by event, buckets")
    table.upsert(rows((1, "a", "x", 1), (2, "a", "x", 1)))
    with pytest.raises(UnsupportedTable, match="buckets"):
        table.cluster()


# -- M9: writers and a plan --------------------------------------------------------------------------------------------


def write_one(table: Table) -> Any:
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", "mine", 90)))
    return txn


MINE = sorted([(1, "a", "mine", 90), *START[1:]])


@pytest.mark.parametrize("begun", ["before", "after"])
def test_m9_write_of_a_planned_group_gives_way(table: Table, begun: str) -> None:
    txn = write_one(table) if begun == "before" else None
    begin = table.schedule_clustering()
    assert begin is not None
    txn = txn or write_one(table)
    with pytest.raises(WriteConflict, match=f"{begin}.clustering.requested.*run that plan"):
        txn.commit()
    txn.rollback()
    insert(table, (7, "a", "beside", 1))
    opened(table).run_clustering(begin)
    expected = sorted([*START, (7, "a", "beside", 1)])
    assert content(table) == by_hudi_rs(table) == expected


def test_m9_write_begun_before_a_whole_clustering_gives_way(table: Table) -> None:
    txn = write_one(table)
    table.cluster()
    with pytest.raises(WriteConflict, match="replacecommit"):
        txn.commit()
    txn.rollback()
    assert content(table) == by_hudi_rs(table) == START
    table.upsert(rows((1, "a", "mine", 90)), retries=1)
    assert content(table) == by_hudi_rs(table) == MINE


@pytest.mark.parametrize("writer", ["by settings", "that knows no plans"])
def test_m9_overtaken_plan_is_cancelled(table: Table, writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a writer that is preferred, or a JVM's that wrote before it saw the plan."""
    begin = table.schedule_clustering()
    assert begin is not None
    if writer == "by settings":
        opened(table, PREFERRED).upsert(rows((1, "a", "mine", 90)))
    else:
        monkeypatch.setattr("lockprovider.table.transaction.decision.planned_services", lambda *_: ())
        opened(table).upsert(rows((1, "a", "mine", 90)))
        monkeypatch.undo()
    if writer == "that knows no plans":  # it may be the plan that is met first, by whoever clusters next
        (done,) = opened(table).cluster(small_file_bytes=1 << 30)
        assert done.instant > begin
    else:
        with pytest.raises(WriteConflict, match=f"instant {begin} lost to"):
            opened(table).run_clustering(begin)
    assert table.timeline().pending(Action.CLUSTERING) == ()
    assert content(table) == by_hudi_rs(table) == MINE
    table.cluster()
    assert content(table) == by_hudi_rs(table) == MINE
    assert files(table) == [1, 1]


def test_m9_plan_overtaken_while_it_runs_is_cancelled(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, execute = table.schedule_clustering(), clustering._execute
    assert begin is not None

    def overtaken(*given: Any) -> Any:
        found = execute(*given)
        opened(table, PREFERRED).upsert(rows((1, "a", "mine", 90)))
        return found

    monkeypatch.setattr(clustering, "_execute", overtaken)
    with pytest.raises(WriteConflict, match=f"instant {begin} lost to"):
        opened(table).run_clustering(begin)
    assert table.timeline().pending(Action.CLUSTERING) == ()
    assert not list(Path(table.url).rglob(f"*_{begin}.parquet"))
    assert content(table) == by_hudi_rs(table) == MINE


def test_m9_mutant_that_completes_an_overtaken_plan_loses_the_write(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = table.schedule_clustering()
    assert begin is not None
    opened(table, PREFERRED).upsert(rows((1, "a", "mine", 90)))
    monkeypatch.setattr(clustering, "_give_way", lambda *_: None)
    opened(table).run_clustering(begin)
    assert content(table) == by_hudi_rs(table) == START


def in_one_object(table: Table, begin: str) -> None:
    """Keep the markers of an instant as JVM Hudi's timeline server does."""
    folder = f"{markers_dir(begin)}/"
    found = [entry.path for entry in table.store.list(folder)]
    path, data = markers_file(begin, 0, [path.removeprefix(folder) for path in found])
    table.store.put_if_absent(path, data).unwrap()
    table.store.delete_all(found)


@pytest.mark.parametrize("markers", ["each an object", "in one object"])
def test_clustering_gives_way_to_pending_writers_that_are_preferred(table: Table, markers: str) -> None:
    preferring = opened(table, PREFERRED)
    txn = write_one(preferring)
    if markers == "in one object":
        in_one_object(table, txn.begin)
    (done,) = preferring.cluster()
    assert {group[0] for group in done.file_groups} == {"a", "b"}
    assert len(done.file_groups) == 5, "what is written is not planned"
    txn.commit()
    assert content(table) == by_hudi_rs(table) == MINE
    insert(table, (7, "b", "new", 1))
    begin = preferring.schedule_clustering()
    assert begin is not None
    late = Transaction(preferring)
    engine.write(late, upserts=rows((7, "b", "late", 2)))
    with pytest.raises(WriteConflict, match=f"instant {begin} lost to"):
        preferring.run_clustering(begin)
    late.commit()
    assert content(table) == by_hudi_rs(table) == sorted([*MINE, (7, "b", "late", 2)])


def test_insert_passes_a_clustering_plan_also_by_partition_after_it_ran(table: Table) -> None:
    begin = table.schedule_clustering()
    insert(table, (7, "a", "new", 1))
    with pytest.raises(WriteConflict, match="clustering.requested"):
        opened(table, replace(SETTINGS, resolution=by_partition)).upsert(rows((8, "a", "new", 1)))
    assert begin is not None
    table.run_clustering(begin)
    assert content(table) == by_hudi_rs(table) == sorted([*START, (7, "a", "new", 1)])


def test_file_group_is_never_in_a_clustering_and_a_compaction_plan(tmp_path: Path) -> None:
    table = made(tmp_path / "t", "by event")
    for number in range(4):
        insert(table, (number, "a", "x", 5))
    table.upsert(rows((0, "a", "y", 6), (1, "a", "y", 6)))
    merging = table.schedule_compaction()
    joining = table.schedule_clustering()
    assert merging is not None
    assert joining is not None
    assert table.schedule_compaction() is table.schedule_clustering() is None
    (joined,) = table.cluster()
    assert len(joined.file_groups) == 2
    (merged,) = table.compact()
    assert not {*joined.file_groups} & {*merged.file_groups}
    expected: list[Row] = [(0, "a", "y", 6), (1, "a", "y", 6), (2, "a", "x", 5), (3, "a", "x", 5)]
    assert content(table) == by_hudi_rs(table) == content(table, read_optimized=True) == expected


# -- plans and executors -----------------------------------------------------------------------------------------------


def test_scheduled_plan_can_be_cancelled_without_effect(table: Table) -> None:
    before = sorted(str(path) for path in Path(table.url).rglob("*") if ".locks" not in str(path))
    begin = table.schedule_clustering()
    assert begin is not None
    assert content(table) == by_hudi_rs(table) == START
    table.unschedule_clustering(begin)
    assert sorted(str(path) for path in Path(table.url).rglob("*") if ".locks" not in str(path)) == before
    for call in (table.unschedule_clustering, table.run_clustering):
        with pytest.raises(HistoryGone, match="no clustering"):
            call(begin)
    table.upsert(rows((1, "a", "mine", 90)))
    assert content(table) == by_hudi_rs(table) == MINE


def test_live_executor_is_left_alone_and_a_dead_one_is_taken_over(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = table.schedule_clustering()
    assert begin is not None
    with executing(table, begin):
        other = opened(table)
        for call in (other.run_clustering, other.unschedule_clustering):
            with pytest.raises(Aborted, match="another executor runs"):
                call(begin)
        assert other.cluster() == ()
    write = clustering.write_clustered

    def dies(*given: Any) -> Any:
        if given[1][0].partition == "b":
            raise KilledError
        return write(*given)

    monkeypatch.setattr(clustering, "write_clustered", dies)
    with pytest.raises(KilledError):
        table.run_clustering(begin)
    assert content(table) == by_hudi_rs(table) == START
    stray = next(Path(table.url).rglob(f"*_{begin}.parquet"))
    shutil.copy(stray, stray.with_name(f"{'0' * 8}-aaaa-aaaa-aaaa-{'0' * 12}-0_1-2-3_{begin}.parquet"))  # a JVM's
    monkeypatch.setattr(clustering, "write_clustered", write)
    assert opened(table).run_clustering(begin).instant == begin
    assert content(table) == by_hudi_rs(table) == START
    assert len(list(Path(table.url).rglob(f"*_{begin}.parquet"))) == 2
    assert not (Path(table.url) / heartbeat_path(begin)).exists()
    with pytest.raises(HistoryGone, match="no clustering"):
        table.run_clustering(begin)


def test_executor_taken_over_or_cancelled_completes_nothing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = table.schedule_clustering()
    assert begin is not None
    write = clustering._execute

    def slow(*given: Any) -> Any:
        found = write(*given)
        let_time_pass(Path(table.url))
        monkeypatch.setattr(clustering, "_execute", write)
        opened(table).unschedule_clustering(begin)
        return found

    monkeypatch.setattr(clustering, "_execute", slow)
    with pytest.raises(Aborted, match="taken over or unscheduled"):
        table.run_clustering(begin)
    assert content(table) == by_hudi_rs(table) == START
    assert not list(Path(table.url).rglob(f"*_{begin}.parquet"))


def test_writer_takes_back_a_dead_clustering_at_its_commit(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: a plan that was made to be run at once blocked its file groups until somebody removed it."""
    other = opened(table)
    other.upsert(
        rows((1, "a", "mine", 90)), retries=0
    )  # it has just looked for dead writers, and does not at its next start

    def dies(*_: Any) -> Any:
        raise KilledError

    monkeypatch.setattr(clustering, "_execute", dies)
    with pytest.raises(KilledError):
        table.cluster()
    (planned,) = table.timeline().pending(Action.CLUSTERING)
    other.upsert(rows((1, "a", "mine", 90)), retries=0)
    assert opened(table).timeline().pending(Action.CLUSTERING) == ()
    assert not list(Path(table.url).rglob(f"*{planned}*"))


def test_scheduled_clustering_stays_when_its_executor_dies(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = table.schedule_clustering()
    assert begin is not None

    def dies(*_: Any) -> Any:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(clustering, "_execute", dies)
        with pytest.raises(KilledError):
            table.run_clustering(begin)
    let_time_pass(Path(table.url))
    with pytest.raises(WriteConflict, match=begin):
        opened(table).upsert(rows((1, "a", "mine", 90)), retries=0)
    assert opened(table).run_clustering(begin).instant == begin


def test_living_owner_keeps_its_clustering(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = clustering._execute

    def slow(*given: Any) -> Any:
        with pytest.raises(WriteConflict):
            opened(table).upsert(rows((1, "a", "mine", 90)), retries=0)
        return execute(*given)

    monkeypatch.setattr(clustering, "_execute", slow)
    assert len(table.cluster()) == 1
    assert content(table) == by_hudi_rs(table) == START


# -- with the other services -------------------------------------------------------------------------------------------


def test_files_replaced_by_clustering_are_cleaned_and_archived(table: Table) -> None:
    past = table.history()[-1].completion
    table.cluster()
    assert content(table, as_of=past) == START
    for number in range(3):
        table.upsert(rows((9, "z", str(number), number)))
    cleaned = table.clean(KeepCommits(1))
    assert sum(map(len, cleaned[0].files.values())) >= 6
    with pytest.raises(HistoryGone, match="a clean removed"):
        content(table, as_of=past)
    archiver = opened(table, replace(SETTINGS, retention=KeepCommits(1)))
    archiver.upsert(rows((9, "z", "2", 2)))
    assert archiver.archive(KeepActive(1, 2)).instants
    expected = sorted([*START, (9, "z", "2", 2)])
    assert content(table) == by_hudi_rs(table) == expected


def test_clean_leaves_the_files_of_a_plan(table: Table) -> None:
    begin = table.schedule_clustering()
    assert begin is not None
    for number in range(3):
        table.upsert(rows((9, "z", str(number), number)))
    table.clean(KeepCommits(1))
    table.archive(KeepActive(1, 2))
    table.run_clustering(begin)
    assert content(table) == by_hudi_rs(table) == sorted([*START, (9, "z", "2", 2)])


def test_restore_undoes_a_planned_or_completed_clustering(table: Table) -> None:
    target = table.history()[-1].instant
    table.cluster()
    table.upsert(rows((1, "a", "mine", 90), (7, "a", "new", 1)))
    assert table.schedule_clustering() is not None
    table.restore(target)
    assert content(table) == by_hudi_rs(table) == START
    assert table.timeline().pending(Action.CLUSTERING) == ()
    table.cluster()
    assert content(table) == by_hudi_rs(table) == START


def test_savepoint_keeps_the_files_that_clustering_replaced(table: Table) -> None:
    kept = table.history()[-1]
    table.savepoint(kept.instant)
    table.cluster()
    for number in range(3):
        table.upsert(rows((9, "z", str(number), number)))
    table.clean(KeepCommits(1))
    assert content(table, as_of=kept.completion) == START


def test_column_added_during_clustering_is_kept(tmp_path: Path) -> None:
    table = made(tmp_path / "t", "copy on write")
    for number in range(2):
        insert(table, (number, "a", "x", 5))
    begin = table.schedule_clustering()
    assert begin is not None
    table.add_columns(pa.schema([("extra", pa.string())]))
    more = pa.table({"id": [7], "part": ["b"], "value": ["x"], "ts": [1], "extra": ["new"]})
    table.upsert(more)
    table.run_clustering(begin)
    assert table.schema().names[-1] == "extra"
    assert table.to_arrow(["id", "extra"]).sort_by("id").to_pydict() == {"id": [0, 1, 7], "extra": [None, None, "new"]}


# -- tables of the JVM -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"{FOLDER}/mor_v8_clustering_pending", f"{FOLDER}/mor_v8_clustering_completed",
                                  "services/cow_v8_clustering_completed", f"{FOLDER}/mor_v8_deletes"])  # fmt: skip
def test_tables_and_plans_of_the_jvm_are_clustered(name: str, tmp_path: Path) -> None:
    table = opened_jvm(name, tmp_path)
    names = [META[0], *table.schema().names]
    seen, pending = own(table, names), table.timeline().pending(Action.CLUSTERING)
    done = table.cluster()
    assert {*pending} <= {one.instant for one in done}
    assert own(table, names) == own(table, names) == seen
    assert files(table) == [1] * len(table.snapshot().partitions)


def test_write_respects_a_plan_of_the_jvm(tmp_path: Path) -> None:
    table = opened_jvm(f"{FOLDER}/mor_v8_clustering_pending", tmp_path)
    (begin,) = table.timeline().pending(Action.CLUSTERING)
    update = pa.table({"id": [2], "part": ["a"], "v": ["ours"], "ts": [99]})
    with pytest.raises(WriteConflict, match=f"{begin}.clustering.requested"):
        table.upsert(update)
    (done,) = table.cluster(small_file_bytes=1)
    assert (done.instant, len(done.file_groups)) == (begin, 4)
    table.upsert(update)
    assert "ours" in table.to_arrow(["v"]).column(0).to_pylist()


def opened_jvm(name: str, tmp_path: Path) -> Table:
    return Table.open(unpacked(name, tmp_path / "t"), settings=SETTINGS)


# -- by themselves -----------------------------------------------------------------------------------------------------


def test_commits_cluster_automatically_when_configured(tmp_path: Path) -> None:
    made(tmp_path / "t", "copy on write")
    told = Table.open(str(tmp_path / "t"), settings=replace(SETTINGS, clustering=ClusterEvery(3, ["ts"])))
    counts = []
    for number in range(7):
        told.upsert(rows((number, "a", "x", 100 - number)))
        counts.append(len(told.snapshot().slices))
    assert counts == [1, 1, 2, 3, 1, 2, 3], "the commit that made the table counts, too"
    assert content(told) == by_hudi_rs(told) == [(number, "a", "x", 100 - number) for number in range(7)]


def test_commits_compact_automatically_and_only_log_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path / "t", "by event")
    settings = replace(SETTINGS, compaction=CompactEvery(2), clustering=ClusterEvery(100))
    events: list[TableEvent] = []
    told = Table.open(str(tmp_path / "t"), settings=settings, watcher=events.append)
    for number in range(6):
        told.upsert(rows((1, "a", "x", number)))
    assert [one.operation for one in told.history()].count("COMPACT") == 3
    assert [one for one in events if one.kind == "service_failed"] == caplog.records == []
    assert sum(len(one.logs) for one in told.snapshot().slices) <= 1

    def fail(*_: object) -> None:
        raise Unavailable("the store is gone")

    monkeypatch.setattr(executor, "schedule", fail)
    for number in range(6, 10):
        told.upsert(rows((1, "a", "x", number)))
    assert content(told) == by_hudi_rs(told) == [(1, "a", "x", 9)]
    failed = [one.detail for one in events if one.kind == "service_failed"]
    assert failed[0] == {"service": "compaction", "error": "Unavailable: the store is gone"}
    said = [record for record in caplog.records if "service_failed" in record.getMessage()]
    assert {(record.name, record.levelname) for record in said} == {("lockprovider.table", "WARNING")}
    assert len(said) == len(failed) == 3, "due after the second commit, and after each one until it is done"


def test_transaction_blocks_compact_automatically(tmp_path: Path) -> None:
    made(tmp_path / "t", "by event")
    told = Table.open(str(tmp_path / "t"), settings=replace(SETTINGS, compaction=CompactEvery(3)))
    for number in range(2):
        with told.transaction() as block:
            block.upsert(rows((1, "a", "x", number)))
    assert [one.operation for one in told.history()].count("COMPACT") == 1
    for number in range(3):
        txn = told.transaction()
        txn.upsert(rows((1, "a", "x", 2 + number)))
        txn.commit()
    assert [one.operation for one in told.history()].count("COMPACT") == 2


@pytest.mark.parametrize("error", [OSError("No space left on device"), pa.ArrowInvalid("what nobody foresaw")])
def test_no_failure_of_a_service_fails_the_commit_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    made(tmp_path / "t", "by event")
    told = Table.open(str(tmp_path / "t"), settings=replace(SETTINGS, compaction=CompactEvery(1)))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(executor, "schedule", fail)
    assert told.append(rows((1, "a", "x", 1)), retries=3).conflicts == 0
    assert content(told) == [(1, "a", "x", 1)], "once"


def services(table: Table) -> list[Any]:
    return [one for _, _, found in diagnose(table) for one in found if one.rule == "services"]


def made_old(table: Table, begin: str | None, action: str) -> str:
    """The plan as if it had been made years ago."""
    assert begin is not None
    timeline, old = Path(table.url) / ".hoodie/timeline", f"20200101{begin[8:]}"
    (timeline / f"{begin}.{action}.requested").rename(timeline / f"{old}.{action}.requested")
    return old


def test_old_unrun_plans_are_named_with_their_age_and_cancelled(tmp_path: Path) -> None:
    table = made(tmp_path / "t", "by event")
    for number in range(3):
        insert(table, (number, "b", "x", number))
    old = made_old(table, table.schedule_clustering(), "clustering")
    table.upsert(rows((7, "c", "x", 1)))
    table.upsert(rows((7, "c", "y", 2)))
    young = table.schedule_compaction()
    assert young is not None
    wrong, note = services(table)
    assert (wrong.state, note.state) == ("wrong", "note")
    assert re.search(
        rf"clustering {old} is planned: .*; no executor runs it, and it is [0-9]{{5,}}[.][0-9] h old", wrong.what
    )
    assert note.what.startswith(f"compaction {young} is planned")
    assert "; no executor runs it, and it is 0." in note.what
    assert f"--unschedule {old}" in wrong.mend
    seen = content(table)
    assert table.unschedule_compaction(hours=24) == ()
    with executing(table, young):
        assert services(table)[-1].what.endswith("an executor runs it")
    assert opened(table).unschedule_clustering(hours=24) == (old,)
    assert opened(table).unschedule_clustering(hours=24) == ()
    assert [one.state for one in services(table)] == ["note"]
    for bad in ({}, {"instant": young, "hours": 1}, {"hours": 0}, {"hours": float("nan")}, {"hours": "1"}):
        with pytest.raises(InvalidInput, match="hours="):
            table.unschedule_compaction(**bad)  # type: ignore[arg-type]
    table.run_compaction(young)
    assert content(table) == by_hudi_rs(table) == seen


def test_keys_of_hudi_configure_automatic_services() -> None:
    assert TableSettings.from_hudi({}).compaction is TableSettings.from_hudi({}).clustering is None
    given = {
        "hoodie.compact.inline": "true",
        "hoodie.clustering.inline": "true",
        "hoodie.clustering.inline.max.commits": "7",
        "hoodie.clustering.plan.strategy.sort.columns": "ts, id",
    }
    found = TableSettings.from_hudi(given)
    assert found.compaction == CompactEvery(5)
    assert found.clustering == ClusterEvery(7, ("ts", "id"), 1 << 30, 300 << 20)


@pytest.mark.parametrize("key", ["hoodie.log.compaction.enable", "hoodie.log.compaction.inline"])
def test_compaction_of_logs_into_logs_is_not_written(key: str) -> None:
    assert TableSettings.from_hudi({key: "false"}).compaction is None
    with pytest.raises(InvalidSettings, match=rf"{key}=true .*use hoodie\.compact\.inline"):
        TableSettings.from_hudi({key: "true"})


# -- histories ---------------------------------------------------------------------------------------------------------


class History:
    """Writes and clusterings in any order, one row a key; what lost has changed nothing."""

    def __init__(self, table: Table, preferring: bool) -> None:
        self.table = opened(table, PREFERRED) if preferring else table
        self.state: dict[int, tuple[str, str, int]] = {}
        self.open: list[tuple[Any, int, tuple[str, str, int]]] = []

    def _row(self, key: int, number: int) -> tuple[str, str, int]:
        return "b" if key == 3 else "a", "written", number

    def _try(self, change: Callable[[], object]) -> bool:
        try:
            change()
        except WriteConflict:
            return False
        return True

    def upsert(self, key: int, number: int) -> None:
        row = self._row(key, number)
        if self._try(lambda: self.table.upsert(rows((key, *row)))):
            self.state[key] = row

    def insert(self, key: int, number: int) -> None:
        insert(self.table, (100 + number, *(row := self._row(key, number))))
        self.state[100 + number] = row

    def begin(self, key: int, number: int) -> None:
        if key not in self.state:
            return  # of two inserts of one key both pass
        txn = Transaction(self.table)
        engine.write(txn, upserts=rows((key, *(row := self._row(key, number)))))
        self.open.append((txn, key, row))

    def commit(self, key: int, number: int) -> None:
        for txn, its_key, row in self.open[:1]:
            if self._try(txn.commit):
                self.state[its_key] = row
            else:
                txn.rollback()
        del self.open[:1]

    def delete(self, key: int, number: int) -> None:
        if self._try(lambda: self.table.delete(keys((key, self._row(key, 0)[0])))):
            self.state.pop(key, None)

    def schedule(self, key: int, number: int) -> None:
        self.table.schedule_clustering(["ts"])

    def run(self, key: int, number: int) -> None:
        for begin in self.table.timeline().pending(Action.CLUSTERING)[:1]:
            self._try(partial(self.table.run_clustering, begin))

    def unschedule(self, key: int, number: int) -> None:
        for begin in self.table.timeline().pending(Action.CLUSTERING)[-1:]:
            self.table.unschedule_clustering(begin)

    def compact(self, key: int, number: int) -> None:
        if self.table.config().is_merge_on_read:
            self.table.compact()

    def clean(self, key: int, number: int) -> None:
        self.table.clean(KeepCommits(1))

    def archive(self, key: int, number: int) -> None:
        self.table.archive(KeepActive(1, 2))


STEPS = ["upsert", "insert", "insert", "begin", "commit", "delete", "schedule", "schedule", "run", "unschedule",
         "compact", "clean", "archive"]  # fmt: skip


@settings(max_examples=5)
@given(
    kind=st.sampled_from(KINDS),
    preferring=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 3)), min_size=3, max_size=10),
)
def test_histories_with_clusterings_end_with_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, kind: str, preferring: bool, steps: list[tuple[str, int]]
) -> None:
    history = History(made(tmp_path_factory.mktemp("t") / "t", kind), preferring)
    for number, (what, key) in enumerate([("upsert", 1), ("upsert", 2), ("upsert", 3), ("insert", 1), *steps], 1):
        getattr(history, what)(key, number)
        expected = sorted((one, *row) for one, row in history.state.items())
        assert content(history.table) == by_hudi_rs(history.table) == expected, what


# -- an executor that dies at any request ------------------------------------------------------------------------------

FAR_TOO_MANY = 200


def begin_of(path: str) -> str:
    at = data_file_at(path)
    return "" if at is None else at[1].begin


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
@AT_EACH_REQUEST
def test_service_killed_at_any_request_changes_no_row_and_is_continued(
    tmp_path: Path, applied: bool, every: int
) -> None:
    template = made(tmp_path / "template", "by event" if applied else "copy on write")
    for number in range(2):
        insert(template, (number, "a", "x", number), (10 + number, "b", "x", number))
    template.upsert(rows((0, "a", "y", 9)))
    seen = content(template)
    for step in range(1 + 3 * applied, FAR_TOO_MANY, every):
        folder = tmp_path / str(step)
        shutil.copytree(template.url, folder)
        backend = DiesAtStep(step, applied=applied)
        dying = Table(Store(backend, str(folder)), str(folder), settings=SETTINGS)
        try:
            dying.cluster()
        except (Died, CasError, NotAcquired):
            pass  # threads of a dead process get no answer
        else:
            break
        table, after = Table.open(str(folder), settings=SETTINGS), backend.asked[-1]
        assert by_hudi_rs(table) == seen, f"a torn table after {after}"
        let_time_pass(folder)
        table.upsert(rows((1, "a", "healed", 9), (11, "b", "healed", 9)), retries=1)  # it may be completed for the dead
        insert(table, (99, "c", "z", 1))
        table.cluster()
        others = [row for row in seen if row[0] not in (1, 11)]
        expected = sorted([*others, (1, "a", "healed", 9), (11, "b", "healed", 9), (99, "c", "z", 1)])
        assert content(table) == by_hudi_rs(table) == expected, after
        assert (files(table), table.timeline().unfinished) == ([1, 1, 1], ()), after
        begins = {instant.begin for instant in table.timeline().instants}
        strays = [path for path in (*data_files(folder), *log_files(table)) if begin_of(path) not in begins]
        assert strays == [], f"left after {after}"
        shutil.rmtree(folder)
    else:
        pytest.fail("it never ended")
    assert step > 30
