"""The states of a transaction and of its commit: which step may follow which, and which try comes next. Pure.

    OPEN -> BEGUN -> WRITTEN -> ASKED -> OVER      a transaction that commits
    OPEN -> CLAIMED -> BEGUN                       an append that starts early
    OPEN -> RESUMED -> ASKED                       another process of its writer has begun it
    ASKED -> REFUSED -> ASKED                      a conflict, and the caller asks again
    any state -> OVER                              a rollback

A transaction is `CLAIMED` while an append announces its files before its instant is taken. In `RESUMED` and `ASKED`
another writer may decide the commit at any moment: its files stay until the lock says what became of it.
"""

from __future__ import annotations

from enum import Enum, auto

from lockprovider.table.errors import Aborted, InvalidRecords, TableError


class State(Enum):
    """How far a transaction has come."""

    OPEN = auto()  # it has no instant, and has read at most
    CLAIMED = auto()  # a begin time is chosen, and its instant is being taken
    BEGUN = auto()  # its instant is pending: data files may be written
    RESUMED = auto()  # likewise, by another process of its writer, which may have asked for the commit
    WRITTEN = auto()  # all of its files are in the store
    ASKED = auto()  # it may be committed
    REFUSED = auto()  # it was asked for, and nothing of it becomes visible
    OVER = auto()  # committed or rolled back

    @property
    def may_be_decided(self) -> bool:
        """Whether another writer may commit it yet: then only a holder of the lock may roll it back."""
        return self in (State.RESUMED, State.ASKED)


class Step(Enum):
    """What changes the state."""

    CLAIM = auto()
    RESUME = auto()
    BEGIN = auto()
    WRITE = auto()
    ASK = auto()
    REFUSE = auto()
    END = auto()


_NEXT: dict[Step, dict[State, State]] = {
    Step.CLAIM: {State.OPEN: State.CLAIMED},
    Step.RESUME: {State.OPEN: State.RESUMED},
    Step.BEGIN: {
        State.OPEN: State.BEGUN,
        State.CLAIMED: State.BEGUN,
        State.BEGUN: State.BEGUN,
        State.RESUMED: State.RESUMED,
    },
    Step.WRITE: {State.BEGUN: State.WRITTEN, State.RESUMED: State.ASKED},
    Step.ASK: {State.WRITTEN: State.ASKED, State.ASKED: State.ASKED, State.REFUSED: State.ASKED},
    Step.REFUSE: {State.ASKED: State.REFUSED},
    Step.END: dict.fromkeys(State, State.OVER),
}


def after(state: State, step: Step) -> State:
    """Return the state that this step leads to.

    Raises:
        Aborted: the transaction is over.
        InvalidRecords: nothing was written yet, or something was.
    """
    if state not in _NEXT[step]:
        raise _refusal(state, step)
    return _NEXT[step][state]


def _refusal(state: State, step: Step) -> TableError:
    if state is State.OVER:
        return Aborted("this transaction is over, it was committed or rolled back; begin another one")
    if step is Step.ASK:
        return InvalidRecords("nothing was written in this transaction; write first, or do not commit")
    return InvalidRecords("a transaction takes one write; put upserts and deletes into the same one")


class Try(Enum):
    """How a commit is tried."""

    GROUP = auto()  # decided together with others, by any writer of the table
    HOLD = auto()  # by this writer, under the lock
    HOLD_WHERE_POSTED = auto()  # likewise, where an earlier try may be decided yet
    GIVE_UP = auto()


TRIES = 8  # how often a commit may lose its lease, or find that the log has ended, before it gives up
_LOGS = 4  # how often that


def next_try(tried: int, *, may_travel: bool, is_unknown: bool) -> Try:
    """Say how a commit is tried after so many tries.

    `may_travel`: other writers can judge it, and none has asked its writer to. `is_unknown`: a try may be decided yet.
    """
    if tried >= TRIES:
        return Try.GIVE_UP
    if may_travel and tried < _LOGS:
        return Try.GROUP
    return Try.HOLD_WHERE_POSTED if is_unknown else Try.HOLD
