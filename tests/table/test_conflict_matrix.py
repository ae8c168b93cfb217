"""Every pair of operations at the same time: both begin, then one finishes, then the other.

RFC-22: of two writes of one file group the one that commits later gives way; all else succeeds. New keys go to new file
groups. Table services never stand in a writer's way, nor writers in theirs; only a savepoint is refused whose files a
clean has planned to remove.

A clustering begins when it is planned: then it holds its file groups, or with `prefer_writer` it gives way.

A non-blocking writer gives way to what ends file groups or adds columns, and nobody's log to another's; what has read
rows gives way to logs.

In a table with a bucket index a new key goes into its bucket's file group, so that an insert is a write like others;
and two writers are told that both make the first file group of a bucket.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from table import bucket_tables
from table.bucket_tables import bucket, groups, in_their_buckets
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, orphans, removed, rows, upsert

from lockprovider.table import (
    HistoryGone,
    KeepVersions,
    Mode,
    Table,
    TableSettings,
    TableSpec,
    WriteConflict,
)
from lockprovider.table.engines import arrow as engine
from lockprovider.table.services import clean as cleaner
from lockprovider.table.timeline.conflict import by_partition, prefer_writer
from lockprovider.table.transaction.transaction import Transaction

Rows = set[tuple[int, str, int]]
SERVICES = ("clean", "rollback", "savepoint")
FIRST, LATER = 3, 4  # what they write
START: Rows = {(1, "a", 1), (2, "a", 1), (5, "b", 1)}


class Place(NamedTuple):
    """Where an operation works: a key of a partition, and the buckets of that key and of the first row of a bucket."""

    part: str
    key: int
    bucket: int
    empty: int


HERE = Place("a", 1, bucket=0, empty=2)
NEXT_DOOR = Place("a", 2, bucket=1, empty=3)
ELSEWHERE = Place("b", 5, bucket=0, empty=2)

# The one that finishes first is the row, the one that finishes later is the column; both work in the same place.
#   .  both succeed      later  the later one gives way      savepoint  the savepoint is refused
PLAIN = """
            insert  upsert  delete  overwrite  clean      rollback  savepoint
insert      .       .       .       .          .          .         .
upsert      .       later   later   later      .          .         .
delete      .       later   later   later      .          .         .
overwrite   .       later   later   later      .          .         .
clean       .       .       .       .          .          .         savepoint
rollback    .       .       .       .          .          .         .
savepoint   .       .       .       .          savepoint  .         .
"""
# A clustering of the place is planned, then the other begins. It finishes first, or later than the other.
#   first  the one that finishes first gives way
CLUSTERING = """
            insert  upsert  delete  overwrite  clean      rollback  savepoint
first       .       later   later   later      .          .         .
later       .       first   first   first      .          .         .
"""
# The same where writers are preferred: those that are going to roll back, too. What an overwrite ends is known when it
# commits, and not before.
CLUSTERING_GIVES_WAY = """
            insert  upsert  delete  overwrite  clean      rollback  savepoint
first       .       first   first   later      .          first     .
later       .       later   later   later      .          .         .
"""
# `first` is an insert into a bucket that has no file group yet; an overwrite has a row for it, too.
BUCKETS = """
            insert  first   upsert  delete  overwrite  clean      rollback  savepoint
insert      later   .       later   later   later      .          .         .
first       .       later   .       .       later      .          .         .
upsert      later   .       later   later   later      .          .         .
delete      later   .       later   later   later      .          .         .
overwrite   later   later   later   later   later      .          .         .
clean       .       .       .       .       .          .          .         savepoint
rollback    .       .       .       .       .          .          .         .
savepoint   .       .       .       .       .          savepoint  .         .
"""
# The later one is next door: in the same partition, and in buckets of its own. An overwrite is of the whole partition;
# but a bucket that it has not seen, and has no row for, is left as it is.
BUCKETS_NEXT_DOOR = """
            insert  first   upsert  delete  overwrite
insert      .       .       .       .       later
first       .       .       .       .       .
upsert      .       .       .       .       later
delete      .       .       .       .       later
overwrite   later   .       later   later   later
"""
# A merge-on-read table with buckets. `log` and `gone` are of non-blocking writers, and read nothing; the others are
# ordinary. A compaction begins when it is scheduled.
NON_BLOCKING = """
            log     gone    upsert  delete  overwrite  compact  columns  rollback
log         .       .       later   later   later      .        .        .
gone        .       .       later   later   later      .        .        .
upsert      .       .
delete      .       .
overwrite   later   later
compact     .       .
columns     later   later
rollback    .       .
"""


def expected(said: str, first: str, later: str) -> str:
    """What a table says."""
    head, *lines = (line.split() for line in said.strip().splitlines())
    return {line[0]: dict(zip(head, line[1:], strict=False)) for line in lines}[first][later]


def pairs(said: str) -> list[tuple[str, str]]:
    """All that a table is about."""
    names = said.split("\n")[1].split()
    return list(itertools.product(names, names))


@dataclass
class Running:
    """One operation between its begin and its end. `effect` says what it does to the rows, if it succeeds."""

    finish: Callable[[], object]
    effect: Callable[[Rows], Rows]
    after: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


def begin(kind: str, table: Table, place: Place, number: int, oldest: str) -> Running:
    """Begin an operation in one place; `oldest` is the commit that a savepoint would keep."""
    if kind in ("clean", "savepoint", "cluster", "compact"):
        return _service(kind, table, oldest)
    if kind in ("log", "gone"):
        table = Table.open(table.url, settings=BLIND)
    txn, ended, new = Transaction(table), _ended(kind, place), _new(kind, place, number)
    _write(kind, txn, place, number, new)
    if kind == "rollback":
        return Running(txn.rollback, lambda found: found)
    # Of an overwrite too: new rows that others committed meanwhile stay.
    running = Running(txn.commit, lambda found: {row for row in found if row[0] not in ended} | new)
    running.after.callback(txn.rollback)
    return running


def _ended(kind: str, place: Place) -> set[int]:
    """The keys whose rows of the start are there no more."""
    if kind == "overwrite":
        return {key for key, part, _ in START if part == place.part}
    return {place.key} if kind in ("upsert", "delete", "log", "gone") else set()


def _new(kind: str, place: Place, number: int) -> Rows:
    """The rows that are there instead."""
    inserted, first = _new_row(place, place.bucket, number), _new_row(place, place.empty, number)
    nothing: Rows = set()
    by_kind: dict[str, Rows] = {
        "insert": {inserted},
        "first": {first},
        "overwrite": {inserted, first},
        **dict.fromkeys(("delete", "gone", "columns"), nothing),
    }
    return by_kind.get(kind, {(place.key, place.part, number)})


def _new_row(place: Place, wanted: int, number: int) -> tuple[int, str, int]:
    """A row that nobody else has, in that bucket."""
    return next((key, place.part, number) for key in itertools.count(10 * number) if bucket(key) == wanted)


def _write(kind: str, txn: Transaction, place: Place, number: int, new: Rows) -> None:
    if kind == "overwrite":
        txn.end_partitions([place.part])
        engine.insert(txn, rows(*new))
    elif kind == "columns":
        txn.add_columns(pa.schema([("more", pa.string())]))
        txn.add(())
    elif kind == "gone":
        engine.write(txn, deletes=rows((place.key, place.part, number)))
    elif kind == "delete":
        engine.write(txn, deletes=pa.table({"id": [place.key], "part": [place.part]}))
    else:
        engine.write(txn, upserts=rows(*new))


def _service(kind: str, table: Table, oldest: str) -> Running:
    if kind == "savepoint":
        return Running(lambda: table.savepoint(oldest), lambda found: found)
    if kind == "cluster":
        plan = table.schedule_clustering()
        return Running((lambda: None) if plan is None else (lambda: table.run_clustering(plan)), lambda found: found)
    if kind == "compact":
        begin = table.schedule_compaction()
        assert begin is not None
        return Running(lambda: table.run_compaction(begin), lambda found: found)
    alive = contextlib.ExitStack()
    planned = cleaner._schedule(table, KeepVersions(1), alive)
    end = (lambda: None) if planned is None else (lambda: cleaner._carry_out(table, *planned))
    return Running(end, lambda found: found, alive)


class Template(NamedTuple):
    """A table whose file groups have two versions each, and the begin time of the first commit."""

    folder: Path
    oldest: str

    @classmethod
    def made(cls, folder: Path, spec: TableSpec, *, apart: bool = False) -> Template:
        """`apart`: each row has a file group of its own."""
        table = Table.create(str(folder), spec, settings=SETTINGS)
        written = [(key, part, 0) for key, part, _ in sorted(START)]
        oldest = [upsert(table, *some).instant for some in ([[row] for row in written] if apart else [written])][-1]
        for wanted in ("a", "b"):
            upsert(table, *(row for row in START if row[1] == wanted))
        removed(table, ".hoodie/.locks")  # the lock's line is of whoever made the template
        return cls(folder, oldest)

    def copy(self, folder: Path, settings: TableSettings = SETTINGS) -> Table:
        shutil.copytree(self.folder, folder)
        return Table.open(str(folder), settings=settings)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template.made(tmp_path_factory.mktemp("matrix") / "plain", SPEC)


@pytest.fixture(scope="session")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template.made(tmp_path_factory.mktemp("matrix") / "apart", SPEC, apart=True)


@pytest.fixture(scope="session")
def bucketed(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template.made(tmp_path_factory.mktemp("matrix") / "bucketed", bucket_tables.SPEC)


@pytest.mark.parametrize(("first", "later"), pairs(PLAIN))
def test_each_pair_ends_as_rfc_22_asks(tmp_path: Path, plain: Template, first: str, later: str) -> None:
    here = expected(PLAIN, first, later)
    check(plain.copy(tmp_path / "1"), plain.oldest, (first, HERE), (later, HERE), here)
    check(plain.copy(tmp_path / "2"), plain.oldest, (first, HERE), (later, HERE), here, first_begins=False)
    check(plain.copy(tmp_path / "3"), "", (first, HERE), (later, ELSEWHERE), ".")


@pytest.mark.parametrize(("first", "later"), pairs(BUCKETS))
def test_each_pair_in_a_bucket_table_ends_as_its_buckets_ask(
    tmp_path: Path, bucketed: Template, first: str, later: str
) -> None:
    here = expected(BUCKETS, first, later)
    check(bucketed.copy(tmp_path / "1"), bucketed.oldest, (first, HERE), (later, HERE), here)
    check(bucketed.copy(tmp_path / "2"), bucketed.oldest, (first, HERE), (later, HERE), here, first_begins=False)
    check(bucketed.copy(tmp_path / "3"), "", (first, HERE), (later, ELSEWHERE), ".")
    if not {first, later} & set(SERVICES):
        there = expected(BUCKETS_NEXT_DOOR, first, later)
        check(bucketed.copy(tmp_path / "4"), "", (first, HERE), (later, NEXT_DOOR), there)


BLIND = replace(SETTINGS, mode=Mode.NON_BLOCKING)


@pytest.fixture(scope="session")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Template:
    spec = replace(bucket_tables.SPEC, ordering="value", table_type="merge_on_read")
    return Template.made(tmp_path_factory.mktemp("matrix") / "logged", spec)


@pytest.mark.parametrize(
    ("first", "later"), [pair for pair in pairs(NON_BLOCKING) if not {"log", "gone"}.isdisjoint(pair)]
)
def test_each_operation_beside_a_non_blocking_writer(tmp_path: Path, logged: Template, first: str, later: str) -> None:
    outcome = expected(NON_BLOCKING, first, later)
    check(logged.copy(tmp_path / "1"), "-", (first, HERE), (later, HERE), outcome, first_begins=first < later)


PREFERRED = replace(SETTINGS, resolution=prefer_writer)


@pytest.mark.parametrize("settings", [SETTINGS, PREFERRED], ids=["clustering holds", "writers are preferred"])
@pytest.mark.parametrize("other", CLUSTERING.split("\n")[1].split())
def test_each_operation_beside_a_clustering(
    tmp_path: Path, apart: Template, other: str, settings: TableSettings
) -> None:
    said = CLUSTERING if settings is SETTINGS else CLUSTERING_GIVES_WAY
    first, later = (expected(said, when, other) for when in ("first", "later"))
    check(apart.copy(tmp_path / "1", settings), apart.oldest, ("cluster", HERE), (other, HERE), first)
    table = apart.copy(tmp_path / "2", settings)
    check(table, apart.oldest, (other, HERE), ("cluster", HERE), later, first_begins=False)
    check(apart.copy(tmp_path / "3", settings), apart.oldest, ("cluster", HERE), (other, ELSEWHERE), ".")
    table = apart.copy(tmp_path / "4", settings)  # what a writer that is preferred has announced is not planned
    if settings is PREFERRED and other in ("upsert", "delete"):
        check(table, apart.oldest, ("cluster", HERE), (other, HERE), ".", first_begins=False)


def check(
    table: Table, oldest: str, first: tuple[str, Place], later: tuple[str, Place], outcome: str, *, first_begins=True
) -> None:
    """Let both begin, then the first one finish, then the later one; a savepoint is of the last commit by default."""
    oldest = oldest or table.history()[-1].instant
    plan = [(*first, FIRST), (*later, LATER)]
    begun = {
        number: begin(kind, table, place, number, oldest) for kind, place, number in plan[:: 1 if first_begins else -1]
    }
    found = START
    for kind, place, number in plan:
        running = begun[number]
        if outcome == {FIRST: "first", LATER: "later"}[number] or outcome == kind == "savepoint":
            with pytest.raises((WriteConflict, HistoryGone)):
                running.finish()
        else:
            running.finish()
            found = running.effect(found)
        running.after.close()
        seen = {tuple(row.values()) for row in table.to_arrow(SCHEMA.names).to_pylist()}
        assert by_hudi_rs(table.url) == seen == found, (place, first_begins, kind)
    assert table.timeline().pending_writes == table.timeline().pending_rollbacks == ()
    assert orphans(Path(table.url)) == set()
    if table.config().bucket_index is not None:
        groups(table)
        in_their_buckets(table)
    for instant in table.savepoints():
        completion = next(commit.completion for commit in table.history() if commit.instant == instant)
        assert table.to_arrow(as_of=completion).num_rows >= 2


def test_two_inserts_of_one_new_key_conflict_only_by_partition(tmp_path: Path, plain: Template) -> None:
    for resolution, told in ((SETTINGS.resolution, False), (by_partition, True)):
        folder = tmp_path / str(told)
        plain.copy(folder)
        table = Table.open(str(folder), settings=replace(SETTINGS, resolution=resolution))
        one, two = Transaction(table), Transaction(table)
        engine.write(one, upserts=rows((7, "a", 1)))
        engine.write(two, upserts=rows((7, "a", 2)))
        one.commit()
        with pytest.raises(WriteConflict) if told else contextlib.nullcontext():
            two.commit()
        two.rollback()
        assert [row[0] for row in by_hudi_rs(str(folder))].count(7) == (1 if told else 2)
