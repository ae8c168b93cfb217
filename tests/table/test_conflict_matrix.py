"""Every pair of operations at the same time: both begin, then one finishes, then the other.

RFC-22: of two writes of one file group the one that commits later gives way; all else succeeds. New keys go to new file
groups. Table services never stand in a writer's way, nor writers in theirs; only a savepoint is refused whose files a
clean has planned to remove.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from table.services import overwritten
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, orphans, rows, upsert

from lockprovider.table import HistoryGone, KeepVersions, Table, Transaction, WriteConflict
from lockprovider.table import clean as cleaner
from lockprovider.table.conflict import by_partition
from lockprovider.table.engines import arrow as engine

Rows = set[tuple[int, str, int]]
OPERATIONS = ("insert", "upsert", "delete", "overwrite", "clean", "rollback", "savepoint")
START: Rows = {(1, "a", 1), (2, "b", 1)}
KEY = {"a": 1, "b": 2}

# The one that finishes first is the row, the one that finishes later is the column; both touch the same partition.
#   .  both succeed      later  the later one gives way      savepoint  the savepoint is refused
OVERLAPPING = """
            insert  upsert  delete  overwrite  clean      rollback  savepoint
insert      .       .       .       .          .          .         .
upsert      .       later   later   later      .          .         .
delete      .       later   later   later      .          .         .
overwrite   .       later   later   later      .          .         .
clean       .       .       .       .          .          .         savepoint
rollback    .       .       .       .          .          .         .
savepoint   .       .       .       .          savepoint  .         .
"""


def expected(first: str, later: str) -> str:
    """What the table says."""
    head, *lines = (line.split() for line in OVERLAPPING.strip().splitlines())
    return {line[0]: dict(zip(head, line[1:], strict=True)) for line in lines}[first][later]


@dataclass
class Running:
    """One operation between its begin and its end. `effect` says what it does to the rows, if it succeeds."""

    kind: str
    part: str
    finish: Callable[[], object]
    effect: Callable[[Rows], Rows]
    after: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


def begin(kind: str, table: Table, part: str, number: int, oldest: str) -> Running:
    """Begin an operation on one partition; `oldest` is the commit that a savepoint would keep."""
    key, other = KEY[part], (10 * number, part, number)
    if kind in ("clean", "savepoint"):
        return _service(kind, table, part, oldest)
    txn = table.transaction()
    _write(kind, txn, part, (key, part, number), other)
    end = txn.rollback if kind == "rollback" else txn.commit
    effects: dict[str, Callable[[Rows], Rows]] = {
        "insert": lambda found: found | {other},
        "upsert": lambda found: {row for row in found if row[0] != key} | {(key, part, number)},
        "delete": lambda found: {row for row in found if row[0] != key},
        # New rows that others committed meanwhile stay.
        "overwrite": lambda found: {row for row in found if row[0] != key} | {other},
        "rollback": lambda found: found,
    }
    running = Running(kind, part, end, effects[kind])
    running.after.callback(txn.rollback)
    return running


def _write(kind: str, txn: Transaction, part: str, mine: tuple[int, str, int], new: tuple[int, str, int]) -> None:
    if kind == "overwrite":
        overwritten(txn, [part], new)
    elif kind == "delete":
        engine.write(txn, deletes=pa.table({"id": [mine[0]], "part": [part]}))
    else:
        engine.write(txn, upserts=rows(new if kind == "insert" else mine))


def _service(kind: str, table: Table, part: str, oldest: str) -> Running:
    if kind == "savepoint":
        return Running(kind, part, lambda: table.savepoint(oldest), lambda found: found)
    alive = contextlib.ExitStack()
    planned = cleaner._schedule(table, KeepVersions(1), alive)
    end = (lambda: None) if planned is None else (lambda: cleaner._carry_out(table, *planned))
    return Running(kind, part, end, lambda found: found, alive)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A table whose partitions have two versions of one file group each, and the begin time of the first commit."""
    folder = tmp_path_factory.mktemp("matrix") / "template"
    table = Table.create(str(folder), SPEC, settings=SETTINGS)
    oldest = upsert(table, (1, "a", 0), (2, "b", 0)).instant
    upsert(table, (1, "a", 1))
    upsert(table, (2, "b", 1))
    return folder, oldest


@pytest.mark.parametrize("later", OPERATIONS)
@pytest.mark.parametrize("first", OPERATIONS)
def test_each_pair_ends_as_rfc_22_asks(tmp_path: Path, template: tuple[Path, str], first: str, later: str) -> None:
    for overlapping, first_begins in ((True, True), (True, False), (False, True)):
        folder = tmp_path / f"{overlapping}-{first_begins}"
        shutil.copytree(template[0], folder)
        table = Table.open(str(folder), settings=SETTINGS)
        oldest = template[1] if overlapping else table.history()[-1].instant
        plan = [(first, "a", 3), (later, "a" if overlapping else "b", 4)]
        begun = {kind_of: begin(*kind_of[:1], table, *kind_of[1:], oldest) for kind_of in _in_order(plan, first_begins)}
        outcome, found = expected(first, later) if overlapping else ".", START
        for kind_of, loser in ((plan[0], _loses(first, outcome, "first")), (plan[1], _loses(later, outcome, "later"))):
            running = begun[kind_of]
            if loser:
                with pytest.raises((WriteConflict, HistoryGone)):
                    running.finish()
            else:
                running.finish()
                found = running.effect(found)
            running.after.close()
            assert by_hudi_rs(str(folder)) == content(table) == found, (overlapping, first_begins, kind_of)
        assert table.timeline().pending_writes == table.timeline().pending_rollbacks == ()
        assert orphans(folder) == set()
        for instant in table.savepoints():
            completion = next(commit.completion for commit in table.history() if commit.instant == instant)
            assert table.to_arrow(as_of=completion).num_rows >= 2


def _in_order(plan: list[tuple[str, str, int]], first_begins: bool) -> list[tuple[str, str, int]]:
    return plan if first_begins else plan[::-1]


def _loses(kind: str, outcome: str, place: str) -> bool:
    return outcome == place or (outcome == "savepoint" and kind == "savepoint")


def test_two_inserts_of_the_same_new_key_are_told_by_partition_only(tmp_path: Path, template: tuple[Path, str]) -> None:
    for resolution, told in ((SETTINGS.resolution, False), (by_partition, True)):
        folder = tmp_path / str(told)
        shutil.copytree(template[0], folder)
        table = Table.open(str(folder), settings=replace(SETTINGS, resolution=resolution))
        one, two = table.transaction(), table.transaction()
        engine.write(one, upserts=rows((7, "a", 1)))
        engine.write(two, upserts=rows((7, "a", 2)))
        one.commit()
        with pytest.raises(WriteConflict) if told else contextlib.nullcontext():
            two.commit()
        two.rollback()
        assert [row[0] for row in by_hudi_rs(str(folder))].count(7) == (1 if told else 2)
