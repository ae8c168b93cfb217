"""Which step of a transaction may follow which: the whole table, without a store."""

from __future__ import annotations

import pytest

from lockprovider.table.errors import Aborted, InvalidRecords
from lockprovider.table.transaction.lifecycle import State, Step, after


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
