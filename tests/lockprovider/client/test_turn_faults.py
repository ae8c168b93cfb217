"""What goes wrong around a publish under a lock that nobody holds, and what others must not have to pay for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from noting import SETTINGS, publish

from fsspec_cas import Machine, Store, Unavailable
from fsspec_cas.answer import NoAnswer
from fsspec_cas.backends.local import LocalBackend
from lockprovider import HUDI_LOCK_PATH, LeaseLost, Lock, LockRecord, LockSettings, NotAcquired, PublishUnknown
from lockprovider.settings import HAND_OVER_S


class Faulty(LocalBackend):
    """May fail to write data; may hold up the next write of the record for good, while others go on."""

    def __init__(self) -> None:
        self.down = False
        self.meanwhile: Callable[[], None] | None = None

    async def put(self, path: str, *args: Any, **kwargs: Any) -> Any:
        is_record, meanwhile = path.endswith(HUDI_LOCK_PATH), self.meanwhile
        if self.down and not is_record:
            raise Unavailable("the store is down")
        if is_record and meanwhile is not None:
            self.meanwhile = None
            meanwhile()
            return NoAnswer("it never got there")
        return await super().put(path, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Sleepless(Machine):
    """Notes for how long it was to sleep."""

    slept_s: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)


def client(root: Path, settings: LockSettings = SETTINGS, **more: Any) -> tuple[Lock, Faulty]:
    """As of a process of its own."""
    backend = Faulty()
    return Lock(Store(backend, str(root)), settings=settings, **more), backend


def record(root: Path) -> LockRecord:
    return LockRecord.decode((root / HUDI_LOCK_PATH).read_bytes())


def rewrite(root: Path, **fields: Any) -> None:
    (root / HUDI_LOCK_PATH).write_bytes(replace(record(root), **fields).encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With a lock in it that has a log."""
    lock, _ = client(tmp_path)
    publish(lock, lock.wait_for_turn(), "first")
    return tmp_path


def decided_and_not_there(root: Path) -> None:
    lock, backend = client(root)
    turn = lock.wait_for_turn()
    backend.down = True
    with pytest.raises(PublishUnknown):
        publish(lock, turn, "second")
    assert [pending.path for pending in record(root).unapplied] == ["second"]


def test_turns_that_are_not_used_never_bring_the_same_bytes_again(root: Path) -> None:
    """Where a version is a hash of the content, an old copy of a publish would find its condition true again."""
    locks = [client(root)[0] for _ in range(2)]
    rewrite(root, line=tuple(lock._client.queue.name for lock in locks), freed_ms=time.time_ns() // 10**6, turn_ms=100)
    seen = [(root / HUDI_LOCK_PATH).read_bytes()]
    for lock in locks:
        lock._client.queue._gap_s = 0.0  # it asked again at once, as writers in a loop do
        lock.wait_for_turn().release()
        seen.append((root / HUDI_LOCK_PATH).read_bytes())
    assert LockRecord.decode(seen[0]).line == LockRecord.decode(seen[2]).line, "both had their turn"
    assert len(set(seen)) == 3


def test_one_that_cannot_put_there_what_is_pending_lets_no_jvm_writer_in_before_its_time(root: Path) -> None:
    decided_and_not_there(root)
    rewrite(root, valid_until_ms=1)
    lock, backend = client(root)
    backend.down, before_ms = True, time.time_ns() // 10**6
    with pytest.raises(Unavailable):
        lock.acquire()
    left = record(root)
    assert (left.handed, left.expired, len(left.unapplied)) == (True, False, 1)
    assert left.valid_until_ms >= before_ms + HAND_OVER_S * 1000
    client(root)[0].acquire().release()
    assert (root / "second").read_bytes() == b"second"
    assert record(root).expired


def test_one_whose_publish_never_was_holds_nothing(root: Path) -> None:
    """Not even where others have gone on up to the turn at which the lock is taken, for the JVM writers' sake."""
    slow, backend = client(root)
    turn = slow.wait_for_turn()

    def others() -> None:
        while (log := record(root).log) is not None and log.next % 8:
            other, _ = client(root)
            publish(other, other.wait_for_turn(), f"state{log.next}")

    backend.meanwhile = others
    with pytest.raises(LeaseLost):
        publish(slow, turn, "late")
    left = record(root)
    assert left.given
    assert left.owner != slow.owner
    assert not (root / "late").exists()
    client(root)[0].acquire(0).release()


def test_a_lock_that_could_not_be_freed_has_given_the_turn_back(root: Path) -> None:
    lock, _ = client(root)
    failed: Future[None] = Future()
    lock._client.free_again = lambda: failed  # type: ignore[method-assign]
    publish(lock, lock.wait_for_turn(), "second")
    with pytest.raises(NotAcquired):  # it is being freed
        lock.wait_for_turn(0)
    failed.set_exception(OSError("whatever"))
    publish(lock, Lock(lock._store, settings=SETTINGS).wait_for_turn(0), "third")
    lock.wait_for_turn(0).release()
    assert (root / "third").exists()


@pytest.mark.parametrize("validity_s", [2, 100])
def test_what_is_published_late_is_waited_for_whatever_the_own_validity(root: Path, validity_s: float) -> None:
    decided_and_not_there(root)
    world = Sleepless()
    lock, _ = client(root, LockSettings(validity=validity_s, renew=0.2), world=world)
    began_s = world.monotonic_s()
    with lock.acquire():
        lock.wait_for_late()
        assert max(world.slept_s) + world.monotonic_s() - began_s > HAND_OVER_S / 2
