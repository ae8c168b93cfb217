"""Intents in the store: posted once, found by whoever is on duty, withdrawn for good."""

from __future__ import annotations

from pathlib import Path

import pytest
from noting import Noting

from fsspec_cas import Store
from fsspec_cas.testing import DeliverLate, Faulty, LoseAnswer
from lockprovider.group.intent import Intent
from lockprovider.group.intents import Intents
from lockprovider.record.commit_log import LARGEST

FOLDER = ".hoodie/.locks"
MINE = Intent("log", 3, "mine_", b"mine")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Noting(), str(tmp_path))


def test_what_is_posted_is_listed_with_its_bytes_by_others_of_that_log(store: Store) -> None:
    Intents(store, FOLDER).post(MINE)
    assert Intents(store, FOLDER).listed("log") == (MINE,)
    assert Intents(store, FOLDER).listed("lo") == Intents(store, FOLDER).listed("log2") == ()
    assert Intents(store, "elsewhere").listed("log") == Intents(store, "").listed("log") == ()
    assert store.read(Intents(store, FOLDER).path(MINE)).data == b"mine"


def test_beside_a_lock_at_the_root_too(store: Store) -> None:
    Intents(store, "").post(MINE)
    assert Intents(store, "").listed("log") == (MINE,)


def test_what_does_not_belong_there_is_passed_over(store: Store) -> None:
    Intents(store, FOLDER).post(MINE)
    store.put_if_absent(f"{FOLDER}/intents/log/note.txt", b"of an operator").unwrap()
    assert Intents(store, FOLDER).listed("log") == (MINE,)


def test_what_is_larger_than_any_that_is_posted_is_not_even_read(store: Store) -> None:
    Intents(store, FOLDER).post(MINE)
    store.put_if_absent(f"{FOLDER}/intents/log/3.large", bytes(LARGEST + 1)).unwrap()
    assert Intents(store, FOLDER).listed("log") == (MINE,)


def test_bytes_are_read_once(store: Store, tmp_path: Path) -> None:
    faulty = Faulty(store.backend, {})
    intents = Intents(Store(faulty, str(tmp_path)), FOLDER)
    for count in (1, 2):
        intents.post(Intent("log", count, "mine_", b"mine"))
        for _ in range(3):
            assert len(intents.listed("log")) == count
        assert faulty.calls.count("get") == count


def test_one_that_was_withdrawn_is_not_listed_and_its_late_copy_finds_its_place_taken(
    store: Store, tmp_path: Path
) -> None:
    faulty = Faulty(store.backend, {"put": [DeliverLate(calls=20)]})
    mine, others = Intents(Store(faulty, str(tmp_path)), FOLDER), Intents(store, FOLDER)
    mine.post(MINE)
    assert faulty.fired == [("put", DeliverLate(calls=20))]
    mine.withdraw(MINE)
    assert others.listed("log") == ()
    for _ in range(20):
        mine.listed("log")
    assert not faulty._late, "the copy has arrived"
    assert others.listed("log") == mine.listed("log") == ()


@pytest.mark.parametrize("known", [False, True])
def test_one_that_was_posted_is_withdrawn_also_from_those_who_have_read_it(store: Store, *, known: bool) -> None:
    intents, others = Intents(store, FOLDER), Intents(store, FOLDER)
    intents.post(MINE)
    assert not known or others.listed("log") == (MINE,)
    intents.withdraw(MINE)
    assert others.listed("log") == ()
    intents.post(MINE)
    assert others.listed("log") == (), "it stays withdrawn"


def test_a_withdrawal_whose_answer_is_lost_is_known_to_be_done(store: Store, tmp_path: Path) -> None:
    Intents(store, FOLDER).post(MINE)
    faulty = Faulty(store.backend, {"put": [LoseAnswer(), LoseAnswer()]})
    Intents(Store(faulty, str(tmp_path)), FOLDER).withdraw(MINE)
    assert len(faulty.fired) == 2
    assert Intents(store, FOLDER).listed("log") == ()
