"""Which step of a transaction may follow which, and how its commit is tried: the whole table, without a store."""

from __future__ import annotations

import pytest

from lockprovider.table.errors import Aborted, InvalidRecords
from lockprovider.table.transaction.states import TRIES, State, Step, Try, after, next_try


def walk(*steps: Step) -> State:
    state = State.OPEN
    for step in steps:
        state = after(state, step)
    return state


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ((Step.BEGIN, Step.WRITE, Step.ASK, Step.END), State.OVER),
        ((Step.BEGIN, Step.BEGIN, Step.WRITE), State.WRITTEN),
        ((Step.RESUME, Step.BEGIN, Step.WRITE), State.ASKED),
        ((Step.BEGIN, Step.WRITE, Step.ASK, Step.REFUSE, Step.ASK), State.ASKED),
    ],
    ids=["commits", "begins once", "is resumed", "asks again"],
)
def test_transaction_goes_from_state_to_state(steps: tuple[Step, ...], state: State) -> None:
    assert walk(*steps) is state


@pytest.mark.parametrize("state", State)
def test_transaction_that_is_over_takes_no_step_but_its_end(state: State) -> None:
    assert after(state, Step.END) is State.OVER
    for step in set(Step) - {Step.END}:
        with pytest.raises(Aborted, match="begin another one"):
            after(State.OVER, step)


def test_files_are_written_only_after_the_begin_and_only_once() -> None:
    for state in (State.OPEN, State.WRITTEN, State.ASKED, State.REFUSED):
        with pytest.raises(InvalidRecords):
            after(state, Step.WRITE)
    for state in (State.WRITTEN, State.ASKED, State.REFUSED):
        with pytest.raises(InvalidRecords, match="takes one write"):
            after(state, Step.BEGIN)


def test_commit_is_asked_for_only_after_a_write() -> None:
    for state in (State.OPEN, State.BEGUN, State.RESUMED):
        with pytest.raises(InvalidRecords, match="nothing was written"):
            after(state, Step.ASK)


def test_only_requested_or_resumed_commits_are_decided_by_other_writers() -> None:
    assert {state for state in State if state.may_be_decided} == {State.ASKED, State.RESUMED}


def test_commit_is_grouped_until_its_writer_has_to_hold_the_lock() -> None:
    grouped = [next_try(tried, others_can_judge=True, is_unknown=False) for tried in range(TRIES + 1)]
    assert grouped == [Try.GROUP] * 4 + [Try.HOLD] * 4 + [Try.GIVE_UP]
    assert next_try(0, others_can_judge=False, is_unknown=False) is Try.HOLD


def test_commit_of_unknown_outcome_is_held_where_its_intent_may_be_posted() -> None:
    assert next_try(1, others_can_judge=False, is_unknown=True) is Try.HOLD_WHERE_POSTED
    assert next_try(TRIES, others_can_judge=False, is_unknown=True) is Try.GIVE_UP
