"""A publish under a lock that nobody holds: over a real store, what it costs, and what others find."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from noting import RECORD, SETTINGS, Noting, publish, record, rewritten
from patience import until

from fsspec_cas import Machine, Store, World
from fsspec_cas.testing import ManualClock
from lockprovider import HUDI_LOCK_PATH, FreeLock, Lease, LeaseLost, Lock, LockSettings, NotAcquired, PublishUnknown
from lockprovider.acquire.process_queue import ProcessQueue

MACHINE = Machine()
SOON_S = 60
PATIENT = LockSettings(timeout=SOON_S, poll=0.05)
JVM_FIELDS = ("owner", "validUntil", "expired")


@pytest.fixture(params=[True, False], ids=["", "as behind a network"])
def backend(request: pytest.FixtureRequest) -> Noting:
    return Noting(blocking=request.param)


@pytest.fixture
def store(backend: Noting, tmp_path: Path) -> Store:
    """With a lock in it that has a log."""
    made = Store(backend, str(tmp_path))
    lock = Lock(made, settings=SETTINGS)
    publish(lock, lock.wait_for_turn(), "first")
    return made


def rewrite(store: Store, world: World = MACHINE, **fields: object) -> None:
    rewritten(store, **fields)
    Lock(store, settings=SETTINGS, world=world).look()  # this process knew another


def name_of(store: Store) -> str:
    """As this process stands in the line of those who use the store."""
    return ProcessQueue.of(store, HUDI_LOCK_PATH, MACHINE).name


def found_free(store: Store) -> tuple[Lock, FreeLock]:
    lock = Lock(store, settings=SETTINGS)
    turn = lock.wait_for_turn()
    assert isinstance(turn, FreeLock)
    return lock, turn


def waited_for(store: Store, world: World = MACHINE) -> tuple[Lock, Lease | FreeLock]:
    """As found, with another process in the line behind."""
    lock = Lock(store, settings=SETTINGS, world=world)
    rewrite(store, world, line=[lock._client.queue.name, "another"])
    return lock, lock.wait_for_turn()


def there(store: Store) -> set[str]:
    return {entry.path for entry in store.list("") if not entry.path.startswith(".")}


def test_it_is_one_write_of_the_record_and_one_to_free_it_for_those_who_know_nothing_of_that(
    store: Store, backend: Noting
) -> None:
    lock, turn = found_free(store)
    before = record(store)
    backend.asked.clear()
    publish(lock, turn, "second")
    until(lambda: record(store).expired)
    assert backend.asked == [f"put {RECORD}", "put second", f"put {RECORD}"]
    after = record(store)
    assert after.expired
    assert not after.unapplied
    assert after.epoch > before.epoch
    assert after.log is not None
    assert [entry.path for entry in after.log.since(0) or ()] == ["first", "second"]


def test_while_others_wait_it_is_theirs_at_once(store: Store, backend: Noting) -> None:
    lock, turn = waited_for(store)
    backend.asked.clear()
    publish(lock, turn, "second")
    assert backend.asked == [f"put {RECORD}", "put second"]
    assert record(store).handed
    assert there(store) == {"first", "second"}


def test_whoever_was_slower_has_written_nothing(store: Store) -> None:
    slow, turn = found_free(store)
    publish(*found_free(store), "second")
    with pytest.raises(LeaseLost, match="somebody was faster"):
        publish(slow, turn, "third")
    assert there(store) == {"first", "second"}
    publish(*found_free(store), "third")
    assert there(store) == {"first", "second", "third"}


def test_a_publish_that_something_on_the_way_has_sent_twice_is_published(store: Store, backend: Noting) -> None:
    """The copy that is refused is the one whose answer comes back."""
    lock, turn = found_free(store)
    backend.twice = True
    publish(lock, turn, "second")
    assert there(store) == {"first", "second"}


def test_whoever_holds_the_lock_is_waited_for_and_one_that_takes_it_is_not_overtaken(store: Store) -> None:
    slow, turn = found_free(store)
    with Lock(store, settings=SETTINGS).acquire():
        with pytest.raises(LeaseLost):
            publish(slow, turn, "second")
        with pytest.raises(Exception, match="is held by"):
            slow.wait_for_turn(0)
    assert there(store) == {"first"}


@pytest.mark.parametrize("loses", ["answer", "request"])
def test_an_answer_that_is_lost_is_found_out(store: Store, backend: Noting, loses: str) -> None:
    lock, turn = found_free(store)
    backend.loses = loses
    with pytest.raises(PublishUnknown):
        publish(lock, turn, "second")
    backend.loses, backend.out_of_reach = "", False
    assert there(store) == {"first"}
    with lock.acquire(keeps_log=True) as lease:  # whatever was on its way comes to nothing now
        if loses == "request":
            publish(lock, lease, "second")
    assert there(store) == {"first", "second"}
    log = record(store).log
    assert log is not None
    assert [entry.path for entry in log.since(0) or ()] == ["first", "second"]


def test_what_was_decided_before_is_there_before_the_own(store: Store, backend: Noting) -> None:
    for name in ("second", "third"):
        lock, turn = found_free(store)
        backend.down = True
        with pytest.raises(PublishUnknown, match="the next holder puts it there"):
            publish(lock, turn, name)
        backend.down = False
    assert there(store) == {"first"}
    assert [pending.path for pending in record(store).unapplied] == ["second", "third"]
    lock, turn = found_free(store)
    backend.asked.clear()
    publish(lock, turn, "fourth")
    until(lambda: record(store).expired)
    assert backend.written == [RECORD, "second", "third", "fourth", RECORD]
    assert there(store) == {"first", "second", "third", "fourth"}
    assert not record(store).unapplied


def test_one_that_takes_the_lock_puts_all_of_them_there_first(store: Store, backend: Noting) -> None:
    for name in ("second", "third"):
        lock, turn = found_free(store)
        backend.down = True
        with pytest.raises(PublishUnknown):
            publish(lock, turn, name)
        backend.down = False
    with Lock(store, settings=SETTINGS).acquire():
        assert there(store) == {"first", "second", "third"}


def test_what_is_there_is_not_written_again(store: Store, backend: Noting) -> None:
    publish(*waited_for(store), "second")
    assert [pending.path for pending in record(store).unapplied] == ["second"]
    lock, turn = waited_for(store)
    backend.asked.clear()
    publish(lock, turn, "third")
    assert backend.asked.count("put second") == 0
    assert backend.asked.count("head second") == 1
    assert there(store) == {"first", "second", "third"}


def test_one_in_eight_takes_the_lock_and_gives_it_back_for_a_jvm_writer_s_turn(store: Store) -> None:
    turns, clock = [], ManualClock(time.time())  # a turn that takes long is given up for those who wait
    for number in range(15):
        lock, turn = waited_for(store, clock)
        turns.append(type(turn))
        publish(lock, turn, f"state{number}")
        assert record(store).expired == isinstance(turn, Lease)
    assert turns.count(Lease) == 1
    assert len(there(store)) == 16


@pytest.mark.parametrize("what", ["no log", "held until it lapsed", "something staged is pending"])
def test_the_lock_is_taken_where_a_publish_by_the_way_would_not_do(store: Store, what: str) -> None:
    match what:
        case "no log":
            Lock(store, settings=SETTINGS).acquire().release()
        case "held until it lapsed":
            rewrite(store, expired=False, handed=False, validUntil=1)
        case _:
            pending = Lock(store).stage("second", b"second", sole=True)
            told = {"path": "second", "staged": pending.staged, "digest": pending.digest, "sole": True}
            rewrite(store, pending=told)
    with Lock(store, settings=SETTINGS).wait_for_turn() as turn:
        assert isinstance(turn, Lease)


def test_a_turn_that_is_not_used_is_the_next_one_s(store: Store) -> None:
    _, turn = waited_for(store)
    turn.release()
    assert record(store).line[0] == "another"
    assert there(store) == {"first"}


def test_after_its_release_nothing_is_published_and_the_turn_of_another_is_not_ended(
    store: Store, backend: Noting
) -> None:
    lock, turn = found_free(store)
    turn.release()
    later = lock.wait_for_turn()
    backend.asked.clear()
    with pytest.raises(LeaseLost, match="it was released"):
        publish(lock, turn, "second")  # and once more its release
    assert backend.asked == []
    with pytest.raises(NotAcquired, match="another thread"):
        lock.wait_for_turn(0)
    publish(lock, later, "third")
    assert there(store) == {"first", "third"}


@pytest.mark.parametrize("error", [None, ValueError("what was to be done")])
def test_who_leaves_without_a_publish_lets_the_next_in_the_line_have_the_turn(
    store: Store, tmp_path: Path, error: Exception | None
) -> None:
    lock, elsewhere = Lock(store, settings=SETTINGS), Store(Noting(), str(tmp_path))  # as of another process
    other = Lock(elsewhere, settings=SETTINGS)
    rewrite(store, line=[name_of(store), name_of(elsewhere)])
    with contextlib.suppress(ValueError), lock.wait_for_turn() as turn:
        assert isinstance(turn, FreeLock)
        if error is not None:
            raise error
    assert record(store).line[0] == name_of(elsewhere)
    publish(other, other.wait_for_turn(), "second")
    lock.wait_for_turn(0).release()
    assert there(store) == {"first", "second"}


FORKED = """
import os, signal, sys
from pathlib import Path
from fsspec_cas import Machine, Store
from lockprovider import HUDI_LOCK_PATH, FreeLock, LeaseLost
from noting import Noting
from test_turn import waited_for

lock, turn = waited_for(Store(Noting(blocking=sys.argv[2] == "True"), sys.argv[1]))
assert isinstance(turn, FreeLock)
pending = lock.enclose("second", b"second", sole=True)
path = Path(sys.argv[1], HUDI_LOCK_PATH)
before = path.read_bytes()
if os.fork() == 0:
    signal.alarm(60)
    try:
        turn.publish_last(pending, b"second")
    except LeaseLost as lost:
        print(lost, flush=True)
    turn.release()
    os._exit(0)
print(os.wait()[1], path.read_bytes() == before)
turn.publish_last(pending, b"second")
turn.release()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_no_turn_and_does_not_end_its_parents(store: Store, backend: Noting, tmp_path: Path) -> None:
    program = [sys.executable, "-c", FORKED, str(tmp_path), str(backend.blocking)]
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": str(here.parents[1])}
    done = subprocess.run(program, cwd=here, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    refusal, parent = done.stdout.splitlines()
    assert "forked" in refusal
    assert parent == "0 True", "it ended well, and the record is what it was"
    assert record(store).line == ("another",)
    assert there(store) == {"first", "second"}


def test_a_thread_that_dies_in_its_turn_leaves_it_to_the_others_of_its_lock(store: Store) -> None:
    lock, turns, go = Lock(store, settings=PATIENT), [], threading.Event()

    def dies() -> None:
        turns.append(lock.wait_for_turn())
        assert go.wait(SOON_S)

    for waits_before in (False, True):
        go.clear()
        dying = threading.Thread(target=dies)
        dying.start()
        until(lambda count=1 + waits_before: len(turns) == count)
        if waits_before:
            threading.Thread(target=lambda: (until(lambda: lock._client.turn.wanted), go.set())).start()
        else:
            go.set()
            dying.join()
        publish(lock, lock.wait_for_turn(SOON_S), f"state{waits_before}")
        dying.join()
    with pytest.raises(LeaseLost, match="it was released"):
        publish(lock, turns[0], "late")
    assert there(store) == {"first", "stateFalse", "stateTrue"}


def test_threads_of_one_process_publish_one_after_the_other(store: Store) -> None:
    lock = Lock(store, settings=LockSettings(timeout=30, poll=0.05))

    def work(number: int) -> None:
        while True:
            try:
                return publish(lock, lock.wait_for_turn(), f"state{number}")
            except LeaseLost:
                continue

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert there(store) == {"first", *(f"state{number}" for number in range(20))}
    log = record(store).log
    assert log is not None
    assert log.next == 21
    until(lambda: not record(store).handed, "nobody waits any more")


def test_who_waits_is_not_forgotten_for_a_jvm_writer_that_knows_nothing_of_it(store: Store) -> None:
    lock, turn = waited_for(store)
    turn.release()
    content = store.read(HUDI_LOCK_PATH)
    jvm = {name: value for name, value in json.loads(content.data).items() if name in JVM_FIELDS}
    store.put_if_match(HUDI_LOCK_PATH, json.dumps(jvm).encode(), content.version).unwrap()
    with lock.wait_for_turn() as lease:
        assert isinstance(lease, Lease)
        assert lease.record.line == ("another",)
        assert lease.record.guest_ms
