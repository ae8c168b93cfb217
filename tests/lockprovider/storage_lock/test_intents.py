"""Intents in the store: posted once, found by whoever is on duty, withdrawn for good."""

from __future__ import annotations

from pathlib import Path

import pytest
from noting import Noting

from fsspec_cas import Store
from fsspec_cas.testing import DeliverLate, Faulty, LoseAnswer
from lockprovider.storage_lock.commit_rules import Intent
from lockprovider.storage_lock.commit_writes import Intents
from lockprovider.storage_lock.record import LARGEST_ENTRY, Log, Pending

FOLDER = ".hoodie/.locks"
LOG = Log("log")
MINE = Intent("log", 3, "mine_", b"mine")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Noting(), str(tmp_path))


def test_posted_intent_is_listed_with_its_bytes_by_clients_of_that_log(store: Store) -> None:
    Intents(store, FOLDER).post(MINE)
    assert Intents(store, FOLDER).listed(LOG) == (MINE,)
    assert Intents(store, FOLDER).listed(Log("lo")) == Intents(store, FOLDER).listed(Log("log2")) == ()
    assert Intents(store, "elsewhere").listed(LOG) == Intents(store, "").listed(LOG) == ()
    assert store.read(Intents(store, FOLDER).path(MINE)).data == b"mine"


def test_intents_work_for_a_lock_at_the_root(store: Store) -> None:
    Intents(store, "").post(MINE)
    assert Intents(store, "").listed(LOG) == (MINE,)


def test_foreign_objects_among_intents_are_ignored(store: Store) -> None:
    Intents(store, FOLDER).post(MINE)
    store.put_if_absent(f"{FOLDER}/intents/log/note.txt", b"of an operator").unwrap()
    assert Intents(store, FOLDER).listed(LOG) == (MINE,)


def test_oversized_object_among_intents_is_not_read(store: Store) -> None:
    Intents(store, FOLDER).post(MINE)
    store.put_if_absent(f"{FOLDER}/intents/log/3.large", bytes(LARGEST_ENTRY + 1)).unwrap()
    assert Intents(store, FOLDER).listed(LOG) == (MINE,)


def test_bytes_of_an_intent_are_read_once(store: Store, tmp_path: Path) -> None:
    faulty = Faulty(store.backend, {})
    intents = Intents(Store(faulty, str(tmp_path)), FOLDER)
    for count in (1, 2):
        intents.post(Intent("log", count, "mine_", b"mine"))
        for _ in range(3):
            assert len(intents.listed(LOG)) == count
        assert faulty.calls.count("get") == count


def test_intent_readable_from_its_name_needs_no_read_and_is_withdrawn(
    tmp_path: Path,
) -> None:
    log = LOG.plus(Pending.of_bytes("last_1", b"as they all are"))
    faulty = Faulty(Noting(blocking=False), {})
    store = Store(faulty, str(tmp_path))
    mine, others = Intents(store, FOLDER), Intents(store, FOLDER)
    intent = mine.named(Intent("log", 1, "mine_", b"sample, as they all are"), log, b"sample, ")
    mine.post(intent)
    assert others.listed(log, b"sample, ") == (intent,)
    assert "get" not in faulty.calls
    assert Intents(store, FOLDER).listed(log, b"another") == (intent,), "who does not know that sample reads it"
    assert faulty.calls.count("get") == 1
    mine.withdraw(intent)
    assert others.listed(log, b"sample, ") == ()
    assert {left.name for left in mine.left()} == {intent.name}
    mine.remove(*mine.left())
    assert mine.left() == ()


def test_number_of_intents_read_at_once_is_bounded(store: Store, tmp_path: Path) -> None:
    posted = [Intent("log", 0, f"{number:03}_", b"mine") for number in range(40)]
    for intent in reversed(posted):
        Intents(store, FOLDER).post(intent)
    faulty = Faulty(store.backend, {})
    intents = Intents(Store(faulty, str(tmp_path)), FOLDER)
    for known in (16, 32, 40, 40):
        assert sorted(intent.stem for intent in intents.listed(LOG)) == [one.stem for one in posted[:known]]
        assert faulty.calls.count("get") == known


def test_intent_that_can_no_longer_be_decided_is_not_read(store: Store, tmp_path: Path) -> None:
    log = Log("log", 5, 5).plus(Pending.of_bytes("done_1", b"x"))
    live = Intent("log", 6, "live_", b"live")
    for intent in (Intent("log", 4, "early_", b"x"), Intent("log", 5, "done_", b"x"), live):
        Intents(store, FOLDER).post(intent)
    faulty = Faulty(store.backend, {})
    assert Intents(Store(faulty, str(tmp_path)), FOLDER).listed(log) == (live,)
    assert faulty.calls.count("get") == 1


def test_withdrawn_intent_is_not_listed_and_its_late_copy_is_refused(store: Store, tmp_path: Path) -> None:
    faulty = Faulty(store.backend, {"put": [DeliverLate(calls=20)]})
    mine, others = Intents(Store(faulty, str(tmp_path)), FOLDER), Intents(store, FOLDER)
    mine.post(MINE)
    assert faulty.fired == [("put", DeliverLate(calls=20))]
    mine.withdraw(MINE)
    assert others.listed(LOG) == ()
    for _ in range(20):
        mine.listed(LOG)
    assert not faulty._late, "the copy has arrived"
    assert others.listed(LOG) == mine.listed(LOG) == ()


@pytest.mark.parametrize("known", [False, True])
def test_withdrawal_also_reaches_clients_that_have_read_the_intent(store: Store, *, known: bool) -> None:
    intents, others = Intents(store, FOLDER), Intents(store, FOLDER)
    intents.post(MINE)
    assert not known or others.listed(LOG) == (MINE,)
    intents.withdraw(MINE)
    assert others.listed(LOG) == ()
    intents.post(MINE)
    assert others.listed(LOG) == (), "it stays withdrawn"


def test_withdrawal_with_lost_answer_is_settled_as_done(store: Store, tmp_path: Path) -> None:
    Intents(store, FOLDER).post(MINE)
    faulty = Faulty(store.backend, {"put": [LoseAnswer(), LoseAnswer()]})
    Intents(Store(faulty, str(tmp_path)), FOLDER).withdraw(MINE)
    assert len(faulty.fired) == 2
    assert Intents(store, FOLDER).listed(LOG) == ()
