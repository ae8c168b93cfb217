"""A lock that is handed over with a publish: over real stores, what it costs, and what the next holder finds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from noting import RECORD, SETTINGS, Noting, record, rewritten

from fsspec_cas import Store
from fsspec_cas.testing import ManualClock
from lockprovider import Lease, LeaseLost, Lock, LockSettings, Pending, PublishUnknown
from lockprovider.record.line import LONGEST_S
from lockprovider.settings import GRACE_MS, HAND_OVER_S


@pytest.fixture(params=[True, False], ids=["", "as behind a network"])
def backend(request: pytest.FixtureRequest) -> Noting:
    return Noting(blocking=request.param)


@pytest.fixture
def store(backend: Noting, tmp_path: Path) -> Store:
    return Store(backend, str(tmp_path))


def held(store: Store, *waiting: str, keeps_log: bool = False) -> tuple[Lock, Lease]:
    """A held lock, with these in its line; its turn is short, however slow this machine is."""
    clock = ManualClock()
    clock.now_s = time.time()
    lock = Lock(store, settings=SETTINGS, world=clock)
    lease = lock.acquire(keeps_log=keeps_log)
    rewritten(store, line=list(waiting))
    lease.renew()  # its first is refused, for the record has changed
    assert lease.renew()
    return lock, lease


def took(store: Store) -> tuple[Lock, Lease]:
    """The next holder, whose record still names what was handed over to it."""
    lock = Lock(store, settings=SETTINGS)
    lease = lock.acquire()
    assert record(store).unapplied
    return lock, lease


def publish_last(lock: Lock, lease: Lease, path: str) -> Pending:
    pending = lock.enclose(path, path.encode(), sole=True)
    lease.publish_last(pending, path.encode())
    return pending


def test_while_others_wait_the_commit_point_is_the_release(store: Store, backend: Noting) -> None:
    lock, lease = held(store, "another")
    backend.asked.clear()
    publish_last(lock, lease, "state1")
    assert backend.written == ["table_lock.json", "state1"]
    assert store.read("state1").data == b"state1"
    assert record(store).handed
    assert lease.released
    lease.release()
    assert backend.written == ["table_lock.json", "state1"]


def test_while_nobody_waits_it_is_released_for_everybody_at_the_end(store: Store, backend: Noting) -> None:
    lock, lease = held(store)
    backend.asked.clear()
    publish_last(lock, lease, "state1")
    assert backend.written == ["table_lock.json", "state1", "table_lock.json"]
    assert record(store).expired


def test_an_outer_acquisition_stays(store: Store) -> None:
    lock, lease = held(store, "another")
    inner = lock.acquire()
    publish_last(lock, inner, "state1")
    assert store.read("state1").data == b"state1"
    lease.check()
    lease.release()
    assert record(store).expired


@pytest.mark.parametrize("loses", ["answer", "request"])
def test_a_hand_over_in_doubt_leaves_nothing_to_believe_in(store: Store, backend: Noting, loses: str) -> None:
    """With the store out of reach: others may hold the lock, whatever this process is told or not told."""
    lock, lease = held(store, "another")
    told: list[object] = []
    lease.when_lost(told.append)
    backend.loses = loses
    with pytest.raises(PublishUnknown):
        publish_last(lock, lease, "state1")
    with pytest.raises(LeaseLost, match="may have handed the lock over"):
        lease.check()
    assert lease.lost.is_set()
    assert len(told) == 1
    backend.loses, backend.out_of_reach = "", False
    lease.release()
    with Lock(store, settings=SETTINGS).acquire(timeout=0):
        assert {entry.path for entry in store.list("state")} == ({"state1"} if loses == "answer" else set())


def test_while_a_hand_over_is_on_its_way_the_lease_is_not_believed_in(store: Store, backend: Noting) -> None:
    lock, lease = held(store, "another")
    put, checked = backend.put, []

    async def held_up(path: str, *args: Any, **kwargs: Any) -> Any:
        answer = await put(path, *args, **kwargs)
        if path.endswith(RECORD) and not checked:
            with pytest.raises(LeaseLost, match="being handed over"):
                lease.check()
            checked.append(path)
        return answer

    backend.put = held_up  # type: ignore[method-assign]
    publish_last(lock, lease, "state1")
    assert checked


def test_the_next_holder_applies_what_was_handed_over_before_it_begins(store: Store, backend: Noting) -> None:
    lock, lease = held(store, "another")
    backend.down = True
    with pytest.raises(PublishUnknown, match="the next holder puts it there"):
        publish_last(lock, lease, "state1")
    backend.down = False
    assert store.list("state") == []
    with Lock(store, settings=SETTINGS).acquire():
        assert store.read("state1").data == b"state1"


def test_the_next_holder_writes_nothing_that_is_there(store: Store, backend: Noting) -> None:
    lock, lease = held(store, "another")
    publish_last(lock, lease, "state1")
    backend.asked.clear()
    with Lock(store, settings=SETTINGS).acquire(timeout=0):
        assert backend.written == ["table_lock.json"]


def test_after_a_long_turn_nothing_is_handed_over_to_those_who_may_have_given_up(store: Store) -> None:
    """A JVM writer would wait for nobody until the hand-over lapses."""
    lock, lease = held(store, "another")
    lock.world.sleep(LONGEST_S + 0.1)
    publish_last(lock, lease, "state1")
    assert record(store).expired
    assert store.read("state1").data == b"state1"


def test_one_publish_of_eight_leaves_room_for_a_jvm_writer(store: Store) -> None:
    gaps = []
    for number in range(16):
        lock, lease = held(store, "another", keeps_log=True)
        publish_last(lock, lease, f"state{number}")
        gaps.append(record(store).expired)
    assert gaps.count(True) == 2


def test_whoever_removes_what_was_published_waits_for_those_who_handed_over(store: Store) -> None:
    clock = ManualClock()
    other = Lock(store, settings=SETTINGS, world=clock)
    with other.acquire(timeout=0):
        other.wait_for_late()
    assert clock.sleeps == [], "nobody has handed over"
    lock, lease = held(store, "another")
    publish_last(lock, lease, "state1")
    clock.now_s = (record(store).valid_until_ms + 60_000) / 1000  # its clock tells nothing of theirs
    with other.acquire(timeout=0):
        other.wait_for_late()
    assert clock.sleeps == [HAND_OVER_S / 2 + GRACE_MS / 1000]


@pytest.mark.parametrize(("holds_s", "waits_s"), [(0.0, 5.5), (4.0, 1.5), (5.5, 0.0), (100.0, 0.0)])
def test_what_came_late_came_before_the_lock_was_held_for_that_long(
    store: Store, holds_s: float, waits_s: float
) -> None:
    lock, lease = held(store, "another")
    publish_last(lock, lease, "state1")
    clock = ManualClock()
    clock.now_s = record(store).valid_until_ms / 1000
    other = Lock(store, settings=LockSettings(validity=1000), world=clock)
    with other.acquire(timeout=0):
        clock.sleep(holds_s)
        other.wait_for_late()
    assert clock.sleeps[1:] == [pytest.approx(waits_s)]


def test_a_minute_after_a_hand_over_nobody_waits_for_it(store: Store) -> None:
    lock, lease = held(store, "another")
    publish_last(lock, lease, "state1")
    clock = ManualClock()
    clock.now_s = record(store).valid_until_ms / 1000 + 60.1
    other = Lock(store, settings=SETTINGS, world=clock)
    with other.acquire(timeout=0):
        other.wait_for_late()
    assert clock.sleeps == []


def test_what_the_holder_has_removed_is_not_put_back_by_its_own_renewal(store: Store) -> None:
    """The record still names what was handed over to this holder, until its first renewal is written."""
    _, lease = held(store, "another")
    publish_last(Lock(store, settings=SETTINGS), lease, "state1")
    _, lease = took(store)
    store.delete("state1")
    rewritten(store, line=["another", "one more"])
    while not lease.renew():  # the first is refused, for somebody has joined the line
        lease.check()
    lease.release()
    with Lock(store, settings=SETTINGS).acquire():
        assert store.list("state") == []


def test_what_is_going_to_be_removed_is_not_named_in_the_record_any_more(store: Store) -> None:
    """Else whoever takes over from a remover that dies would put it there again."""
    _, lease = held(store, "another")
    publish_last(Lock(store, settings=SETTINGS), lease, "state1")
    world = ManualClock(time.time())
    lock = Lock(store, settings=SETTINGS, world=world)
    lock.acquire()
    assert record(store).unapplied
    lock.wait_for_late()
    store.delete("state1")
    assert not record(store).unapplied
    later = ManualClock(world.now_s + 200)
    with Lock(store, settings=SETTINGS, world=later).acquire():
        assert store.list("state") == []


def test_a_lease_that_keeps_the_log_has_no_inner_one_that_does_not(store: Store) -> None:
    lock, lease = held(store, keeps_log=True)
    with pytest.raises(Exception, match="keeps a log"):
        lock.acquire()
    lock.acquire(keeps_log=True).release()
    lease.release()
