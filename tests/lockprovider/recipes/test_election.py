"""`Election` and `AsyncElection` on memory, with a network that loses, repeats and delays; what each call promises."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import uuid
import weakref
from dataclasses import replace
from itertools import product
from typing import Any

import budgets
import fsspec
import pytest
from patience import soon, until

import lockprovider
from fsspec_cas import InvalidInput, Store, Unavailable, Won
from fsspec_cas.backends.base import Relay
from fsspec_cas.backends.memory import MemoryBackend
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
from lockprovider.election import (
    AsyncElection,
    Deposed,
    Elected,
    Election,
    Lapsed,
    Leader,
    MalformedObject,
    NotElected,
    Resigned,
    TermLost,
)
from lockprovider.errors import InvalidSettings, LossReason, NotPicklable
from lockprovider.queue import Queue
from lockprovider.recipes.election import term as candidate_module
from lockprovider.recipes.election.decide import ElectionRecord, decode_election, may_stand
from lockprovider.recipes.election.term import Candidate
from lockprovider.settings import LockSettings
from lockprovider.state import Fenced, State

PATH = "compactor.json"
FAULTS = (Pass(), LoseAnswer(), LoseRequest(), DeliverTwice(), DeliverLate(1), Refuse())
LONG = 600.0  # no test waits for it
SOON = {"validity": LONG, "poll": 0.01}


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True))


@pytest.fixture
def store(backend) -> Store:
    return Store(backend, f"/{uuid.uuid4().hex}")


def record_in(store: Store) -> ElectionRecord:
    return decode_election(store.read(PATH).data, PATH)


def usurp(store: Store, **changes: Any) -> ElectionRecord:
    """Another leads from now on, as if this one had been frozen for long."""
    while True:
        content = store.read(PATH)
        before = decode_election(content.data, PATH)
        fields = {"epoch": before.epoch + 1, "owner": "x", "name": "usurper", "write": uuid.uuid4().hex, **changes}
        after = replace(before, **fields)
        if isinstance(store.put_if_match(PATH, after.encode(), content.version), Won):
            return after


def test_next_candidate_leads_after_the_leader_resigns(store) -> None:
    first = Election(store, PATH, name="vm-7", value={"url": "http://vm-7"}, **SOON)
    second = Election(store, PATH, name="vm-9", **SOON)
    assert second.leader() is None
    with first.lead() as term:
        term.check()
        assert repr(first) == f"<Election 'compactor.json', 'vm-7' leads in term {term.epoch}>"
        assert repr(term) == f"<Term {term.epoch} of 'vm-7', goes on>"
        assert second.leader() == Leader("vm-7", {"url": "http://vm-7"}, term.epoch, record_in(store).since_ms)
        with pytest.raises(NotElected, match="'vm-7', in term") as refused:
            second.lead(timeout=0)
        assert refused.value.leader == "vm-7"
        assert pickle.loads(pickle.dumps(refused.value)).leader == "vm-7"
        term.proclaim([1])
        assert (term.value, second.leader().value) == ([1], [1])
    assert second.leader() is None
    with pytest.raises(TermLost, match="resigned") as lost:
        term.check()
    assert lost.value.reason is LossReason.RELEASED
    assert pickle.loads(pickle.dumps(lost.value)).reason is LossReason.RELEASED
    with second.lead() as later:
        assert later.epoch == term.epoch + 1
    assert record_in(store).resigned


def test_election_is_exported_by_its_public_name(tmp_path) -> None:
    election = lockprovider.election.open(f"file://{tmp_path}/jobs/compactor.json", name="a", **SOON)
    with election.lead(timeout=0) as term:
        assert election.leader().epoch == term.epoch


def counted(backend: MemoryBackend) -> tuple[Store, Faulty]:
    faulty = Faulty(backend, {})
    return Store(faulty, f"/{uuid.uuid4().hex}"), faulty


def test_election_makes_the_documented_number_of_requests(backend) -> None:
    """Two to win, one to renew or to resign, one to look."""
    store, faulty = counted(backend)
    election = Election(store, PATH, **SOON)
    term = election.lead()
    assert faulty.calls == budgets.ELECTION_WIN
    faulty.calls.clear()
    assert term.renew()
    assert faulty.calls == budgets.ELECTION_RENEW
    term.resign()
    assert faulty.calls == budgets.ELECTION_RENEW + budgets.ELECTION_RESIGN
    election.leader()  # its own copy of what it wrote is brought once
    faulty.calls.clear()
    election.lead()
    assert faulty.calls == budgets.ELECTION_WIN
    onlooker = Election(store, PATH, **SOON)
    faulty.calls.clear()
    onlooker.leader()
    onlooker.leader()
    assert faulty.calls == budgets.ELECTION_LOOK * 2


@pytest.mark.parametrize("faults", [*product(FAULTS, FAULTS, FAULTS)])
def test_one_candidate_leads_and_epochs_rise_under_every_triple_of_faults(backend, faults) -> None:
    """The lost-answer table: candidacy, renewal, resignation, each with each fault."""
    clock = ManualClock()
    store = Store(Faulty(backend, {"put": faults}, world=clock), f"/{uuid.uuid4().hex}", world=clock)
    settings = LockSettings(validity=30.0)
    first, second = (Candidate(store, PATH, name, settings, clock) for name in "ab")
    epochs: list[int] = []
    for one, other in ((first, second), (second, first)):
        leading = None
        while leading is None:
            observed = one.look()
            leading = one.stand(observed, None) if may_stand(one.me, observed, clock.monotonic_s()) else None
            clock.advance(1.0)
        epochs.append(leading.record.epoch)
        assert not may_stand(other.me, other.look(), clock.monotonic_s())
        leading = one.renew(leading)
        assert record_in(store).is_of(one.me.owner, epochs[-1])
        one.resign(leading, "")
        assert record_in(store).resigned
    assert epochs == sorted({*epochs})


def test_unanswered_term_ends_at_its_deadline_despite_late_renewal(backend) -> None:
    clock = ManualClock()
    faulty = Faulty(backend, {"put": [Pass(), *[LoseRequest()] * 40]}, world=clock)
    store = Store(faulty, f"/{uuid.uuid4().hex}", world=clock)
    one = Candidate(store, PATH, "a", LockSettings(validity=30.0), clock)
    leading = one.stand(one.look(), None)
    sent_s = clock.monotonic_s()
    assert leading.deadline_s == sent_s + 30.0 - 3.0
    with pytest.raises((TermLost, Unavailable)):
        one.renew(leading)
    clock.advance(30.0)
    with pytest.raises(TermLost, match="not renewed in time") as lost:
        one.renew(leading)
    assert lost.value.reason is LossReason.LAPSED


def test_new_candidate_waits_for_whole_validity_without_a_store_clock(store) -> None:
    clock = ManualClock()
    settings = LockSettings(validity=30.0)
    dead, born = (Candidate(store, PATH, name, settings, clock) for name in "ab")
    assert dead.stand(dead.look(), None)
    clock.advance(3600.0)
    observed = born.look()
    assert observed.until_s == clock.monotonic_s() + 30.0
    assert not may_stand(born.me, observed, clock.monotonic_s())
    clock.advance(30.0)
    assert may_stand(born.me, born.look(), clock.monotonic_s())
    assert born.stand(born.look(), None).record.epoch == observed.record.epoch + 1


class Stamped(Faulty):
    """A store that says when its object was written and when it was asked, by a clock of its own, to a second."""

    def __init__(self, inner: MemoryBackend, clock: ManualClock, off_s: float) -> None:
        super().__init__(inner, {}, world=clock)
        self.clock, self.off_s, self.written_ms = clock, off_s, 0
        self.capabilities = replace(inner.capabilities, own_clock=True)

    def cut_ms(self) -> int:
        return int(self.clock.now_s + self.off_s) * 1000

    async def put(self, *arguments: Any, **more: Any) -> Any:
        answer = await super().put(*arguments, **more)
        self.written_ms = self.cut_ms()
        return answer

    async def head(self, path: str, *, timeout_s: float) -> Any:
        seen = await super().head(path, timeout_s=timeout_s)
        return replace(seen, modified_ms=self.written_ms, answered_ms=self.cut_ms())


@pytest.mark.parametrize("off_s", [0.0, -7200.0, 1e6])
def test_new_candidate_takes_age_of_term_from_the_store_clock(backend, off_s) -> None:
    clock = ManualClock(now_s=1000.9)
    stamped = Stamped(backend, clock, off_s)
    store = Store(stamped, f"/{uuid.uuid4().hex}", world=clock)
    settings = LockSettings(validity=30.0)
    dead = Candidate(store, PATH, "a", settings, clock)
    assert dead.stand(dead.look(), None)

    def may_one_that_is_born_now() -> bool:
        born = Candidate(store, PATH, "b", settings, clock)
        return may_stand(born.me, born.look(), clock.monotonic_s())

    clock.advance(29.2)  # the cut stamps say 30
    assert not may_one_that_is_born_now()
    clock.advance(1.9)
    stamped.calls.clear()
    assert may_one_that_is_born_now()
    assert stamped.calls == ["get", "head"]


def test_wrong_wall_clock_changes_no_election(store) -> None:
    behind, ahead = ManualClock(), ManualClock(now_s=1_700_000_000.0 + 36_000)
    settings = LockSettings(validity=30.0)
    one = Candidate(store, PATH, "a", settings, ahead)
    other = Candidate(store, PATH, "b", settings, behind)
    leading = one.stand(one.look(), None)
    observed = other.look()
    assert observed.until_s == behind.monotonic_s() + 30.0
    one.resign(leading, "")
    assert other.stand(other.look(), None).record.epoch == leading.record.epoch + 1


def test_fenced_state_refuses_a_deposed_leader(store, caplog) -> None:
    state, queue = State(store, "state.json", default=dict), Queue.create(f"memory://{store.root}/q.json")
    old = Election(store, PATH, **SOON).lead()
    state.update(lambda _: {"by": "old"}, fence=old)
    queue.put("by old", fence=old)
    usurped = usurp(store, resigned=True)
    new = Election(store, PATH, **SOON).lead()
    assert new.epoch == usurped.epoch + 1
    state.update(lambda _: {"by": "new"}, fence=new)
    queue.put("by new", fence=new)
    old.check()  # it does not know yet
    with pytest.raises(Fenced):
        state.update(lambda _: {"by": "old again"}, fence=old)
    with pytest.raises(Fenced):
        queue.put("by old again", fence=old)
    assert state.read().value == {"by": "new"}
    caplog.set_level("INFO", "lockprovider")
    assert old.renew()
    assert "leads, in term" in caplog.text or "has led, in term" in caplog.text
    with pytest.raises(TermLost, match="leads, in term") as lost:
        old.check()
    assert lost.value.reason is LossReason.TAKEN_OVER


def test_leadership_function_is_stopped_at_the_loss_of_the_term(store) -> None:
    """There, "cancel will not interrupt the leadership function", and nothing stops it at the loss of the session."""
    election = Election(store, PATH, validity=LONG, renew=0.01, poll=0.01)
    epochs: list[int] = []
    ended: list[type[BaseException]] = []

    def main(term: Any) -> str:
        epochs.append(term.epoch)
        if len(epochs) == 2:
            return "done"
        try:
            while True:  # it never looks at its term
                with contextlib.suppress(Exception):  # nor does it let itself be stopped by an error
                    threading.Event().wait(0.01)
        except BaseException as error:
            ended.append(type(error))
            raise

    running = threading.Thread(target=lambda: epochs.append(election.run(main)))
    running.start()
    until(lambda: epochs)
    usurp(store, resigned=True)
    running.join()
    assert ended == [Deposed]
    assert epochs == [epochs[0], epochs[0] + 2, "done"]


def test_work_that_checks_its_term_is_restarted_without_interruption(store) -> None:
    election = Election(store, PATH, validity=LONG, renew=0.01, poll=0.01)
    seen: list[int] = []

    def main(term: Any) -> int:
        seen.append(term.epoch)
        if len(seen) == 1:
            usurp(store, resigned=True)
            assert term.lost.wait(240.0)
        return len(seen)

    assert election.run(main, on_deposed="event") == 2


EXITS = """
import json, time
from lockprovider.election import Election
election = Election.open("memory://jobs/e.json", validity=600, renew=0.01, poll=0.01)

def main(term):
    store = election._store
    while True:  # another leads
        content = store.read("e.json")
        fields = json.loads(content.data) | {"epoch": term.epoch + 1, "owner": "x", "write": "y"}
        if type(store.put_if_match("e.json", json.dumps(fields).encode(), content.version)).__name__ == "Won":
            break
    time.sleep(10_000)  # in C, where no interrupt comes

election.run(main, on_deposed="exit", grace=0.05)
"""


def test_process_with_uninterruptible_work_exits_when_configured() -> None:
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 123, done
    assert "is lost, but its work still runs: ending this process" in done.stderr


def test_error_of_work_reaches_the_caller_and_the_term_is_resigned(store) -> None:
    election = Election(store, PATH, **SOON)
    with pytest.raises(ZeroDivisionError):
        election.run(lambda _: 1 / 0)
    assert record_in(store).resigned


def test_refusal_by_an_unrelated_fence_does_not_end_the_term(store) -> None:
    def main(term: Any) -> None:
        raise Fenced("a newer one has written", term.epoch + 1)

    with pytest.raises(Fenced):
        Election(store, PATH, **SOON).run(main)


def test_stop_ends_the_work_and_resigns(store) -> None:
    election = Election(store, PATH, **SOON)
    began = threading.Event()

    def main(term: Any) -> None:
        began.set()
        while True:
            term.lost.wait(0.01)

    running = threading.Thread(target=election.run, args=(main,))
    running.start()
    assert began.wait(240.0)
    election.stop()
    running.join()
    assert record_in(store).resigned
    with pytest.raises(NotElected, match="stopped"):
        election.lead()


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("name", ["lease-heartbeat", "term-"])
def test_ctrl_c_while_a_thread_starts_ends_the_work_and_resigns(store, monkeypatch, name, starts) -> None:
    start, started = Worker.start, []

    def interrupted(worker: Worker, **options: bool) -> None:
        if not worker.name.startswith(name):
            return start(worker, **options)
        if starts:
            start(worker, **options)
            started.append(worker)
        raise KeyboardInterrupt

    def main(term: Any) -> None:
        while True:
            threading.Event().wait(0.01)

    monkeypatch.setattr(Worker, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Election(store, PATH, **SOON).run(main)
    assert record_in(store).resigned
    until(lambda: not any(worker.is_alive() for worker in started))


def test_term_won_while_the_candidate_is_stopped_is_resigned(backend) -> None:
    class Stopping(Relay):
        async def relay(self, name: str, ask: Any) -> Any:
            if name == "put":
                election.stop()
            return await ask()

    store = Store(Stopping(backend, blocking=backend.blocking), f"/{uuid.uuid4().hex}")
    election = Election(store, PATH, **SOON)
    assert election.run(lambda term: "work of a stopped candidate") is None
    assert record_in(store).resigned


def test_transferred_leadership_is_for_the_heir_first_and_then_for_all(store) -> None:
    clock = ManualClock()
    settings = LockSettings(validity=30.0)
    one, heir, third = (Candidate(store, PATH, name, settings, clock) for name in ("a", "vm-9", "c"))
    leading = one.stand(one.look(), None)
    one.resign(leading, "vm-9")
    third.look()
    assert not may_stand(third.me, third.look(), clock.monotonic_s())
    assert may_stand(heir.me, heir.look(), clock.monotonic_s())
    with pytest.raises(NotElected, match="is to lead"):
        Election(store, PATH, name="d", world=clock).lead(timeout=0)
    clock.advance(10.0)  # the heir is dead
    assert may_stand(third.me, third.look(), clock.monotonic_s())


def test_leader_transfers_to_a_named_candidate(store) -> None:
    first, second = Election(store, PATH, name="vm-7", **SOON), Election(store, PATH, name="vm-9", **SOON)
    with pytest.raises(NotElected, match="does not lead"):
        first.transfer("vm-9")
    term = first.lead()
    with pytest.raises(InvalidInput, match="name of a candidate"):
        first.transfer("")
    first.transfer("vm-9")
    assert term.lost.is_set()
    with pytest.raises(NotElected):
        first.lead(timeout=0)
    with second.lead(timeout=0) as after:
        assert after.epoch == term.epoch + 1


def test_watch_reports_election_resignation_and_lapse(store) -> None:
    onlooker = Election(store, PATH, **SOON)
    changes = onlooker.watch()
    with Election(store, PATH, name="a", **SOON).lead() as term:
        assert next(changes).leader.epoch == term.epoch
        term.proclaim("here")
        assert next(changes) == Elected(Leader("a", "here", term.epoch, record_in(store).since_ms))
        for value in (1, True, [1], [1.0]):
            term.proclaim(value)
            assert repr(next(changes).leader.value) == repr(value)
    assert isinstance(next(changes), Resigned)
    usurp(store, resigned=False, name="b", validity_ms=50)
    kinds = [type(next(changes)), type(next(changes))]
    assert kinds == [Elected, Lapsed]
    onlooker.stop()
    assert list(changes) == []


def test_removed_object_is_left_to_the_last_seen_leader(store) -> None:
    clock = ManualClock()
    settings = LockSettings(validity=30.0)
    one, other = (Candidate(store, PATH, name, settings, clock) for name in "ab")
    leading = one.stand(one.look(), None)
    other.look()
    store.delete(PATH)
    clock.advance(1.0)
    assert not may_stand(other.me, other.look(), clock.monotonic_s())
    with pytest.raises(TermLost, match="removed") as lost:
        one.renew(leading)
    assert lost.value.reason is LossReason.BROKEN
    clock.advance(30.0)
    assert may_stand(other.me, other.look(), clock.monotonic_s())
    assert other.stand(other.look(), None).record.epoch > leading.record.epoch


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"format": true}', b'{"owner": "x", "validUntil": 1, "expired": true}']
)
def test_invalid_election_object_is_refused_and_not_overwritten(store, data) -> None:
    store.put_if_absent(PATH, data)
    election = Election(store, PATH, **SOON)
    for call in (election.lead, election.leader):
        with pytest.raises(MalformedObject, match="not overwritten"):
            call()
    assert store.read(PATH).data == data


def test_newer_format_is_refused_and_unknown_fields_are_kept(store) -> None:
    Election(store, PATH, **SOON).lead(timeout=0).resign()
    fields = json.loads(store.read(PATH).data)
    store.update(PATH, lambda _: json.dumps({**fields, "colour": "red"}).encode())
    with Election(store, PATH, **SOON).lead(timeout=0):
        assert json.loads(store.read(PATH).data)["colour"] == "red"
    store.update(PATH, lambda _: json.dumps({**fields, "format": 2}).encode())
    with pytest.raises(MalformedObject, match="newer one"):
        Election(store, PATH, **SOON).leader()


def test_two_threads_of_one_candidate_lead_one_after_the_other(store) -> None:
    election = Election(store, PATH, **SOON)
    term = election.lead()
    with pytest.raises(NotElected, match=f"this candidate leads .* in term {term.epoch}") as refused:
        election.lead(timeout=0)
    assert refused.value.leader == election.name
    term.resign()
    assert election.lead(timeout=0).epoch == term.epoch + 1


def test_failing_callback_of_a_term_prevents_no_resignation(store) -> None:
    told: list[str] = []
    election = Election(store, PATH, **SOON)
    term = election.lead()
    term.when_lost(lambda: 1 / 0)
    term.when_lost(lambda: told.append("over"))
    term.resign()
    assert told == ["over"]
    assert election.leader() is None


@pytest.mark.parametrize("tasks", [False, True])
def test_error_of_a_block_is_not_replaced_by_one_of_its_resignation(store, tasks) -> None:
    def fail() -> None:
        store.update(PATH, lambda _: b"not an election")
        1 / 0  # noqa: B018

    async def in_a_task() -> None:
        async with AsyncElection(store, PATH, **SOON).lead():
            fail()

    def run() -> None:
        if tasks:
            asyncio.run(in_a_task())
        else:
            with Election(store, PATH, **SOON).lead():
                fail()

    with pytest.raises(ZeroDivisionError):
        run()


def test_error_of_work_is_not_replaced_by_one_of_the_renewal_after_it(store) -> None:
    def fail(_: object) -> None:
        store.update(PATH, lambda _: b"not an election")
        raise Fenced("by a state")

    with pytest.raises(Fenced, match="by a state"):
        Election(store, PATH, **SOON).run(fail)


def test_term_belongs_to_its_process(store) -> None:
    election = Election(store, PATH, **SOON)
    term = election.lead()
    for one in (term, election):
        with pytest.raises(NotPicklable):
            pickle.dumps(one)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                term.check()
            except TermLost as lost:
                term.resign()
                code = 0 if lost.reason is LossReason.FORKED and term.lost.is_set() else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    term.check()
    term.resign()


def test_unreferenced_term_goes_on_until_resigned_or_lost(store) -> None:
    """It is resigned or lost, and says so; it does not end in silence."""
    term = weakref.ref(Election(store, PATH, **SOON).lead())
    gc.collect()
    led = term()
    assert led is not None
    led.resign()


def test_term_of_a_dead_thread_ends(store) -> None:
    election = Election(store, PATH, validity=LONG, renew=0.01, poll=0.01)
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.append(election.lead()))
    thread.start()
    thread.join()
    until(taken[0].lost.is_set)
    with pytest.raises(TermLost, match="has ended"):
        taken[0].check()


def test_few_of_a_hundred_candidates_write_when_the_leader_resigns(backend) -> None:
    """No herd: who sees that another was elected goes on waiting."""
    store, faulty = counted(backend)
    clock = ManualClock()
    settings = LockSettings(validity=30.0)
    leader = Candidate(store, PATH, "leader", settings, clock)
    leading = leader.stand(leader.look(), None)
    crowd = [Candidate(store, PATH, f"c{n}", settings, clock) for n in range(128)]
    for one in crowd:
        one.look()
    leader.resign(leading, "")
    faulty.calls.clear()
    for one in crowd:
        observed = one.look()
        if may_stand(one.me, observed, clock.monotonic_s()):
            one.stand(observed, None)
    assert faulty.calls.count("put") == 1
    assert faulty.calls.count("get") == 128


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": ""}, InvalidInput),
        ({"name": 7}, InvalidInput),
        ({"validity": "long"}, InvalidSettings),
        ({"validity": 0}, InvalidSettings),
        ({"validity": 10, "renew": 2}, InvalidSettings),
        ({"poll": 0}, InvalidSettings),
        ({"value": {1: 2}}, InvalidInput),
    ],
)
def test_bad_options_are_refused(store, options, error) -> None:
    with pytest.raises(error):
        Election(store, PATH, **options)


def test_bad_calls_are_refused(store) -> None:
    election = Election(store, PATH, **SOON)
    with pytest.raises(InvalidInput, match="function of a term"):
        election.run("main")
    with pytest.raises(InvalidInput, match="'event', 'interrupt', 'exit'"):
        election.run(print, on_deposed="log")
    with pytest.raises(InvalidInput, match="must name an object"):
        Election.open("memory://")
    with pytest.raises(InvalidInput, match="must be a Store"):
        Election("memory://x", PATH)


def test_silent_store_is_asked_until_the_timeout(backend, monkeypatch) -> None:
    monkeypatch.setattr(candidate_module, "_REQUEST_S", 0.01)
    store = Store(Faulty(backend, {"get": [LoseRequest()] * 10_000}), "/x")
    with pytest.raises(Unavailable):
        Election(store, PATH, **SOON).lead(timeout=0)


def test_tasks_lead_and_are_cancelled_when_deposed(store) -> None:
    async def story() -> None:
        election = AsyncElection(store, PATH, validity=LONG, renew=0.01, poll=0.01, name="a")
        async with election.lead() as term:
            term.check()
            await term.proclaim(7)
            assert (await election.leader()).value == 7
        seen: list[int] = []

        async def main(term: Any) -> str:
            seen.append(term.epoch)
            if len(seen) == 1:
                usurp(store, resigned=True)
                await asyncio.sleep(LONG)
            return "done"

        assert await election.run(main) == "done"
        assert seen == [seen[0], seen[0] + 2]
        assert await election.run(lambda term: main(term)) == "done"  # noqa: PLW0108 - a plain function

    asyncio.run(story())


def test_refusal_raised_by_work_after_stop_reaches_the_caller(store) -> None:
    async def story() -> None:
        election = AsyncElection(store, PATH, validity=LONG, renew=0.01, poll=0.01, name="a")

        async def main(_: Any) -> None:
            election.stop()
            raise NotElected("another election's")

        with pytest.raises(NotElected, match="another election's"):
            await election.run(main)
        assert await election.run(main) is None

    asyncio.run(story())


def test_cancelled_run_cancels_its_work_and_resigns(store) -> None:
    async def story() -> None:
        began, ended = asyncio.Event(), asyncio.Event()

        async def main(_: Any) -> None:
            began.set()
            try:
                await asyncio.sleep(LONG)
            finally:
                ended.set()

        running = asyncio.ensure_future(AsyncElection(store, PATH, **SOON).run(main))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended.is_set()
        assert record_in(store).resigned

    asyncio.run(story())


def test_term_won_for_a_cancelled_task_is_resigned(store) -> None:
    async def story() -> None:
        election = AsyncElection(store, PATH, **SOON)
        inner = election._sync
        may_go, won = threading.Event(), threading.Event()
        try_once = inner.try_once

        def slowly(deadline_s: float) -> Any:
            assert may_go.wait(240.0)
            term = try_once(deadline_s)
            won.set()
            return term

        inner.try_once = slowly
        leading = asyncio.ensure_future(election.lead().__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        may_go.set()
        await soon(won.is_set)
        await soon(lambda: record_in(store).resigned)

    asyncio.run(story())


def test_tasks_watch_an_election(store) -> None:
    async def story() -> None:
        onlooker = AsyncElection(store, PATH, **SOON)
        changes = onlooker.watch()
        async with AsyncElection(store, PATH, name="a", **SOON).lead():
            assert isinstance(await anext(changes), Elected)
        assert isinstance(await anext(changes), Resigned)
        onlooker.stop()
        assert [change async for change in changes] == []

    asyncio.run(story())
