"""A writer whose turn is over commits nothing, whoever decides its commit; a newer one goes on."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from table.state.test_cache import another, taken_by_jvm
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, orphans, rows, upsert

import lockprovider
from fsspec_cas import InvalidInput
from lockprovider.recipes.errors import Fenced
from lockprovider.table import KeepActive, KeepCommits, Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.streams import batches_by_stream
from lockprovider.table.state.fence import fences_in
from lockprovider.table.transaction.exactly_once import BatchId
from lockprovider.table.transaction.transaction import Transaction


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def begun(table: Table, fence: Any, id_: int) -> Transaction:
    txn = Transaction(table.under(fence))
    engine.write(txn, upserts=rows((id_, chr(96 + id_), id_)))
    return txn


WRITES = {
    "append": lambda table, fence: table.append(rows((9, "z", 9)), fence=fence),
    "upsert": lambda table, fence: table.upsert(rows((9, "z", 9)), fence=fence),
    "delete": lambda table, fence: table.delete(rows((1, "a", 1)), fence=fence),
    "delete where": lambda table, fence: table.delete("id = 1", fence=fence),
    "overwrite": lambda table, fence: table.overwrite(rows((9, "z", 9)), fence=fence),
    "transact": lambda table, fence: table.transact(lambda txn: txn.upsert(rows((9, "z", 9))), fence=fence, retries=3),
}


@pytest.mark.parametrize("name", WRITES)
def test_each_write_of_an_older_epoch_is_refused_and_leaves_nothing(table: Table, name: str) -> None:
    table.upsert(rows((1, "a", 1)), fence=7)
    upsert(table, (2, "b", 2))  # without a fence
    with pytest.raises(Fenced, match="epoch 6 is over: 7 has written since; stop") as caught:
        WRITES[name](table, 6)
    assert caught.value.epoch == 7
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 2)}
    assert orphans(Path(table.url)) == set()
    WRITES[name](table, 7)
    WRITES[name](Table.open(table.url, settings=SETTINGS), SimpleNamespace(epoch=8))
    with pytest.raises(Fenced):
        WRITES[name](table, 7)


def test_a_transaction_of_an_older_epoch_is_refused_at_its_end(table: Table) -> None:
    txn = table.transaction(fence=3)
    txn.upsert(rows((1, "a", 1)))
    table.append(rows((5, "e", 5)), fence=4)
    with pytest.raises(Fenced):
        txn.commit()
    txn.rollback()
    assert content(table) == {(5, "e", 5)}


@pytest.mark.parametrize("holds", [False, True])
def test_a_newer_epoch_that_commits_while_an_older_one_writes_is_seen_in_the_decision(
    table: Table, holds: bool
) -> None:
    """By the log of the lock, and by a listing, where somebody ended the log in between."""
    old = begun(table, 1, 1)
    begun(Table.open(table.url, settings=SETTINGS), 2, 2).commit()
    if holds:
        table.lock.acquire().release()
    with pytest.raises(Fenced):
        old.commit()
    old.rollback()
    assert content(table) == by_hudi_rs(table.url) == {(2, "b", 2)}
    assert orphans(Path(table.url)) == set()


def test_a_jvm_writer_that_drops_our_fields_of_the_lock_record_takes_no_fence_away(table: Table) -> None:
    old = begun(table, 1, 1)
    begun(another(table), 2, 2).commit()
    taken_by_jvm(table)
    with pytest.raises(Fenced):
        old.commit()
    old.rollback()


def test_epochs_of_different_names_are_not_compared(table: Table) -> None:
    table.upsert(rows((1, "a", 1)), fence=("compactor", 9))
    table.upsert(rows((2, "b", 2)), fence=("loader", 1))
    table.upsert(rows((3, "c", 3)), fence=1)
    with pytest.raises(Fenced, match="epoch 8 of 'compactor' is over: 9"):
        table.upsert(rows((4, "d", 4)), fence=("compactor", 8))
    assert len(content(table)) == 3


def test_a_batch_of_a_stream_and_a_fence_stand_in_one_commit(table: Table) -> None:
    txn = begun(table, ("loader", 3), 1)
    txn.exactly_once(BatchId("orders", 7))
    txn.commit()
    extra = table.history()[-1].extra
    assert batches_by_stream(extra) == {"orders": 7, "lockprovider.fence/loader": 3}
    assert [(one.name, one.epoch) for one in fences_in(extra)] == [("loader", 3)]


def test_an_epoch_is_found_after_its_commit_was_archived(tmp_path: Path) -> None:
    few = replace(SETTINGS, retention=KeepCommits(1), archival=KeepActive(3, 4))
    table = Table.create(str(tmp_path / "t"), SPEC, settings=few)
    table.upsert(rows((1, "a", 1)), fence=5)
    for number in range(8):
        upsert(table, (1, "a", number))
    table.archive()
    assert not any(fences_in(commit.extra) for commit in table.history())
    with pytest.raises(Fenced) as caught:
        Table.open(table.url, settings=few).upsert(rows((2, "b", 2)), fence=4)
    assert caught.value.epoch == 5


def test_a_leader_that_another_has_followed_is_refused(table: Table) -> None:
    election = lockprovider.election.open(f"file://{table.url}-election/e.json", storage_options={"auto_mkdir": True})
    with election.lead() as term:
        table.upsert(rows((1, "a", 1)), fence=term)
    late = term
    with election.lead() as term:
        table.upsert(rows((2, "b", 2)), fence=term)
    with pytest.raises(Fenced):
        table.upsert(rows((3, "c", 3)), fence=late)


@pytest.mark.parametrize("fence", ["x", 0, -1, True, ("a", "x"), (5, 5)])
def test_what_has_no_epoch_is_refused(table: Table, fence: Any) -> None:
    with pytest.raises(InvalidInput, match="fence="):
        table.append(rows((1, "a", 1)), fence=fence)
    assert table.count() == 0


def test_the_error_can_be_pickled() -> None:
    kept = pickle.loads(pickle.dumps(Fenced("no", 7)))
    assert (str(kept), kept.epoch) == ("no", 7)
