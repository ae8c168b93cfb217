"""What an operator is told about a lock, and what breaking it does to its holder and to the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsspec_cas import Lost, Machine, Store, Version, Won
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.testing import ManualClock
from lockprovider import (
    HUDI_LOCK_PATH,
    Holder,
    LeaseLost,
    Lock,
    LockRecord,
    LockSettings,
    LossReason,
    MalformedRecord,
    Pending,
)
from lockprovider.storage_lock.status import (
    Change,
    LockStatus,
    break_lock,
    changes_between,
    describe,
    lines,
    look,
    state_at,
    status_fields,
)
from lockprovider.words import count, moment, span

SHORT = LockSettings(validity=10, renew=1, timeout=0.3, poll=0.05)
HELD = LockRecord("o1", 20_000, expired=False, epoch=7, nonce="n1", holder=Holder("ship", 42, 1_000))
JVM = LockRecord("j1", 20_000, expired=False)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.from_url(str(tmp_path))


def see(store: Store) -> LockStatus:
    return look(store, HUDI_LOCK_PATH, Machine())


def broken(store: Store, seen: LockStatus) -> Won | Lost | Any:
    return break_lock(store, HUDI_LOCK_PATH, seen, Machine()).outcome


def elsewhere() -> ManualClock:
    """The world of a client in another process: those of one process wait for each other."""
    return ManualClock(Machine().now_ms() / 1000)


# Looking


@pytest.mark.parametrize("was_acquired", [False, True])
def test_lock_without_a_record_is_absent_whatever_was_before(store: Store, *, was_acquired: bool) -> None:
    if was_acquired:
        Lock(store, settings=SHORT).acquire().release()
        store.delete(HUDI_LOCK_PATH)
    seen = see(store)
    assert (seen.state, seen.record, seen.version) == ("absent", None, None)
    assert status_fields(seen)["owner"] is None
    assert not {"ever", "yet"} & {*lines(seen)[0].split(), *describe(Change("absent", None)).split()}


def test_holder_is_named_with_host_pid_and_epoch(store: Store) -> None:
    with Lock(store, settings=SHORT).acquire() as lease:
        said = status_fields(see(store))
        assert (said["state"], said["owner"], said["epoch"]) == ("held", lease.owner, lease.epoch)
        assert said["clock"] == "store"
        words = "\n".join(lines(see(store)))
        assert lease.owner in words
        assert f"pid {said['pid']}" in words
    assert see(store).state == "released"


def test_invalid_lock_record_is_reported_and_not_changed(store: Store) -> None:
    store.put_if_absent(HUDI_LOCK_PATH, b"precious").unwrap()
    with pytest.raises(MalformedRecord, match="precious"):
        see(store)
    assert store.read(HUDI_LOCK_PATH).data == b"precious"


class OwnTime(LocalBackend):
    """A store whose clock is elsewhere, or that does not say it."""

    def __init__(self, says_ms: int | None) -> None:
        self.says_ms = says_ms

    async def head(self, path: str, *, timeout_s: float) -> Any:
        return replace(await super().head(path, timeout_s=timeout_s), answered_ms=self.says_ms)  # type: ignore[arg-type]


def test_store_clock_decides_whether_a_lock_has_lapsed(tmp_path: Path) -> None:
    record = replace(HELD, valid_until_ms=Machine().now_ms() + 3_600_000)
    Store.from_url(str(tmp_path)).put_if_absent(HUDI_LOCK_PATH, record.encode()).unwrap()
    later = record.valid_until_ms + 501
    assert see(Store(OwnTime(later), str(tmp_path))).state == "lapsed"
    assert see(Store(OwnTime(later - 1), str(tmp_path))).state == "held", "Hudi's 500 ms belong to the holder"
    own = see(Store(OwnTime(None), str(tmp_path)))
    assert (own.state, own.by_store) == ("held", False)
    assert "this machine's" in lines(own)[-1]


@pytest.mark.parametrize(("ahead_ms", "words"), [(61_000, "1 min 1 s ahead of"), (-5_000, "5.0 s behind"), (900, "")])
def test_wrong_local_clock_is_reported(ahead_ms: int, words: str) -> None:
    seen = LockStatus(HELD, Version("s3", '"x"'), 10_000, by_store=True, own_ms=10_000 + ahead_ms)
    assert status_fields(seen)["own_clock_ahead_ms"] == ahead_ms
    last = lines(seen)[-1]
    assert words in last
    assert ("this machine" in last) is bool(words)


def test_pending_publish_and_jvm_writer_are_reported() -> None:
    pending = replace(HELD, pending=Pending("log/7", "s/1", "d"))
    for now_ms, applier in ((0, "the holder, or else the next one, applies"), (30_000, "and the next holder applies")):
        shown = lines(LockStatus(pending, None, now_ms, by_store=False, own_ms=0))
        assert any("log/7" in line and applier in line for line in shown)
    assert any("JVM" in line for line in lines(LockStatus(JVM, None, 0, by_store=False, own_ms=0)))


def test_json_has_all_pending_publishes_in_the_order_of_their_decision(store: Store) -> None:
    first, last = Pending("log/6", "s/0", "c"), Pending("log/7", "s/1", "d")
    record = replace(HELD, pending=last, pending_before=(first,))
    fields = status_fields(LockStatus(record, None, 0, by_store=False, own_ms=0))
    assert fields["pending_before"] == [{"path": "log/6", "staged": "s/0", "digest": "c"}]
    assert fields["pending"] == {"path": "log/7", "staged": "s/1", "digest": "d"}
    assert status_fields(see(store))["pending_before"] == []


# Breaking


def test_broken_lock_is_free_and_its_old_holder_cannot_use_it(store: Store) -> None:
    holder = Lock(store, settings=SHORT)
    lease = holder.acquire()
    assert isinstance(broken(store, see(store)), Won)
    with Lock(store, settings=SHORT, world=elsewhere()).acquire() as successor:
        assert successor.epoch > lease.epoch
        with pytest.raises(LeaseLost):
            lease.publish("log/1", b"stale")
        assert not lease.renew()
        assert lease.lost.is_set()
        with pytest.raises(LeaseLost, match="released or taken over"):
            lease.check()
        assert see(store).record.owner == successor.owner  # type: ignore[union-attr]
    assert store.list("log/") == []


def test_holder_of_a_broken_lock_is_notified(store: Store) -> None:
    lease = Lock(store, settings=SHORT).acquire()
    assert isinstance(broken(store, see(store)), Won)
    assert not lease.renew()
    with pytest.raises(LeaseLost, match="an operator broke it") as loss:
        lease.check()
    assert loss.value.reason is LossReason.BROKEN


def test_record_that_changed_since_it_was_shown_is_not_broken(store: Store) -> None:
    with Lock(store, settings=SHORT).acquire() as lease:
        shown = see(store)
        assert lease.renew()
        assert isinstance(broken(store, shown), Lost)
        lease.check()
        assert see(store).state == "held"


def test_waiter_that_joins_before_the_break_does_not_prevent_it(store: Store) -> None:
    record = replace(HELD, valid_until_ms=Machine().now_ms() + 60_000)
    store.put_if_absent(HUDI_LOCK_PATH, record.encode()).unwrap()
    shown = see(store)
    for line in (("a",), ("a", "b")):
        store.update(HUDI_LOCK_PATH, lambda _, line=line: replace(record, waiters=line).encode())  # type: ignore[misc]
    assert status_fields(see(store))["waiting"] == 2
    assert isinstance(broken(store, shown), Won)
    left = see(store).record
    assert left is not None
    assert (left.expired, left.waiters, left.owner, left.epoch) == (True, ("a", "b"), record.owner, record.epoch)
    assert left.freed_ms == shown.own_ms, "so that those in the line are given their turn"


def test_record_that_was_removed_since_it_was_shown_is_not_broken(store: Store) -> None:
    store.put_if_absent(HUDI_LOCK_PATH, HELD.encode()).unwrap()
    shown = see(store)
    store.delete(HUDI_LOCK_PATH)
    assert isinstance(broken(store, shown), Lost)
    assert store.list("") == []


def test_decided_publish_survives_a_break_and_next_holder_applies_it(store: Store) -> None:
    lock = Lock(store, settings=SHORT)
    pending = lock.stage("log/1", b"decided")
    record = replace(HELD, valid_until_ms=Machine().now_ms() + 60_000, pending=pending)
    store.put_if_absent(HUDI_LOCK_PATH, record.encode()).unwrap()
    assert isinstance(broken(store, see(store)), Won)
    with lock.acquire():
        assert store.read("log/1").data == b"decided"


def test_break_without_a_record_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="no lock record"):
        broken(store, see(store))
    assert store.list("") == []


# What changed


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (None, None, []),
        (None, HELD, ["acquired"]),
        (HELD, HELD, []),
        (HELD, replace(HELD, valid_until_ms=30_000, nonce="n2"), ["renewed"]),
        (HELD, replace(HELD, expired=True, nonce="n2"), ["released"]),
        (replace(HELD, expired=True), replace(HELD, epoch=8), ["acquired"]),
        (HELD, replace(HELD, owner="o2", epoch=8), ["acquired"]),
        (HELD, replace(HELD, owner="o2", epoch=8, expired=True), ["released"]),
        (HELD, None, ["removed"]),
        (HELD, replace(HELD, valid_until_ms=30_000, pending=Pending("a", "b", "c")), ["renewed", "decided"]),
        (HELD, replace(HELD, waiters=("a",)), ["waiting"]),
        (replace(HELD, waiters=("a",)), replace(HELD, waiters=("a",), expired=True, nonce="n2"), ["released"]),
        (JVM, replace(JVM, valid_until_ms=30_000), ["renewed"]),
        (replace(JVM, expired=True), JVM, ["acquired"]),
    ],
)
def test_events_between_two_reads_are_reported(
    before: LockRecord | None, after: LockRecord | None, what: list[str]
) -> None:
    found = changes_between(before, after)
    assert [change.what for change in found] == what
    assert all("\n" not in describe(change) for change in found)


@pytest.mark.parametrize(("now_ms", "state"), [(20_500, "held"), (20_501, "lapsed")])
def test_lease_has_lapsed_after_hudis_grace(now_ms: int, state: str) -> None:
    assert state_at(HELD, now_ms) == state
    assert state_at(replace(HELD, expired=True), now_ms) == "released"


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (-250, "-250 ms"),
        (12_340, "12.3 s"),
        (250_000, "4 min 10 s"),
        (-250_000, "-4 min 10 s"),
        (7_500_000, "2 h 5 min"),
    ],
)
def test_durations_are_shown_in_words(ms: int, words: str) -> None:
    assert span(ms) == words


def test_count_of_one_is_singular() -> None:
    assert [count(number, "owner") for number in (0, 1, 2)] == ["0 owners", "1 owner", "2 owners"]


def test_times_are_shown_in_words() -> None:
    assert moment(1_700_000_000_123) == "2023-11-14 22:13:20.123 UTC"
    assert moment(10**18) == "1000000000000000000 (epoch ms)"
