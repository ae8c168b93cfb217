"""A publish that was decided and cannot be put there: nobody waits for it for ever, nobody is told that it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deciding import begin, commit
from noting import RECORD, SETTINGS, Noting, record

from fsspec_cas import AlreadyExists, Lost, Machine, Store, Unavailable, Unknown, Won
from fsspec_cas.answer import NoAnswer
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from lockprovider import HUDI_LOCK_PATH, Lease, Lock, LockError, LockRecord, Pending, PublishUnknown, Unappliable
from lockprovider.storage_lock.status import Broken, break_lock, look

LARGE = bytes(range(256)) * 4096
FOREIGN = b"foreign"


@pytest.fixture
def backend() -> Noting:
    return Noting()


@pytest.fixture
def store(backend: Noting, tmp_path: Path) -> Store:
    return Store(backend, str(tmp_path))


def of_another_process(store: Store) -> Lock:
    return Lock(store, settings=SETTINGS)


def broken(store: Store) -> Broken:
    return break_lock(store, HUDI_LOCK_PATH, look(store, HUDI_LOCK_PATH, Machine()), Machine())


def kept(store: Store) -> dict[str, Any]:
    (entry,) = store.list(".hoodie/.locks/set_aside/")
    said: dict[str, Any] = json.loads(store.read(entry.path).data)
    return said


def goes_on(store: Store) -> None:
    """The next one takes the lock, publishes, and what others put there stays."""
    with of_another_process(store).acquire(timeout=0) as lease:
        lease.publish("state2", b"more")
    assert not record(store).all_pending
    assert store.read("state2").data == b"more"
    assert store.read("state1").data == FOREIGN


@pytest.mark.parametrize("sole", [False, True])
def test_publish_to_a_foreign_path_is_not_reported_as_published(store: Store, *, sole: bool) -> None:
    store.put_if_absent("state1", FOREIGN).unwrap()
    lock = of_another_process(store)
    with lock.acquire(keeps_log=True) as lease:
        with pytest.raises(AlreadyExists, match="was set aside"):
            lease.publish(lock.stage("state1", b"mine", unshared=sole), b"mine", new=True)
        assert not record(store).all_pending
        assert record(store).log is None, "who goes by the log would take it for published"
        lease.publish("state3", b"the lease goes on")
    assert (kept(store)["path"], "enclosed" in kept(store)) == ("state1", True)
    goes_on(store)


def test_publish_is_set_aside_only_once_its_details_are_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch, backend: Noting
) -> None:
    put, answers = backend.put, [NoAnswer("it never got there")]

    async def lost(write: Write, *args: Any, **kwargs: Any) -> Any:
        if "/set_aside/" not in write.path:
            return await put(write, *args, **kwargs)
        if not answers:
            raise Unavailable("the store is out of reach")
        return answers.pop()

    store.put_if_absent("state1", FOREIGN).unwrap()
    lock = of_another_process(store)
    with lock.acquire() as lease:
        monkeypatch.setattr(backend, "put", lost)
        with pytest.raises(PublishUnknown, match="/set_aside/"):
            lease.publish(lock.stage("state1", b"mine"), b"mine", new=True)
        monkeypatch.setattr(backend, "put", put)
        assert record(store).all_pending
    goes_on(store)
    assert kept(store)["path"] == "state1"


def test_foreign_object_at_the_path_after_commit_blocks_no_client(
    store: Store, monkeypatch: pytest.MonkeyPatch, backend: Noting
) -> None:
    put = backend.put

    async def outpaced(write: Write, *args: Any, **kwargs: Any) -> Any:
        if write.path.endswith("state1"):
            Store(LocalBackend(), store.root).put_if_absent("state1", FOREIGN)
        return await put(write, *args, **kwargs)

    monkeypatch.setattr(backend, "put", outpaced)
    with of_another_process(store).acquire() as lease, pytest.raises(AlreadyExists):
        lease.publish("state1", LARGE)
    assert kept(store)["staged"]
    goes_on(store)


def test_batched_publish_with_a_taken_path_blocks_no_client(store: Store) -> None:
    begin(of_another_process(store))
    store.put_if_absent("state1.1", FOREIGN).unwrap()
    store.put_if_absent("state1", FOREIGN).unwrap()
    with pytest.raises(PublishUnknown, match="state1"):
        commit(of_another_process(store), "state1")
    goes_on(store)
    assert store.read("state1.1").data == FOREIGN


def test_wrong_bytes_of_a_publish_are_refused_before_it_is_decided(store: Store) -> None:
    lock = of_another_process(store)
    pending = lock.stage("state1", b"mine")
    with lock.acquire() as lease:
        with pytest.raises(LockError, match="given for 'state1' do not have the digest"):
            lease.publish(pending, b"others", new=True)
        assert not record(store).all_pending


def in_doubt(store: Store, backend: Noting) -> tuple[Lock, Lease, Pending]:
    """Decided, and not there: the answer to its publisher is `PublishUnknown`."""
    lock = of_another_process(store)
    pending = lock.stage("state1", LARGE)
    lease = lock.acquire()
    backend.down = True
    with pytest.raises(PublishUnknown):
        lease.publish(pending, LARGE, new=True)
    backend.down = False
    return lock, lease, pending


def test_staged_bytes_stay_until_their_publish_is_applied(store: Store, backend: Noting) -> None:
    lock, lease, pending = in_doubt(store, backend)
    with pytest.raises(LockError, match="acquire the lock again, then remove"):
        lock.unstage(pending)
    lease.release()
    for other in (lock, of_another_process(store)):
        with pytest.raises(LockError, match="acquire the lock again, then remove"):
            other.unstage(pending)
    with of_another_process(store).acquire():
        assert store.read("state1").data == LARGE
    lock.unstage(pending)
    assert store.list(".hoodie/.locks/staged/") == []


def test_staged_bytes_stay_while_their_commit_may_still_land(store: Store, backend: Noting) -> None:
    lock = of_another_process(store)
    pending = lock.stage("state1", LARGE)
    lease = lock.acquire()
    backend.loses = "request"
    with pytest.raises(PublishUnknown):
        lease.publish(pending, LARGE, new=True)
    backend.loses, backend.out_of_reach = "", False
    with pytest.raises(LockError, match="was or may be decided"):
        lock.unstage(pending)
    lease.release()
    lock.unstage(pending)
    assert store.list(".hoodie/.locks/staged/") == []


def lost_its_bytes(store: Store, backend: Noting) -> None:
    _, lease, pending = in_doubt(store, backend)
    store.delete(pending.staged)
    lease.release()


def test_publish_without_its_bytes_is_set_aside_only_by_break(store: Store, backend: Noting) -> None:
    lost_its_bytes(store, backend)
    for _ in range(2):
        with pytest.raises(Unappliable, match="its bytes are gone.*`lockprovider break` sets it aside"):
            of_another_process(store).acquire(timeout=0)
    done = broken(store)
    assert isinstance(done.outcome, Won)
    assert (done.finished, list(done.set_aside)) == ((), ["state1"])
    said = json.loads(store.read(done.set_aside["state1"]).data)
    assert said == kept(store)
    assert "its bytes are gone" in said["why"]
    assert (record(store).expired, record(store).all_pending) == (True, ())
    store.put_if_absent("state1", FOREIGN).unwrap()
    goes_on(store)


def test_break_admits_no_client_before_decided_publishes_are_applied(store: Store, backend: Noting) -> None:
    """A JVM writer knows nothing of it, and takes what is released at once."""
    _, lease, _ = in_doubt(store, backend)
    shown = look(store, HUDI_LOCK_PATH, Machine())
    put, seen = backend.put, []

    async def watched(write: Write, *args: Any, **kwargs: Any) -> Any:
        answer = await put(write, *args, **kwargs)
        seen.append((record(store).expired, (Path(store.root) / "state1").exists()))
        return answer

    backend.put = watched  # type: ignore[method-assign]
    done = break_lock(store, HUDI_LOCK_PATH, shown, Machine())
    assert (done.finished, done.set_aside) == (("state1",), {})
    assert record(store).expired
    assert (True, False) not in seen
    assert not lease.renew()
    with pytest.raises(LockError):
        lease.check()
    store.delete("state1")
    lease.release()
    with of_another_process(store).acquire(timeout=0):
        assert store.list("state1") == []


def test_break_that_cannot_apply_publishes_keeps_jvm_writers_out(store: Store, backend: Noting) -> None:
    in_doubt(store, backend)
    backend.down = True
    with pytest.raises(Exception, match="down"):
        broken(store)
    left = record(store)
    assert (left.expired, left.released_pending, len(left.all_pending)) == (False, True, 1)
    assert left.valid_until_ms > Machine().now_ms()
    backend.down = False
    assert broken(store).finished == ("state1",)


def test_break_applies_publishes_pending_since_the_record_was_shown(store: Store, backend: Noting) -> None:
    _, lease, _ = in_doubt(store, backend)
    shown = look(store, HUDI_LOCK_PATH, Machine())
    backend.down = True
    lease.release()
    backend.down = False
    assert record(store).released_pending
    done = break_lock(store, HUDI_LOCK_PATH, shown, Machine())
    assert (type(done.outcome), done.finished, record(store).expired) == (Won, ("state1",), True)


def test_break_of_a_lock_taken_since_reports_no_finished_publish(store: Store, backend: Noting) -> None:
    _, lease, _ = in_doubt(store, backend)
    shown = look(store, HUDI_LOCK_PATH, Machine())
    lease.release()
    with of_another_process(store).acquire(timeout=0):
        done = break_lock(store, HUDI_LOCK_PATH, shown, Machine())
    assert (type(done.outcome), done.finished) == (Lost, ())


@pytest.mark.parametrize("record_is", ["taken over", "removed"])
def test_break_whose_release_comes_too_late_does_not_report_a_free_lock(
    store: Store, backend: Noting, record_is: str
) -> None:
    in_doubt(store, backend)
    put, others = backend.put, Store(LocalBackend(), store.root)

    async def outpaced(write: Write, *args: Any, **kwargs: Any) -> Any:
        if write.path.endswith(RECORD) and (Path(store.root) / "state1").exists():
            if record_is == "removed":
                others.delete(HUDI_LOCK_PATH)
            else:
                taken = LockRecord("o2", Machine().now_ms() + 60_000, expired=False, epoch=record(store).epoch + 1)
                others.update(HUDI_LOCK_PATH, lambda _: taken.encode())
        return await put(write, *args, **kwargs)

    backend.put = outpaced  # type: ignore[method-assign]
    done = broken(store)
    assert (type(done.outcome), done.finished) == (Unknown, ("state1",))
    assert store.read("state1").data == LARGE


def test_break_whose_write_is_duplicated_is_done(store: Store, backend: Noting) -> None:
    lease = of_another_process(store).acquire()
    backend.twice = True
    assert isinstance(broken(store).outcome, Won)
    assert record(store).expired
    lease.release()
