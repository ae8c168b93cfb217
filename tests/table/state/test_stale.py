"""A transaction whose snapshot others have cleaned or archived away is a conflict: it runs again on a fresh one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from lockprovider.table import HistoryGone, KeepVersions, Scan, Table
from lockprovider.table.engines import arrow
from lockprovider.table.engines import spark as engine
from lockprovider.table.transaction.transaction import Transaction, transact

Read = Callable[[Transaction], int]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(made, (1, "a", 1))
    return made


def clean_away(table: Table) -> None:
    """Replace the file that was the latest, and remove it."""
    upsert(table, (1, "a", 10))
    assert table.clean(KeepVersions(1))[0].files


def archive_away(table: Table) -> None:
    """Archive all commits but a new one, as a JVM writer may."""
    old = table.timeline().instants
    upsert(table, (1, "a", 10))
    for instant in old:
        (Path(table.url) / ".hoodie" / "timeline" / instant.file_name).unlink()


def value_by_arrow(txn: Transaction) -> int:
    return int(Scan(txn).to_arrow().to_pylist()[0]["value"])


def increment(table: Table, read: Read, meanwhile: Callable[[Table], None], *, retries: int) -> int:
    """Add 1 to what is read; in the first try something happens between the snapshot and the reading."""
    tries = 0

    def work(txn: Transaction) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            assert txn.snapshot.slices
            meanwhile(table)
        arrow.write(txn, upserts=rows((1, "a", read(txn) + 1)))

    transact(table, work, retries=retries)
    return tries


def test_file_that_was_cleaned_before_it_was_read_is_a_conflict(table: Table) -> None:
    assert increment(table, value_by_arrow, clean_away, retries=1) == 2
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 11)}


def test_file_that_was_cleaned_before_it_was_rewritten_is_a_conflict(table: Table) -> None:
    assert increment(table, lambda _txn: 20, clean_away, retries=1) == 2
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 21)}


def test_stale_snapshot_error_is_raised_when_no_retry_is_left(table: Table) -> None:
    with pytest.raises(HistoryGone, match="was cleaned before it was read"):
        increment(table, value_by_arrow, clean_away, retries=0)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 10)}
    assert table.timeline().pending_writes == ()


def test_missing_file_that_was_not_cleaned_is_an_error_at_once(table: Table) -> None:
    def lose(table: Table) -> None:
        next(Path(table.url).rglob("*.parquet")).unlink()

    with pytest.raises(HistoryGone):
        increment(table, value_by_arrow, lose, retries=5)


def test_transaction_whose_snapshots_commits_were_archived_runs_again(table: Table) -> None:
    """It has not read their metadata when it begins to write."""
    others = Table.open(table.url, settings=SETTINGS)
    mine = Table.open(table.url, settings=SETTINGS)
    tries = 0

    def work(txn: Transaction) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            archive_away(others)
        arrow.write(txn, upserts=rows((1, "a", 11), (2, "b", 2)))

    transact(mine, work, retries=1)
    assert tries == 2
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 11), (2, "b", 2)}


def test_spark_job_that_meets_a_cleaned_file_is_run_again(spark: Any, table: Table) -> None:
    """Also where the job is the caller's own, and Spark hands on no more than text."""

    def value(txn: Transaction) -> int:
        return int(engine.read(spark, txn).collect()[0]["value"])

    assert increment(table, value, clean_away, retries=1) == 2
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 11)}


def test_spark_write_is_retried_on_a_cleaned_file_with_a_typed_error(spark: Any, table: Table) -> None:
    tries = 0

    def work(txn: Transaction) -> None:
        nonlocal tries
        tries += 1
        changed = engine.read(spark, txn).selectExpr("id", "part", "value + 1 as value")
        if tries % 2:
            upsert(table, (1, "a", 10))
            table.clean(KeepVersions(1))
        engine.write(txn, changed)

    with pytest.raises(HistoryGone, match="was cleaned before it was read"):
        transact(table, work)
    tries = 0
    transact(table, work, retries=1)
    assert tries == 2
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 11)}
