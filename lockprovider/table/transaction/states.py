"""The states of a transaction, and the steps between them. Pure.

- OPEN -> BEGUN -> WRITTEN -> ASKED -> OVER: a transaction that commits
- OPEN -> RESUMED -> ASKED: begun by another process
- ASKED -> REFUSED -> ASKED: tried again after a conflict
- any state -> OVER: a rollback
"""

from __future__ import annotations

from enum import Enum, auto

from lockprovider.table.errors import Aborted, InvalidRecords, TableError


class State(Enum):
    """The progress of a transaction."""

    OPEN = auto()  # no instant yet
    BEGUN = auto()  # data files may be written
    RESUMED = auto()  # begun by another process, which may have asked for the commit
    WRITTEN = auto()  # all files are stored
    ASKED = auto()  # any writer may decide its commit
    REFUSED = auto()  # its commit never becomes visible
    OVER = auto()  # committed or rolled back

    @property
    def may_be_decided(self) -> bool:
        """Whether another writer may still commit it; then its files stay, and a rollback needs the lock."""
        return self in (State.RESUMED, State.ASKED)


class Step(Enum):
    """An event that changes the state."""

    RESUME = auto()
    BEGIN = auto()
    WRITE = auto()
    ASK = auto()
    REFUSE = auto()
    END = auto()


_NEXT: dict[Step, dict[State, State]] = {
    Step.RESUME: {State.OPEN: State.RESUMED},
    Step.BEGIN: {State.OPEN: State.BEGUN, State.BEGUN: State.BEGUN, State.RESUMED: State.RESUMED},
    Step.WRITE: {State.BEGUN: State.WRITTEN, State.RESUMED: State.ASKED},
    Step.ASK: {State.WRITTEN: State.ASKED, State.ASKED: State.ASKED, State.REFUSED: State.ASKED},
    Step.REFUSE: {State.ASKED: State.REFUSED},
    Step.END: dict.fromkeys(State, State.OVER),
}


def after(state: State, step: Step) -> State:
    """Return the state after `step`; raises `Aborted` or `InvalidRecords` if it is not allowed."""
    if state not in _NEXT[step]:
        raise _refusal(state, step)
    return _NEXT[step][state]


def _refusal(state: State, step: Step) -> TableError:
    """Return the error for a step that is not allowed: `Aborted` after the end, else `InvalidRecords`."""
    if state is State.OVER:
        return Aborted("this transaction is over, it was committed or rolled back; begin another one")
    if step is Step.ASK:
        return InvalidRecords("nothing was written in this transaction; write first, or do not commit")
    return InvalidRecords("a transaction takes one write; put upserts and deletes into the same one")
