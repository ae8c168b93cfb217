"""What clients did to one register, and when: calls, results, times.

Every write has an id of its own, written in its bytes, so an id names a state of the register. `None` is the state
"nothing is there".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NEVER = float("inf")


class Kind(Enum):
    CREATE = "put_if_absent"
    MATCH = "put_if_match"
    DELETE = "delete_if_match"
    READ = "read"


class Result(Enum):
    OK = "ok"
    LOST = "lost"
    UNKNOWN = "unknown"  # may take effect at any time after its call, or never


@dataclass(frozen=True, slots=True)
class Op:
    """One call.

    Attributes:
        write: the id that a create or a match writes.
        expected: the id that a match or a delete names as the present state.
        seen: the id that a read, or the look after a lost write, showed.
        called, returned: times of one clock; equal times count as at once.
    """

    kind: Kind
    result: Result
    called: float
    returned: float
    write: str | None = None
    expected: str | None = None
    seen: str | None = None
    client: int = 0

    @property
    def ends(self) -> float:
        """By when it has taken effect, if it ever does."""
        return NEVER if self.result is Result.UNKNOWN else self.returned


History = list[Op]


class Malformed(ValueError):
    """Not a history of clients: an id is written twice, or named before anybody knew it, or a loss without a reason."""


def check_form(history: History) -> None:
    """Raises: Malformed."""
    written = [op.write for op in history if op.write is not None]
    if len(set(written)) != len(written):
        raise Malformed("an id is written twice")
    known = _known_from(history)
    for op in history:
        if op.called > op.returned:
            raise Malformed(f"it returned before it was called: {op}")
        if op.result is Result.LOST and op.seen == op.expected:
            raise Malformed(f"lost, though what was seen is what was expected: {op}")
        if op.kind in (Kind.MATCH, Kind.DELETE) and known.get(op.expected, NEVER) > op.called:
            raise Malformed(f"it names a version that nobody had been told of: {op}")


def _known_from(history: History) -> dict[str | None, float]:
    """From when on somebody had been told of an id."""
    known: dict[str | None, float] = {}
    for op in history:
        told = [op.seen] if op.kind is Kind.READ or op.result is Result.LOST else []
        told += [op.write] if op.result is Result.OK else []
        for one in told:
            known[one] = min(known.get(one, NEVER), op.returned)
    return known
