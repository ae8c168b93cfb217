"""Messages that wait in segments: nothing is lost or doubled, the order is as without, and the object stays small."""

from __future__ import annotations

import asyncio
import json
import uuid
from itertools import product

import budgets
import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipes.queues import PATH, again, drained, made

from fsspec_cas import Store, Unavailable
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.testing import DeliverLate, DeliverTwice, Faulty, LoseAnswer, LoseRequest, ManualClock, Pass, Refuse
from lockprovider.queue import MalformedObject, Queue, QueueFull, QueueSettings
from lockprovider.recipes.queue import contents as spill
from lockprovider.recipes.queue.contents import Contents, SegmentWanted, decode_queue, decode_segment, with_messages
from lockprovider.recipes.queue.operations import End, New, NothingReady, Put, Take, carry_out_all

FAULTS = (Pass(), LoseAnswer(), LoseRequest(), DeliverTwice(), DeliverLate(1), Refuse())


@pytest.fixture
def store() -> Store:
    return Store(MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True)), f"/{uuid.uuid4().hex}")


@pytest.fixture
def small(monkeypatch) -> None:
    """Four messages stay in the object, and two are in each segment."""
    monkeypatch.setattr(spill, "IN_OBJECT", 4)
    monkeypatch.setattr(spill, "SEGMENT", 2)


def segments(store: Store) -> list[str]:
    return [one.path for one in store.list(f"{PATH}.d/")]


def test_many_messages_are_stored_in_segments_and_the_object_stays_small(store) -> None:
    queue = made(store)
    queue.put_many(range(4_000))
    stat = queue.stat()
    assert (stat.ready, stat.put, stat.segments) == (4_000, 4_000, len(segments(store)))
    assert stat.segments >= 2
    assert len(store.read(PATH).data) < 100_000
    assert [one.body for one in queue.peek(2500)] == [*range(2500)]
    assert queue.work(lambda job: None, threads=8, until_empty=True).acked == 4_000
    assert segments(store) == []
    assert queue.stat().bytes == 0


def test_segment_takes_one_put_when_written_and_one_get_and_delete_later(store, small) -> None:
    made(store)
    queue, faulty = again(store)
    for n in range(4):
        queue.put(n)
    faulty.calls.clear()
    queue.put(4)
    assert faulty.calls == budgets.QUEUE_PUT_WITH_SEGMENT
    assert queue.stat().segments == 1
    for _ in range(3):
        queue.claim()
    faulty.calls.clear()
    assert queue.claim().body == 3
    assert faulty.calls == budgets.QUEUE_CLAIM_WITH_SEGMENT
    assert queue.stat().segments == 0


@pytest.mark.parametrize(
    "faults", [*product(FAULTS, repeat=3)], ids=lambda faults: "-".join(type(one).__name__ for one in faults)
)
def test_each_triple_of_faults_of_puts_with_segments_loses_nothing(store, small, faults) -> None:
    made(store).put_many(range(5), producer="p")
    queue, faulty = again(store, {"put": [*faults]})
    queue.put(5, producer="p", seq=6)
    queue.put(6, producer="p", seq=7)
    asyncio.run(faulty.deliver_late())
    assert drained(Queue(store, PATH)) == [*range(7)]
    Queue(store, PATH).clean()
    assert segments(store) == []


def test_store_that_refuses_the_segment_has_put_nothing(store, small) -> None:
    made(store).put_many(range(4))
    queue, faulty = again(store, {"put": [Refuse()] * 500})
    queue._writer.segments._timeout_s = 2
    with pytest.raises(Unavailable):
        queue.put(4)
    queue, faulty = again(store, {"put": [LoseRequest()] * 500})
    queue._writer.segments._timeout_s = 2
    with pytest.raises(Unavailable, match="did not answer whether"):
        queue.put(4)
    assert faulty.fired
    assert Queue(store, PATH).stat().put == 4


def test_client_with_stale_queue_reads_again_when_its_segment_is_gone(store, small) -> None:
    queue = made(store)
    queue.put_many(range(8))
    late = Queue(store, PATH)
    assert late.stat().segments == 2  # what it knows
    taken = [queue.claim().body for _ in range(7)]
    assert taken == [*range(7)]
    assert late.claim().body == 7
    assert late.claim() is None


def test_removed_segment_is_reported_and_nothing_is_written(store, small) -> None:
    queue = made(store)
    for number in range(6):  # one call might make one write of them, or two, with other segments
        queue.put(number)
    (name,) = segments(store)
    kept = store.read(name).data
    store.delete(name)
    before = [queue.claim() for _ in range(3)]
    rev = queue.stat().rev
    for call in (queue.claim, queue.peek):
        with pytest.raises(MalformedObject, match="which was removed"):
            call()
    store.put_if_absent(name, b"no segment")
    with pytest.raises(MalformedObject, match="not a segment"):
        queue.claim()
    store.delete(name)
    assert queue.stat().rev == rev
    before[0].ack()
    store.put_if_absent(name, kept)
    assert drained(queue) == [3, 4, 5]


def test_orphaned_segments_are_removed_and_referenced_ones_kept(store, small) -> None:
    queue = made(store)
    queue.put_many(range(6))
    named = segments(store)
    store.put_if_absent(f"{PATH}.d/segments/9.left", b"made, and never named")
    assert queue.clean() == 1
    assert segments(store) == named
    assert drained(queue) == [*range(6)]


def test_cleaning_that_cannot_delete_raises(store, small) -> None:
    made(store).put_many(range(6))
    store.put_if_absent(f"{PATH}.d/segments/9.left", b"made, and never named")
    queue, faulty = again(store, {"delete": [Refuse()] * 500})
    with pytest.raises(Unavailable):
        queue.clean()
    assert ("delete", Refuse()) in faulty.fired
    assert Queue(store, PATH).clean() == 1


def test_write_begun_before_the_cleaning_uses_none_of_its_segments(store, small) -> None:
    made(store).put_many(range(4))
    other = Queue(store, PATH)

    class Meanwhile(Faulty):
        async def put(self, write, *args, **how):
            answer = await super().put(write, *args, **how)
            if "/segments/" in write.path and self.calls.count("put") == 1:
                assert other.clean() == 1
            return answer

    clock = ManualClock()
    way = Meanwhile(store.backend, {}, world=clock)
    Queue(Store(way, store.root, world=clock), PATH, world=clock).put(4)
    assert way.calls.count("put") == 4  # the segment, the refused write, and both again
    assert drained(other) == [*range(5)]


def test_message_with_a_key_stays_in_the_object(store, small) -> None:
    queue = made(store)
    queue.put_many([("k", n) for n in range(6)], key=lambda body: body[0])
    assert queue.stat().segments == 0
    queue.put_many([("", n) for n in range(8)])
    assert queue.stat().segments == 2
    first = queue.claim()
    assert [queue.claim().body for _ in range(8)] == [["", n] for n in range(8)]
    assert queue.claim() is None
    first.ack()
    assert queue.claim().body == ["k", 1]


def test_delayed_messages_are_stored_in_segments_of_their_own(store, small) -> None:
    clock = ManualClock()
    made(store)
    queue = Queue(store, PATH, world=clock)
    for n in range(8):
        queue.put(f"later {n}", delay_s=30)
    queue.put_many(range(6))
    stat = queue.stat()
    assert (stat.ready, stat.delayed) == (14, 8)
    assert drained(queue) == [*range(6)]
    assert queue.stat().segments >= 2
    clock.advance(31)
    assert drained(queue) == [f"later {n}" for n in range(8)]


def test_urgent_message_precedes_segments_and_segments_precede_less_urgent(store, small) -> None:
    queue = made(store)
    queue.put_many(range(8))
    queue.put("last", priority=-1)
    queue.put("first", priority=1)
    assert drained(queue) == ["first", *range(8), "last"]


def test_purge_removes_segments_too(store, small) -> None:
    queue = made(store)
    queue.put_many(range(9))
    assert queue.purge(expected=queue.stat().rev) == 9
    assert segments(store) == []
    assert (queue.stat().ready, queue.stat().bytes) == (0, 0)


def test_large_messages_wait_in_segments_for_their_bytes(store) -> None:
    queue = made(store, max_bytes=4096)
    bodies = [str(n) * 1500 for n in range(9)]
    queue.put_many(bodies)
    assert len(store.read(PATH).data) < 4096 + 1024
    assert drained(queue) == bodies
    with pytest.raises(QueueFull):
        queue.put("x" * 5000)


def test_dead_letters_that_fill_the_queue_are_reported_and_nothing_is_lost(store) -> None:
    queue = made(store, max_bytes=4096)
    queue.put_many([str(n) * 900 for n in range(8)])

    def bury_all() -> None:
        while True:
            queue.claim().bury("no")

    with pytest.raises(QueueFull, match="messages: redrive them$"):
        bury_all()
    dead = queue.stat().dead
    assert 2 <= dead < 8
    assert dead + queue.stat().ready == 8
    queue.redrive()
    assert len(drained(queue)) == 8


def test_queue_with_segments_is_refused_by_versions_without_segments(store, small) -> None:
    queue = made(store)
    queue.put_many(range(4))
    assert json.loads(store.read(PATH).data)["format"] == 1
    queue.put(4)
    assert json.loads(store.read(PATH).data)["format"] == 2
    drained(queue)
    assert json.loads(store.read(PATH).data)["format"] == 1


class Kept:
    """A queue and its segments in memory; `do` reads those that are wanted."""

    def __init__(self) -> None:
        self.contents = Contents("q", QueueSettings(max_attempts=99))
        self.objects: dict[str, bytes] = {}
        self.writes = 0

    def do(self, operation, now_ms: int):
        found: dict[str, tuple] = {}
        while True:
            draft = with_messages(self.contents.copy(), found)
            try:
                (result,) = carry_out_all(draft, [operation], now_ms, f"w{self.writes}")
            except SegmentWanted as wanted:
                found[wanted.name] = decode_segment(self.objects[wanted.name], "q", wanted.name)
                continue
            for one in draft.segments:
                if one.name not in self.objects:
                    self.objects[one.name] = one.encode("q")
            self.writes += 1
            self.contents = decode_queue(draft.encode(), "q")
            assert (self.contents.size, self.contents.loose) == (draft.size, draft.loose)
            assert sum(not one.key for one in self.contents.ready) <= spill.IN_OBJECT
            return result


calls = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.sampled_from(["", "", "", "k"]), st.integers(-1, 1), st.sampled_from([0, 0, 0, 5])
        ),
        st.tuples(st.just("take")),
        st.tuples(st.just("back"), st.sampled_from([0, 3])),
        st.tuples(st.just("ack")),
        st.tuples(st.just("wait")),
    ),
    max_size=60,
)


@given(calls)
def test_delivery_order_with_segments_equals_order_without(told) -> None:
    """But for messages that wait for their time: those are as many, and delivered once each."""
    spilled, plain, now_ms, delays = Kept(), Contents("q", QueueSettings(max_attempts=99)), 1000, False
    kept, segment = spill.IN_OBJECT, spill.SEGMENT

    def both(operation) -> tuple:
        spill.IN_OBJECT, spill.SEGMENT = 3, 2
        try:
            ours = spilled.do(operation, now_ms)
        finally:
            spill.IN_OBJECT, spill.SEGMENT = kept, segment
        (theirs,) = carry_out_all(plain, [operation], now_ms, "b")
        return ours, theirs

    claimed: list[tuple[int, str]] = []
    for count, (verb, *how) in enumerate(told, 1):
        if verb == "put":
            key, priority, delay_ms = how
            delays = delays or bool(delay_ms)
            both(Put(New(count, key, priority, now_ms + delay_ms if delay_ms else 0), "p", count, ""))
        elif verb == "take":
            ours, theirs = both(Take(str(count), "w", 1000))
            if isinstance(theirs, NothingReady) or isinstance(ours, NothingReady):
                assert type(ours) is type(theirs)
                assert isinstance(ours, NothingReady) is False or ours.until_ms == theirs.until_ms
                continue
            if ours.message.n != theirs.message.n:
                assert delays
                return
            claimed.append((ours.message.n, str(count)))
        elif verb == "wait":
            now_ms += 4
        elif claimed:
            n, token = claimed.pop(0)
            delays = delays or (verb == "back" and bool(how[0]))
            both(End(n, token, "ack") if verb == "ack" else End(n, token, "nack", delay_ms=how[0]))
        assert spilled.contents.waiting == len(plain.ready)
