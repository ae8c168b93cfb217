"""`Queue` and `AsyncQueue` on memory, with a network that loses, repeats and delays; what each call promises."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import budgets
import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S, until
from recipes.queues import PATH, again, drained, made

import lockprovider
from fsspec_cas import InvalidInput, Machine, OutcomeUnknown, Store, Unavailable
from fsspec_cas.answer import NoAnswer
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.bridge.threads import Later
from fsspec_cas.machine import Worker
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
from lockprovider.queue import (
    AsyncQueue,
    ClaimLost,
    CoordinationError,
    Fenced,
    MalformedObject,
    NoQueue,
    Overloaded,
    Queue,
    QueueFull,
    QueueSettings,
    SequenceGap,
    StateConflict,
    TooLarge,
)
from lockprovider.recipes.queue import job as job_module
from lockprovider.recipes.queue.contents import Claim, Contents, Message, decode_queue
from lockprovider.recipes.queue.job import Job, new_message
from lockprovider.recipes.queue.operations import End, Lapse, New, NothingReady, Put, Take, carry_out_all
from lockprovider.recipes.values import FailedNumbers, NumberRanges

FAULTS = (Pass(), LoseAnswer(), LoseRequest(), DeliverTwice(), DeliverLate(1), Refuse())


@pytest.fixture
def store() -> Store:
    return Store(MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True)), f"/{uuid.uuid4().hex}")


def test_messages_are_put_claimed_and_acked_in_order(store) -> None:
    queue = made(store)
    assert [queue.put(n).n for n in range(3)] == [1, 2, 3]
    queue.put("first", priority=1)
    assert [one.body for one in queue.peek()] == ["first", 0, 1, 2]
    assert drained(queue) == ["first", 0, 1, 2]
    stat = queue.stat()
    assert (stat.ready, stat.claimed, stat.dead, stat.put, stat.bytes) == (0, 0, 0, 4, 0)
    assert queue.claim() is None


def test_queue_cycle_takes_three_puts_and_idle_poll_one_conditional_get(store) -> None:
    made(store)
    queue, faulty = again(store)
    queue.put(0)
    faulty.calls.clear()
    queue.put(1)
    with queue.claim():
        pass
    with queue.claim():
        pass
    assert faulty.calls == budgets.QUEUE_PUT + budgets.QUEUE_JOB * 2
    faulty.calls.clear()
    assert queue.claim() is None
    assert faulty.calls == budgets.QUEUE_IDLE


def test_body_comes_back_unchanged(store) -> None:
    queue = made(store)
    bodies = [bytes(range(256)), {"a": [1, None, True, "ü\n"]}, "", 0, None, [], b""]
    queue.put_many(bodies)
    assert drained(Queue(store, PATH)) == bodies
    for bad in (object(), {"a": float("nan")}, {1, 2}):
        with pytest.raises(InvalidInput, match="must be a JSON value"):
            queue.put(bad)
    with pytest.raises(TooLarge, match="its own object"):
        queue.put("x" * (1 << 20))


def test_named_producer_puts_each_number_once_also_after_a_crash(store) -> None:
    made(store)
    days = [{"day": n} for n in range(1300)]
    first = Queue(store, PATH)
    first.put_many(days[:1200], producer="backfill-7")
    assert first.last_seq("backfill-7") == 1200
    receipts = Queue(store, PATH).put_many(days, producer="backfill-7")
    assert [one.again for one in receipts] == [True] * 1200 + [False] * 100
    assert sorted(one["day"] for one in drained(Queue(store, PATH))) == [*range(1300)]


def test_lower_number_is_a_repeat_only_if_it_was_put(store) -> None:
    """Jqueue's doubled push, and a thread that is too late."""
    queue = made(store)
    assert not queue.put("a", producer="kafka", seq=10).again
    assert queue.put("a", producer="kafka", seq=10).again
    queue.put("b", producer="kafka", seq=17)
    assert queue.put("a", producer="kafka", seq=10).again
    with pytest.raises(SequenceGap, match="has put 17, and 12"):
        queue.put("late", producer="kafka", seq=12)
    assert Queue(store, PATH).put("late", producer="kafka", seq=12).again  # it was there when this one began
    assert drained(queue) == ["a", "b"]


def test_refused_number_is_no_repeat_when_its_batch_is_retried(store) -> None:
    """Whether it may have been done was said of the whole write: what was in none was told to be there already."""
    one, rival = made(store), Queue(store, PATH)
    one.put("j", producer="p", seq=10)
    rival.put("between")  # so the next write of `one` is refused, and made again
    gap, other = Put(New("g"), "p", 7, one._client), Put(New("o"), "o", 1, one._client)
    refused, put = one._writer.commit([gap, other])
    assert isinstance(refused, SequenceGap)
    assert isinstance(put, int)
    assert [letter.body for letter in one.peek()] == ["j", "between", "o"]


def test_dedupe_puts_a_message_once_while_its_id_is_remembered(store) -> None:
    queue = made(store)
    for _ in range(3):
        Queue(store, PATH).put({"day": 1}, dedupe="2026-11-01")
    queue.put({"day": 2}, dedupe="2026-11-02")
    assert [one.body["day"] for one in queue.peek()] == [1, 2]


@pytest.mark.parametrize(
    "how", [{"key": "\ud800"}, {"dedupe": "\ud800"}, {"producer": "\ud800", "seq": 1}, {"key": 7}], ids=ascii
)
def test_text_not_encodable_as_utf_8_is_refused_before_it_joins_a_batch(store, how) -> None:
    queue = made(store)
    with pytest.raises(InvalidInput):
        queue.put(1, **how)
    with pytest.raises(InvalidInput):
        queue.put({"name": "\ud800"})
    queue.put("good")
    job = queue.claim()
    with pytest.raises(InvalidInput):
        job.then("\ud800")
    job.nack(error="no file \udcff", delay_s=0.0)
    assert queue.claim().error == "no file \\udcff"


@pytest.mark.parametrize(
    "how",
    [
        {"producer": "p"},
        {"seq": 1},
        {"producer": "", "seq": 1},
        {"producer": "~x", "seq": 1},
        {"seq": 0, "producer": "p"},
    ],
    ids=str,
)
def test_incomplete_producer_identity_is_refused(store, how) -> None:
    with pytest.raises(InvalidInput):
        made(store).put(1, **how)


@pytest.mark.parametrize(
    "faults", [*product(FAULTS, repeat=3)], ids=lambda faults: "-".join(type(one).__name__ for one in faults)
)
def test_each_triple_of_faults_of_puts_loses_and_doubles_nothing(store, faults) -> None:
    made(store)
    queue, faulty = again(store, {"put": [*faults]})
    queue.put("a", producer="p", seq=1)
    job = queue.claim()
    job.then("a+")
    job.ack()
    asyncio.run(faulty.deliver_late())
    assert drained(Queue(store, PATH)) == ["a+"]
    stat = Queue(store, PATH).stat()
    assert (stat.put, stat.ready, stat.claimed, stat.dead) == (2, 0, 0, 0)


def test_lost_answer_is_settled_also_after_it_left_the_list_of_last_writes(store) -> None:
    made(store)
    other = Queue(store, PATH)

    class Meanwhile(Faulty):
        armed = False

        async def put(self, write, data, *, timeout_s):
            answer = await super().put(write, data, timeout_s=timeout_s)
            if self.armed:
                self.armed = False
                for n in range(70):
                    other.put(n)
                return NoAnswer("lost")
            return answer

    clock = ManualClock()
    way = Meanwhile(store.backend, {}, world=clock)
    queue = Queue(Store(way, store.root, world=clock), PATH, world=clock)
    way.armed = True
    queue.put("mine")
    way.armed = True
    job = queue.claim()
    assert job.body == "mine"
    way.armed = True
    job.ack()
    assert Counter(map(str, drained(other))) == Counter(map(str, [*range(70)] * 3))


def test_late_worker_is_refused_and_the_newer_claim_stands(store) -> None:
    """SQS: a late delete is refused, and says why."""
    clock = ManualClock()
    queue = made(store, visible_s=60)
    queue.put("a")
    sleeper = Queue(store, PATH, world=clock).claim()
    sleeper._do(End(sleeper.n, sleeper.token, "nack", error="taken for lapsed"))  # as a watcher would do
    job = queue.claim()
    assert (job.attempt, job.body) == (2, "a")
    for call in (sleeper.ack, lambda: sleeper.bury("no"), lambda: sleeper.extend(60)):
        with pytest.raises(ClaimLost):
            call()
    job.ack()
    job.ack()  # the answer to the first was lost
    with pytest.raises(ClaimLost, match="given up here"):
        job.nack()
    assert queue.stat().put == 1
    assert queue.claim() is None


def test_claim_without_heartbeat_lapses_by_the_clock_of_the_observer(store) -> None:
    clock = ManualClock()
    made(store, visible_s=60).put("a")
    dead = Queue(store, PATH, world=clock).claim()
    dead.ended = "dead"  # nobody beats for it any more
    watcher = Queue(Store(store.backend, store.root, world=clock), PATH, world=clock)
    assert watcher.claim() is None
    clock.advance(59)
    assert watcher.claim() is None
    clock.advance(2)
    job = watcher.claim()
    assert (job.attempt, job.error) == (2, "nobody answered for it in time")
    assert job.epoch > dead.epoch


def test_clocks_an_hour_apart_lapse_no_live_claim(store) -> None:
    """A worker whose clock is late: what others see first is its end long ago, but by the heartbeat it lives on."""
    late = ManualClock(now_s=ManualClock().now_s - 3600, _ids=1000)
    here = ManualClock()
    made(store, visible_s=60).put("a")
    watcher = Queue(store, PATH, world=here)
    assert watcher.stat().ready == 1
    watcher.put("b")
    job = Queue(store, PATH, world=late).claim()
    with watcher.claim() as other:
        assert other.body == "b"
    here.advance(50)
    assert watcher.claim() is None
    job.extend(60)
    here.advance(50)
    assert watcher.claim() is None
    job.ack()


def test_message_of_a_killed_worker_is_delivered_again(store) -> None:
    """Kombu's filesystem transport removes it first: a killed worker loses it."""
    clock = ManualClock()
    made(store, visible_s=60).put("a")
    killed = Queue(store, PATH, world=clock).claim()
    other = Queue(store, PATH, world=clock)
    assert other.claim() is None
    clock.advance(61)
    job = other.claim()
    assert (job.body, job.attempt) == ("a", 2)
    with pytest.raises(ClaimLost):
        killed.ack()
    job.ack()
    assert (other.stat().ready, other.stat().claimed) == (0, 0)


def test_times_below_a_millisecond_are_rounded_up(store) -> None:
    clock = ManualClock()
    queue = Queue(store, PATH, world=clock)
    made(store).put_many(["a", "b"])
    assert queue.claim(visible_s=1e-5).visible_s == 0.001
    job = queue.claim(visible_s=60)
    job.extend(1e-5)
    clock.advance(0.002)
    assert queue.stat().claimed == 2
    assert {job.body for job in (Queue(store, PATH, world=clock).claim() for _ in range(2)) if job} == {"a", "b"}


def test_job_learns_without_a_request_that_its_claim_lapsed(store) -> None:
    clock = ManualClock()
    made(store, visible_s=60).put("a")
    job = Queue(store, PATH, world=clock).claim()
    job.check()
    clock.advance(53)
    job.check()
    clock.advance(2)  # the margin: others may act at 60
    with pytest.raises(ClaimLost, match="lapsed"):
        job.check()
    assert job.lost.is_set()


def test_extension_of_a_lost_claim_does_not_prolong_it(store, monkeypatch) -> None:
    clock = ManualClock()
    made(store, visible_s=60).put("a")
    queue, watcher = Queue(store, PATH, world=clock), Queue(store, PATH, world=clock)
    monkeypatch.setattr(queue._heartbeat, "add", lambda _: None)
    job = queue.claim()
    assert watcher.claim() is None
    clock.advance(55)
    for call in (job.check, lambda: job.extend(3600)):
        with pytest.raises(ClaimLost, match="lapsed"):
            call()
    clock.advance(6)
    assert watcher.claim().attempt == 2


def test_heartbeat_keeps_an_extension_that_is_shorter(store, monkeypatch) -> None:
    monkeypatch.setattr(job_module, "_BEATS", 6000)
    monkeypatch.setattr(job_module, "_LINGER_S", 10 * PATIENCE_S)
    queue = made(store)
    queue.put("a")
    with queue.claim(visible_s=60_000 * PATIENCE_S) as job:
        until(lambda: queue._heartbeat._every_s)
        job.extend(600)
        until(lambda: next(iter(Queue(store, PATH)._writer.read()[0].claims.values())).beat >= 3)
    queue.close()


def test_heartbeat_keeps_the_claim_of_a_message_claimed_again(store, monkeypatch) -> None:
    clock = ManualClock()
    made(store, visible_s=60).put("a")
    queue = Queue(Store(store.backend, store.root, world=clock), PATH, world=clock)
    monkeypatch.setattr(queue._heartbeat, "add", lambda _: None)
    former = queue.claim()
    assert queue.claim() is None
    clock.advance(62)
    again = queue.claim()
    assert again.n == former.n
    queue._heartbeat.beat([former, again])
    assert (former.lost.is_set(), again.lost.is_set()) == (True, False)
    again.check()


def test_late_heartbeat_does_not_stop_later_heartbeats(store, monkeypatch) -> None:
    """DotNetWorkQueue #335: one late heartbeat stopped the beating for good."""
    monkeypatch.setattr(job_module, "_BEATS", 6000)
    made(store, visible_s=600).put_many(["a", "b"])
    faulty = Faulty(store.backend, {"put": [Pass(), Pass(), *[Refuse()] * 3]}, world=Machine())
    queue = Queue(Store(faulty, store.root), PATH, timeout=0.05)
    jobs = [queue.claim(), queue.claim()]

    def beats() -> int:
        return min(claim.beat for claim in Queue(store, PATH)._writer.read()[0].claims.values())

    until(lambda: beats() >= 3)
    assert ("put", Refuse()) in faulty.fired
    jobs[0].ack()
    until(lambda: queue._heartbeat._jobs.keys() == {jobs[1].token})
    jobs[1].ack()
    until(lambda: not queue._heartbeat._beating.locked())


@pytest.mark.parametrize("end", ["ack", "nack"])
def test_claim_whose_end_failed_lapses_while_its_process_lives(store, end) -> None:
    """solid_queue #748: a job whose end could not be written stayed claimed for as long as its worker lived."""
    made(store, visible_s=0.5).put("a")
    faulty = Faulty(store.backend, {"put": [Pass(), *[Refuse()] * 4]}, world=Machine())
    queue = Queue(Store(faulty, store.root), PATH, timeout=0.05)
    job = queue.claim()
    assert job is not None
    with pytest.raises(Unavailable):
        getattr(job, end)()
    assert ("put", Refuse()) in faulty.fired
    again = Queue(store, PATH).claim(timeout=PATIENCE_S)
    assert again is not None
    again.ack()


def test_heartbeat_takes_a_claim_without_a_look_at_all_others() -> None:
    """10,000 claims took two minutes."""
    looks = 0

    class Looked(Job):
        @property
        def ended(self) -> None:
            nonlocal looks
            looks += 1

        @ended.setter
        def ended(self, verb: str | None) -> None:
            pass

    world = Machine()
    heartbeat = job_module.ClaimHeartbeat(lambda _: Later(), world)
    for n in range(1000):
        claim = Claim(Message(n, 0, 0, 1, "", n), str(n), "worker", 0, 0, 600_000, n)
        heartbeat.add(Looked("queue", claim, world.monotonic_s(), lambda _: None, world))
    heartbeat.close()
    assert looks < 100_000


def test_close_ends_the_heartbeat_thread_of_claims_that_have_not_ended(store) -> None:
    queue = made(store, visible_s=600)
    queue.put("a")
    before = {thread for thread in threading.enumerate() if thread.name == "queue-heartbeat"}
    job = queue.claim(timeout=PATIENCE_S)
    assert job is not None
    (beating,) = {thread for thread in threading.enumerate() if thread.name == "queue-heartbeat"} - before
    queue.close()
    beating.join(PATIENCE_S)
    assert not beating.is_alive()
    with pytest.raises(CoordinationError, match="closed"):
        queue.put("b")


def test_message_that_fails_too_often_is_a_dead_letter_with_its_last_error(store) -> None:
    queue = made(store, max_attempts=2)
    queue.put("bad", key="k")
    queue.put("good", key="k")
    errors = []

    def fn(job) -> None:
        if job.body == "bad":
            job.nack(delay_s=0, error=f"no, {job.attempt}")
            raise ValueError("after a nack")

    worked = queue.work(fn, until_empty=True, on_error=lambda job, error: errors.append((job.body, str(error))))
    assert (worked.acked, worked.failed) == (1, 2)
    assert errors == [("bad", "after a nack")] * 2
    (dead,) = queue.dead()
    assert (dead.body, dead.attempts, dead.error, dead.why) == ("bad", 2, "no, 2", "2 attempts: no, 2")
    assert queue.redrive([99]) == 0
    assert queue.redrive() == 1
    assert queue.claim().attempt == 1


def test_exception_gives_message_back_with_pause_and_reason(store) -> None:
    clock = ManualClock()
    made(store).put("a")
    queue = Queue(store, PATH, world=clock)
    with pytest.raises(ZeroDivisionError), queue.claim():
        1 / 0  # noqa: B018
    assert queue.claim() is None
    assert queue.stat().delayed == 1
    clock.advance(2.1)
    job = queue.claim()
    assert (job.attempt, job.error) == (2, "ZeroDivisionError: division by zero")
    job.nack(counts=False, delay_s=0)
    assert queue.claim().attempt == 2
    with pytest.raises(KeyboardInterrupt), queue.claim() or queue.redrive() or ctrl_c():
        pass


def test_message_of_a_thousand_attempts_is_given_back_for_the_longest_pause(store) -> None:
    clock = ManualClock()
    queue = Queue(store, PATH, world=clock)
    contents = Contents("q", QueueSettings(max_attempts=2000), next=2)
    contents.add(Message(1, 0, 0, 1023, "", "a"))
    queue._writer.create(contents)
    with pytest.raises(ZeroDivisionError), queue.claim():
        1 / 0  # noqa: B018
    assert queue.stat().delayed == 1
    clock.advance(300.1)
    assert queue.claim().attempt == 1025


def test_exception_without_text_gives_message_back(store) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    queue = made(store)
    queue.put("a")
    with pytest.raises(Mute), queue.claim() as job:
        raise Mute
    assert job.ended == "nack"
    assert [letter.error for letter in queue.peek()] == ["Mute"]


async def test_worker_refuses_a_function_that_it_would_not_await(store) -> None:
    async def later(*_: object) -> None: ...

    queue = made(store)
    queue.put("a")
    with pytest.raises(InvalidInput, match="fn=.* is async"):
        queue.work(later, until_empty=True)
    with pytest.raises(InvalidInput, match="on_error=.* is async"):
        queue.work(print, until_empty=True, on_error=later)
    with pytest.raises(InvalidInput, match="on_error=.* is async"):
        await AsyncQueue(store, PATH).work(later, until_empty=True, on_error=later)
    assert queue.stat().ready == 1


async def test_tasks_work_with_a_plain_function_only_if_it_returns_a_coroutine(store) -> None:
    done: list[object] = []

    async def noted(job) -> None:
        done.append(job.body)

    queue = made(store)
    queue.put_many(["a", "b"])
    tasks = AsyncQueue(store, PATH)
    with pytest.raises(InvalidInput, match="fn=.* is not async"):
        await tasks.work(lambda job: job.body, until_empty=True)
    assert queue.stat().dead == 0
    assert (await tasks.work(lambda job: noted(job), until_empty=True)).acked == 1  # noqa: PLW0108 - a plain one
    assert done == ["b"]


def ctrl_c() -> None:
    raise KeyboardInterrupt


def test_message_is_not_delivered_before_its_time(store) -> None:
    clock = ManualClock()
    made(store)
    queue = Queue(store, PATH, world=clock)
    queue.put("later", delay_s=30)
    queue.put("now")
    assert drained(queue) == ["now"]
    clock.advance(31)
    assert drained(queue) == ["later"]


def test_messages_of_one_key_are_processed_one_at_a_time_and_in_order(store) -> None:
    queue = made(store)
    queue.put_many([("a", 1), ("a", 2), ("b", 1), ("a", 3)], key=lambda body: body[0])
    first, other = queue.claim(), queue.claim()
    assert (first.body, other.body) == (["a", 1], ["b", 1])
    assert queue.claim() is None
    first.nack(delay_s=60)
    assert queue.claim() is None  # it goes first, later
    queue.put("urgent", priority=9, key="a")
    assert queue.claim() is None
    other.ack()


def test_follow_up_messages_are_put_with_the_ack_or_not_at_all(store) -> None:
    queue = made(store)
    queue.put("a")
    job = queue.claim()
    job.then("check", priority=5)
    job.then("tell")
    assert queue.stat().ready == 0
    job.ack()
    assert [one.body for one in queue.peek()] == ["check", "tell"]
    lost = queue.claim()
    queue._batcher.do(Lapse(lost.n, lost.token, 0))
    lost.then("never")
    with pytest.raises(ClaimLost):
        lost.ack()
    assert "never" not in [one.body for one in queue.peek()]


@pytest.mark.parametrize("refusals", [6, 7, 40])
def test_failed_number_blocks_later_numbers_until_it_is_retried(store, refusals) -> None:
    """Else the repeat would be told that it is there, and it is nowhere."""
    made(store)
    queue, faulty = again(store, {"put": [Refuse()] * refusals})
    queue._writer._timeout_s = queue._writer._object._timeout_s = 3
    with pytest.raises(Unavailable):
        queue.put_many(range(20), producer="p")
    queue.close()
    assert faulty.fired
    Queue(store, PATH).put_many(range(20), producer="p")
    assert [one.body for one in Queue(store, PATH).peek(50)] == [*range(20)]


def test_message_without_room_blocks_later_ones_of_its_producer(store) -> None:
    queue = made(store, max_bytes=4096)
    bodies = ["x" * 3000, "y" * 3000, "z"]
    with pytest.raises(QueueFull):
        queue.put_many(bodies, producer="p", key=lambda body: body[0])
    assert drained(queue) == bodies[:1]
    again = Queue(store, PATH).put_many(bodies, producer="p", key=lambda body: body[0])
    assert [one.again for one in again] == [True, False, False]
    assert drained(queue) == bodies[1:]


def test_put_many_repeats_more_messages_than_it_puts_at_once(store) -> None:
    queue = made(store)
    queue.put_many(range(2500), producer="p")
    assert all(receipt.again for receipt in queue.put_many(range(2500), producer="p"))
    assert queue.stat().put == 2500


def test_put_many_can_be_repeated_after_a_bad_message(store) -> None:
    queue = made(store)
    with pytest.raises(InvalidInput):
        queue.put_many([1, 2, object()], producer="p")
    assert [receipt.again for receipt in queue.put_many([1, 2, 3], producer="p")] == [True, True, False]
    assert drained(queue) == [1, 2, 3]


def test_put_many_can_be_repeated_after_a_ctrl_c(store, monkeypatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    queue = made(store)
    with monkeypatch.context() as patched:
        patched.setattr(queue._batcher, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.put_many([1, 2, 3], producer="p")
    until(lambda: not queue._acknowledged["p"].waiting())
    assert all(receipt.again for receipt in queue.put_many([1, 2, 3], producer="p"))


def test_repeat_of_a_lower_number_does_not_release_those_after_a_failed_one() -> None:
    numbers = FailedNumbers()
    numbers.note(("p", 5), Unavailable())
    assert [*numbers.held_up([("p", 3), ("p", 6)])] == [1]
    assert not numbers.held_up([("p", 3), ("p", 5), ("p", 6)])


def test_batch_with_too_few_results_fails_its_numbers() -> None:
    numbers = FailedNumbers()
    with pytest.raises(ValueError, match="shorter"):
        numbers.run_allowed([1, 2], [("p", 1), ("p", 2)], lambda _: [None])
    assert [*numbers.held_up([("p", 2)])] == [0]


@given(st.lists(st.integers(1, 60)))
def test_number_ranges_agree_with_a_set(added) -> None:
    ranges = NumberRanges()
    for number in added:
        ranges.add(number)
    assert [number for number in range(70) if number in ranges] == sorted({*added})


def test_number_ranges_are_bounded() -> None:
    ranges = NumberRanges()
    for number in range(1, 2101, 2):
        ranges.add(number)
    assert len(ranges._ranges) == 1000
    assert 2099 in ranges
    assert 1 not in ranges


def test_interrupt_while_numbers_are_noted_forgets_none(store, monkeypatch) -> None:
    queue, add = made(store), NumberRanges.add
    queue.put_many(["a", "b"], producer="p")

    def interrupted(ranges: NumberRanges, number: int) -> None:
        monkeypatch.setattr(NumberRanges, "add", add)
        raise KeyboardInterrupt

    monkeypatch.setattr(NumberRanges, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.put("c", producer="p", seq=3)
    assert [receipt.again for receipt in queue.put_many(["a", "b", "c"], producer="p")] == [True, True, False]


def test_forked_child_knows_the_numbers_that_were_put(tmp_path) -> None:
    queue = lockprovider.queue.create(f"file://{tmp_path}/q.json")
    queue.put_many(["a", "b"], producer="p")
    if (child := os.fork()) == 0:
        os._exit(0 if all(receipt.again for receipt in queue.put_many(["a", "b"], producer="p")) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_full_queue_raises_and_puts_nothing(store) -> None:
    queue = made(store, max_bytes=4096)
    with pytest.raises(QueueFull, match="at most 4096"):
        queue.put_many(["x" * 1000] * 9, producer="p", key=lambda body: body[0])
    held = queue.stat().ready
    assert 0 < held < 9
    job = queue.claim()
    for _ in range(9):
        job.then("y" * 1000, key="y")
    with pytest.raises(QueueFull):
        job.ack()
    assert (queue.stat().ready, queue.stat().claimed) == (held - 1, 1)
    drained(queue)
    assert [one.again for one in queue.put_many(["x" * 1000] * 3, producer="p", key=lambda body: body[0])] == [True] * 3


def test_older_fence_is_refused(store) -> None:
    queue = made(store)
    queue.put(1, fence=7)
    queue.put(2)
    with pytest.raises(Fenced, match="epoch 6 is over"):
        Queue(store, PATH).put(3, fence=6)
    assert queue.stat().ready == 2


def test_job_is_a_fence_for_a_state(store) -> None:
    from lockprovider.state import Fenced as StateFenced
    from lockprovider.state import State

    queue = made(store)
    queue.put("a")
    old = queue.claim()
    old.nack(delay_s=0)
    new = queue.claim()
    state = State(store, "effects.json", default=list)
    state.update(lambda value: [*value, "new"], fence=new)
    with pytest.raises(StateFenced):
        state.update(lambda value: [*value, "old"], fence=old)


def test_purge_removes_the_messages_that_were_shown(store) -> None:
    queue = made(store)
    queue.put_many(range(3))
    shown = queue.stat()
    queue.put(3)
    with pytest.raises(StateConflict, match="has changed since"):
        queue.purge(expected=shown.rev)
    assert queue.purge(expected=queue.stat().rev) == 4
    assert queue.stat().ready == 0


def test_queue_must_be_created_and_a_recreated_one_is_another_queue(store) -> None:
    queue = Queue(store, PATH)
    for call in (lambda: queue.put(1), queue.claim, queue.stat, lambda: queue.put(1, producer="p", seq=1)):
        with pytest.raises(NoQueue, match="create"):
            call()
    made(store)
    queue.put(1)
    store.delete(PATH)
    made(store)
    with pytest.raises(Fenced, match="created anew"):
        queue.stat()


def test_concurrent_creations_of_a_queue_lose_nothing() -> None:
    """jqueue: its first write is unconditional."""
    url = f"memory://{uuid.uuid4().hex}/backfill.json"
    first = lockprovider.queue.create(url, visible_s=60)
    first.put(1)
    second = lockprovider.queue.create(url, visible_s=60)
    assert second.stat().ready == 1
    with pytest.raises(CoordinationError, match="already exists with"):
        lockprovider.queue.create(url, visible_s=61)
    assert lockprovider.queue.open(url).claim().visible_s == 60


@pytest.mark.parametrize("data", [b"", b"[]", b'{"id": 1}', b'{"id": "x", "ready": [], "claims": [], "format": 2}'])
def test_invalid_queue_object_is_never_overwritten(store, data) -> None:
    store.put_if_absent(PATH, data)
    for call in (Queue(store, PATH).stat, lambda: Queue(store, PATH).put(1)):
        with pytest.raises(MalformedObject, match="backfill.json"):
            call()
    assert store.read(PATH).data == data


def test_fields_of_a_newer_version_are_kept(store) -> None:
    made(store)
    content = store.read(PATH)
    more = json.dumps({**json.loads(content.data), "broker": {"address": "x"}}).encode()
    store.put_if_match(PATH, more, content.version)
    Queue(store, PATH).put(1)
    assert json.loads(store.read(PATH).data)["broker"] == {"address": "x"}


def test_refusal_puts_nothing_and_timeout_is_unknown(store) -> None:
    made(store)
    queue, _ = again(store, {"put": [Refuse()] * 500})
    queue._writer._timeout_s = 2
    with pytest.raises(Unavailable):
        queue.put(1)
    queue, faulty = again(store, {"put": [LoseRequest()] * 500})
    queue._writer._timeout_s = 2
    queue._writer._object._timeout_s = 2
    with pytest.raises(OutcomeUnknown):
        queue.put(1, producer="p", seq=1)
    assert faulty.fired
    assert Queue(store, PATH).stat().ready == 0
    assert not Queue(store, PATH).put(1, producer="p", seq=1).again


def test_threads_share_writes_and_process_each_message_once(store) -> None:
    queue = made(store)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(queue.put, range(300)))
    seen: list[int] = []
    worked = queue.work(lambda job: seen.append(job.body), threads=16, until_empty=True)
    assert (worked.acked, worked.failed) == (300, 0)
    assert sorted(seen) == [*range(300)]
    assert queue.stat().rev < 900


def test_racing_clients_lose_and_double_nothing(store) -> None:
    made(store)
    queues = [Queue(Store(store.backend, store.root), PATH) for _ in range(4)]
    seen: list[str] = []

    def live(one: int) -> None:
        for n in range(15):
            queues[one].put(f"{one}.{n}")
            job = queues[one].claim()
            seen.append(job.body)
            job.ack()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live, range(4)))
    assert sorted(seen) == sorted(f"{one}.{n}" for one in range(4) for n in range(15))


def test_waiting_worker_is_woken_by_a_put_of_its_process_and_can_be_stopped(store) -> None:
    queue = made(store)
    seen: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(queue.work, lambda job: seen.append(job.body), threads=3)
        for n in range(3):
            queue.put(n)
            until(lambda n=n: seen == [*range(n + 1)])
        queue.stop()
        assert working.result().acked == 3


def test_error_of_the_queue_ends_the_work(store) -> None:
    queue = made(store)
    queue.put(1)

    def fn(job) -> None:
        store.delete(PATH)

    # An end that was refused may still have been stored before, by a proxy's second copy: its outcome is unknown.
    with pytest.raises((NoQueue, OutcomeUnknown), match="no queue exists"):
        queue.work(fn, threads=2)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_work_whose_second_thread_does_not_start_ends_the_first(store, monkeypatch, error) -> None:
    queue, crew, start = made(store), [], Worker.start

    def scarce(worker: Worker, **options: bool) -> None:
        if worker.name == "queue-crew":
            crew.append(worker)
            if len(crew) == 2:
                raise error
        start(worker, **options)

    monkeypatch.setattr(Worker, "start", scarce)
    with pytest.raises(type(error)):
        queue.work(lambda job: None, threads=3)
    try:
        assert [worker.is_alive() for worker in crew] == [False, False]
        assert queue.stopping == isinstance(error, KeyboardInterrupt)
    finally:
        queue.stop()


def test_claim_whose_heartbeat_does_not_start_is_given_back(store, monkeypatch) -> None:
    queue, start = made(store), Worker.start
    queue.put("a")

    def scarce(worker: Worker, **options: bool) -> None:
        if worker.name == "queue-heartbeat":
            raise RuntimeError("can't start new thread")
        start(worker, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "start", scarce)
        with pytest.raises(RuntimeError, match="can't start"):
            queue.claim()
    job = queue.claim()
    assert job is not None
    assert job.attempt == 1


def test_worker_threads_raise_an_error_while_another_waits_for_messages(store) -> None:
    queue = made(store, max_attempts=1)
    queue.put("bad")

    def fn(job) -> None:
        raise ValueError("once")

    def on_error(job, error) -> None:
        raise error

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(queue.work, fn, threads=2, on_error=on_error)
        try:
            with pytest.raises(ValueError, match="once"):
                working.result(60)
        finally:
            queue.stop()


async def test_worker_tasks_all_end_before_an_error_is_raised(store) -> None:
    queue = AsyncQueue(made(store)._store, PATH)
    await queue.put_many(["bad", "good"])
    failed, ended = asyncio.Event(), []

    async def fn(job) -> None:
        if job.body == "bad":
            raise ValueError("once")
        await failed.wait()
        await asyncio.sleep(0.01)
        ended.append(job.body)

    def on_error(job, error) -> None:
        failed.set()
        raise error

    with pytest.raises(ValueError, match="once"):
        await queue.work(fn, tasks=2, on_error=on_error)
    assert ended == ["good"]
    assert (await queue.stat()).claimed == 0


def test_put_many_raises_for_a_bad_message_after_the_earlier_ones_ended(store) -> None:
    queue = made(store)
    held = threading.Event()

    def bodies():
        yield 1
        until(queue._batcher._writing.locked)
        threading.Timer(0.05, held.set).start()
        yield object()

    def slowly(operations):
        assert held.wait(60)
        return write(operations)

    write, queue._batcher._write = queue._batcher._write, slowly
    with pytest.raises(InvalidInput):
        queue.put_many(bodies())
    assert held.is_set()
    assert queue.stat().ready == 1


def test_forked_child_holds_no_claims(store, tmp_path) -> None:
    queue = lockprovider.queue.create(f"file://{tmp_path}/q.json", visible_s=600)
    queue.put("a")
    job = queue.claim()
    if (child := os.fork()) == 0:
        os._exit(0 if queue._heartbeat._jobs == {} and queue.put("b").n == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    job.ack()
    assert queue.claim().body == "b"


def test_producer_table_of_a_queue_is_bounded(store) -> None:
    queue = made(store)
    contents = queue._writer.read()[0].copy()
    for n in range(1000):
        contents.producers[f"p{n}"] = (1, 1, "")
    (full,) = carry_out_all(contents, [Put(New(1), "one more", 1, "")], 0, "b")
    assert isinstance(full, Overloaded)
    for n in range(1001):
        carry_out_all(contents, [Put(New(1), f"~{n}", 1, "")], 0, "b")
    assert "~0" not in contents.producers
    too_large = New("x" * contents.settings.max_bytes, key="k")
    (full,) = carry_out_all(contents, [Put(too_large, "~", 1, "")], 0, "b")
    assert isinstance(full, QueueFull)
    assert "~1" in contents.producers
    for n in range(1100):
        carry_out_all(contents, [Take(str(n), "w", 1000)], 0, f"b{n}")
    for n, claim in [*contents.claims.items()]:
        carry_out_all(contents, [End(n, claim.token, "ack")], 0, "b")
    assert len(contents.settled) <= 1024
    assert len(contents.recent) == 64


def test_errors_can_be_pickled() -> None:
    for kind in (ClaimLost, SequenceGap, NoQueue, QueueFull, TooLarge, Overloaded):
        assert str(pickle.loads(pickle.dumps(kind("no")))) == "no"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


calls_of_a_queue = st.tuples(
    st.sampled_from("ptanbl"), json_values | st.binary(), st.sampled_from(["", "k", "l"]), st.integers(-1, 1)
)
ENDS = {
    "a": lambda n, token: End(n, token, "ack"),
    "n": lambda n, token: End(n, token, "nack"),
    "b": lambda n, token: End(n, token, "bury"),
    "l": lambda n, token: Lapse(n, token, 0),
}


class Lists:
    """A queue as one would write it without thinking of others: (-priority, number, key, body), sorted."""

    def __init__(self) -> None:
        self.ready: list[tuple[int, int, str, object]] = []
        self.claims: dict[int, tuple[int, int, str, object]] = {}
        self.dead: set[int] = set()
        self.attempts: Counter[int] = Counter()

    def take(self) -> int | None:
        busy = {one[2] for one in self.claims.values()}
        for one in sorted(self.ready, key=lambda one: one[:2]):
            first = min(other[1] for other in self.ready if other[2] == one[2])
            if not one[2] or (one[2] not in busy and one[1] == first):
                self.ready.remove(one)
                self.claims[one[1]] = one
                self.attempts[one[1]] += 1
                return one[1]
        return None

    def end(self, n: int, verb: str) -> None:
        one = self.claims.pop(n)
        if verb == "b" or (verb in "nl" and self.attempts[n] >= 3):
            self.dead.add(n)
        elif verb in "nl":
            self.ready.append(one)


@given(st.lists(calls_of_a_queue))
def test_random_queue_calls_agree_with_lists_and_the_stored_size(calls) -> None:
    """The object is read back after each call."""
    contents, lists = Contents("q", QueueSettings(max_attempts=3)), Lists()
    for count, (verb, body, key, priority) in enumerate(calls):
        if verb == "p":
            carry_out_all(contents, [Put(New(body, key, priority), "p", count + 1, "")], 0, str(count))
            lists.ready.append((-priority, contents.next - 1, key, body))
        elif verb == "t":
            (claim,) = carry_out_all(contents, [Take(str(count), "w", 1000)], 0, str(count))
            assert (None if isinstance(claim, NothingReady) else claim.message.n) == lists.take()
        elif lists.claims:
            n = min(lists.claims)
            carry_out_all(contents, [ENDS[verb](n, contents.claims[n].token)], 0, str(count))
            lists.end(n, verb)
        size, contents = contents.size, decode_queue(contents.encode(), "q")
        assert contents.size == size
        expected = [one[1::2] for one in sorted(lists.ready, key=lambda one: one[:2])]
        assert [(one.n, one.body) for one in contents.ready] == expected
        assert (contents.claims.keys(), contents.dead.keys()) == (lists.claims.keys(), lists.dead)


async def test_tasks_put_claim_and_work(store) -> None:
    made(store)
    queue = AsyncQueue(store, PATH)
    receipts = await asyncio.gather(*(queue.put(n) for n in range(20)))
    assert sorted(one.n for one in receipts) == [*range(1, 21)]
    seen: list[int] = []

    async def fn(job) -> None:
        job.check()
        if job.body == 0 and job.attempt == 1:
            job.then("after")
            raise ValueError("once")
        seen.append(job.body)

    errors: list[str] = []
    worked = await queue.work(fn, tasks=4, until_empty=True, on_error=lambda job, error: errors.append(str(error)))
    assert (worked.acked, worked.failed, errors) == (19, 1, ["once"])
    assert sorted(seen) == [*range(1, 20)]
    assert (await queue.stat()).delayed == 1
    assert [one.body for one in await queue.peek()] == [0]
    assert await queue.put_many([1, 2], producer="p") != await queue.put_many([1, 2], producer="p")
    assert await queue.last_seq("p") == 2
    async with await queue.claim() as job:
        await job.extend(60)
        await job.nack(delay_s=0)
    job = await queue.claim(timeout=5)
    await job.bury("by hand")
    assert [one.why for one in await queue.dead()] == ["by hand"]
    assert await queue.redrive() == 1
    assert await queue.purge(expected=(await queue.stat()).rev) >= 1
    await queue.close()


async def test_waiting_claim_that_is_cancelled_takes_nothing_later(store) -> None:
    sync = made(store)
    queue = AsyncQueue(store, PATH)
    claiming = asyncio.create_task(queue.claim(timeout=240))
    await asyncio.to_thread(until, lambda: queue._sync._writer._arrived._gates)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await asyncio.to_thread(until, lambda: not queue._sync._writer._arrived._gates)
    await asyncio.to_thread(sync.put, "a")
    assert sync.claim().attempt == 1


async def test_claim_that_is_cancelled_while_it_is_written_is_given_back(store, monkeypatch) -> None:
    sync = made(store)
    sync.put("a")
    queue = AsyncQueue(store, PATH)
    reached, go = threading.Event(), threading.Event()
    commit = queue._sync._writer.commit

    def slowly(operations):
        reached.set()
        assert go.wait(240)
        return commit(operations)

    monkeypatch.setattr(queue._sync._writer, "commit", slowly)
    claiming = asyncio.create_task(queue.claim(timeout=240))
    await asyncio.to_thread(reached.wait, 240)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    go.set()
    await asyncio.to_thread(until, lambda: sync.stat().rev == 3)  # put, claimed, given back
    assert sync.claim().attempt == 1


def test_message_added_after_the_end_of_its_claim_is_refused(store) -> None:
    """It was accepted, and never put."""
    queue = made(store)
    queue.put_many(["a", "b", "c"])
    acked, lost, failed = (queue.claim() for _ in range(3))
    acked.ack()
    lost.lost.set()
    failed._do = lambda _: (_ for _ in ()).throw(OutcomeUnknown("no answer"))
    with pytest.raises(OutcomeUnknown):
        failed.ack()
    for job in (acked, lost, failed):
        with pytest.raises(ClaimLost):
            job.then("later")
    failed._do = queue._batcher.do
    failed.ack()
    assert queue.stat().put == 3


def test_queue_that_readers_would_refuse_is_not_written(store) -> None:
    """Its bytes fit, and it has too many JSON values: it was written, and no client could read it again."""
    queue, dense = made(store), [1] * 130_000
    queue.put_many([dense] * 15, key=lambda _: "k")
    with pytest.raises(QueueFull, match="more than 2000000 items"):
        queue.put(dense, key="k")
    other = Queue(store, PATH)
    assert other.stat().ready == 15
    other.claim().ack()
    queue.put(dense, key="k")


def test_message_without_room_fails_no_other_operation_of_its_batch(store) -> None:
    queue, dense = made(store), [1] * 130_000
    queue.put_many([dense] * 15, key=lambda _: "k")
    job = queue.claim()
    new = new_message(queue.world, dense, "k")
    puts = [Put(new, "p", number, "c") for number in (1, 2)]
    first, acked, second = queue._writer.commit([puts[0], End(job.n, job.token, "ack"), puts[1]])
    assert ([type(first), type(second)], acked) == ([QueueFull, QueueFull], None)
    assert (queue.stat().ready, queue.stat().claimed) == (14, 0)
    assert queue._writer.commit(puts[:1]) == [16]


def test_message_without_room_after_a_lost_race_is_refused(store) -> None:
    other, dense = made(store), [1] * 130_000
    other.put_many([dense] * 14, key=lambda _: "k")

    class Late(Faulty):
        async def put(self, write, data, *, timeout_s):
            if "put" not in self.calls:
                other.put(dense, key="k")
            return await super().put(write, data, timeout_s=timeout_s)

    late = Late(store.backend, {})
    with pytest.raises(QueueFull):
        Queue(Store(late, store.root), PATH).put(dense, key="k")
    assert (late.calls.count("put"), other.stat().ready) == (1, 15)


def test_unknown_end_of_a_claim_is_a_malformed_queue(store) -> None:
    queue = made(store)
    queue.put("a")
    queue.claim().ack()
    content = store.read(PATH)
    fields = json.loads(content.data)
    fields["settled"] = [[claim, "eaten"] for claim, _ in fields["settled"]]
    store.put_if_match(PATH, json.dumps(fields).encode(), content.version)
    with pytest.raises(MalformedObject, match="ended by none of ack, nack, bury"):
        Queue(store, PATH).stat()


def test_message_whose_workers_die_becomes_a_dead_letter(store, monkeypatch) -> None:
    """A worker killed by the system counts as an attempt (remoulade 312)."""
    made(store, max_attempts=2)
    queue, faulty = again(store)
    monkeypatch.setattr(queue._heartbeat, "add", lambda _: None)
    queue.put("poison")
    for _ in range(2):
        assert queue.claim(visible_s=1) is not None
        faulty._world.advance(2)
    assert queue.claim() is None
    assert [(letter.body, letter.attempts) for letter in queue.dead()] == [("poison", 2)]


def test_delay_longer_than_the_visibility_delivers_once(store) -> None:
    """Others deliver it again each time the visibility ends (celery/kombu 337)."""
    made(store)
    queue, faulty = again(store)
    queue.put("later", delay_s=100)
    for _ in range(9):
        assert queue.claim(visible_s=1) is None
        faulty._world.advance(10)
    faulty._world.advance(11)
    assert queue.claim().attempt == 1
    assert queue.claim() is None


def test_put_is_unknown_when_the_object_is_damaged_after_a_lost_answer(store) -> None:
    """It was reported as a malformed object, which means that nothing was put."""
    made(store)
    clock = ManualClock()

    class Damages(Faulty):
        async def put(self, write, *args, **how):
            await super().put(write, *args, **how)
            store.put_if_match(PATH, b"damaged", store.read(PATH).version)
            return NoAnswer("lost")

    way = Damages(store.backend, {}, world=clock)
    with pytest.raises(OutcomeUnknown):
        Queue(Store(way, store.root, world=clock), PATH, world=clock).put("a")
