"""What was decided without the lock and may come late: the next holder puts it there, whoever removes it waits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deciding import begin, decide, there, wanted
from noting import RECORD, SETTINGS, Noting, record, rewritten

from fsspec_cas import Machine, Store, Unavailable
from fsspec_cas.outcome import Write
from fsspec_cas.testing import ManualClock
from lockprovider import HUDI_LOCK_PATH, Lease, Lock, LockSettings
from lockprovider.settings import GRACE_MS, HAND_OVER_S


@dataclass(frozen=True, slots=True)
class Sleepless(Machine):
    """Notes for how long it was to sleep."""

    slept_s: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)


@pytest.fixture(params=[True, False], ids=["", "as behind a network"])
def backend(request: pytest.FixtureRequest) -> Noting:
    return Noting(blocking=request.param)


@pytest.fixture
def store(backend: Noting, tmp_path: Path) -> Store:
    """With a lock in it that has a log."""
    made = Store(backend, str(tmp_path))
    begin(Lock(made, settings=SETTINGS))
    return made


def decided(store: Store, *, is_there: bool = False) -> None:
    """By one that died after its decision, or after it was put there."""
    decide(store, wanted(store, "second"))
    Lock(store, settings=SETTINGS).look()  # this process knew another record
    if is_there:
        store.put_if_absent("second.1", b"-").unwrap()
    assert [pending.path for pending in record(store).unapplied] == ["second.1"]


def took(store: Store) -> tuple[Lock, Lease]:
    """The next holder, whose record still names what was decided before."""
    lock = Lock(store, settings=SETTINGS)
    lease = lock.acquire()
    assert record(store).unapplied
    return lock, lease


def test_the_next_holder_writes_nothing_that_is_there(store: Store, backend: Noting) -> None:
    decided(store, is_there=True)
    backend.asked.clear()
    with Lock(store, settings=SETTINGS).acquire(timeout=0):
        assert backend.written == [RECORD]


def test_one_that_cannot_put_there_what_is_pending_lets_no_jvm_writer_in_before_its_time(
    store: Store, backend: Noting
) -> None:
    decided(store)
    rewritten(store, validUntil=1)
    backend.down, before_ms = True, time.time_ns() // 10**6
    with pytest.raises(Unavailable):
        Lock(store, settings=SETTINGS).acquire()
    left = record(store)
    assert (left.handed, left.expired, len(left.unapplied)) == (True, False, 1)
    assert left.valid_until_ms >= before_ms + HAND_OVER_S * 1000
    backend.down = False
    Lock(store, settings=SETTINGS).acquire().release()
    assert there(store) == {"first", "second"}
    assert record(store).expired


@pytest.mark.parametrize("validity_s", [2, 100])
def test_what_is_published_late_is_waited_for_whatever_the_own_validity(store: Store, validity_s: float) -> None:
    decided(store)
    world = Sleepless()
    lock = Lock(store, settings=LockSettings(validity=validity_s, renew=0.2), world=world)
    began_s = world.monotonic_s()
    with lock.acquire():
        lock.wait_for_late()
        assert max(world.slept_s) + world.monotonic_s() - began_s > HAND_OVER_S / 2


def test_whoever_removes_what_was_published_waits_for_those_who_may_be_late(store: Store) -> None:
    clock = ManualClock(time.time())
    other = Lock(store, settings=SETTINGS, world=clock)
    with other.acquire(timeout=0, keeps_log=True):
        other.wait_for_late()
    assert clock.sleeps == [], "nothing was decided without the lock"
    decided(store)
    clock.now_s = (record(store).valid_until_ms + 60_000) / 1000  # its clock tells nothing of theirs
    with other.acquire(timeout=0):
        other.wait_for_late()
    assert clock.sleeps == [HAND_OVER_S / 2 + GRACE_MS / 1000]


@pytest.mark.parametrize(("holds_s", "waits_s"), [(0.0, 5.5), (4.0, 1.5), (5.5, 0.0), (100.0, 0.0)])
def test_what_came_late_came_before_the_lock_was_held_for_that_long(
    store: Store, holds_s: float, waits_s: float
) -> None:
    decided(store)
    clock = ManualClock(record(store).valid_until_ms / 1000)
    other = Lock(store, settings=LockSettings(validity=1000), world=clock)
    with other.acquire(timeout=0):
        clock.sleep(holds_s)
        other.wait_for_late()
    assert clock.sleeps[1:] == [pytest.approx(waits_s)]


def test_a_minute_after_that_nobody_waits_for_it(store: Store) -> None:
    decided(store)
    clock = ManualClock(record(store).valid_until_ms / 1000 + 60.1)
    other = Lock(store, settings=SETTINGS, world=clock)
    with other.acquire(timeout=0):
        other.wait_for_late()
    assert clock.sleeps == []


def test_what_the_holder_has_removed_is_not_put_back_by_its_own_renewal(store: Store) -> None:
    """The record still names what was decided before this holder came, until its first renewal is written."""
    decided(store, is_there=True)
    _, lease = took(store)
    store.delete("second.1")
    rewritten(store, waiters=["another", "one more"])
    while not lease.renew():  # the first is refused, for somebody has joined the line
        lease.check()
    lease.release()
    with Lock(store, settings=SETTINGS).acquire():
        assert there(store) == {"first"}


def test_what_is_going_to_be_removed_is_not_named_in_the_record_any_more(store: Store) -> None:
    """Else whoever takes over from a remover that dies would put it there again."""
    decided(store, is_there=True)
    world = ManualClock(time.time())
    lock = Lock(store, settings=SETTINGS, world=world)
    lock.acquire()
    assert record(store).unapplied
    lock.wait_for_late()
    store.delete("second.1")
    assert not record(store).unapplied
    later = ManualClock(world.now_s + 200)
    with Lock(store, settings=SETTINGS, world=later).acquire():
        assert there(store) == {"first"}


def test_a_lease_that_keeps_the_log_has_no_inner_one_that_does_not(store: Store) -> None:
    lock = Lock(store, settings=SETTINGS)
    lease = lock.acquire(keeps_log=True)
    with pytest.raises(Exception, match="keeps_log=True"):
        lock.acquire()
    lock.acquire(keeps_log=True).release()
    lease.release()


def test_an_outer_acquisition_stays(store: Store) -> None:
    lock = Lock(store, settings=SETTINGS)
    lease = lock.acquire()
    with lock.acquire() as inner:
        inner.publish("state1", b"-")
    lease.check()
    lease.release()
    assert record(store).expired


def test_while_a_release_is_on_its_way_the_lease_is_not_believed_in(store: Store, backend: Noting) -> None:
    lease = Lock(store, settings=SETTINGS).acquire()
    put, checked = backend.put, []

    async def held_up(write: Write, *args: Any, **kwargs: Any) -> Any:
        answer = await put(write, *args, **kwargs)
        if write.path.endswith(HUDI_LOCK_PATH):
            with pytest.raises(Exception, match="released"):
                lease.check()
            checked.append(write.path)
        return answer

    backend.put = held_up  # type: ignore[method-assign]
    lease.release()
    assert checked
