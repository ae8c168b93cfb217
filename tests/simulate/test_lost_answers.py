"""What one client, its threads and its successors may expect when answers are lost and time passes.

What other lock providers got wrong is in tests/lock/test_known_bugs.py.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module

import pytest

import lockprovider
from fsspec_cas import AlreadyExists, CasError, ObjectNotFound, StoreError
from fsspec_cas.testing import DeliverLate, DeliverTwice, LoseAnswer, LoseRequest
from lockprovider import (
    HUDI_LOCK_PATH,
    Lease,
    LeaseLost,
    LockError,
    LossReason,
    MalformedRecord,
    NotAcquired,
    PublishUnknown,
)
from lockprovider.storage_lock.lease import Heartbeat
from lockprovider.words import iso
from simulate.town import FOR_LONG, SETTINGS, SOON_S, Town

# -- lost answers ------------------------------------------------------------------------------------------------------


# -- the deadline and the clocks ---------------------------------------------------------------------------------------


def test_pause_between_two_clock_reads_never_prolongs_the_lease(town: Town) -> None:
    client = town.client()
    asked = iter([0.0, 60.0])
    true_ms, true_s = client.clock.now_ms, client.clock.monotonic_s

    def stop() -> None:
        town.pass_s(next(asked, 0.0))

    client.clock.now_ms = lambda: (stop(), true_ms())[1]  # type: ignore[method-assign]
    client.clock.monotonic_s = lambda: (stop(), true_s())[1]  # type: ignore[method-assign]
    lease = client.lock.acquire()
    others_until_s = town.record.valid_until_ms / 1000
    mine_until_s = lease.deadline_s + 1_699_990_000.0
    assert mine_until_s <= others_until_s - SETTINGS.margin_s


# -- the stale holder --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [LoseAnswer(), LoseRequest(), DeliverTwice(), DeliverLate(1), DeliverLate(2)], ids=repr
)
def test_commit_with_a_lost_answer_is_published_once(town: Town, fault: LoseAnswer) -> None:
    client = town.client()
    with client.lock.acquire() as lease:
        staged = client.lock.stage("state/1", b"data")
        town.plan(client, {"put": [fault]})
        lease.publish(staged)
        assert client.faulty.fired == [("put", fault)]
        assert town.store.read("state/1").data == b"data"
        lease.publish("state/2", b"more")
    assert town.record.pending is None


def test_commit_that_may_still_land_is_unknown_and_not_lost(town: Town) -> None:
    client, other = town.client(), town.client()
    lease = client.lock.acquire()
    staged = client.lock.stage("state/1", b"data")
    # The commit is on its way, and nothing is heard until the lease has lapsed.
    silence = [LoseRequest()] * FOR_LONG
    town.plan(client, {"put": [DeliverLate(10**6), *silence], "head": silence})
    client.way.before = lambda operation, *_: town.lapse() if operation == "head" else None
    with pytest.raises(PublishUnknown):
        lease.publish(staged)
    client.way.before = lambda *_: None
    with pytest.raises(PublishUnknown):
        lease.publish(staged)  # asked again, it is still not known
    asyncio.run(client.faulty.deliver_late())  # and now it lands
    with other.lock.acquire(0):
        assert town.store.read("state/1").data == b"data", "the next holder rolls it forward"
    town.plan(client, {})
    lease.publish(staged)  # asked once more, it is known


def test_decided_publish_is_reported_published_after_its_lease_ended(town: Town) -> None:
    client, other = town.client(), town.client()
    lease = client.lock.acquire()
    staged = client.lock.stage("state/1", b"data")
    town.plan(client, {"put": [LoseAnswer()]})

    def meanwhile() -> None:
        client.way.before = lambda *_: None
        town.lapse()
        other.lock.acquire(0).release()

    # The answer to the commit is lost; before it looks, another has taken over, rolled it forward and released.
    client.way.before = lambda operation, *_: (
        meanwhile() if operation in ("head", "get") and town.record.pending else None
    )
    lease.publish(staged)
    assert client.faulty.fired == [("put", LoseAnswer())]
    assert town.record.owner == other.lock.owner
    assert lease.lost.is_set()


def test_publish_to_an_existing_path_is_refused_and_the_lock_stays_usable(
    town: Town,
) -> None:
    client, other = town.client(), town.client()
    with client.lock.acquire() as lease:
        lease.publish("state/1", b"first")
        lease.publish("state/1", b"first")  # the same bytes: as if asked again
        with pytest.raises(AlreadyExists, match="state/1"):
            lease.publish("state/1", b"second")
        lease.publish("state/2", b"next")
    with other.lock.acquire(0) as lease:
        lease.publish("state/3", b"last")
    assert town.store.read("state/1").data == b"first"


def test_missing_staged_bytes_are_noticed_before_the_commit_point(town: Town) -> None:
    client, other = town.client(), town.client()
    with client.lock.acquire() as lease:
        staged = client.lock.stage("state/1", random.Random(1).randbytes(20_000))
        client.lock.unstage(staged)
        with pytest.raises(LockError, match="stage it again"):
            lease.publish(staged)
    other.lock.acquire(0).release()


# -- the epoch ---------------------------------------------------------------------------------------------------------


# -- one client, many threads and processes ----------------------------------------------------------------------------


def test_second_release_does_not_free_the_lock_of_another_thread(town: Town) -> None:
    client = town.client()
    first = client.lock.acquire()
    first.release()
    second = client.lock.acquire(0)
    first.release()
    first.release()
    assert not town.record.expired
    second.check()
    with pytest.raises(LeaseLost, match="was released"):
        first.publish("state/1", b"under another's lease")
    assert not first.renew()
    assert not town.has("state/1")
    second.release()
    assert town.record.expired


def test_leaving_a_with_block_after_a_release_by_hand_is_fine(town: Town) -> None:
    client = town.client()
    with client.lock.acquire() as lease:
        lease.release()
    client.lock.acquire(0).release()


def test_other_threads_get_the_lock_after_the_holding_thread_died(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        import_module("lockprovider.storage_lock.lease"), "Heartbeat", lambda lease, *_, **__: Heartbeat(lease, 0.005)
    )
    told: list[LeaseLost] = []
    client = town.client(on_lost=told.append)
    taken: list[Lease] = []
    thread = threading.Thread(target=lambda: taken.append(client.lock.acquire()), name="dying")
    thread.start()
    thread.join()
    assert taken[0].lost.wait(SOON_S)
    assert [loss.why for loss in told] == ["the thread that acquired it (dying) has ended"]
    taken[0]._heartbeat._thread.join(SOON_S)
    with client.lock.acquire(0) as lease:
        assert lease.epoch > taken[0].epoch
    taken[0].release()  # late, and without effect


def test_heartbeat_that_cannot_start_releases_the_lock(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = town.client(), town.client()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            client.lock.acquire()
    assert town.record.expired
    other.lock.acquire(0).release()
    client.lock.acquire(0).release()


def test_heartbeat_reports_loss_at_the_deadline_while_store_is_unreachable(town: Town) -> None:
    told: list[LeaseLost] = []
    client = town.client(on_lost=told.append)
    lease = client.lock.acquire()
    out = [LoseRequest()] * FOR_LONG * 10
    town.plan(client, {"put": out, "head": out, "get": out})
    deadline_s = lease.deadline_s
    while not lease.lost.is_set():
        assert client.clock.monotonic_s() < deadline_s + SETTINGS.margin_s, (
            "others may act, and the holder was not told"
        )
        with pytest.raises(CasError):
            lease.renew()
        town.pass_s(1)
    assert client.clock.monotonic_s() >= deadline_s
    said = [(loss.why, loss.reason) for loss in told]
    assert said == [("the lease was not renewed in time", LossReason.UNREACHABLE)], "once"
    with pytest.raises(LeaseLost):
        lease.check()


def test_check_does_not_wait_for_a_renewal_that_hangs(town: Town) -> None:
    client = town.client()
    lease = client.lock.acquire()
    sent, go_on = threading.Event(), threading.Event()

    def hang(operation: str, *_: object) -> None:
        if operation == "put":
            sent.set()
            assert go_on.wait(SOON_S)

    client.way.before = hang
    beat = threading.Thread(target=lease.renew)
    beat.start()
    assert sent.wait(SOON_S)
    checked = threading.Event()
    checker = threading.Thread(target=lambda: (lease.check(), checked.set()))
    checker.start()
    assert checked.wait(SOON_S / 5), "check() waits for the network"
    town.pass_s(SETTINGS.validity)
    with pytest.raises(LeaseLost):
        lease.check()
    go_on.set()
    beat.join(SOON_S)
    checker.join(SOON_S)
    client.way.before = lambda *_: None
    lease.release()


def test_roll_forward_that_fails_at_acquire_gives_the_lock_back(town: Town) -> None:
    dead, client, other = town.client(), town.client(), town.client()
    lease = dead.lock.acquire()
    silence = [LoseRequest()] * FOR_LONG
    staged = dead.lock.stage("state/1", b"data")
    dead.pause_before("state/1", lambda: town.plan(dead, {"put": silence, "head": silence, "get": silence}))
    with pytest.raises(PublishUnknown):
        lease.publish(staged)
    town.lapse()
    client.way.before = _no_space_for("state/1")
    with pytest.raises(StoreError, match="no space left"):
        client.lock.acquire(0)
    assert town.record.is_free
    assert town.record.pending is not None, "what was decided is not forgotten"
    with other.lock.acquire(0):
        assert town.store.read("state/1").data == b"data"


def _no_space_for(path_ends: str) -> Callable[[str, str, bytes], None]:
    def before(operation: str, path: str, _: bytes) -> None:
        if operation == "put" and path.endswith(path_ends):
            raise StoreError("no space left")

    return before


def test_garbage_record_is_not_overwritten_by_renew_release_or_acquire(town: Town) -> None:
    client, other = town.client(), town.client()
    lease = client.lock.acquire()
    version = town.store.head(HUDI_LOCK_PATH).version
    town.store.put_if_match(HUDI_LOCK_PATH, b"garbage", version).unwrap()
    with pytest.raises(MalformedRecord):
        lease.renew()
    with pytest.raises(MalformedRecord):
        lease.publish("state/1", b"data")
    with pytest.raises(MalformedRecord):
        lease.release()
    with pytest.raises(MalformedRecord):
        other.lock.acquire(0)
    assert town.store.read(HUDI_LOCK_PATH).data == b"garbage"
    with pytest.raises(ObjectNotFound):
        town.store.read("state/1")


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_waiting_client_reads_one_body_however_often_it_polls(town: Town) -> None:
    holder, waiter = town.client(), town.client()
    with holder.lock.acquire():
        with pytest.raises(NotAcquired):
            waiter.lock.acquire(20)
        assert len(waiter.faulty.calls) > 20
        assert waiter.way.bodies == 1


def test_waiting_client_polls_a_last_time_at_its_timeout(town: Town) -> None:
    holder, waiter = town.client(), town.client()
    with holder.lock.acquire():
        began_s = town.time.now_s
        with pytest.raises(NotAcquired) as refusal:
            waiter.lock.acquire(3.0)
        assert town.time.now_s - began_s == pytest.approx(3.0)
        assert refusal.value.owner == holder.lock.owner
        assert refusal.value.valid_until_ms == town.record.valid_until_ms
        for part in (str(os.getpid()), holder.lock.owner, iso(town.record.valid_until_ms)):
            assert part in str(refusal.value)


def test_waiting_client_gets_the_lock_soon_after_it_lapsed(town: Town) -> None:
    holder, waiter = town.client(), town.client()
    holder.lock.acquire()
    with waiter.lock.acquire(SETTINGS.validity + 10):
        late_s = town.time.now_s - (1_700_000_000 + SETTINGS.validity + 0.5)
        assert 0 < late_s < 0.2


# -- forks -------------------------------------------------------------------------------------------------------------

FORKED = """
import os, sys
import lockprovider
from fsspec_cas import Store
from lockprovider import Lock, NotAcquired, LeaseLost
lock = Lock(Store.from_url(sys.argv[1]))
lease = lock.acquire()
child = os.fork()
if child == 0:
    try:
        lock.acquire(0)
    except NotAcquired:
        print("refused", flush=True)
    try:
        lease.check()
    except LeaseLost as lost:
        print(lost, flush=True)
    lease.release()
    sys.exit(0)  # with the exit hooks
os.waitpid(child, 0)
lease.check()
print(lease.renew(), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_neither_shares_nor_frees_its_parents_lock(tmp_path: object) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], capture_output=True, text=True, check=True)
    refused, lost, renewed = done.stdout.splitlines()
    assert refused == "refused"
    assert "belongs to the parent process" in lost
    assert renewed == "True", "the child freed it"
    with lockprovider.lock(str(tmp_path), timeout=0):
        pass
