"""`State` and `AsyncState` on memory, with a network that loses, repeats and delays; what each call promises."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import budgets
import fsspec
import pytest
from patience import until

import lockprovider
from fsspec_cas import InvalidInput, Machine, OutcomeUnknown, Store, Unavailable
from fsspec_cas.answer import NoAnswer
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
from lockprovider import LeaseLost, Lock, LockSettings, NotAcquired
from lockprovider.recipes.state.changes import Update
from lockprovider.state import (
    UNCHANGED,
    AsyncState,
    Fenced,
    MalformedObject,
    NestedUpdate,
    NoRevision,
    NotChanged,
    State,
    StateConflict,
    StateLocked,
)

PATH = "orders.json"
FAULTS = (Pass(), LoseAnswer(), LoseRequest(), DeliverTwice(), DeliverLate(1), Refuse())


def backend() -> MemoryBackend:
    return MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True))


@pytest.fixture
def store() -> Store:
    return Store(backend(), f"/{uuid.uuid4().hex}")


def again(store: Store, plan: dict[str, list[object]] | None = None) -> tuple[Store, Faulty]:
    """The same place behind a faulty network, in a world of its own."""
    clock = ManualClock()
    faulty = Faulty(store.backend, plan or {}, world=clock)
    return Store(faulty, store.root, world=clock), faulty


@dataclass
class Unaware:
    """A lease whose holder does not know of its loss."""

    epoch: int


def added(n: int):
    return lambda value: [*value, n]


def test_state_is_read_updated_and_left_as_it_is(store) -> None:
    state = State(store, PATH, default=dict)
    nothing = state.read()
    assert (nothing.serial, nothing.value) == (0, {})
    first = state.update(lambda value: {**value, "a": 1}, reason="begin")
    assert (first.serial, first.value, first.reason) == (1, {"a": 1}, "begin")
    assert state.update(lambda _: UNCHANGED) == first
    assert state.update(lambda _: NotChanged()) == first
    assert state.update(lambda value: {**value, "b": [True, None, 1.5, "ü"]}).serial == 2
    assert State(store, PATH).read().value == {"a": 1, "b": [True, None, 1.5, "ü"]}
    assert [one.serial for one in state.history()] == [2, 1]
    assert state.at(1).value == {"a": 1}
    assert [(one.where, one.after) for one in state.diff(1, 2)] == [("/b", [True, None, 1.5, "ü"])]


def test_update_takes_two_puts_and_read_one_conditional_get(store) -> None:
    through, faulty = again(store)
    state = State(through, PATH, default=list, world=ManualClock())
    state.put([])
    for n in range(3):
        faulty.calls.clear()
        state.update(added(n))
        assert faulty.calls == budgets.STATE_UPDATE
    faulty.calls.clear()
    state.read()
    assert faulty.calls == budgets.STATE_READ


def test_update_sees_writes_of_others_before_it_writes_nothing(store) -> None:
    mine, other = State(store, PATH, default=int), State(store, PATH)
    mine.put(1)
    other.put(7)
    assert mine.update(lambda value: UNCHANGED if value == 1 else value + 1).value == 8
    other.put(9)

    def refuses(value: int) -> int:
        raise ValueError(f"it is {value}")

    with pytest.raises(ValueError, match="it is 9"):
        mine.update(refuses)


def test_threads_share_writes_and_each_sees_the_previous_update(store) -> None:
    state = State(store, PATH, default=list)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: state.update(added(n)), range(200)))
    assert sorted(state.read().value) == [*range(200)]


def test_failing_update_fails_alone(store) -> None:
    state = State(store, PATH, default=list)
    go, reached = threading.Event(), threading.Event()

    def slow(value: list[int]) -> list[int]:
        reached.set()
        assert go.wait(240)
        return [*value, 0]

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(state.update, slow)
        until(reached.is_set)
        bad = pool.submit(state.update, lambda value: value.append(9) or 1 / 0)
        until(lambda: state._batcher.waiting == 1)
        good = pool.submit(state.update, added(2))
        until(lambda: state._batcher.waiting == 2)
        go.set()
        with pytest.raises(ZeroDivisionError):
            bad.result()
        assert good.result().value == [0, 2]
        assert first.result().serial == 1


def test_racing_processes_lose_no_update(store) -> None:
    states = [State(Store(store.backend, store.root), PATH, default=list) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: [states[one].update(added(one * 100 + n)) for n in range(20)], range(4)))
    value = states[0].read().value
    assert len(value) == 80
    assert [sorted(n for n in value if n // 100 == one) for one in range(4)] == [
        [one * 100 + n for n in range(20)] for one in range(4)
    ]
    assert states[0].read().serial == 80


@pytest.mark.parametrize(
    "faults", [*product(FAULTS, repeat=3)], ids=lambda faults: "-".join(type(one).__name__ for one in faults)
)
def test_each_triple_of_faults_of_puts_loses_and_doubles_nothing(store, faults) -> None:
    through, faulty = again(store, {"put": [Pass(), *faults]})
    state = State(through, PATH, default=list, world=through._world)
    for n in range(3):
        try:
            state.update(added(n))
        except OutcomeUnknown as unknown:
            if state.settle(unknown) is None:
                state.update(added(n))
    asyncio.run(faulty.deliver_late())
    now = State(store, PATH)
    assert now.read().value == [0, 1, 2]
    assert [one.value for one in now.history()] == [[0, 1, 2], [0, 1], [0]]


class Meanwhile(Faulty):
    """After the next write whose answer is lost, others write so many times."""

    def __init__(self, inner, writes, clock) -> None:
        super().__init__(inner, {}, world=clock)
        self.writes = writes
        self.armed = False

    async def put(self, write, data, *, timeout_s):
        answer = await super().put(write, data, timeout_s=timeout_s)
        if self.armed and write.path.endswith(PATH):
            self.armed = False
            self.writes()
            return NoAnswer("lost")
        return answer


@pytest.mark.parametrize(("others", "keep"), [(0, 5), (1, 5), (10, 20)])
def test_lost_answer_is_settled_also_after_others_have_written_ten_times(store, others, keep) -> None:
    other = State(store, PATH, default=list, keep=keep)
    clock = ManualClock()
    way = Meanwhile(store.backend, lambda: [other.update(added(100 + n)) for n in range(others)], clock)
    state = State(Store(way, store.root, world=clock), PATH, default=list, keep=keep, world=clock)
    state.put([])
    way.armed = True
    mine = state.update(added(1))
    assert (mine.serial, mine.value) == (2, [1])
    assert other.read().value == [1, *(100 + n for n in range(others))]


def test_write_trimmed_from_the_history_cannot_be_settled(store) -> None:
    other = State(store, PATH, default=list, keep=1)
    clock = ManualClock()
    way = Meanwhile(store.backend, lambda: [other.update(added(n)) for n in range(40)], clock)
    state = State(Store(way, store.root, world=clock), PATH, default=list, world=clock)
    state.put([])
    way.armed = True
    with pytest.raises(OutcomeUnknown, match="trimmed") as caught:
        state.update(added(-1))
    unknown = pickle.loads(pickle.dumps(caught.value))
    with pytest.raises(OutcomeUnknown):
        state.settle(unknown)
    with pytest.raises(InvalidInput, match="not from a write of"):
        State(store, "another.json").settle(unknown)


def test_write_of_a_killed_process_is_settled_by_another_process(store) -> None:
    through, faulty = again(store, {"put": [Pass(), Pass(), *[LoseRequest()] * 500]})
    state = State(through, PATH, default=list, timeout=5, world=through._world)
    state.put([])
    with pytest.raises(OutcomeUnknown) as caught:
        state.update(added(1))
    unknown = pickle.loads(pickle.dumps(caught.value))
    elsewhere = State(store, PATH, default=list)
    settled = elsewhere.settle(unknown)
    assert settled is not None
    assert settled.value == [1] == elsewhere.read().value
    assert faulty.fired


def test_refusal_by_the_store_makes_no_doubt(store) -> None:
    through, _ = again(store, {"put": [Refuse()] * 500})
    state = State(through, PATH, default=list, timeout=2, world=through._world)
    with pytest.raises(Unavailable):
        state.update(added(1))
    assert State(store, PATH, default=list).read().serial == 0


def test_trimmed_history_reports_the_removed_serials(store) -> None:
    state = State(store, PATH, keep=3)
    for n in range(33):
        state.put(n)
    assert [one.value for one in state.history()] == [32, 31, 30, 29, 28]  # trimmed at 32 to 29
    assert state.at(31).value == 30
    for serial in (5, 34, 0):
        with pytest.raises(NoRevision, match="keeps 3"):
            state.at(serial)


def test_rollback_is_the_next_serial(store) -> None:
    state = State(store, PATH)
    for n in range(3):
        state.put(n)
    back = state.rollback(1)
    assert (back.serial, back.value, back.reason) == (4, 0, "rollback to 1")
    assert [one.value for one in state.history()] == [0, 2, 1, 0]


def test_rollback_of_bytes_to_a_revision_without_a_value_is_refused(store) -> None:
    state = State(store, PATH, codec=bytes)
    with state.edit() as edit:
        edit.value = b"a state of Terraform"
    with pytest.raises(NoRevision, match="serial 1 of .* has no state .*choose another"):
        state.rollback(1)
    assert (state.read().serial, state.at(1).value) == (2, None)
    state._batcher.do(Update(lambda _: None))
    assert state.rollback(2).value == b"a state of Terraform"


def test_state_that_was_removed_and_made_anew_is_another_lineage(store) -> None:
    old = State(store, PATH).put("old")
    store.delete(PATH)
    anew = State(store, PATH)
    first, second = anew.put("new"), anew.put("newer")
    assert first.lineage == second.lineage != old.lineage
    assert [(one.serial, one.value) for one in anew.history()] == [(2, "newer"), (1, "new")]


def test_put_with_expected_serial_refuses_another_serial(store) -> None:
    state = State(store, PATH)
    assert state.put("a", expected=0).serial == 1
    with pytest.raises(StateConflict, match="at serial 1, not 0") as caught:
        state.put("b", expected=0)
    assert caught.value.current == 1
    assert state.put("b", expected=1).serial == 2
    first, second = state._writer.commit([Update(lambda _: "c", serial=2), Update(lambda _: "d", serial=2)])
    assert (first.serial, second.current, str(second)) == (3, 3, "the state is at serial 3, not 2: read it again")


def test_older_fence_is_refused(store) -> None:
    state = State(store, PATH, default=list)
    state.update(added(1), fence=5)
    assert state.update(added(2)).epoch == 5
    assert state.update(added(3), fence=7).epoch == 7
    with pytest.raises(Fenced, match="epoch 5 is over") as caught:
        State(store, PATH, default=list).update(added(4), fence=5)
    assert caught.value.epoch == 7
    with pytest.raises(Fenced):
        state.put([], fence=6)
    assert state.update(lambda _: UNCHANGED, fence=9).epoch == 9  # to be known as newest is a change
    assert state.read().value == [1, 2, 3]
    for bad in (0, -1, True, "7"):
        with pytest.raises(InvalidInput, match="fence="):
            state.put([], fence=bad)


def test_lease_works_as_a_fence(store) -> None:
    state = State(store, PATH, default=list)
    with Lock(store, "jobs/nightly.json").acquire() as older:
        state.update(added(1), fence=older)
    with Lock(store, "jobs/nightly.json").acquire() as newer:
        state.update(added(2), fence=newer)
    with pytest.raises(Fenced):
        state.update(added(3), fence=older)


def test_edit_writes_at_its_end_and_nothing_after_an_exception(store) -> None:
    state = State(store, PATH, default=dict)
    with state.edit(reason="migration 12") as doc:
        doc["schema"] = 12
        assert "schema" in doc
        assert State(store, PATH).read().value == {}
    assert doc.revision == state.read()
    assert (state.read().value, state.read().reason) == ({"schema": 12}, "migration 12")
    with pytest.raises(ZeroDivisionError), state.edit() as doc:
        doc["schema"] = 1 / 0
    assert state.read().value == {"schema": 12}
    assert state.update(lambda value: {**value, "a": 1}).value == {"schema": 12, "a": 1}  # nobody edits any more


def test_diff_begins_at_the_empty_revision_of_the_first_edit(store) -> None:
    state = State(store, PATH)
    with state.edit() as doc:
        doc.value = {"a": 1}
    assert [(one.before, one.after) for one in state.diff(1, 2)] == [(None, {"a": 1})]


def test_update_during_an_edit_raises_error_naming_the_editor(store) -> None:
    state, other = State(store, PATH, default=dict), State(store, PATH, default=dict)
    with state.edit(reason="migration 12") as doc:
        with pytest.raises(StateLocked, match="migration 12") as caught:
            other.update(lambda value: {**value, "a": 1})
        assert caught.value.reason == "migration 12"
        assert caught.value.valid_until_ms > Machine().now_ms()
        with pytest.raises(NotAcquired), other.edit(timeout=0):
            pass
        who = other.who()
        assert (who.state, who.reason) == ("held", "migration 12")
        doc["b"] = 2
    assert other.update(lambda value: {**value, "a": 1}).value == {"a": 1, "b": 2}
    assert other.who().state == "released"


def test_overtaken_advisory_edit_raises(store) -> None:
    state, other = State(store, PATH, default=dict), State(store, PATH, default=dict, edits="advisory")
    edit = state.edit()
    doc = edit.__enter__()
    other.update(lambda value: {**value, "a": 1})
    doc["b"] = 2
    with pytest.raises(StateConflict, match="changed during the edit"):
        edit.__exit__(None, None, None)
    assert state.read().value == {"a": 1}


def test_holder_that_was_paused_overwrites_nothing(store) -> None:
    """The lease lapses, another edits; then the first one goes on."""
    clock = ManualClock()
    short = LockSettings(validity=10, renew=1)
    frozen = Store(store.backend, store.root, world=clock)
    state = State(frozen, PATH, default=dict, world=clock, lock_settings=short)
    other = State(store, PATH, default=dict)
    edit = state.edit(timeout=0)
    doc = edit.__enter__()
    doc["mine"] = 1
    doc.lease._heartbeat.stop()
    with other.edit() as theirs:
        theirs["theirs"] = 1
    with pytest.raises((LeaseLost, Fenced, StateConflict)):
        edit.__exit__(None, None, None)
    doc.lease = Unaware(doc.lease.epoch)
    with pytest.raises(Fenced, match="is over"):
        state._batcher.do(state._ending(doc, ""))
    assert other.read().value == {"theirs": 1}


def test_mark_of_a_dead_editor_blocks_no_client(store) -> None:
    state, other = State(store, PATH, default=dict), State(store, PATH, default=dict)
    edit = state.edit()
    doc = edit.__enter__()
    doc.lease.release()  # as if it had lapsed
    assert other.update(lambda value: {**value, "a": 1}).value == {"a": 1}
    with pytest.raises(LeaseLost):
        edit.__exit__(None, None, None)
    doc.lease = Unaware(doc.lease.epoch)
    with pytest.raises(StateConflict):
        state._batcher.do(state._ending(doc, ""))


def test_lock_with_lost_answer_is_recognised_as_own(store) -> None:
    """OpenTofu #4405: a lock names itself as the one that is in its way."""
    through, faulty = again(store, {"put": [LoseAnswer(), Pass(), DeliverTwice()]})
    state = State(through, PATH, default=dict, world=through._world)
    with state.edit() as doc:
        doc["a"] = 1
    assert faulty.left == {}
    assert State(store, PATH).read().value == {"a": 1}


def test_unlock_breaks_the_shown_lock_and_refuses_a_changed_one(store) -> None:
    state, other = State(store, PATH, default=dict), State(store, PATH, default=dict)
    other.unlock(other.who())  # nothing to break
    with state.edit() as doc:
        doc["released"] = True
    serial = other.read().serial
    other.unlock(other.who())  # released: nothing to break, and nothing is written
    assert other.read().serial == serial
    edit = state.edit(reason="stuck")
    doc = edit.__enter__()
    shown = other.who()
    doc.lease.renew()
    with pytest.raises(StateConflict, match="changed since it was shown"):
        other.unlock(shown)
    other.unlock(other.who())
    assert other.update(lambda value: {"a": 1}).value == {"a": 1}
    with pytest.raises((LeaseLost, Fenced)):
        edit.__exit__(None, None, None)
    assert other.read().value == {"a": 1}
    with other.edit() as again:
        again["b"] = 2
    assert other.read().value == {"a": 1, "b": 2}


def test_bytes_models_and_custom_codecs_are_stored_and_read(store) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Orders(pydantic.BaseModel):
        day: str = ""
        seen: int = 0

    raw = State(store, "raw", codec=bytes)
    assert raw.put(bytes(range(256))).value == bytes(range(256)) == State(store, "raw", codec=bytes).read().value
    model = State(store, "model", codec=Orders, default=Orders)
    assert model.read().value == Orders()
    model.update(lambda value: value.model_copy(update={"seen": value.seen + 1}))
    assert State(store, "model", codec=Orders).read().value == Orders(seen=1)
    with model.edit() as doc:
        doc.value.day = "2026-11-22"
    assert model.read().value == Orders(day="2026-11-22", seen=1)
    State(store, "model").put({"seen": "many"})
    with pytest.raises(MalformedObject, match="not an instance of Orders"):
        model.read()

    class Text:
        def encode(self, value):
            return {"text": value}

        def decode(self, stored):
            return stored["text"]

    assert State(store, "text", codec=Text()).put("x").value == "x"
    with pytest.raises(InvalidInput, match="not bytes"):
        raw.put("text")
    with pytest.raises(InvalidInput, match="not an instance of the state's model"):
        model.put({"seen": 1})


@pytest.mark.parametrize("bad", [None, {1: 2}, {"a": {2: 3}}, float("nan"), b"raw", [object()]])
def test_value_not_representable_in_json_is_refused_before_any_write(store, bad) -> None:
    state = State(store, PATH, default=dict)
    with pytest.raises(InvalidInput):
        state.put(bad)
    with pytest.raises(InvalidInput):
        state.update(lambda _: bad)
    assert state.read().serial == 0


@pytest.mark.parametrize(
    "options",
    [{"codec": 7}, {"codec": dict}, {"keep": 0}, {"edits": "no"}, {"default": {}}, {"timeout": -1}, {"pace_s": "x"}],
    ids=str,
)
def test_option_that_does_not_fit_is_refused(store, options) -> None:
    with pytest.raises(InvalidInput):
        State(store, PATH, **options)


@pytest.mark.parametrize("data", [b"", b"no JSON", b"[]", b'{"a": 1}', b'{"lineage": "x", "value": 1, "format": 2}'])
def test_invalid_state_object_is_never_overwritten(store, data) -> None:
    store.put_if_absent(PATH, data)
    state = State(store, PATH, default=dict)
    for call in (state.read, lambda: state.put({}), lambda: state.update(lambda value: value)):
        with pytest.raises(MalformedObject, match="orders.json"):
            call()
    assert store.read(PATH).data == data


def test_fields_of_a_newer_version_are_kept(store) -> None:
    State(store, PATH).put(1)
    content = store.read(PATH)
    more = json.dumps({**json.loads(content.data), "colour": "blue"}).encode()
    store.put_if_match(PATH, more, content.version)
    State(store, PATH).put(2)
    assert json.loads(store.read(PATH).data)["colour"] == "blue"


def test_closed_state_refuses_further_updates(store) -> None:
    with State(store, PATH) as state:
        state.put(1)
    with pytest.raises(lockprovider.state.CoordinationError, match="closed"):
        state.put(2)
    assert state.read().value == 1


def test_errors_can_be_pickled() -> None:
    for error in (Fenced("no", 7), StateLocked("no", "me", 5, "why"), StateConflict("no", 3), NoRevision("no")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), "no", vars(error))


def test_state_opens_a_url() -> None:
    url = f"memory://{uuid.uuid4().hex}/pipelines/orders.json"
    state = lockprovider.state.open(url, default=dict)
    state.put({"a": 1})
    assert lockprovider.state.open(url).read().value == {"a": 1}
    for bad in ("memory://", "s3://bucket", "memory://a/", "s3:///x"):
        with pytest.raises(InvalidInput):
            lockprovider.state.open(bad)


async def test_tasks_share_writes_and_an_early_cancelled_update_is_dropped(store) -> None:
    state = AsyncState(store, PATH, default=list)
    assert (await state.read()).value == []
    await asyncio.gather(*(state.update(added(n)) for n in range(50)))
    assert sorted((await state.read()).value) == [*range(50)]
    assert (await state.put([], expected=(await state.read()).serial)).value == []
    async with state.edit(reason="by a task") as doc:
        doc.value.append(1)
        with pytest.raises(StateLocked):
            await state.update(added(2))
        assert (await state.who()).reason == "by a task"
    assert doc.revision.value == [1]
    serial = doc.revision.serial
    assert (await state.rollback(serial - 1)).value == []
    assert [one.value for one in (await state.history(2))] == [[], [1]]
    assert (await state.at(serial)).value == [1]
    assert [one.where for one in await state.diff(serial, serial + 1)] == ["/0"]

    go, reached = threading.Event(), threading.Event()

    def slow(value):
        reached.set()
        assert go.wait(240)
        return [*value, 7]

    first = asyncio.create_task(state.update(slow))
    await asyncio.to_thread(reached.wait, 240)
    dropped = asyncio.create_task(state.update(added(8)))
    await asyncio.sleep(0)
    until(lambda: state._sync._batcher.waiting == 1)
    [(_, waiting)] = state._sync._batcher._arrived
    dropped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dropped
    until(waiting.cancelled)  # its thread cancels it after the task has ended
    go.set()
    assert (await first).value == [7]
    await state.close()
    assert (await state.read()).value == [7]


# -- an update inside an update ----------------------------------------------------------------------------------------


def asked_by(state: State, ask) -> list[BaseException]:
    """What a function of an update gets that asks for another."""
    raised: list[BaseException] = []

    def fn(value):
        try:
            ask()
        except BaseException as error:  # noqa: BLE001 - it is looked at
            raised.append(error)
        return [*value, 1]

    assert state.update(fn).value == [1]
    return raised


def test_nested_update_is_refused_at_once_and_the_outer_one_is_done(store) -> None:
    state, other = State(store, PATH, default=list), State(store, PATH, default=list)
    for inner in (lambda: state.update(added(2)), lambda: other.put([9]), lambda: State(store, PATH).update(added(2))):
        (error,) = asked_by(state, inner)
        assert isinstance(error, NestedUpdate)
        assert "return the new value" in str(error)
        state.put([])
    assert state.read().value == []


def test_update_of_another_state_within_an_update_is_done(store) -> None:
    state, other = State(store, PATH, default=list), State(store, "other.json", default=list)
    assert asked_by(state, lambda: other.update(added(2))) == []
    assert other.read().value == [2]


async def test_task_that_updates_within_an_update_is_refused_at_once(store) -> None:
    state = AsyncState(store, PATH, default=list)
    loop = asyncio.get_running_loop()

    def ask() -> None:
        asyncio.run_coroutine_threadsafe(state.update(added(2)), loop).result(240)

    (error,) = await asyncio.to_thread(asked_by, state._sync, ask)
    assert isinstance(error, NestedUpdate)


def test_update_on_thread_that_an_update_waits_for_times_out(store) -> None:
    """Whose thread it is cannot be known; that nobody gets a turn can."""
    state = State(store, PATH, default=list, timeout=0.1)

    def ask() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(state.update, added(2)).result()

    (error,) = asked_by(state, ask)
    assert isinstance(error, NestedUpdate)
    assert "another thread" in str(error)


def test_two_states_whose_updates_wait_for_each_other_time_out(store) -> None:
    one, two = State(store, "a", default=list, timeout=0.1), State(store, "b", default=list, timeout=0.1)
    both = threading.Barrier(2)

    def crossed(mine: State, its: State) -> list[BaseException]:
        return asked_by(mine, lambda: (both.wait(240), its.update(added(2))))

    with ThreadPoolExecutor(2) as pool:
        raised = [*pool.map(crossed, (one, two), (two, one))]
    assert any(raised)
    assert all(isinstance(error, NestedUpdate) for errors in raised for error in errors)


def test_update_is_unknown_when_the_object_is_damaged_after_a_lost_answer(store) -> None:
    """It was reported as a malformed object, which means that nothing was written."""
    State(store, PATH).put({"a": 1})
    clock = ManualClock()

    class Damages(Faulty):
        async def put(self, write, *args, **how):
            answer = await super().put(write, *args, **how)
            if write.path.endswith(PATH):
                store.put_if_match(PATH, b"damaged", store.read(PATH).version)
                return NoAnswer("lost")
            return answer

    way = Damages(store.backend, {}, world=clock)
    with pytest.raises(OutcomeUnknown):
        State(Store(way, store.root, world=clock), PATH, world=clock).put({"a": 2})
