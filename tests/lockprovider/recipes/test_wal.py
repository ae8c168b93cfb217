"""`Wal` and `AsyncWal` on memory, with a network that loses, repeats and delays; what each call promises."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
import uuid
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise, product
from typing import NoReturn

import budgets
import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import until

import lockprovider
from fsspec_cas import InvalidInput, Lost, NotBytes, OutcomeUnknown, Store, Unavailable, Won
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.testing import (
    DeliverLate,
    DeliverTwice,
    Faulty,
    LoseAnswer,
    LoseRequest,
    ManualClock,
    Pass,
    Refuse,
)
from lockprovider.recipes.wal import appending
from lockprovider.recipes.wal.appending import Append, draft
from lockprovider.recipes.wal.contents import Head, LogManifest, Producer, decode_slot, encode_slot
from lockprovider.recipes.wal.objects import last_slot
from lockprovider.wal import (
    Appended,
    AsyncAppender,
    AsyncWal,
    CoordinationError,
    Fenced,
    LogFull,
    MalformedObject,
    NoLog,
    Overloaded,
    Position,
    Sealed,
    SequenceGap,
    TooLarge,
    Trimmed,
    Wal,
)

PATH = "orders"
FAULTS = (Pass(), LoseAnswer(), LoseRequest(), DeliverTwice(), DeliverLate(1), DeliverLate(4), Refuse())


@pytest.fixture
def store() -> Store:
    return Store(MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True)), f"/{uuid.uuid4().hex}")


def made(store: Store, slots: int | None = 64, retain: str = "slots") -> Wal:
    log = Wal(store, PATH)
    log._objects.create(LogManifest(uuid.uuid4().hex, slots, retain))
    return log


def again(store: Store, plan: dict[str, list[object]] | None = None, **options) -> tuple[Wal, Faulty]:
    """The same log behind a faulty network, in a world of its own."""
    clock = ManualClock()
    faulty = Faulty(store.backend, plan or {}, world=clock)
    return Wal(Store(faulty, store.root, world=clock), PATH, world=clock, **options), faulty


def records(log: Wal, start="oldest") -> list[bytes]:
    return [record for batch in log.read(start) for record in batch.records]


def numbered(log: Wal, name: str, *numbers: int) -> list[Appended]:
    with log.appender(name) as out:
        return [out.append(b"%d" % n, seq=n) for n in numbers]


# -- what is appended --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 7, 64, None])
def test_records_are_read_in_order_and_positions_have_no_gaps(store, slots) -> None:
    log = made(store, slots)
    told = [log.append(b"%d" % n) for n in range(20)]
    assert [one.position.offset for one in told] == [*range(20)]
    kept = [*log.read()]
    assert all(before.end == after.start for before, after in pairwise(kept))
    assert kept[-1].end == log.end() == Position(20, 20)
    assert [record for batch in kept for record in batch.records] == [b"%d" % n for n in range(20)][-len(kept) :]
    assert records(log, told[-1].position) == [b"19"]
    assert len(kept) <= (slots or 20)
    if slots is None:
        assert len(kept) == 20


def test_append_takes_one_put_and_idle_poll_one_conditional_get(store) -> None:
    made(store)
    log, faulty = again(store)
    log.append(b"first")
    faulty.calls.clear()
    for n in range(10):
        log.append(b"%d" % n)
    assert faulty.calls == budgets.LOG_APPEND * 10
    position = log.end()
    faulty.calls.clear()
    assert [*log.follow(position, timeout=0.5)] == []
    assert faulty.calls == budgets.LOG_IDLE * (1 + 5)  # the floor; and after 0, 50, 150, 350 and 500 ms


def test_end_of_log_is_found_by_few_reads(store) -> None:
    made(store, 4096)
    log = Wal(store, PATH)
    for n in range(150):
        log.append(b"%d" % n)
    other, faulty = again(store)
    assert other.end() == Position(150, 150)
    assert faulty.calls.count("get") == len(faulty.calls)
    assert len(faulty.calls) <= budgets.LOG_END  # the hint is slot 128: +1, +2, +4, +8, +16, and back


@pytest.mark.parametrize("slots", [1, 2, 3, 8, 13, None])
def test_any_stale_hint_leads_to_the_end_of_the_log(slots) -> None:
    for last in (-1, 0, 1, 2, 5, 12, 13, 14, 40, 41):
        kept = {s if slots is None else s % slots: s for s in range(last + 1)}
        for hint in range(-1, last + 1):
            looks = []

            def look(slot: int, kept=kept, looks=looks) -> int:
                looks.append(slot)
                return kept.get(slot if slots is None else slot % slots, -1)

            assert last_slot(look, hint, slots) == last
            assert len(looks) <= 2 + 2 * (last - hint + 2).bit_length()


def test_body_comes_back_unchanged_and_an_invalid_one_is_refused(store) -> None:
    log = made(store)
    bodies = [bytes(range(256)), b"", b"\n", bytearray(b"x"), memoryview(b"y")]
    log.append_many(bodies)
    assert records(Wal(store, PATH)) == [*map(bytes, bodies)]
    with pytest.raises(NotBytes):
        log.append("text")
    with pytest.raises(TooLarge, match="its own object"):
        log.append(b"x" * ((1 << 20) + 1))
    log.append_many([b"x" * (1 << 20)] * 9)  # more than one slot takes
    assert len(records(log)) == 14


@given(st.lists(st.binary(), max_size=5), st.integers(0, 1 << 40), st.booleans())
def test_slot_is_read_back_unchanged_and_a_torn_one_is_refused(data, offset, led) -> None:
    table = {"p": Producer(1, 2, 3, 4, "c", 5), "ü\n": Producer(0, 0, 0, 0, "")}
    head = Head("id", 7, offset, len(data), 3, led, "batch", 99, table)
    stored = encode_slot(head, data)
    slot = decode_slot(stored, "s")
    assert (slot.head, slot.records()) == (head, data)
    for torn in (stored[:-1], stored[1:], stored[:10] + b"~" + stored[11:], b"", b"{}"):
        with pytest.raises(MalformedObject, match="'s'"):
            decode_slot(torn, "s")


# -- once by (producer, seq) -------------------------------------------------------------------------------------------


def test_producer_appends_each_number_once_also_after_a_crash(store) -> None:
    made(store, 4)
    numbered(Wal(store, PATH), "ingest", 1, 2, 5, 9)
    with Wal(store, PATH).appender("ingest") as out:
        assert out.last_seq == 9
        told = [out.append(b"%d" % n, seq=n) for n in (1, 2, 5, 9, 12)]
    assert [one.again for one in told] == [True] * 4 + [False]
    assert told[3].position == Position(3, 3)
    assert Wal(store, PATH).info().producers == {"ingest": 12}
    assert [b.start.offset for b in Wal(store, PATH).read()][-1] == 4


def test_lower_number_is_a_repeat_only_if_it_was_appended(store) -> None:
    """Two threads in the wrong order would lose a record silently."""
    log = made(store)
    out = log.appender("kafka")
    assert not out.append(b"a", seq=10).again
    out.append(b"b", seq=17)
    assert out.append(b"a", seq=10).again  # it was told so
    with pytest.raises(SequenceGap, match="has appended 17, and 12"):
        out.append(b"late", seq=12)
    assert log.appender("kafka").append(b"late", seq=12).again  # it was there when this one took the name
    assert records(log) == [b"a", b"b"]


def test_append_many_raises_once_all_of_its_records_ended(store, monkeypatch) -> None:
    """Else `with` would raise the error of a later record, though the caller has handled that of the first."""
    first, second = made(store), Wal(store, PATH)
    raised, held, answers = threading.Event(), threading.Event(), []
    with first, first.appender("p") as out:
        out.append(b"1", seq=1)
        second.appender("p").append(b"2", seq=2)
        later = out.append_later

        def slowly(data: bytes, *, seq: int | None = None):
            answers.append(later(data, seq=seq))
            if len(answers) == 1:  # the one that writes tells the next one late
                answers[0].add_done_callback(lambda _: held.set() or raised.wait(0.5))
            return answers[-1]

        monkeypatch.setattr(out, "append_later", slowly)
        with pytest.raises(Fenced):
            out.append_many([b"3", b"4", b"5"], first=3)
        ended = [one.done() for one in answers]
        raised.set()
        assert held.is_set()
        assert ended == [True, True, True]
        out.flush()


@pytest.mark.parametrize("producer", [None, "p"])
def test_append_many_raises_for_a_bad_record_after_the_earlier_ones_ended(store, producer) -> None:
    log = made(store)
    out = log.appender(producer) if producer else log._unnamed
    first = 1 if producer else None
    held = threading.Event()

    def bodies():
        yield b"1"
        until(log._batcher._writing.locked)
        threading.Timer(0.05, held.set).start()
        yield "no bytes"

    def slowly(operations):
        assert held.wait(60)
        return write(operations)

    write, log._batcher._write = log._batcher._write, slowly
    with pytest.raises(NotBytes):
        out.append_many(bodies(), first=first)
    assert held.is_set()
    assert records(log) == [b"1"]


def test_interrupted_flush_drops_nothing(store, monkeypatch) -> None:
    with made(store) as log, log.lead() as leader:
        with leader._batcher._writing:  # another thread writes: nothing is taken
            answers = [leader.append_later(b"%d" % n) for n in range(3)]
            with monkeypatch.context() as patch:
                patch.setattr(leader._batcher, "wait_slice", lambda _: interrupted())
                with pytest.raises(KeyboardInterrupt):
                    leader.flush()
        leader.flush()
        assert [one.result().again for one in answers] == [False] * 3


def interrupted() -> NoReturn:
    raise KeyboardInterrupt


def test_failed_append_number_blocks_later_ones_until_it_is_retried(store) -> None:
    """Else a record of a pipeline would be missing, and its repeat out of order."""
    made(store)
    log, faulty = again(store, timeout=2)
    out = log.appender("p")
    out.append(b"1", seq=1)
    faulty._plan["put"] = deque([Refuse()] * 200)
    with pytest.raises(Unavailable):
        out.append(b"2", seq=2)
    faulty._plan.clear()
    with pytest.raises(SequenceGap, match="2 failed: repeat it"):
        out.append(b"3", seq=3)
    waiting = [out.append_later(b"%d" % n, seq=n) for n in (2, 3)]
    assert [one.result().again for one in waiting] == [False, False]
    assert records(log) == [b"1", b"2", b"3"]


async def test_cancelled_append_of_a_producer_completes_and_leaves_no_gap(store) -> None:
    """Dropped, it would be missing below a number that is there, and its repeat be taken for one that is there, too."""
    log = made(store)
    begun, go = threading.Event(), threading.Event()
    commit = log._batcher._write
    log._batcher._write = lambda operations: (begun.set(), go.wait(), commit(operations))[2]
    out = log.appender("p")
    waiting = [out.append_later(b"1", seq=1)]
    begun.wait()
    waiting += [out.append_later(b"%d" % n, seq=n) for n in (2, 3)]
    task = asyncio.create_task(AsyncAppender(out).append(b"4", seq=4))
    await asyncio.sleep(0)
    dropped = log.append_later(b"of nobody")
    assert not waiting[1].cancel()
    assert task.cancel()
    assert dropped.cancel()
    waiting.append(out.append_later(b"5", seq=5))
    go.set()
    await asyncio.to_thread(out.flush)
    assert [one.result().again for one in waiting] == [False] * 4
    assert records(log) == [b"1", b"2", b"3", b"4", b"5"]


def test_producer_fences_the_previous_producer_of_its_name(store) -> None:
    old, new = made(store), Wal(store, PATH)
    before = old.appender("p")
    before.append(b"1", seq=1)
    after = new.appender("p")
    assert after.append(b"1", seq=1).again
    before.append(b"2", seq=2)  # the name is taken by the first new record
    after.append(b"3", seq=3)
    with pytest.raises(Fenced, match="has taken the producer name 'p'"):
        before.append(b"4", seq=4)
    assert old.appender("p").append(b"4", seq=4).position is not None
    with pytest.raises(Fenced):
        after.append(b"5", seq=5)
    assert records(new) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "faults", [*product(FAULTS, repeat=3)], ids=lambda faults: "-".join(type(one).__name__ for one in faults)
)
@pytest.mark.parametrize("slots", [1, 3])
def test_each_triple_of_faults_of_puts_loses_and_doubles_nothing(store, slots, faults) -> None:
    """The requests are those of appends, of the floor, and of appends over what was there."""
    made(store, slots)
    log, faulty = again(store, {"put": [*faults]})
    seen: list[bytes] = []
    with log.appender("p") as out:
        for n in range(1, 5):
            out.append(b"%d" % n, seq=n)
            seen += records(Wal(store, PATH), Position(n - 1, n - 1))
    asyncio.run(faulty.deliver_late())
    with Wal(store, PATH).appender("p") as out:
        assert out.append(b"4", seq=4).again
        assert out.append(b"5", seq=5).position == Position(4, 4)
    assert seen == [b"1", b"2", b"3", b"4"]
    assert faulty.left == {}


@pytest.mark.parametrize("fault", [LoseAnswer(), DeliverTwice(), DeliverLate(1), LoseRequest()], ids=str)
@pytest.mark.parametrize("slots", [1, 2, 64, None])
@pytest.mark.parametrize("others", [0, 1, 2, 5])
def test_lost_answer_is_settled_also_after_its_slot_was_reused(store, fault, slots, others) -> None:
    made(store, slots)
    other = Wal(store, PATH)
    other.append(b"before")

    class Meanwhile(Faulty):
        async def put(self, write, data, *, timeout_s):
            if "/slots/" not in write.path or not self.left:
                return await self.inner.put(write, data, timeout_s=timeout_s)
            answer = await super().put(write, data, timeout_s=timeout_s)
            if not self.left:
                for n in range(others):
                    other.append(b"other %d" % n)
            return answer

    clock = ManualClock()
    way = Meanwhile(store.backend, {"put": [fault]}, world=clock)
    log = Wal(Store(way, store.root, world=clock), PATH, world=clock)
    told = log.append(b"mine")
    asyncio.run(way.deliver_late())
    assert way.fired
    end = Wal(store, PATH).end()
    assert end.offset == 2 + others
    if told.position is not None and end.slot - told.position.slot <= (slots or 99):
        assert records(log, told.position)[0] == b"mine"
    if slots in (64, None):
        assert Counter(records(log))[b"mine"] == 1


def test_unanswered_append_is_unknown_and_its_number_can_be_retried(store) -> None:
    made(store)
    log, faulty = again(store, {"put": [LoseRequest()] * 900}, timeout=2)
    with pytest.raises(OutcomeUnknown, match="can be appended again"), log.appender("p") as out:
        out.append(b"1", seq=1)
    assert faulty.fired
    assert not numbered(Wal(store, PATH), "p", 1)[0].again
    assert records(log) == [b"1"]


def test_producer_dropped_from_the_table_gets_unknown() -> None:
    head = Head("log")
    for n in range(100):
        head = draft(head, [Append(b"", f"~{n}", 1, f"client {n}")], "b").head
    assert [*head.producers] == [f"~{n}" for n in range(100 - appending.UNNAMED_MOST, 100)]
    repeats = [draft(head, [Append(b"", f"~{n}", 1, f"client {n}")], "b", sent=(True,)).results[0] for n in (35, 36)]
    assert isinstance(repeats[0], appending.Forgotten)
    assert isinstance(repeats[1], Appended)
    assert repeats[1].again
    full = {f"p{n}": Producer(1, 1, 0, 0, "") for n in range(1000)}
    results = draft(Head("log", producers=full), [Append(b"", "one more", 1, "a")], "b").results
    assert isinstance(results[0], Overloaded)


def test_batch_of_more_unnamed_producers_than_the_table_keeps_is_appended(store) -> None:
    log = made(store)
    count = appending.UNNAMED_MOST + 6
    results = log._writer.commit([Append(b"%d" % n, f"~{n}", 1, f"client {n}") for n in range(count)])
    assert all(isinstance(one, Appended) for one in results)
    assert len(records(log)) == count


# -- the ring, its floor, its readers ----------------------------------------------------------------------------------


def test_deleted_slots_do_not_come_back(store) -> None:
    """Slatedb #352: a writer that was stalled writes a slot that was read and removed, and is told that it is there.

    Here nothing is removed: it finds a newer version in the place, is refused, and appends at the end.
    """
    log = made(store, 4, retain="readers")
    reader = log.reader("r")
    stalled, _ = again(store)
    stalled.append(b"first")  # it knows the end now
    knows = stalled._writer._end
    for n in range(11):
        for batch in reader.read():
            reader.commit(batch.end)
        log.append(b"%d" % n)
    assert log.info().floor > knows.slot + 1
    content = store.read(log._objects.slot_path(knows.slot + 1))
    zombie = store.put_if_absent(log._objects.slot_path(knows.slot + 1), b"the slot behind the one that it knows")
    assert isinstance(zombie, Lost)
    assert stalled.append(b"late").position == Position(12, 12)
    assert store.read(log._objects.slot_path(knows.slot + 1)) == content
    assert [record for batch in reader.read() for record in batch.records][-1] == b"late"


def test_ring_keeps_exactly_one_object_per_slot(store) -> None:
    log = made(store, 5)
    seen = set()
    for n in range(23):
        log.append(b"%d" % n)
        now = {one.path for one in store.list("orders/slots/")}
        assert seen <= now
        seen = now
    assert len(seen) == 5


def test_log_that_waits_for_readers_is_full_and_names_the_slowest_reader(store) -> None:
    log = made(store, 4, retain="readers")
    log.append(b"0")
    fast, slow = log.reader("fast"), log.reader("slow")
    for n in range(1, 4):
        log.append(b"%d" % n)
    for batch in fast.read():
        fast.commit(batch.end)
    with pytest.raises(LogFull, match="'slow' has not read further") as full:
        log.append(b"4")
    assert full.value.reader == "slow"
    first = next(iter(slow.read()))
    slow.commit(first.end)
    assert log.append(b"4").position == Position(4, 4)
    assert log.info().floor == 1
    assert log.info().readers == {"fast": Position(4, 4), "slow": Position(1, 1)}
    assert log.trim() == 1
    assert log.drop_reader("slow")
    assert not log.drop_reader("slow")
    assert log.trim() == 4
    assert log.append_many([b"5"])[0].position == Position(5, 5)


@pytest.mark.parametrize("retain", ["readers", "slots"])
def test_trim_without_position_keeps_records_unread_by_a_named_reader(store, retain: str) -> None:
    log = made(store, 8, retain=retain)
    log.append(b"0")
    reader = log.reader("slow")
    for n in range(1, 4):
        log.append(b"%d" % n)
    reader.commit(next(iter(reader.read())).end)
    assert log.trim() == 1
    assert [record for batch in reader.read() for record in batch.records] == [b"1", b"2", b"3"]
    reader.commit(log.end())
    assert log.trim(before=log.end()) == 4


def test_full_log_without_named_readers_is_trimmed_by_hand(store) -> None:
    log = made(store, 2, retain="readers")
    log.append(b"0")
    log.append(b"1")
    with pytest.raises(LogFull, match="has no named reader"):
        log.append(b"2")
    with pytest.raises(InvalidInput, match="the log has no readers"):
        log.trim()
    with pytest.raises(InvalidInput, match="position"):
        log.trim(1)
    assert log.trim(before=Position(99, 99)) == 2  # not past the end
    log.append(b"2")
    assert records(log) == [b"2"]
    assert log.trim(before=Position(1, 0)) == 2  # it only rises


def test_overtaken_reader_raises_and_never_gets_records_of_another_slot(store) -> None:
    log = made(store, 4)
    reader = log.reader("slow")
    for n in range(4):
        log.append(b"%d" % n)
    batches = reader.read()
    assert next(batches).records == [b"0"]
    for n in range(4, 12):
        log.append(b"%d" % n)
    with pytest.raises(Trimmed) as gone:
        assert all(batch.records == [b"%d" % batch.start.offset] for batch in batches)
    assert gone.value.first == log.info().floor > 1
    with pytest.raises(Trimmed):
        reader.read()
    assert [one.start.slot for one in log.read()] == [*range(log.info().floor, 12)]


def test_named_reader_resumes_in_another_process_and_fences_the_old_one(store) -> None:
    log = made(store)
    log.append_many([b"a"])
    log.append_many([b"b"])
    old = log.reader("to-hudi")
    first, second = [*old.read()]
    old.commit(first.end)
    new = Wal(store, PATH).reader("to-hudi", start="end")  # it is there: `start` is for a new one
    assert new.position == first.end
    assert [batch.records for batch in new.read()] == [[b"b"]]
    with pytest.raises(Fenced, match="opened by another process"):
        old.commit(second.end)
    new.commit(second.end)
    new.commit(second.end)
    with pytest.raises(InvalidInput, match="a reader cannot go back"):
        new.commit(first.end)
    log.drop_reader("to-hudi")
    assert [b.records for b in log.reader("to-hudi").read()] == [[b"a"], [b"b"]]
    for bad in ("", "a/b", "../x", ".", 7):
        with pytest.raises(InvalidInput, match="letters"):
            log.reader(bad)


def test_reader_that_died_during_creation_begins_at_its_start(store) -> None:
    log = made(store, 8, retain="readers")
    for n in range(3):
        log.append(b"%d" % n)
    reader = log.reader("r")
    reader.commit(Position(2, 2))
    log.drop_reader("r")
    log.trim(before=Position(3, 3))
    log.append(b"3")
    log._objects.change(lambda old: replace(old, readers={"r": 3, "s": 3}))  # and dies; `r` has been there before
    assert log.info().readers == {"r": Position(3, 0), "s": Position(3, 0)}
    assert log.trim(before=Position(4, 4)) == 3
    for name in "rs":
        assert [batch.records for batch in Wal(store, PATH).reader(name).read()] == [[b"3"]]


@pytest.mark.parametrize("died_at", [1, 2])
def test_dropped_reader_whose_reopening_died_begins_at_its_new_start(store, died_at) -> None:
    class Dying(Faulty):
        puts = 0

        async def put(self, write, body, **how):
            self.puts += 1
            if self.puts == died_at:
                raise KeyboardInterrupt
            return await super().put(write, body, **how)

    log = made(store, retain="readers")
    for n in range(5):
        log.append(b"%d" % n)
    log.reader("r").commit(log.end())
    log.drop_reader("r")
    with pytest.raises(KeyboardInterrupt):
        Wal(Store(Dying(store.backend, {}), store.root), PATH).reader("r", start=2)
    if log.info().readers:
        assert log.trim() == 2
    assert log.reader("r", start=2).position == Position(2, 2)
    assert log.trim() == 2


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("call", range(16))
def test_opening_a_new_reader_keeps_what_another_client_commits_at_any_call(store, call, trims) -> None:
    class Meanwhile(Faulty):
        def pass_call(self) -> None:
            if len(self.calls) == call:
                Wal(store, PATH).reader("r").commit(Position(2, 2))

        async def get(self, path, unless, **how):
            self.pass_call()
            return await super().get(path, unless, **how)

        async def put(self, write, body, **how):
            self.pass_call()
            if trims and "/readers/" in write.path:
                log.trim(before=Position(1, 1))
            return await super().put(write, body, **how)

    log = made(store)
    for n in range(3):
        log.append(b"%d" % n)
    backend = Meanwhile(store.backend, {})
    Wal(Store(backend, store.root), PATH).reader("r")
    committed = Position(2, 2) if call < len(backend.calls) else Position(trims, trims)
    assert log.info().readers["r"] == committed


def test_follow_pauses_at_most_idle_s_from_the_first_time_on(store) -> None:
    made(store)
    clock = ManualClock()
    assert [*Wal(store, PATH, world=clock).follow(idle_s=0.01, timeout=0.03)] == []
    assert max(clock.sleeps) == 0.01


def test_position_of_a_trimmed_slot_is_refused_before_it_is_overwritten(store) -> None:
    log = made(store)
    log.append(b"0")
    log.append(b"1")
    log.trim(before=log.end())
    for slot in (0, 1):
        with pytest.raises(Trimmed, match="the first kept slot is 2"):
            log.position(slot)
    assert log.position("oldest") == log.position(2) == log.end()


def test_reader_dropped_while_it_is_opened_raises_no_key_error(store, monkeypatch) -> None:
    log, update = made(store), Store.update
    log.append(b"first")
    log.reader("billing").commit(log.end())

    def late(self, path, fn, **how):
        if "/readers/" in path:
            monkeypatch.undo()
            assert log.drop_reader("billing")
        return update(self, path, fn, **how)

    monkeypatch.setattr(Store, "update", late)
    assert log.reader("billing").position.offset == 1
    assert log.info().readers == {}


def test_oldest_record_is_found_while_the_floor_rises(store) -> None:
    made(store, 2)
    other = Wal(store, PATH)

    class Meanwhile(Faulty):
        async def get(self, path, unless, *, timeout_s):
            answer = await super().get(path, unless, timeout_s=timeout_s)
            if path.endswith("log.json") and self.left:
                self._plan.clear()
                for n in range(9):
                    other.append(b"%d" % n)
            return answer

    way = Meanwhile(store.backend, {"head": [Pass()]})
    log = Wal(Store(way, store.root), PATH)
    assert log.position("oldest").slot >= 7
    with pytest.raises(Trimmed):
        log.position(0)
    assert log.position(8) == Position(8, 8)
    assert log.position(9) == log.end()
    for bad in (10, -1, True, None):
        with pytest.raises(InvalidInput, match="start"):
            log.position(bad)


@pytest.mark.parametrize("options", [{"timeout": 240, "idle_s": 0.05}, {"idle_s": 0}], ids=str)
def test_follow_yields_new_records_and_skips_empty_slots(store, options) -> None:
    log = made(store)
    log.append(b"0")
    seen: list[bytes] = []

    def read_on() -> None:
        for batch in Wal(store, PATH).follow(**options):
            seen.extend(batch.records)
            if b"end" in batch.records:
                return

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(read_on)
        until(lambda: seen == [b"0"])
        with log.lead() as out:
            out.append(b"1")
        until(lambda: seen == [b"0", b"1"])
        Wal(store, PATH).append(b"end")
        done.result()
    assert seen == [b"0", b"1", b"end"]


# -- who leads ---------------------------------------------------------------------------------------------------------


def test_no_append_of_an_older_epoch_follows_lead(store) -> None:
    log = made(store)
    log.append(b"plain")
    first = log.lead(fence=3)
    first.append(b"first")
    with pytest.raises(Fenced, match="no other writer may append"):
        Wal(store, PATH).append(b"no")
    second = Wal(store, PATH).lead()
    assert second.epoch == 4
    second.append(b"second")
    with pytest.raises(Fenced, match="epoch 3 is over") as over:
        first.append(b"no")
    assert over.value.epoch == 4
    with pytest.raises(Fenced):
        log.lead(fence=3)
    first.resign()  # it is over already: nothing changes
    assert log.info().led
    second.resign()
    second.resign()
    with pytest.raises(Fenced):
        log.append(b"from before")
    Wal(store, PATH).append(b"after")
    assert records(log) == [b"plain", b"first", b"second", b"after"]


def test_client_refused_during_a_leadership_may_append_after_it(store) -> None:
    with made(store).lead() as leader:
        leader.append(b"led")
        other = Wal(store, PATH)
        for refused in (lambda: other.append(b"no"), other.seal):
            with pytest.raises(Fenced, match="no other writer may append"):
                refused()
    assert other.append(b"after").position.offset == 1
    assert records(other) == [b"led", b"after"]


def test_leader_that_fails_lets_others_append(store) -> None:
    log = made(store)
    with pytest.raises(ZeroDivisionError), log.lead(producer="p") as out:
        out.append(b"1", seq=1 // (out.append(b"1", seq=1).position is None))
    assert not log.info().led
    assert numbered(Wal(store, PATH), "p", 1, 2)[0].again


def test_lease_works_as_a_fence(store, tmp_path) -> None:
    log = made(store)
    with lockprovider.lock(str(tmp_path)) as lease, log.lead(fence=lease) as out:
        out.append(b"a")
        assert out.epoch == lease.epoch
    for bad in (0, -1, "x", object()):
        with pytest.raises(InvalidInput, match="fence"):
            log.lead(fence=bad)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_log_must_be_created_and_a_recreated_one_is_another_log(store) -> None:
    log = Wal(store, PATH)
    for call in (lambda: log.append(b"1"), log.end, log.info, log.read, log.trim, lambda: log.reader("r"), log.lead):
        with pytest.raises(NoLog, match="create"):
            call()
    made(store)
    log.append(b"1")
    store.delete("orders/log.json")
    made(store)
    with pytest.raises(Fenced, match="created anew"):
        log.info()
    with pytest.raises(MalformedObject, match="belongs to another log"):
        Wal(store, PATH).append(b"2")


def test_concurrent_creations_make_one_log() -> None:
    url = f"memory://{uuid.uuid4().hex}/orders"
    lockprovider.wal.create(url, slots=8).append(b"1")
    assert records(lockprovider.wal.create(url, slots=8)) == [b"1"]
    with pytest.raises(CoordinationError, match="already exists with"):
        lockprovider.wal.create(url, slots=9)
    assert lockprovider.wal.open(url).info().slots == 8
    for bad in ({"slots": 0}, {"slots": "8"}, {"slots": True}, {"retain": "all"}, {"timeout": -1}, {"pace_s": "x"}):
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            lockprovider.wal.create(url, **bad)
    log = lockprovider.wal.open(url)
    for call in (
        lambda: log.appender(""),
        lambda: log.appender("~x"),
        lambda: log.appender("p").append(b""),
        lambda: log.appender("p").append(b"", seq=0),
        lambda: log.appender("p").append_many([b""]),
        lambda: log.read("newest"),
        lambda: Position.parse("17"),
        lambda: log.follow(timeout=-1),
    ):
        with pytest.raises(InvalidInput):
            call()


@pytest.mark.parametrize("data", [b"", b"[]", b'{"id": 1}', b'{"id": "x", "slots": 1, "floor": 0, "format": 2}'])
def test_invalid_log_object_is_never_overwritten(store, data) -> None:
    store.put_if_absent("orders/log.json", data)
    log = Wal(store, PATH)
    for call in (log.info, lambda: log.append(b"1")):
        with pytest.raises(MalformedObject, match="log.json"):
            call()
    assert store.read("orders/log.json").data == data


def test_invalid_slot_object_is_never_overwritten(store) -> None:
    log = made(store)
    log.append(b"1")
    store.put_if_absent("orders/slots/00000001", b"torn")
    with pytest.raises(OutcomeUnknown, match="00000001' is not a"):
        log.append(b"2")
    with pytest.raises(MalformedObject, match="00000001"):
        Wal(store, PATH).append(b"2")
    assert store.read("orders/slots/00000001").data == b"torn"


def test_log_with_removed_objects_raises(store) -> None:
    log = made(store)
    for n in range(70):
        log.append(b"%d" % n)
    store.delete("orders/slots/00000000")  # slot 64, which is the hint
    with pytest.raises(MalformedObject, match="another program removes"):
        Wal(store, PATH).append(b"x")


@pytest.mark.parametrize("removed", [0, 5])
def test_reader_of_a_log_with_a_removed_slot_raises(store, removed) -> None:
    log = made(store, 4096)
    log.reader("r")
    for n in range(70):
        log.append(b"%d" % n)
    until(lambda: log._objects.manifest(fresh=True).hint == 64)
    store.delete(f"orders/slots/{removed:08d}")
    read = []
    with pytest.raises(MalformedObject, match=f"slot {removed} of .* is gone"):
        read.extend(Wal(store, PATH).reader("r").read())
    assert len(read) == removed


def test_position_of_a_removed_slot_raises(store) -> None:
    log = made(store)
    for n in range(10):
        log.append(b"%d" % n)
    store.delete("orders/slots/00000005")
    with pytest.raises(MalformedObject, match="slot 5 of .* is gone: another program removes"):
        log.position(5)


def test_append_many_repeats_more_records_than_it_appends_at_once(store) -> None:
    out = made(store).appender("p")
    data = [b"%d" % n for n in range(2500)]
    out.append_many(data, first=1)
    assert all(appended.again for appended in out.append_many(data, first=1))
    assert out.last_seq == 2500


def test_fields_of_a_newer_version_are_kept(store) -> None:
    log = made(store, 4)
    content = store.read("orders/log.json")
    more = json.dumps({**json.loads(content.data), "broker": {"address": "x"}}).encode()
    assert isinstance(store.put_if_match("orders/log.json", more, content.version), Won)
    for n in range(9):
        log.append(b"%d" % n)
    assert json.loads(store.read("orders/log.json").data)["broker"] == {"address": "x"}


def test_refused_append_writes_nothing(store) -> None:
    made(store)
    log, faulty = again(store, {"put": [Refuse()] * 500}, timeout=2)
    with pytest.raises(Unavailable):
        log.append(b"1")
    assert faulty.fired
    assert records(log) == []


def test_threads_share_writes(store) -> None:
    log = made(store, 4096)
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda n: log.append(b"%d" % n), range(400)))
    assert sorted(one.position.offset for one in told) == [*range(400)]
    assert Counter(records(log)) == Counter(b"%d" % n for n in range(400))
    assert log.end().slot < 300
    assert [records(log)[one.position.offset] for one in told[:9]] == [b"%d" % n for n in range(9)]


def test_racing_clients_in_a_small_ring_lose_and_double_nothing(store) -> None:
    made(store, 3, retain="readers")
    reader = Wal(store, PATH).reader("r")
    seen: list[bytes] = []
    logs = [Wal(Store(store.backend, store.root), PATH) for _ in range(3)]

    def live(one: int) -> None:
        with logs[one].appender(f"p{one}") as out:
            n = 1
            while n <= 12:
                try:
                    out.append(b"%d.%d" % (one, n), seq=n)
                    n += 1
                except LogFull:
                    continue

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(live, one) for one in range(3)]
        while len(seen) < 36:
            assert not any(one.done() and one.exception() for one in running)
            for batch in reader.read():
                seen.extend(batch.records)
                reader.commit(batch.end)
    assert sorted(seen) == sorted(b"%d.%d" % (one, n) for one in range(3) for n in range(1, 13))


def test_forked_child_is_a_client_of_its_own(tmp_path) -> None:
    log = lockprovider.wal.create(f"file://{tmp_path}/orders", storage_options={"auto_mkdir": True})
    log.append(b"a")
    if (child := os.fork()) == 0:
        os._exit(0 if log.append(b"b").position == Position(1, 1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert log.append(b"c").position == Position(2, 2)
    assert records(log) == [b"a", b"b", b"c"]


def test_forked_leader_numbers_its_records_as_a_client_of_its_own(tmp_path) -> None:
    log = lockprovider.wal.create(f"file://{tmp_path}/orders", storage_options={"auto_mkdir": True})
    leader = log.lead()
    leader.append(b"a")
    if (child := os.fork()) == 0:
        os._exit(leader.append(b"of the child").again)
    assert os.waitpid(child, 0)[1] == 0
    assert not leader.append(b"of the parent").again
    assert records(log) == [b"a", b"of the child", b"of the parent"]


def test_errors_can_be_pickled() -> None:
    for error in (LogFull("no", "r"), Sealed("no", "next"), Trimmed("no", 7), NoLog("no")):
        kept = pickle.loads(pickle.dumps(error))
        assert (str(kept), vars(kept)) == ("no", vars(error))


async def test_tasks_append_read_and_lead(store) -> None:
    made(store, retain="readers")
    async with AsyncWal(store, PATH) as log:
        told = await asyncio.gather(*(log.append(b"%d" % n) for n in range(20)))
        assert sorted(one.position.offset for one in told) == [*range(20)]
        reader = await log.reader("r")
        async for batch in reader.read():
            await reader.commit(batch.end)
        assert reader.position == await log.end()
        async with log.appender("p") as out:
            assert not (await out.append(b"p1", seq=1)).again
            assert [one.again for one in await out.append_many([b"p1", b"p2"], first=1)] == [True, False]
            assert await out.last_seq() == 2
        assert [record async for batch in reader.follow(timeout=0.01) for record in batch.records] == [b"p1", b"p2"]
        async with await log.lead() as out:
            await out.append(b"led")
            await out.flush()
        assert (await log.info()).epoch == 1
        assert [record async for batch in log.read(told[0].position) for record in batch.records][-1] == b"led"
        first = await log.position("oldest")
        assert [record async for batch in log.follow(first, timeout=0.01) for record in batch.records][-1] == b"led"
        assert await log.trim() == reader.position.slot
        assert await log.drop_reader("r")
    with pytest.raises(CoordinationError, match="closed"):
        await log.append(b"no")
    url = f"memory://{uuid.uuid4().hex}/orders"
    made_log = await AsyncWal.create(url, slots=None)
    await made_log.append_many([b"a", b"b"])
    assert (await AsyncWal.open(url).info()).end.offset == 2


# -- the seal ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 64, None])
def test_sealed_log_refuses_appends_and_readers_learn_of_the_end(store, slots) -> None:
    log = made(store, slots)
    numbered(log, "p", 1, 2)
    other = Wal(Store(store.backend, store.root), PATH)
    assert (end := log.seal("s3://bucket/next")) == log.end() == log.info().end == Position(2, 2)
    for refused in (lambda: other.append(b"no"), other.lead, lambda: numbered(other, "q", 1)):
        with pytest.raises(Sealed, match=r"sealed .* continue in s3://bucket/next") as caught:
            refused()
        assert caught.value.successor == "s3://bucket/next"
    assert [one.again for one in numbered(other, "p", 2)] == [True]
    *read, last = log.follow()  # ends by itself
    assert (last.sealed, last.successor, last.records, last.end) == (True, "s3://bucket/next", [], end)
    assert [batch.records for batch in read] == [[b"1"], [b"2"]][3 - min(slots or 3, 3) :]
    assert [batch.sealed for batch in log.read(last.end)] == [True], "who has read it all finds the end again"
    assert (log.info().sealed, log.info().successor) == (True, "s3://bucket/next")
    assert log.seal() == other.seal("s3://bucket/next") == end
    with pytest.raises(Sealed):
        other.seal("s3://bucket/another")
    assert log.trim(before=log.end()) == 2
    assert [batch.sealed for batch in log.read()] == [True]


def test_named_reader_commits_the_end_of_a_sealed_log(store) -> None:
    log = made(store, 2, retain="readers")
    reader = log.reader("r")
    log.append(b"a")
    log.seal()
    for batch in reader.follow():
        reader.commit(batch.end)
    assert reader.position == log.end()
    assert [(batch.sealed, batch.successor) for batch in log.reader("r").read()] == [(True, "")]


def test_reader_waiting_for_records_is_notified_of_the_seal(store) -> None:
    log = made(store)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.extend(one.sealed for one in log.follow("end", idle_s=0.05)))
    waiting.start()
    log.seal()
    waiting.join(30)
    assert found == [True]


def test_only_the_leader_or_a_newer_one_can_seal_a_led_log(store) -> None:
    log = made(store)
    other = Wal(Store(store.backend, store.root), PATH)
    first, second = log.lead(), other.lead(fence=7)
    for refused in (log.seal, lambda: log.seal(fence=first), lambda: log.seal(fence=6)):
        with pytest.raises(Fenced) as caught:
            refused()
        assert caught.value.epoch >= 1
    assert not log.info().sealed
    second.append(b"a")
    other.seal(fence=second)
    with pytest.raises(Sealed):
        second.append(b"b")
    with pytest.raises(Fenced):
        first.append(b"b")
    second.resign()  # as its `with` does
    assert (log.info().sealed, log.info().led, log.info().epoch) == (True, False, 7)


def test_seal_has_its_own_slot_within_a_batch_of_appends(store) -> None:
    log = made(store)
    log.append(b"a")
    later = [log.append_later(b"b"), log._batcher.submit(appending.Seal()), log.append_later(b"c")]
    end = later[1].result()
    assert log.end() == end
    assert later[0].result().position.offset == 1
    with pytest.raises(Sealed):
        later[2].result()
    assert records(log) == [b"a", b"b"]


@pytest.mark.parametrize("faults", [*product(FAULTS, repeat=2)])
def test_seal_with_lost_answer_is_settled(store, faults) -> None:
    made(store, 2)
    log, _ = again(store, {"put": [Pass(), *faults]}, timeout=60)
    log.append(b"a")
    assert log.seal("next") == Position(1, 1)
    other = Wal(store, PATH)
    assert records(other) == [b"a"]
    with pytest.raises(Sealed):
        other.append(b"b")
    assert log.seal("next") == other.end() == Position(1, 1)


def test_full_log_cannot_be_sealed_and_older_versions_refuse_a_sealed_log(store) -> None:
    log = made(store, 1, retain="readers")
    reader = log.reader("r")
    log.append(b"a")
    with pytest.raises(LogFull):
        log.seal()
    for batch in reader.read():
        reader.commit(batch.end)
    log.seal()
    head = json.loads(store.read(f"{PATH}/slots/00000000").data.partition(b"\n")[0])
    assert (head["format"], head["sealed"]) == (2, "")


async def test_tasks_seal_a_log(store) -> None:
    made(store)
    async with AsyncWal(store, PATH) as log:
        await log.append(b"a")
        end = await log.seal("next", fence=3)
        assert [batch.sealed async for batch in log.follow()] == [False, True]
        with pytest.raises(Sealed, match="next"):
            await log.append(b"b")
        assert end == await log.end()
