"""What a user meets where an object is damaged: one typed error that names it, and nothing is rewritten."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

import lockprovider
from damage.formats import deflated_zeros
from fsspec_cas import InvalidInput, Store
from lockprovider import HUDI_LOCK_PATH, Lock, MalformedRecord
from lockprovider.election import Election
from lockprovider.queue import Queue
from lockprovider.state import MalformedObject, State
from lockprovider.wal import Position, Wal

DAMAGED = {
    "empty": b"",
    "another kind": b"[1, 2]",
    "no UTF-8": b"\xff\xfe{}",
    "deep": b'{"format": 1, "lineage": ' + b"[" * 100_000,
    "number": b'{"format": 1, "epoch": ' + b"9" * 5000 + b"}",
    "infinite": b'{"format": 1, "epoch": Infinity}',
    "newer": b'{"format": 99, "id": "x", "lineage": "x", "epoch": 1}',
    "bomb": deflated_zeros(64 << 20),
}


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def spoil(store: Store, path: str, data: bytes) -> None:
    there = store.read_or_none(path)
    (store.put_if_absent(path, data) if there is None else store.put_if_match(path, data, there.version)).unwrap()


def refuses(
    store: Store, path: str, call: Callable[[], Any], error: type[Exception] = MalformedObject, says: str = ""
) -> None:
    """The call raises the error, which names the object; the object stays as it is."""
    before = store.read(path)
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert path in str(raised.value)
    assert says in str(raised.value)
    now = store.read(path)
    assert (now.data, now.version) == (before.data, before.version)


@pytest.fixture(params=DAMAGED)
def data(request) -> bytes:
    return DAMAGED[request.param]


def test_damaged_state_is_left_as_it_is(url, data) -> None:
    state: State[dict] = State.open(f"{url}/orders.json", default=dict)
    spoil(Store.from_url(url), state.path, data)
    calls = (
        state.read,
        lambda: state.update(lambda old: {**old, "a": 1}),
        lambda: state.put({}),
        lambda: state.edit().__enter__(),
        state.history,
        lambda: state.at(1),
        lambda: state.rollback(1),
        state.who,
    )
    for call in calls:
        refuses(Store.from_url(url), state.path, call)


def test_damaged_history_is_left_as_it_is(url, data) -> None:
    state: State[dict] = State.open(f"{url}/orders.json", default=dict)
    state.put({"a": 1})
    state.put({"a": 2})
    path = next(entry.path for entry in Store.from_url(url).list("orders.json.d/history"))
    spoil(Store.from_url(url), path, data)
    for call in (lambda: state.at(1), state.history, lambda: state.rollback(1), lambda: state.diff(1, 2)):
        refuses(Store.from_url(url), path, call)
    assert state.put({"a": 3}).serial == 3


def test_damaged_queue_is_left_as_it_is(url, data) -> None:
    made = Queue.create(f"{url}/jobs.json")
    made.put("one")
    spoil(Store.from_url(url), "jobs.json", data)
    queue = Queue.open(f"{url}/jobs.json")
    calls = (
        lambda: queue.put("two"),
        lambda: queue.claim(timeout=0),
        queue.stat,
        lambda: queue.peek(1),
        lambda: queue.purge(expected=1),
        lambda: Queue.create(f"{url}/jobs.json"),
    )
    for call in calls:
        refuses(Store.from_url(url), "jobs.json", call)


@pytest.mark.parametrize("name", ["log.json", "slots/00000000"])
def test_damaged_log_is_left_as_it_is(url, name, data) -> None:
    made = Wal.create(f"{url}/orders")
    made.append(b"one")
    path = f"orders/{name}"
    spoil(Store.from_url(url), path, data)
    log = Wal.open(f"{url}/orders")
    for call in (lambda: log.append(b"two"), lambda: [*log.read()], log.end, log.info):
        refuses(Store.from_url(url), path, call)


def test_damaged_reader_position_is_left_as_it_is(url, data) -> None:
    log = Wal.create(f"{url}/orders")
    log.append(b"one")
    reader = log.reader("billing")
    path = "orders/readers/billing"
    spoil(Store.from_url(url), path, data)
    for call in (lambda: reader.commit(log.end()), lambda: log.reader("billing"), log.info, log.trim):
        refuses(Store.from_url(url), path, call)
    assert [record for batch in log.read() for record in batch.records] == [b"one"]


def test_damaged_election_is_left_as_it_is(url, data) -> None:
    election = Election.open(f"{url}/leader.json")
    spoil(Store.from_url(url), "leader.json", data)
    refuses(Store.from_url(url), "leader.json", lambda: election.lead(timeout=1))
    refuses(Store.from_url(url), "leader.json", election.leader)


def test_damaged_lock_record_is_left_as_it_is(url, data) -> None:
    lock = Lock(Store.from_url(url), HUDI_LOCK_PATH)
    store = Store.from_url(url)
    spoil(store, HUDI_LOCK_PATH, data)
    for call in (lambda: lock.acquire(timeout=1), lock.status):
        refuses(store, HUDI_LOCK_PATH, call, MalformedRecord)


def test_object_of_another_recipe_is_left_as_it_is(url) -> None:
    store = Store.from_url(url)
    Queue.create(f"{url}/queue").put("a")
    State.open(f"{url}/state").put({})
    Election.open(f"{url}/election", name="a").lead().resign()
    Wal.create(f"{url}/log").append(b"a")
    Wal.open(f"{url}/log").reader("r")
    calls: dict[str, Callable[[str], object]] = {
        "queue": lambda path: Queue.open(f"{url}/{path}").put("b"),
        "state": lambda path: State.open(f"{url}/{path}").put({}),
        "election": lambda path: Election.open(f"{url}/{path}", name="a").lead(timeout=0),
        "log/log.json": lambda path: Wal.open(f"{url}/{path.removesuffix('/log.json')}").append(b"b"),
        "log/readers/r": lambda path: Wal.open(f"{url}/log").reader(path.rpartition("/")[2]),
    }
    contents = {path: store.read(path).data for path in calls}
    for own, call in calls.items():
        path = {"log/log.json": "other/log.json", "log/readers/r": "log/readers/other"}.get(own, f"other-{own}")
        for other, content in {**contents, "none": b"{}", "format": b'{"format": 1}'}.items():
            if other != own:
                spoil(store, path, content)
                refuses(store, path, lambda call=call, path=path: call(path), says="it has no '")


@pytest.mark.parametrize("levels", [65, 900, 5_000])
def test_value_nested_too_deep_is_refused_before_it_is_sent(url, levels) -> None:
    """900 levels were taken, and could not be read by those whose stack was fuller."""
    deep: Any = 1
    for _ in range(levels):
        deep = [deep]
    state: State[Any] = State.open(f"{url}/orders.json")
    queue = Queue.create(f"{url}/jobs.json")
    for call in (lambda: state.put(deep), lambda: queue.put(deep), lambda: Election.open(f"{url}/e.json", value=deep)):
        with pytest.raises(InvalidInput, match="64 levels"):
            call()
    assert (state.read().serial, queue.stat().ready) == (0, 0)
    assert state.put(_nested(63)).value == _nested(63)
    queue.put(_nested(64))
    job = queue.claim(timeout=0)
    assert job is not None
    assert job.body == _nested(64)


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_numbers_that_no_reader_accepts_are_refused_before_they_are_sent(url) -> None:
    """They were stored, and nobody could read the object again."""
    state: State[dict] = State.open(f"{url}/orders.json", default=dict)
    queue = Queue.create(f"{url}/jobs.json")
    calls = (
        lambda: state.put({}, expected=1 << 60),
        lambda: queue.put("x", priority=1 << 60),
        lambda: queue.put("x", delay_s=1e15),
        lambda: queue.claim(timeout=0, visible_s=1e15),
        lambda: queue.put("x", producer="p", seq=1 << 60),
        lambda: Queue.create(f"{url}/more.json", max_bytes=1 << 40),
        lambda: Wal.create(f"{url}/log", slots=1 << 60),
    )
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises((InvalidInput, TypeError)):
        state.put({}, fence=1 << 60)
    assert (state.read().serial, queue.stat().ready) == (0, 0)


@pytest.mark.parametrize("position", [Position(1, 2), Position(5, 1), Position(0, 7), Position(99, 99)])
def test_position_past_the_end_of_a_log_is_refused(url, position) -> None:
    """`follow` waited in silence, and a later slot of that number was read without its first records."""
    log = Wal.create(f"{url}/orders")
    log.append(b"one")
    fresh = Wal.open(f"{url}/orders")
    for one in (log, fresh):
        for call in (lambda one=one: [*one.read(position)], lambda one=one: next(one.follow(position, timeout=0))):
            with pytest.raises(InvalidInput, match="past the end"):
                call()
    if position.slot:  # a slot that was written is not read again to see how long it is
        with pytest.raises(InvalidInput, match="past the end"):
            log.reader("billing").commit(position)
    assert [record for batch in fresh.read() for record in batch.records] == [b"one"]
    assert [*fresh.read(log.end())] == []


def test_damaged_objects_have_public_errors() -> None:
    assert issubclass(lockprovider.MalformedRecord, lockprovider.LockError)
