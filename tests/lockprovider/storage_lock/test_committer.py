"""Publishes under a lock that nobody holds, decided one by one or together: what it costs, and what others find."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deciding import (
    ANEW,
    DEAD,
    NOT_HERE,
    RULES,
    Met,
    Rules,
    begin,
    commit,
    decide,
    posted,
    put_there,
    started,
    there,
    told,
    wanted,
)
from noting import RECORD, SETTINGS, Noting, record, rewritten
from patience import PATIENCE_S, until

from fsspec_cas import InvalidInput, Store, Unavailable, Won
from fsspec_cas.answer import NotApplied
from fsspec_cas.outcome import Write
from fsspec_cas.testing import ManualClock
from lockprovider import (
    HUDI_LOCK_PATH,
    Decided,
    Hold,
    Intent,
    Lock,
    LockRecord,
    LockSettings,
    Log,
    NotAcquired,
    PublishUnknown,
    Void,
)
from lockprovider.settings import HAND_OVER_S
from lockprovider.storage_lock import commit_rules, committer
from lockprovider.storage_lock.commit_writes import Intents
from lockprovider.storage_lock.polling import LONGEST_S
from lockprovider.storage_lock.record import Moment

SOON_S = PATIENCE_S
PATIENT = LockSettings(timeout=SOON_S, poll=0.05)
JVM_FIELDS = ("owner", "validUntil", "expired")


class Watched(Noting):
    """Calls `before` with the name of what is about to be written, and its bytes."""

    def __init__(self, *, blocking: bool = True) -> None:
        super().__init__(blocking=blocking)
        self.before: Callable[[str, bytes], None] = lambda *_: None
        self.got: list[str] = []

    async def get(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self.got.append(Path(path).name)
        return await super().get(path, *args, **kwargs)

    async def put(self, write: Write, data: bytes, *args: Any, **kwargs: Any) -> Any:
        self.before(Path(write.path).name, data)
        return await super().put(write, data, *args, **kwargs)

    def once(self, name: str, meanwhile: Callable[[], None]) -> list[str]:
        """Run it right before the next write of that; filled when it was run."""
        ran: list[str] = []

        def before(written: str, _: bytes) -> None:
            if written == name and not ran:
                ran.append(name)
                meanwhile()

        self.before = before
        return ran


@pytest.fixture(params=[True, False], ids=["", "as behind a network"])
def backend(request: pytest.FixtureRequest) -> Watched:
    return Watched(blocking=request.param)


@pytest.fixture
def store(backend: Watched, tmp_path: Path) -> Store:
    """With a lock in it that has a log."""
    made = Store(backend, str(tmp_path))
    begin(Lock(made, settings=SETTINGS))
    return made


@pytest.fixture
def elsewhere(store: Store, tmp_path: Path) -> Store:
    """As another process sees it."""
    del store
    return Store(Noting(), str(tmp_path))


def client(store: Store, clock: ManualClock | None = None) -> Lock:
    return Lock(store, settings=PATIENT, world=clock)


def free(store: Store) -> LockRecord:
    """The record, once it is freed for those who know nothing of what is pending."""
    return until(lambda: now if (now := record(store)).expired else None)


def jvm_takes(store: Store) -> bool:
    """It knows nothing of our fields; whether nobody else was faster."""
    content = store.read(HUDI_LOCK_PATH)
    jvm = {name: value for name, value in json.loads(content.data).items() if name in JVM_FIELDS}
    jvm |= {"owner": "jvm", "expired": True}
    return isinstance(store.put_if_match(HUDI_LOCK_PATH, json.dumps(jvm).encode(), content.version), Won)


# -- one writer --------------------------------------------------------------------------------------------------------


def test_commit_takes_one_record_write_and_one_to_free_foreign_clients(store: Store, backend: Watched) -> None:
    lock = client(store)
    before = record(store)
    backend.asked.clear()
    assert commit(lock, "second") == Decided("second.1")
    after = free(store)
    assert backend.asked == [f"put {RECORD}", "put second.1", f"put {RECORD}"]
    assert not after.all_pending
    assert after.epoch > before.epoch
    assert told(store) == ["first", "second"]
    assert store.read("second.1").data == b"-"


def test_publish_is_applied_before_its_writer_is_notified(store: Store, backend: Watched) -> None:
    lock, seen = client(store), []
    backend.once(RECORD, lambda: seen.append("decided"))
    for number in range(5):
        commit(lock, f"state{number}")
        assert f"state{number}" in there(store)
    assert seen


def test_consecutive_commits_take_one_record_write_each_and_no_read(store: Store, backend: Watched) -> None:
    lock = client(store)
    commit(lock, "second")
    free(store)
    backend.asked.clear()
    for number in range(2):
        commit(lock, f"state{number}")
        free(store)
    assert backend.written == [RECORD, "state0.2", RECORD, RECORD, "state1.3", RECORD]


def test_commit_thread_ends_when_it_has_no_work(store: Store) -> None:
    lock = client(store)
    commit(lock, "second")
    until(lambda: lock._client.committer._thread is None)
    commit(lock, "third")
    assert there(store) == {"first", "second", "third"}


def test_thread_ends_when_the_lock_has_no_record(tmp_path: Path) -> None:
    lock = client(Store(Noting(), str(tmp_path)))
    assert lock.commit(Intent("gone", 0, "mine", b"-"), RULES) == Void()
    until(lambda: lock._client.committer._thread is None)


@pytest.mark.parametrize("what", ["no log", "held until it lapsed", "something staged is pending"])
def test_commit_without_the_lock_publishes_nothing_when_record_forbids(store: Store, what: str) -> None:
    intent = wanted(store, "second")
    match what:
        case "no log":
            Lock(store, settings=SETTINGS).acquire().release()
        case "held until it lapsed":
            rewritten(store, expired=False, releasedPending=False, validUntil=1)
        case _:
            pending = Lock(store).stage("second", os.urandom(10_000), unshared=True)
            fields = {"path": "second", "staged": pending.staged, "digest": pending.digest, "unshared": True}
            rewritten(store, pending=fields)
    came = client(store).commit(intent, RULES)
    assert came == (Void() if what == "no log" else Hold())
    assert there(store) == {"first"}


def test_publish_larger_than_the_log_keeps_asks_to_hold_the_lock(store: Store, backend: Watched) -> None:
    lock = client(store)
    backend.asked.clear()
    assert commit(lock, "second", os.urandom(9000)) == Hold()
    assert backend.asked == []


def test_commit_at_an_unknown_log_position_is_void(store: Store) -> None:
    assert commit(client(store), "second", NOT_HERE) == Void()
    intent = wanted(store, "third", ANEW)
    commit(client(store), "between")
    assert client(store).commit(intent, RULES) == Void()
    assert there(store) == {"first", "between"}


def test_error_of_the_decision_rules_reaches_the_writer(store: Store) -> None:
    class Fails(Rules):
        def refresh(self, seen_s: float) -> None:
            raise ValueError("cannot read what it goes by")

    lock = client(store)
    lock.look()
    with pytest.raises(ValueError, match="cannot read what it goes by"):
        lock.commit(wanted(store, "second"), Fails())
    commit(lock, "third")
    assert there(store) == {"first", "third"}


# -- where others are faster -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("looked", [True, False], ids=["knows the record of before", "looks"])
def test_slower_writer_is_judged_against_later_commits(store: Store, *, looked: bool) -> None:
    slow, fine, met = client(store), wanted(store, "third"), wanted(store, "fourth", b"second")
    if looked:
        slow.look()
    commit(client(store), "second")
    assert slow.commit(fine, RULES) == Decided("third.2")
    with pytest.raises(Met, match=r"second\.1"):
        slow.commit(met, RULES)
    assert there(store) == {"first", "second", "third"}


def test_commit_overtaken_at_its_write_has_written_nothing(store: Store, elsewhere: Store, backend: Watched) -> None:
    slow = client(store)
    met = wanted(store, "third", b"second")
    slow.look()
    ran = backend.once(RECORD, lambda: commit(client(elsewhere), "second"))
    with pytest.raises(Met):
        slow.commit(met, RULES)
    assert ran
    assert there(store) == {"first", "second"}
    assert told(store) == ["first", "second"]


def test_commit_waits_for_the_lock_holder(store: Store) -> None:
    waits, clock = wanted(store, "second"), ManualClock()
    clock.now_s = record(store).epoch / 1000 + 1
    with Lock(store, settings=SETTINGS, world=clock).acquire(keeps_log=True) as lease:
        waiting = started(client(store, clock), waits, timeout_s=1000)
        late = started(client(store, clock), wanted(store, "late"), timeout_s=20)
        clock.advance(21)
        with pytest.raises(NotAcquired, match="was not published within 20 s") as refusal:
            late.result(SOON_S)
        assert refusal.value.owner == lease.record.owner
        assert not waiting.done()
        assert there(store) == {"first"}
        lease.publish(Lock(store).stage("third.1", b"", unshared=True), b"", new=True)
    assert waiting.result(SOON_S) == Decided("second.2")
    assert there(store) == {"first", "second", "third"}


def test_client_waiting_to_hold_the_lock_goes_before_commits(store: Store) -> None:
    clock = ManualClock(record(store).epoch / 1000 + 1)
    rewritten(store, waiters=["another"], freedMs=clock.now_ms())
    waiting = started(client(store, clock), wanted(store, "second"), timeout_s=1000)
    Lock(store, settings=SETTINGS, world=clock).acquire(0).release()
    assert waiting.result(SOON_S) == Void(), "the log has ended meanwhile"


def test_absent_waiter_is_waited_for_only_a_bounded_time(store: Store) -> None:
    clock = ManualClock(record(store).epoch / 1000 + 1)
    rewritten(store, waiters=["another"], freedMs=clock.now_ms())
    waiting = started(client(store, clock), wanted(store, "second"), timeout_s=1000)
    assert not waiting.done()
    clock.advance(LONGEST_S + 0.1)
    assert waiting.result(SOON_S) == Decided("second.1")


# -- lost answers ------------------------------------------------------------------------------------------------------


def test_publish_whose_record_write_is_duplicated_is_published_once(store: Store, backend: Watched) -> None:
    """The copy that is refused is the one whose answer comes back."""
    lock = client(store)
    lock.look()
    intent = wanted(store, "second")
    backend.twice = True
    assert lock.commit(intent, RULES) == Decided("second.1")
    assert told(store) == ["first", "second"]
    assert there(store) == {"first", "second"}


def test_refused_commit_is_unknown_when_the_store_fails_before_a_look(
    store: Store, elsewhere: Store, backend: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the write has landed, and the answer that came back is the refusal of another one."""
    clock = ManualClock(record(store).epoch / 1000 + 1)
    lock, intent = client(store, clock), wanted(store, "second")
    lock.look()

    async def fails(*_: Any, **__: Any) -> Any:
        raise Unavailable("out of reach")

    backend.twice = True
    backend.once(RECORD, lambda: monkeypatch.setattr(backend, "get", fails))
    publishing = started(lock, intent, timeout_s=30)
    until(lambda: record(elsewhere).all_pending)
    clock.advance(31)
    with pytest.raises(PublishUnknown, match="may have been published"):
        publishing.result(SOON_S)
    with Lock(elsewhere, settings=SETTINGS).acquire(keeps_log=True):
        assert there(elsewhere) == {"first", "second"}


@pytest.mark.parametrize("loses", ["answer", "request"])
def test_commit_with_lost_answer_is_settled(store: Store, backend: Watched, loses: str) -> None:
    lock, intent = client(store), wanted(store, "second")
    lock.look()
    backend.loses = loses
    publishing = started(lock, intent)
    until(lambda: backend.out_of_reach)
    backend.loses, backend.out_of_reach = "", False
    assert publishing.result(SOON_S) == Decided("second.1")
    assert told(store) == ["first", "second"]
    assert there(store) == {"first", "second"}


@pytest.mark.parametrize("loses", ["answer", "request"])
def test_commit_is_unknown_when_the_store_stays_out_of_reach(
    store: Store, elsewhere: Store, backend: Watched, loses: str
) -> None:
    clock = ManualClock(record(store).epoch / 1000 + 1)
    lock, intent = client(store, clock), wanted(store, "second")
    lock.look()
    backend.loses = loses
    publishing = started(lock, intent, timeout_s=30)
    until(lambda: backend.out_of_reach)
    clock.advance(31)
    with pytest.raises(PublishUnknown, match="may have been published"):
        publishing.result(SOON_S)
    assert there(elsewhere) == {"first"}
    with Lock(elsewhere, settings=SETTINGS).acquire(keeps_log=True):
        assert there(elsewhere) == ({"first", "second"} if loses == "answer" else {"first"})


# -- what is decided and not there yet ---------------------------------------------------------------------------------


def test_earlier_decided_publishes_are_applied_before_own_one(store: Store, backend: Watched) -> None:
    decide(store, wanted(store, "second"), wanted(store, "third"))
    assert there(store) == {"first"}
    backend.asked.clear()
    lock = client(store)
    commit(lock, "fourth")
    free(store)
    assert backend.written == [RECORD, "second.1", "third.2", "fourth.3", RECORD]
    assert there(store) == {"first", "second", "third", "fourth"}


def test_client_that_takes_the_lock_applies_all_pending_publishes_first(store: Store) -> None:
    decide(store, wanted(store, "second"), wanted(store, "third"))
    with Lock(store, settings=SETTINGS).acquire():
        assert there(store) == {"first", "second", "third"}


def test_applied_publish_is_not_written_again(store: Store, backend: Watched) -> None:
    decide(store, wanted(store, "second"))
    store.put_if_absent("second.1", b"-").unwrap()
    lock = client(store)
    lock.look()
    backend.asked.clear()
    commit(lock, "third")
    assert backend.asked.count("head second.1") == 1
    assert backend.asked.count("put second.1") == 0
    assert there(store) == {"first", "second", "third"}


def test_commit_that_cannot_be_applied_is_retried_and_not_reported_applied(store: Store, backend: Watched) -> None:
    lock, intent = client(store), wanted(store, "second")
    lock.look()
    backend.asked.clear()
    backend.down = True
    publishing = started(lock, intent)
    until(lambda: backend.asked.count(f"put {RECORD}") > 3)
    assert not publishing.done()
    assert [pending.path for pending in record(store).all_pending] == ["second.1"]
    backend.down = False
    assert publishing.result(SOON_S) == Decided("second.1")
    assert there(store) == {"first", "second"}


def test_publish_unapplied_at_the_deadline_is_left_to_the_next_client(
    store: Store, elsewhere: Store, backend: Watched
) -> None:
    clock = ManualClock(record(store).epoch / 1000 + 1)
    lock, intent = client(store, clock), wanted(store, "second")
    lock.look()
    backend.down = True
    publishing = started(lock, intent, timeout_s=30)
    until(lambda: record(store).all_pending)
    clock.advance(31)
    with pytest.raises(PublishUnknown, match="was decided; the next writer of the lock applies it"):
        publishing.result(SOON_S)
    commit(client(elsewhere), "third")
    assert told(store) == ["first", "second", "third"]
    assert there(store) == {"first", "second", "third"}


def test_jvm_takeover_before_apply_drops_the_publish_and_is_reported(store: Store, backend: Watched) -> None:
    lock, intent = client(store), wanted(store, "second")
    lock.look()
    backend.down = True
    publishing = started(lock, intent)
    until(lambda: record(store).all_pending)
    until(lambda: publishing.done() or jvm_takes(store))
    assert publishing.result(SOON_S) == Void()
    backend.down = False
    with Lock(store, settings=SETTINGS).acquire():
        assert there(store) == {"first"}


@pytest.mark.parametrize("jvm", [True, False])
def test_commit_stopped_at_sending_asks_the_record_for_its_outcome(
    store: Store, elsewhere: Store, backend: Watched, *, jvm: bool
) -> None:
    clock = ManualClock(record(store).epoch / 1000 + 1)
    lock, intent = client(store, clock), wanted(store, "second")
    lock.look()

    def stopped() -> None:
        clock.advance(HAND_OVER_S + 1)
        if jvm:
            jvm_takes(elsewhere)

    ran = backend.once("second.1", stopped)
    assert lock.commit(intent, RULES) == (Void() if jvm else Decided("second.1"))
    assert ran


def test_publish_with_foreign_bytes_at_its_path_is_not_reported_applied(store: Store) -> None:
    store.put_if_absent("second.1", b"foreign").unwrap()
    lock = client(store)
    with pytest.raises(PublishUnknown, match=r"second\.1"):
        commit(lock, "second")
    lock.acquire().release()  # which sets it aside
    begin(lock, "third")
    assert commit(lock, "fourth") == Decided("fourth.1"), "and the same client goes on"
    assert store.read("second.1").data == b"foreign"


# -- posted, for whoever is on duty ------------------------------------------------------------------------------------

DUTY_MS = 600


@pytest.fixture
def clock(store: Store) -> ManualClock:
    """It stands still, so whoever is on duty by it stays so."""
    return ManualClock(record(store).epoch / 1000 + 1)


def on_duty(store: Store, *intents: Intent) -> LockRecord:
    """Another is, and has decided these."""
    return decide(store, *intents, combiner_ms=DUTY_MS)


def test_posted_intent_is_decided_and_applied_before_its_writer_is_notified(store: Store, clock: ManualClock) -> None:
    on_duty(store)
    mine = wanted(store, "mine")
    publishing = started(client(store, clock), mine)
    until(lambda: posted(store) == {"mine."})
    assert there(store) == {"first"}
    decide(store, mine, wanted(store, "another"), combiner_ms=DUTY_MS)
    store.put_if_absent("another.1", b"-").unwrap()
    store.put_if_absent("mine.2", b"-").unwrap()
    assert not publishing.done(), "nobody has said that it is there"
    put_there(store, combiner_ms=DUTY_MS)
    came = publishing.result(SOON_S)
    assert isinstance(came, Decided)
    assert came.path == "mine.2"
    assert store.read(came.posted).data == b"-", "where its intent is, so that it may be removed"


def as_posted(store: Store, intent: Intent) -> Intent:
    log = LockRecord.decode(store.read(HUDI_LOCK_PATH).data).log
    assert log is not None
    return Intents(store, HUDI_LOCK_PATH.rpartition("/")[0]).named(intent, log, RULES.sample)


@pytest.mark.parametrize("writes_per_s", [None, 1.0], ids=["", "where the record is seldom written"])
def test_record_tells_whether_publishes_of_the_batch_leader_are_applied(
    store: Store, backend: Watched, clock: ManualClock, writes_per_s: float | None
) -> None:
    backend.capabilities = replace(backend.capabilities, writes_per_s=writes_per_s)
    on_duty(store)
    mine = wanted(store, "mine")
    publishing = started(client(store, clock), mine)
    until(lambda: posted(store) == {"mine."})
    decide(store, mine, combiner_ms=DUTY_MS)
    backend.got.clear()
    until(lambda: backend.got.count(RECORD) > 2 or "mine.1" in backend.got)
    put_there(store, combiner_ms=DUTY_MS)
    assert publishing.result(SOON_S) == Decided("mine.1", f".hoodie/.locks/intents/{as_posted(store, mine).name}")
    assert ("mine.1" in backend.got) == (writes_per_s is not None)


def test_intent_in_conflict_with_a_decision_of_the_batch_leader_is_refused(store: Store, clock: ManualClock) -> None:
    on_duty(store)
    mine = wanted(store, "mine", b"another")
    publishing = started(client(store, clock), mine)
    until(lambda: posted(store) == {"mine."})
    decide(store, mine, wanted(store, "another"), combiner_ms=DUTY_MS)
    put_there(store, combiner_ms=DUTY_MS)
    with pytest.raises(Met):
        publishing.result(SOON_S)
    assert told(store) == ["first", "another"]


@pytest.mark.parametrize("ends", ["time is over", "interrupted"])
def test_withdrawn_intent_is_never_decided(store: Store, clock: ManualClock, ends: str) -> None:
    on_duty(store)
    mine, lock = wanted(store, "mine"), client(store, clock)
    if ends == "interrupted":
        main = threading.get_ident()

        def interrupt() -> None:
            until(lambda: posted(store))
            listed.append(store.read(HUDI_LOCK_PATH))
            signal.pthread_kill(main, signal.SIGINT)

        listed: list[Any] = []
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            lock.commit(mine, RULES)
        (seen,) = listed
    else:
        publishing = started(lock, mine, timeout_s=30)
        until(lambda: posted(store))
        seen = store.read(HUDI_LOCK_PATH)
        clock.advance(31)
        with pytest.raises(NotAcquired):
            publishing.result(SOON_S)
    until(lambda: not posted(store))
    until(lambda: store.read(HUDI_LOCK_PATH).version != seen.version)
    then, (entry,) = LockRecord.decode(seen.data), [RULES.pending(mine, Log(mine.log), 0)]
    assert entry is not None
    late = commit_rules.combine(DEAD, then, [entry], Moment(0, 0.0, "late"), last_applied=None)
    assert not isinstance(store.put_if_match(HUDI_LOCK_PATH, late.encode(), seen.version), Won)
    Intents(store, HUDI_LOCK_PATH.rpartition("/")[0]).post(as_posted(store, mine))  # a late copy
    assert not posted(store)
    assert told(store) == ["first"]


def test_next_client_leads_the_batch_when_the_leader_dies(store: Store, clock: ManualClock) -> None:
    decide(store, combiner_ms=DUTY_MS)
    publishing = [started(client(store, clock), wanted(store, f"state{number}")) for number in range(3)]
    until(lambda: len(posted(store)) == 3)
    assert there(store) == {"first"}
    clock.advance(1)
    assert {came.result(SOON_S).path[:6] for came in publishing} == {"state0", "state1", "state2"}
    assert there(store) == {"first", "state0", "state1", "state2"}


def test_slower_of_two_colliding_writers_leads_the_batch(store: Store, elsewhere: Store, backend: Watched) -> None:
    lock, mine, posts = client(store), wanted(store, "mine"), wanted(store, "posts")
    lock.look()
    Intents(elsewhere, HUDI_LOCK_PATH.rpartition("/")[0]).post(posts)
    duties: list[int] = []
    ran = backend.once(RECORD, lambda: commit(client(elsewhere), "faster"))
    once = backend.before

    def before(name: str, data: bytes) -> None:
        once(name, data)
        if name == RECORD:
            duties.append(LockRecord.decode(data).combiner_ms)

    backend.before = before
    assert lock.commit(mine, RULES) == Decided("mine.2")
    until(lambda: "posts" in there(store))
    assert ran
    assert told(store) == ["first", "faster", "mine", "posts"]
    assert (duties[0], duties[1] > 0) == (0, True), "it is announced"
    until(lambda: record(store).combiner_ms == 0, "and it ends")
    assert record(store).expired


def test_intent_whose_log_has_ended_is_void(store: Store, clock: ManualClock) -> None:
    on_duty(store)
    publishing = started(client(store, clock), wanted(store, "mine"))
    until(lambda: posted(store))
    jvm_takes(store)
    assert publishing.result(SOON_S) == Void()
    with Lock(store, settings=SETTINGS).acquire(keeps_log=True):
        assert there(store) == {"first"}


def test_intent_that_others_cannot_judge_is_judged_by_its_writer(store: Store, clock: ManualClock) -> None:
    on_duty(store)
    publishing = started(client(store, clock), wanted(store, "mine", ANEW))
    until(lambda: posted(store))
    decide(store, wanted(store, "another"), combiner_ms=DUTY_MS)
    assert publishing.result(SOON_S) == Void()


def test_batch_leader_gives_up_when_the_path_of_a_publish_is_taken(
    store: Store, elsewhere: Store, backend: Watched
) -> None:
    lock, mine = client(store), wanted(store, "mine")
    lock.look()
    store.put_if_absent("mine.2", b"foreign").unwrap()
    backend.once(RECORD, lambda: commit(client(elsewhere), "faster"))
    with pytest.raises(PublishUnknown):
        lock.commit(mine, RULES)
    until(lambda: lock._client.committer._thread is None)
    with Lock(store, settings=SETTINGS).acquire(timeout=SOON_S):
        assert store.read("mine.2").data == b"foreign"


# -- many --------------------------------------------------------------------------------------------------------------


def test_threads_of_one_process_are_decided_together(store: Store, backend: Watched) -> None:
    lock = client(store)
    intents = [wanted(store, f"state{number}") for number in range(20)]
    lock.look()
    backend.asked.clear()
    publishing = [started(lock, intent) for intent in intents]
    paths = [one.result(SOON_S).path for one in publishing]
    assert sorted(int(path.partition(".")[2]) for path in paths) == list(range(1, 21))
    assert there(store) == {"first", *(f"state{number}" for number in range(20))}
    assert sorted(told(store)[1:]) == sorted(f"state{number}" for number in range(20))
    assert not free(store).released_pending, "nobody waits any more"


def test_concurrently_publishing_processes_all_get_true_outcomes(store: Store, tmp_path: Path) -> None:
    """Each as with a process of its own: another store object, another client."""
    locks = [client(Store(Noting(blocking=bool(number % 2)), str(tmp_path))) for number in range(6)]
    paths: list[str] = []

    def work(number: int, lock: Lock) -> None:
        for turn in range(5):
            came = commit(lock, f"w{number}t{turn}")
            assert isinstance(came, Decided), came
            assert (tmp_path / came.path).exists()
            paths.append(came.path)

    threads = [threading.Thread(target=work, args=one) for one in enumerate(locks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert sorted(int(path.partition(".")[2]) for path in paths) == list(range(1, 31))
    log = record(store).log
    assert log is not None
    assert (log.next, told(store)[-1] in {path.partition(".")[0] for path in paths}) == (31, True)
    assert not free(store).all_pending


def test_one_of_several_conflicting_intents_is_decided(store: Store, tmp_path: Path) -> None:
    intents = [wanted(store, f"w{number}", b"w0 w1 w2 w3 w4 w5") for number in range(6)]
    publishing = [started(client(Store(Noting(), str(tmp_path))), intent) for intent in intents]
    failed = [one.exception(SOON_S) for one in publishing]
    assert sum(error is None for error in failed) == 1
    assert all(isinstance(error, Met) for error in failed if error is not None)
    assert len(told(store)) == 2


# -- another process ---------------------------------------------------------------------------------------------------


def test_copy_of_the_lock_is_another_client(store: Store, tmp_path: Path) -> None:
    lock = Lock(Store.from_url(str(tmp_path)), settings=PATIENT)
    commit(lock, "second")
    again = pickle.loads(pickle.dumps(lock))
    assert again.owner != lock.owner
    commit(again, "third")
    commit(lock, "fourth")
    assert told(store) == ["first", "second", "third", "fourth"]


FORKED = """
import os, signal, sys
from deciding import commit
from fsspec_cas import Store
from lockprovider import Lock, LockSettings
from noting import Noting

lock = Lock(Store(Noting(blocking=sys.argv[2] == "True"), sys.argv[1]), settings=LockSettings(timeout=240))
commit(lock, "second")
if os.fork() == 0:
    signal.alarm(120)
    commit(lock, "third")
    os._exit(0)
print(os.wait()[1])
commit(lock, "fourth")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_is_another_client(store: Store, backend: Watched, tmp_path: Path) -> None:
    program = [sys.executable, "-c", FORKED, str(tmp_path), str(backend.blocking)]
    tests = str(Path(__file__).parents[2])
    env = os.environ | {"PYTHONPATH": tests}
    done = subprocess.run(program, cwd=tests, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert told(store) == ["first", "second", "third", "fourth"]
    assert record(store).expired, "what was decided last was freed at the interpreter's exit"


def test_refusal_by_an_unapplied_publish_is_reported_once_it_is_applied(store: Store, backend: Watched) -> None:
    """It may never come to be: a JVM writer may have the lock first."""
    lock, mine = client(store), wanted(store, "mine", b"another")
    decide(store, wanted(store, "another"))
    lock.look()
    backend.down = True
    backend.asked.clear()
    refused = started(lock, mine)
    until(lambda: backend.asked.count(f"put {RECORD}") > 1)
    assert not refused.done()
    backend.down = False
    with pytest.raises(Met):
        refused.result(SOON_S)
    assert there(store) == {"first", "another"}


def test_leftovers_of_publishes_are_removed_four_at_a_time(
    store: Store, backend: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "_IDLE_S", PATIENCE_S)
    lock, left = client(store), [f"left{number}" for number in range(4)]
    for name in left:
        store.put_if_absent(name, b"").unwrap()
    commit(lock, "second")
    for name in left[:3]:
        lock.discard(name)
    assert there(store) & {*left} == ({left[3]} if backend.blocking else {*left})
    lock.discard(left[3])
    until(lambda: not there(store) & {*left})


def test_leftovers_of_publishes_are_removed_when_idle(store: Store) -> None:
    lock = client(store)
    store.put_if_absent("left", b"").unwrap()
    commit(lock, "second")
    with pytest.raises(InvalidInput):
        lock.discard("left", "../left")
    assert "left" in there(store)
    lock.discard("left", "never there")
    until(lambda: "left" not in there(store))


class Paced(Watched):
    """Takes ten writes a second of one object, as its documents say, and asks for patience beyond that."""

    capabilities = replace(Watched.capabilities, writes_per_s=10.0)

    def __init__(self) -> None:
        super().__init__(blocking=False)
        self.written_s = 0.0
        self.refused = 0

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        if Path(write.path).name == RECORD:
            if time.monotonic() < self.written_s + 0.1:
                self.refused += 1
                return NotApplied("429 too many writes of one object", 0.1)
            answer = await super().put(write, *args, **kwargs)
            self.written_s = time.monotonic()
            return answer
        return await super().put(write, *args, **kwargs)


def test_record_is_written_at_the_pace_of_a_throttling_store(tmp_path: Path) -> None:
    backend = Paced()
    store = Store(backend, str(tmp_path))
    begin(Lock(store, settings=SETTINGS))
    backend.refused = 0  # another client's writes
    lock, number = client(store), 0
    while not backend.refused:
        commit(lock, f"state{number}")
        number += 1
    commit(lock, "last but some")  # what was refused is on its way
    backend.refused = 0
    for n in range(4):
        commit(lock, f"another{n}")
    free(store)
    assert backend.refused == 0
