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
from lockprovider.table.format.metadata import batches_by_stream
from lockprovider.table.timeline.conflict import BatchId, fences_in
from lockprovider.table.transaction.transaction import Transaction


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def begun(table: Table, fence: Any, id_: int) -> Transaction:
    txn = Transaction(table.under(fence))
    engine.write(txn, upserts=rows((id_, chr(96 + id_), id_)))
    return txn


WRITES = {
    "append": lambda table: table.append(rows((9, "z", 9))),
    "upsert": lambda table: table.upsert(rows((9, "z", 9))),
    "delete": lambda table: table.delete(rows((1, "a", 1))),
    "delete where": lambda table: table.delete("id = 1"),
    "overwrite": lambda table: table.overwrite(rows((9, "z", 9))),
    "transact": lambda table: table.transact(lambda txn: txn.upsert(rows((9, "z", 9))), retries=3),
}


@pytest.mark.parametrize("name", WRITES)
def test_each_write_of_an_older_epoch_is_refused_and_leaves_nothing(table: Table, name: str) -> None:
    table.under(7).upsert(rows((1, "a", 1)))
    upsert(table, (2, "b", 2))  # without a fence
    with pytest.raises(Fenced, match="epoch 6 is over, because epoch 7 has written since: stop") as caught:
        WRITES[name](table.under(6))
    assert caught.value.epoch == 7
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 2)}
    assert orphans(Path(table.url)) == set()
    WRITES[name](table.under(7))
    WRITES[name](Table.open(table.url, settings=SETTINGS).under(SimpleNamespace(epoch=8)))
    with pytest.raises(Fenced):
        WRITES[name](table.under(7))


def test_transaction_of_an_older_epoch_is_refused_at_its_end(table: Table) -> None:
    txn = table.under(3).transaction()
    txn.upsert(rows((1, "a", 1)))
    table.under(4).append(rows((5, "e", 5)))
    with pytest.raises(Fenced):
        txn.commit()
    txn.rollback()
    assert content(table) == {(5, "e", 5)}


@pytest.mark.parametrize("holds", [False, True])
def test_newer_epoch_that_commits_during_a_write_is_seen_in_the_decision(table: Table, holds: bool) -> None:
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


def test_jvm_writer_that_drops_record_fields_removes_no_fence(table: Table) -> None:
    old = begun(table, 1, 1)
    begun(another(table), 2, 2).commit()
    taken_by_jvm(table)
    with pytest.raises(Fenced):
        old.commit()
    old.rollback()


def test_epochs_of_different_names_are_not_compared(table: Table) -> None:
    table.under(("compactor", 9)).upsert(rows((1, "a", 1)))
    table.under(("loader", 1)).upsert(rows((2, "b", 2)))
    table.under(1).upsert(rows((3, "c", 3)))
    with pytest.raises(Fenced, match="epoch 8 of 'compactor' is over, because epoch 9"):
        table.under(("compactor", 8)).upsert(rows((4, "d", 4)))
    assert len(content(table)) == 3


def test_batch_of_a_stream_and_a_fence_stand_in_one_commit(table: Table) -> None:
    txn = begun(table, ("loader", 3), 1)
    txn.exactly_once(BatchId("orders", 7))
    txn.commit()
    extra = table.history()[-1].extra
    assert batches_by_stream(extra) == {"orders": 7, "lockprovider.fence/loader": 3}
    assert [(one.name, one.epoch) for one in fences_in(extra)] == [("loader", 3)]


def test_epoch_is_found_after_its_commit_was_archived(tmp_path: Path) -> None:
    few = replace(SETTINGS, retention=KeepCommits(1), archival=KeepActive(3, 4))
    table = Table.create(str(tmp_path / "t"), SPEC, settings=few)
    table.under(5).upsert(rows((1, "a", 1)))
    for number in range(8):
        upsert(table, (1, "a", number))
    table.archive()
    assert not any(fences_in(commit.extra) for commit in table.history())
    with pytest.raises(Fenced) as caught:
        Table.open(table.url, settings=few).under(4).upsert(rows((2, "b", 2)))
    assert caught.value.epoch == 5


def test_leader_that_another_has_followed_is_refused(table: Table) -> None:
    election = lockprovider.election.open(f"file://{table.url}-election/e.json", storage_options={"auto_mkdir": True})
    with election.lead() as term:
        table.under(term).upsert(rows((1, "a", 1)))
    late = term
    with election.lead() as term:
        table.under(term).upsert(rows((2, "b", 2)))
    with pytest.raises(Fenced):
        table.under(late).upsert(rows((3, "c", 3)))


@pytest.mark.parametrize("fence", [None, "x", 0, -1, True, ("a", "x"), (5, 5)])
def test_object_without_an_epoch_is_refused_as_a_fence(table: Table, fence: Any) -> None:
    with pytest.raises(InvalidInput, match="fence="):
        table.under(fence)


def test_table_under_another_fence_replaces_the_old_one(table: Table) -> None:
    table.under(9).under(7).append(rows((1, "a", 1)))
    assert table.under(8).append(rows((2, "b", 2))).inserted == 1
    assert table.fence is None


def test_fence_error_can_be_pickled() -> None:
    kept = pickle.loads(pickle.dumps(Fenced("no", 7)))
    assert (str(kept), kept.epoch) == ("no", 7)
