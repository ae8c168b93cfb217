"""A task that is tried again, comes late, or runs twice at once leaves no second file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema
from table.engines.spark.spark_tables import TRIPLE
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, data_files, orphans, upsert

from lockprovider.table import Aborted, KeepActive, Table
from lockprovider.table.engines.spark import jobs, tasks
from lockprovider.table.engines.writer import start_for_tasks
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.transaction.transaction import Transaction, transact


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(made, (1, "a", 1))
    return made


def test_rows_of_a_task_retried_after_writing_exist_once(spark: Any, table: Table) -> None:
    frame = spark.createDataFrame([(n, "ab"[n % 2], n) for n in range(10, 30)], TRIPLE)

    def fail_the_first_attempt(batches: Any) -> Any:
        held = list(batches)  # downstream of the writing function, in the same task: all of its files are written now
        if TaskContext.get().attemptNumber() == 0:
            raise ValueError("the first attempt dies after it has written")
        yield from held

    def write(txn: Transaction) -> None:
        writer = start_for_tasks(txn, table.schema())
        stats = frame.mapInArrow(tasks.inserter(writer), from_arrow_schema(tasks.STATS))
        failing = stats.mapInArrow(fail_the_first_attempt, stats.schema)
        txn.add(jobs.collect_stats(failing, frame.schema, "the write of the test"))

    before = data_files(Path(table.url))
    result = transact(table, write)
    added = data_files(Path(table.url)) - before
    assert len(added) == len(result.file_groups), "a file of the first attempt is left"
    expected = {(1, "a", 1)} | {(n, "ab"[n % 2], n) for n in range(10, 30)}
    assert content(table) == by_hudi_rs(table.url) == expected


def changes(*triples: tuple[int, str, int]) -> pa.Table:
    keyed = [{**dict(zip(SCHEMA.names, triple, strict=True)), "key": str(triple[0])} for triple in triples]
    found = [{**row, tasks.KEY: row.pop("key"), tasks.PARTITION: row["part"], tasks.DELETE: False} for row in keyed]
    return pa.Table.from_pylist(found, schema=tasks.change_schema(SCHEMA))


class Attempts:
    """One task's work as a task does it, as often as wanted: group `a` is rewritten, group `b` is new."""

    def __init__(self, txn: Transaction) -> None:
        slices = txn.snapshot.slices
        self.writer = start_for_tasks(txn, txn.table.schema())
        self.group = 0
        self.run = tasks.rewriter(self.writer, tasks.Numbered.of(slices, {"a": 1, "b": 1}))

    def once(self, value: int = 10) -> list[WriteStat]:
        done = []
        for part, group, id_ in (("a", self.group, 1), ("b", -1, 2)):
            key = (pa.scalar(part), pa.scalar(group))
            done += self.run(key, changes((id_, part, value))).to_pylist()
        return [WriteStat(**stat) for stat in done]


def test_two_attempts_report_the_same_files_and_write_them_once(table: Table) -> None:
    txn = Transaction(table)
    attempts = Attempts(txn)
    before = data_files(Path(table.url))
    first, second = attempts.once(), attempts.once()
    assert first == second
    assert len(data_files(Path(table.url)) - before) == 2
    txn.add(second)
    txn.commit()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 10), (2, "b", 10)}


def test_attempt_that_comes_after_the_commit_changes_nothing(table: Table) -> None:
    txn = Transaction(table)
    attempts = Attempts(txn)
    txn.add(attempts.once())
    txn.commit()
    before = data_files(Path(table.url))
    attempts.once(value=99)
    assert data_files(Path(table.url)) == before
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 10), (2, "b", 10)}


def test_mutant_that_names_files_by_attempt_shows_a_row_twice(table: Table) -> None:
    txn = Transaction(table)
    attempts = Attempts(txn)
    txn.add(attempts.once())
    txn.commit()
    late = changes((2, "b", 99))
    attempts.writer.insert("b", late.select(SCHEMA.names), late[tasks.KEY].combine_chunks(), "7-7-7")
    assert {row for row in by_hudi_rs(table.url) if row[0] == 2} == {(2, "b", 10), (2, "b", 99)}


def test_attempt_that_comes_after_the_rollback_removes_its_file(table: Table) -> None:
    txn = Transaction(table)
    attempts = Attempts(txn)
    txn.rollback()
    with pytest.raises(Aborted, match="rolled back while a task still wrote"):
        attempts.once()
    assert orphans(Path(table.url)) == set()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}


@pytest.mark.parametrize("kind", ["copy_on_write", "merge_on_read"])
def test_attempt_after_archival_of_its_commit_deletes_no_committed_file(tmp_path: Path, kind: str) -> None:
    spec = replace(SPEC, table_type=kind, buckets=1)
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    upsert(table, (1, "a", 1), (2, "b", 1))
    txn = Transaction(table)
    attempts = Attempts(txn)
    txn.add(attempts.once())
    txn.commit()
    for value in range(12):
        upsert(table, (3, "c", value))
    assert attempts.writer.begin in str(table.archive(KeepActive(2, 3)).instants), "else this proves nothing"
    before, rows = data_files(Path(table.url)), content(table)
    with pytest.raises(Aborted, match="committed and archived"):
        attempts.once()
    assert data_files(Path(table.url)) == before
    assert content(table) == by_hudi_rs(table.url) == rows


def test_attempts_whose_rows_differ_are_refused(table: Table) -> None:
    txn = Transaction(table)
    attempts = Attempts(txn)
    attempts.once()
    with pytest.raises(Aborted, match="written twice, with different rows"):
        attempts.run((pa.scalar("b"), pa.scalar(-1)), changes((3, "b", 3)))
    txn.rollback()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}
