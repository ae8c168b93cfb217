"""Random calls with random faults against a model, over memory, in a world that stands still.

The model is not told by the store under test: a witness between the faults and the memory writes down each write that
was really applied, and rivals write past all of it.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, replace

import fsspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from fsspec_cas import ABSENT, Lost, ObjectNotFound, OutcomeUnknown, Store, Unavailable, Unknown, Version, Won, sender
from fsspec_cas.answer import Applied, ConditionFailed, Missing
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.settle import Send
from fsspec_cas.testing import (
    Delay,
    DeliverLate,
    DeliverTwice,
    Faulty,
    Interrupt,
    LoseAnswer,
    LoseRequest,
    ManualClock,
    Pass,
    Refuse,
)

_places = itertools.count()

PUT_FAULTS = st.sampled_from(
    [
        *(Pass(), LoseRequest(), LoseAnswer(), Refuse(), Refuse(2.0), Refuse(60.0), Delay(3.0), DeliverTwice()),
        *(DeliverLate(1), DeliverLate(2), DeliverLate(9), Interrupt(), Interrupt(done=False)),
    ]
)
DELETE_FAULTS = st.sampled_from([Pass(), LoseRequest(), LoseAnswer(), DeliverTwice(), Refuse()])
HEAD_FAULTS = st.sampled_from([Pass(), Pass(), LoseAnswer(), Refuse(), Delay(30.0)])
PLANS = st.fixed_dictionaries({"put": st.lists(PUT_FAULTS, max_size=4), "head": st.lists(HEAD_FAULTS, max_size=4)})


class Clock(ManualClock):
    """Remembers the last id that it gave away."""

    last_id = ""

    def new_id(self) -> str:
        self.last_id = super().new_id()
        return self.last_id


class Witness(MemoryBackend):
    """Writes down what was applied; `meanwhile` happens once, right after the next write that was."""

    def __init__(self, fs) -> None:
        super().__init__(fs)
        self.applied: Counter[str] = Counter()
        self.versions: dict[str, list[Version]] = {}
        self.meanwhile = None

    async def put(self, write, data, *, timeout_s):
        answer = await super().put(write, data, timeout_s=timeout_s)
        if isinstance(answer, Applied):
            self.applied[write.write_id] += 1
            self.versions.setdefault(write.write_id, []).append(answer.version)
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile:
                meanwhile()
        return answer


@dataclass(frozen=True)
class Ended:
    """A call that is over: what it wrote and what was said of it."""

    write_id: str
    outcome: object
    create: bool


class FaultyRegister(RuleBasedStateMachine):
    versions = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self.root = f"/machine-{next(_places)}"
        self.fs = fsspec.filesystem("memory")
        self.clock = Clock()
        self.witness = Witness(self.fs)
        self.faulty = Faulty(self.witness, {}, world=self.clock)
        self.store = Store(self.faulty, self.root, world=self.clock)
        self.rival = Store(MemoryBackend(self.fs), self.root)
        self.ended: list[Ended] = []
        self.deletes = 0
        self.serial = itertools.count()

    # What happens.

    @rule(target=versions, plan=PLANS)
    def create(self, plan):
        return self._call(plan, lambda data: self.store.put_if_absent("key", data, timeout=20), create=True)

    @rule(target=versions, plan=PLANS, version=versions)
    def match(self, plan, version):
        return self._call(plan, lambda data: self.store.put_if_match("key", data, version, timeout=20), create=False)

    @rule(target=versions, plan=PLANS, version=versions)
    def match_and_a_rival_follows(self, plan, version):
        """A win that is replaced before anybody looks. Not with a repeated request: that lie cannot be seen through."""
        plan = {**plan, "put": [fault for fault in plan["put"] if not isinstance(fault, DeliverTwice)]}
        self.witness.meanwhile = self._rival
        made = self._call(plan, lambda data: self.store.put_if_match("key", data, version, timeout=20), create=False)
        self.witness.meanwhile = None
        return made

    @rule()
    def what_could_win_is_refused_for_good(self):
        now = self._now()
        self._plan({"put": [Refuse(60.0)] * 99})
        if now is None:
            outcome = self._outcome(lambda: self.store.put_if_absent("key", b"refused", timeout=20))
        else:
            outcome = self._outcome(lambda: self.store.put_if_match("key", b"refused", now, timeout=20))
        self._plan({})
        # An earlier write of the test may be delivered only now.
        assert isinstance(outcome, Unavailable) or (isinstance(outcome, Lost) and self._now() != now), outcome
        self.ended.append(Ended(self.clock.last_id, outcome, create=now is None))

    @rule(target=versions)
    def read(self):
        self._plan({})
        try:
            content = self.store.read("key")
        except ObjectNotFound:
            assert not self.fs.exists(f"{self.root}/key")
            return multiple()
        assert content.data == self.fs.cat_file(f"{self.root}/key")
        return content.version

    @rule(target=versions)
    def rival_writes(self):
        return self._rival()

    @rule()
    def rival_deletes(self):
        self.rival.delete("key")
        self.deletes += 1

    @rule(version=versions, faults=st.lists(DELETE_FAULTS, max_size=3), head=st.lists(HEAD_FAULTS, max_size=2))
    def delete_if_match(self, version, faults, head):
        self.rival._drive.run(self.faulty.deliver_late())  # so that nothing else happens between the two looks
        self._plan({"delete": faults, "head": head})
        before = self._now()
        outcome = self._outcome(lambda: self.store.delete_if_match("key", version, timeout=20))
        self._plan({})
        self.deletes += before == version
        match outcome:
            case Won():
                assert before == version
                assert self._now() is None
            case Lost(current=current):
                assert before != version
                assert current == (before or ABSENT)
            case Unavailable():
                assert self._now() == before
            case Unknown():
                assert before == version
                assert set(faults) & {LoseAnswer(), LoseRequest(), DeliverTwice()}
                settled = self.store.resolve(outcome, timeout=20)  # no faults: done now, or nobody can tell any more
                assert self._now() is None
                assert isinstance(settled, Won | Unknown)

    @rule(plan=PLANS)
    def resolve_the_last(self, plan):
        pending = [one for one in self.ended if isinstance(one.outcome, Unknown)]
        if pending:
            self._resolve(plan, pending[-1])

    # What must hold.

    @invariant()
    def what_was_lost_never_is(self):
        """Also not later, when late copies arrive."""
        for one in self.ended:
            if isinstance(one.outcome, Lost | Unavailable):
                assert self.witness.applied[one.write_id] == 0, one

    @invariant()
    def what_was_won_was_applied_once(self):
        for one in self.ended:
            # A create that landed unseen and was deleted may be made again.
            most = 1 + (self.deletes if one.create else 0)
            assert self.witness.applied[one.write_id] <= most, one
            if isinstance(one.outcome, Won):
                assert one.outcome.version in self.witness.versions[one.write_id], one

    def teardown(self):
        self._plan({})
        self.rival._drive.run(self.faulty.deliver_late())
        self.what_was_lost_never_is()
        self.what_was_won_was_applied_once()
        if self.fs.exists(self.root):
            self.fs.rm(self.root, recursive=True)

    # How.

    def _plan(self, plan) -> None:
        self.faulty._plan = {operation: deque(faults) for operation, faults in plan.items()}

    def _call(self, plan, call, *, create: bool):
        self._plan(plan)
        data = f"write {next(self.serial)}".encode()
        outcome = self._outcome(lambda: call(data))
        self._plan({})
        self.ended.append(Ended(self.clock.last_id, outcome, create))
        return outcome.version if isinstance(outcome, Won) else multiple()

    def _resolve(self, plan, one: Ended) -> None:
        self._plan(plan)
        outcome = self._outcome(lambda: self.store.resolve(one.outcome, timeout=20))
        self._plan({})
        self.ended[self.ended.index(one)] = Ended(one.write_id, outcome, one.create)

    def _outcome(self, call):
        try:
            return call()
        except Unavailable as error:
            return error
        except KeyboardInterrupt as stop:
            cause = stop.__cause__
        assert isinstance(cause, OutcomeUnknown)
        return cause.outcome

    def _rival(self) -> Version:
        data = f"rival {next(self.serial)}".encode()
        now = self._now()
        return (self.rival.put_if_match("key", data, now) if now else self.rival.put_if_absent("key", data)).unwrap()

    def _now(self) -> Version | None:
        try:
            return self.rival.head("key").version
        except ObjectNotFound:
            return None


SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
)


def test_random_calls_and_faults_make_no_outcome_untrue():
    """And every fault and every outcome was there to be seen."""
    tally: Counter[type] = Counter()

    class Counted(FaultyRegister):
        def teardown(self):
            super().teardown()
            tally.update(type(fault) for _, fault in self.faulty.fired)
            tally.update(type(one.outcome) for one in self.ended)

    run_state_machine_as_test(Counted, settings=SETTINGS)
    faults = {LoseRequest, LoseAnswer, Refuse, Delay, DeliverTwice, DeliverLate, Interrupt}
    assert {kind for kind in (*faults, Won, Lost, Unknown, Unavailable) if tally[kind] < 5} == set(), tally
    print(tally)  # noqa: T201 (pytest shows it with a failure)


_right = sender.on_write_answer
_right_look = sender.on_head_answer


def trusts_refusals(attempt, answer):
    """What SDKs do: a refusal is a loss, whoever's object it met."""
    if isinstance(answer, ConditionFailed):
        return attempt, Lost(attempt.write.path, attempt.write.condition, ABSENT)
    return _right(attempt, answer)


def takes_silence_for_success(attempt, answer):
    after, step = _right(attempt, answer)
    return after, step if isinstance(step, Won | Send) or isinstance(answer, ConditionFailed) else Won(
        Version("memory", "0")
    )


def forgets_its_doubt(attempt, answer):
    after, step = _right(attempt, answer)
    return replace(after, doubt=False), step


def takes_its_own_delete_for_a_rivals(attempt, answer):
    """What is said of a write that was refused, said of a delete: the refusal may be that of its second copy."""
    if attempt.write.removes and attempt.refused and isinstance(answer, Missing):
        return attempt, Lost(attempt.write.path, attempt.write.condition, ABSENT)
    return _right_look(attempt, answer)


WRONG = [
    *(("on_write_answer", wrong) for wrong in (trusts_refusals, takes_silence_for_success, forgets_its_doubt)),
    ("on_head_answer", takes_its_own_delete_for_a_rivals),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_mutant_is_caught_by_the_state_machine(monkeypatch, name, wrong):
    monkeypatch.setattr(sender, name, wrong)
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(
            FaultyRegister, settings=settings(SETTINGS, phases=[Phase.generate], max_examples=5000)
        )
