"""What was decided without the lock and may come late: the next holder puts it there, whoever removes it waits."""

from __future__ import annotations

import contextlib
import os
import threading
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
from lockprovider import HUDI_LOCK_PATH, Lease, LeaseLost, Lock, LockSettings, PublishUnknown
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
    assert [pending.path for pending in record(store).all_pending] == ["second.1"]


def took(store: Store) -> tuple[Lock, Lease]:
    """The next holder, whose record still names what was decided before."""
    lock = Lock(store, settings=SETTINGS)
    lease = lock.acquire()
    assert record(store).all_pending
    return lock, lease


def test_next_holder_does_not_rewrite_applied_publishes(store: Store, backend: Noting) -> None:
    decided(store, is_there=True)
    backend.asked.clear()
    with Lock(store, settings=SETTINGS).acquire(timeout=0):
        assert backend.written == [RECORD]


def test_failed_roll_forward_keeps_jvm_writers_out_until_the_deadline(store: Store, backend: Noting) -> None:
    decided(store)
    rewritten(store, validUntil=1)
    backend.down, before_ms = True, time.time_ns() // 10**6
    with pytest.raises(Unavailable):
        Lock(store, settings=SETTINGS).acquire()
    left = record(store)
    assert (left.released_pending, left.expired, len(left.all_pending)) == (True, False, 1)
    assert left.valid_until_ms >= before_ms + HAND_OVER_S * 1000
    backend.down = False
    Lock(store, settings=SETTINGS).acquire().release()
    assert there(store) == {"first", "second"}
    assert record(store).expired


@pytest.mark.parametrize("validity_s", [2, 100])
def test_late_publishes_are_waited_for_whatever_the_own_validity(store: Store, validity_s: float) -> None:
    decided(store)
    world = Sleepless()
    lock = Lock(store, settings=LockSettings(validity=validity_s, renew=0.2), world=world)
    began_s = world.monotonic_s()
    with lock.acquire():
        lock.wait_for_late()
        assert max(world.slept_s) + world.monotonic_s() - began_s > HAND_OVER_S / 2


def test_remover_of_a_published_object_waits_for_late_writers(store: Store) -> None:
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
def test_wait_for_late_writers_counts_the_time_the_lock_was_held(store: Store, holds_s: float, waits_s: float) -> None:
    decided(store)
    clock = ManualClock(record(store).valid_until_ms / 1000)
    other = Lock(store, settings=LockSettings(validity=1000), world=clock)
    with other.acquire(timeout=0):
        clock.sleep(holds_s)
        other.wait_for_late()
    assert clock.sleeps[1:] == [pytest.approx(waits_s)]


def test_late_writers_are_not_waited_for_after_a_minute(store: Store) -> None:
    decided(store)
    clock = ManualClock(record(store).valid_until_ms / 1000 + 60.1)
    other = Lock(store, settings=SETTINGS, world=clock)
    with other.acquire(timeout=0):
        other.wait_for_late()
    assert clock.sleeps == []


def test_object_removed_by_the_holder_is_not_restored_by_its_renewal(store: Store) -> None:
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


def test_record_does_not_name_an_object_that_is_about_to_be_removed(store: Store) -> None:
    """Else whoever takes over from a remover that dies would put it there again."""
    decided(store, is_there=True)
    world = ManualClock(time.time())
    lock = Lock(store, settings=SETTINGS, world=world)
    lock.acquire()
    assert record(store).all_pending
    lock.wait_for_late()
    store.delete("second.1")
    assert not record(store).all_pending
    later = ManualClock(world.now_s + 200)
    with Lock(store, settings=SETTINGS, world=later).acquire():
        assert there(store) == {"first"}


def test_lease_that_keeps_the_log_refuses_an_inner_one_that_drops_it(store: Store) -> None:
    lock = Lock(store, settings=SETTINGS)
    lease = lock.acquire(keeps_log=True)
    with pytest.raises(Exception, match="keeps_log=True"):
        lock.acquire()
    lock.acquire(keeps_log=True).release()
    lease.release()


def test_outer_acquisition_keeps_its_log_setting(store: Store) -> None:
    lock = Lock(store, settings=SETTINGS)
    lease = lock.acquire()
    with lock.acquire() as inner:
        inner.publish("state1", b"-")
    lease.check()
    lease.release()
    assert record(store).expired


def test_lease_is_not_valid_during_its_release(store: Store, backend: Noting) -> None:
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


class Slow(Noting):
    """Answers just before the timeout of a request, unless that is of the lock record."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock, self.is_slow = clock, False

    async def get(self, path: str, *args: Any, timeout_s: float, **kwargs: Any) -> Any:
        self._wait(path, timeout_s)
        return await super().get(path, *args, timeout_s=timeout_s, **kwargs)

    async def put(self, write: Write, *args: Any, timeout_s: float, **kwargs: Any) -> Any:
        self._wait(write.path, timeout_s)
        return await super().put(write, *args, timeout_s=timeout_s, **kwargs)

    def _wait(self, path: str, timeout_s: float) -> None:
        if self.is_slow and not path.endswith(RECORD):
            self.clock.advance(0.9 * timeout_s)


def test_renewal_spends_at_most_its_interval_on_a_publish_that_is_left(tmp_path: Path) -> None:
    clock = ManualClock(time.time())
    backend = Slow(clock)
    lock = Lock(Store(backend, str(tmp_path), world=clock), settings=SETTINGS, world=clock)
    with lock.acquire() as lease:
        staged = lock.stage("second", os.urandom(20_000))
        backend.down = True
        with pytest.raises(PublishUnknown):
            lease.publish(staged, new=True)
        backend.down, backend.is_slow, began_s = False, True, clock.monotonic_s()
        assert lease.renew()
        assert clock.monotonic_s() - began_s <= SETTINGS.renew
        assert there(store := Store(backend, str(tmp_path))) == {"second"}
        assert record(store).pending is not None  # the next renewal clears it


class HeldBack(Noting):
    """Holds a publish back until its publisher's lock record has been written often, or half a second has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.often = threading.Event(), threading.Event()

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        if write.path.endswith("state1"):
            self.begun.set()
            self.often.wait(0.5)
        answer = await super().put(write, *args, **kwargs)
        if self.begun.is_set() and self.written.count(RECORD) > 10:
            self.often.set()
        return answer


def test_waiting_for_late_publishes_writes_seldom_while_a_thread_publishes(tmp_path: Path) -> None:
    backend = HeldBack()
    store = Store(backend, str(tmp_path))
    lock = Lock(store, settings=SETTINGS)
    with lock.acquire() as lease:
        publishing = threading.Thread(target=lease.publish, args=("state1", b"1"))
        publishing.start()
        assert backend.begun.wait(60)
        lock.wait_for_late()
        assert store.read("state1").data == b"1"
        assert not record(store).all_pending
        publishing.join(60)
    assert not backend.often.is_set()


def test_callback_of_a_loss_may_wait_for_a_thread_that_publishes(tmp_path: Path) -> None:
    backend = Noting()
    store = Store(backend, str(tmp_path))
    begin(Lock(store, settings=SETTINGS))
    decided(store)
    ended: list[bool] = []

    def stop(_: LeaseLost) -> None:
        publishing.join(5)
        ended.append(not publishing.is_alive())

    lock = Lock(store, settings=SETTINGS, on_lost=stop)
    publishing = threading.Thread(target=publish_in_vain, args=(lock.acquire(),))
    assert record(store).all_pending
    put = backend.put

    async def lost(write: Write, *args: Any, **kwargs: Any) -> Any:
        if write.path.endswith(RECORD) and not publishing.ident:
            publishing.start()
            publishing.join(0.3)  # for it to reach the publishes
            rewritten(store, validUntil=1, owner="another")
        return await put(write, *args, **kwargs)

    backend.put = lost  # type: ignore[method-assign]
    lock.wait_for_late()
    assert ended == [True]


def publish_in_vain(lease: Lease) -> None:
    with contextlib.suppress(LeaseLost):
        lease.publish("third", b"3")
