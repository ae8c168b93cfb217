"""A publish on a slow store, one that is paused past its lease, and one that a JVM writer knows nothing of."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from fsspec_cas import CasError, Store
from fsspec_cas.outcome import Write
from fsspec_cas.testing import LoseAnswer
from lockprovider import HUDI_LOCK_PATH, Lease, LeaseLost, NotAcquired, PublishUnknown
from lockprovider.storage_lock.driver import Publisher, apply
from simulate.town import SETTINGS, SOON_S, Client, Town, commits

LARGE = random.Random(1).randbytes(20_000)  # does not fit into the record, so it is staged
JVM = {"expired": False, "owner": "11111111-2222-3333-4444-555555555555"}


def renewed_by_a_heartbeat(lease: Lease) -> bool:
    """Whether a renewal in another thread gets through, whatever this one is in the middle of."""
    done: list[bool] = []
    beat = threading.Thread(target=lambda: done.append(lease.renew()), daemon=True)
    beat.start()
    beat.join(SOON_S)
    return done == [True]


def pause_after_the_commit(client: Client, meanwhile: Callable[[], None]) -> list[str]:
    """The commit is in the store; before its answer is heard, `meanwhile` happens, once. Filled then."""
    put, paused = client.way.put, []

    async def held_up(write: Write, data: bytes, *args: Any, **kwargs: Any) -> Any:
        answer = await put(write, data, *args, **kwargs)
        if commits(data) and not paused:
            paused.append(write.path)
            meanwhile()
        return answer

    client.way.put = held_up  # type: ignore[method-assign]
    return paused


def remove_under_a_later_lease(town: Town, path: str) -> Client:
    """As a restore does it: whatever was decided is rolled forward, and then removed."""
    other = town.client()
    with other.lock.acquire(0):
        assert town.has(path), "a take-over rolls forward"
        town.store.delete(path)
    return other


def jvm_takes_over(town: Town) -> None:
    """It writes what it knows, and nothing else."""
    seen = town.store.read(HUDI_LOCK_PATH)
    record = JVM | {"validUntil": round(town.time.now_s * 1000) + 300_000}
    town.store.put_if_match(HUDI_LOCK_PATH, json.dumps(record).encode(), seen.version).unwrap()


@pytest.mark.parametrize(
    ("operation", "path_ends"),
    [("put", "staged"), ("get", "state/1"), ("put", "state/1")],
    ids=["the staged bytes", "is the path free", "the object itself"],
)
def test_lease_is_renewed_during_a_slow_publish(town: Town, operation: str, path_ends: str) -> None:
    client = town.client()
    lease = client.lock.acquire()
    slow_s = SETTINGS.validity * 0.6
    renewals: list[bool] = []

    def slow(asked: str, path: str, _: bytes) -> None:
        if asked == operation and path_ends in path and not renewals:
            town.pass_s(slow_s)
            renewals.append(renewed_by_a_heartbeat(lease))
            town.pass_s(slow_s)

    client.way.before = slow
    lease.publish("state/1", LARGE)
    assert renewals == [True]
    lease.check()
    assert town.store.read("state/1").data == LARGE
    lease.publish("state/2", b"another")
    lease.release()
    assert town.record.pending is None


def test_renewal_during_an_apply_keeps_the_pending_publish(town: Town) -> None:
    """The holder dies in the middle: the next one finds the publish in the record that the renewal wrote."""
    client = town.client()
    lease = client.lock.acquire()

    def die(operation: str, path: str, _: bytes) -> None:
        if operation == "put" and path.endswith("state/1"):
            assert renewed_by_a_heartbeat(lease)
            raise KeyboardInterrupt

    client.way.before = die
    with pytest.raises(KeyboardInterrupt):
        lease.publish("state/1", b"decided")
    assert town.record.pending is not None
    client.way.before = lambda *_: None
    town.lapse()
    with town.client().lock.acquire(0):
        assert town.store.read("state/1").data == b"decided"


def test_unapplied_publish_is_applied_by_a_later_heartbeat(town: Town) -> None:
    client = town.client()
    lease = client.lock.acquire()

    def no_space(operation: str, path: str, _: bytes) -> None:
        if operation == "put" and path.endswith("state/1"):
            raise CasError("no space left")

    client.way.before = no_space
    with pytest.raises(PublishUnknown, match="no space left"):
        lease.publish("state/1", b"decided")
    with pytest.raises(CasError, match="no space left"):
        lease.renew()
    assert not town.has("state/1")
    client.way.before = lambda *_: None
    assert lease.renew()
    assert town.store.read("state/1").data == b"decided"
    lease.release()
    assert town.record.pending is None


# -- paused past the lease ---------------------------------------------------------------------------------------------


def _published(town: Town, meanwhile: Callable[[], None]) -> list[str]:
    """The publisher itself is paused between its commit point and the apply."""
    holder = town.client()
    lease = holder.lock.acquire()
    paused = pause_after_the_commit(holder, meanwhile)
    with pytest.raises(PublishUnknown, match="the lease has ended"):
        lease.publish("state/1", b"decided")
    assert lease.lost.is_set() or lease._lapsed()
    return paused


def _rolled_forward(town: Town, meanwhile: Callable[[], None]) -> list[str]:
    """The next holder is paused in its roll-forward."""
    dead, slow = town.client(), town.client()
    paused = pause_after_the_commit(dead, _die)
    with pytest.raises(KeyboardInterrupt):
        dead.lock.acquire().publish("state/1", LARGE)
    assert paused
    town.lapse()
    paused.clear()

    def pause(operation: str, path: str, _: bytes) -> None:
        if operation == "get" and "staged" in path and not paused:
            paused.append(path)
            meanwhile()

    slow.way.before = pause
    with pytest.raises(CasError, match="the lease has ended"):
        slow.lock.acquire(0)
    return paused


def _die() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("who", [_published, _rolled_forward])
def test_paused_roll_forward_does_not_restore_a_removed_object(
    town: Town, who: Callable[[Town, Callable[[], None]], list[str]]
) -> None:
    def meanwhile() -> None:
        town.lapse()
        remove_under_a_later_lease(town, "state/1")

    assert who(town, meanwhile), "the pause did not happen"
    assert not town.has("state/1")
    with town.client().lock.acquire(0):
        assert not town.has("state/1")


@pytest.mark.parametrize("who", [_published, _rolled_forward])
def test_mutant_roll_forward_without_a_bound_restores_a_removed_object(
    town: Town, who: Callable[[Town, Callable[[], None]], list[str]]
) -> None:
    """The wrong twin of the test above, so that it can fail."""

    def meanwhile() -> None:
        town.lapse()
        remove_under_a_later_lease(town, "state/1")

    with (
        mock.patch.object(Publisher, "left_s", return_value=60.0),
        pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"),
    ):
        who(town, meanwhile)
    assert town.has("state/1")


@pytest.mark.parametrize("left_s", [0.0, -5.0])
def test_nothing_is_written_after_the_lease_has_ended(town: Town, left_s: float) -> None:
    client = town.client()
    pending = client.lock.stage("state/1", b"data")
    asked: list[str] = []
    client.way.before = lambda operation, *_: asked.append(operation)
    store = Store(client.way, town.store.root, world=client.clock)
    for data in (None, b"data"):
        with pytest.raises(CasError, match="the lease has ended"):
            apply(store, pending, data, lambda: left_s)
    assert "put" not in asked


# -- a JVM writer, who drops what it does not know ---------------------------------------------------------------------


def test_acknowledged_publish_survives_a_jvm_writer_that_drops_pending(town: Town) -> None:
    client = town.client()
    lease = client.lock.acquire()
    lease.publish("state/1", b"acknowledged")
    assert town.record.pending is not None, "the field is cleared by the next write only"
    town.lapse()
    jvm_takes_over(town)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.publish("state/2", b"too late")
    town.rewrite(expired=True)
    with town.client().lock.acquire(0):
        assert town.store.read("state/1").data == b"acknowledged"
        assert not town.has("state/2")


def test_publish_dropped_by_jvm_writer_before_apply_is_not_acknowledged(
    town: Town,
) -> None:
    holder = town.client()
    lease = holder.lock.acquire()
    epoch = lease.epoch

    def meanwhile() -> None:
        town.lapse()
        jvm_takes_over(town)

    paused = pause_after_the_commit(holder, meanwhile)
    with pytest.raises(PublishUnknown, match="the lease has ended"):
        lease.publish("state/1", b"dropped")
    assert paused
    assert not town.has("state/1")
    town.rewrite(expired=True)
    with town.client().lock.acquire(0) as after:
        assert after.epoch > epoch
        assert not town.has("state/1"), "nobody knows of it any more"


def test_epoch_does_not_fall_after_a_jvm_writer_when_clocks_differ(town: Town) -> None:
    ahead, behind = town.client(), town.client()
    ahead.clock.wrong_by_s = 3.0
    first = ahead.lock.acquire()
    with pytest.raises(NotAcquired):
        behind.lock.acquire(0)
    first.release()
    jvm_takes_over(town)
    town.rewrite(expired=True)
    with behind.lock.acquire(0) as second:
        assert second.epoch > first.epoch


def jvm_takes_and_ours_follow(town: Town) -> None:
    jvm_takes_over(town)
    town.rewrite(expired=True)
    town.client().lock.acquire(0).release()


@pytest.mark.parametrize("had_it", [jvm_takes_over, jvm_takes_and_ours_follow, None])
def test_publisher_stopped_while_sending_reports_no_success(town: Town, had_it: Callable[[Town], None] | None) -> None:
    """What is on its way then is there in the end. If only ours had the lock meanwhile, they have seen it."""
    client, stopped = town.client(), []

    def stop(operation: str, path: str, _: bytes) -> None:
        if operation == "put" and path.endswith("state/1") and not stopped:
            stopped.append(path)
            town.lapse()
            if had_it is not None:
                had_it(town)
            else:
                town.client().lock.acquire(0).release()

    client.way.before = stop
    lease = client.lock.acquire()
    if had_it is None:
        lease.publish("state/1", b"late")
    else:
        with pytest.raises(PublishUnknown, match="after the lease had ended"):
            lease.publish("state/1", b"late")
    assert stopped
    assert town.has("state/1")


def test_lost_answer_commit_dropped_by_jvm_writer_is_reported_not_written(town: Town) -> None:
    holder = town.client()
    lease = holder.lock.acquire()
    staged = holder.lock.stage("state/1", b"dropped")
    town.plan(holder, {"put": [LoseAnswer()]})

    def meanwhile(operation: str, *_: object) -> None:
        if operation in ("head", "get") and town.record.pending:
            holder.way.before = lambda *_: None
            town.lapse()
            jvm_takes_over(town)

    holder.way.before = meanwhile
    with pytest.raises(LeaseLost):
        lease.publish(staged)
    assert holder.faulty.fired == [("put", LoseAnswer())]
    assert not town.has("state/1")


@pytest.mark.parametrize("fails", [False, True])
def test_commit_is_settled_after_its_client_took_the_lock_again(town: Town, *, fails: bool) -> None:
    """Whoever is told of the loss releases the lease, and another thread of the same client takes the lock."""

    def take_again(_: LeaseLost) -> None:
        lease.release()
        again = threading.Thread(target=lambda: holder.lock.acquire(0).release(), daemon=True)
        again.start()
        again.join(SOON_S)
        assert not again.is_alive()
        holder.way.before = out_of_reach if fails else holder.way.before

    def out_of_reach(*_: object) -> None:
        raise CasError("out of reach")

    def meanwhile(operation: str, *_: object) -> None:
        if operation in ("head", "get") and town.record.pending:
            holder.way.before = lambda *_: None
            town.lapse()
            town.client().lock.acquire(0).release()

    holder = town.client(on_lost=take_again)
    lease = holder.lock.acquire()
    town.plan(holder, {"put": [LoseAnswer()]})
    holder.way.before = meanwhile
    if fails:
        with pytest.raises(PublishUnknown, match="may have been published: .*out of reach"):
            lease.publish("state/1", b"decided")
    else:
        lease.publish("state/1", b"decided")
    assert holder.faulty.fired == [("put", LoseAnswer())]
    assert town.has("state/1")
    assert lease.lost.is_set()
