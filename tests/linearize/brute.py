"""The same question answered by trying every order: an oracle for small histories, without a thought of speed."""

from __future__ import annotations

from functools import cache

from linearize.history import History, Kind, Op, Result, check_form

_Step = tuple[int, str]  # which op, and "apply", "refuse" or "look"


def is_linearizable(history: History) -> bool:
    """Try all orders of steps; a lost write is refused at one moment and looks at that or a later one."""
    check_form(history)
    ops = tuple(history)

    @cache
    def possible(state: str | None, done: frozenset[_Step]) -> bool:
        pending = [n for n in range(len(ops)) if not _finished(ops[n], n, done)]
        if all(ops[n].result is Result.UNKNOWN for n in pending):
            return True
        horizon = min(ops[n].returned for n in pending if ops[n].result is not Result.UNKNOWN)
        for n in pending:
            if ops[n].called > horizon:
                continue  # something that is not done had returned before
            for step in _steps(ops[n], n, done):
                after = _take(ops[n], step[1], state)
                if after is not None and possible(after[0], done | {step}):
                    return True
        return False

    return possible(None, frozenset())


def _finished(op: Op, n: int, done: frozenset[_Step]) -> bool:
    return (n, "look" if op.result is Result.LOST else "apply") in done


def _steps(op: Op, n: int, done: frozenset[_Step]) -> list[_Step]:
    if op.result is not Result.LOST:
        return [(n, "apply")]
    return [(n, "look")] if (n, "refuse") in done else [(n, "refuse")]


def _take(op: Op, step: str, state: str | None) -> tuple[str | None] | None:
    """The state after the step; None if it cannot be taken now."""
    true = state == op.expected
    match step, op.kind:
        case "refuse", _:
            return None if true else (state,)
        case ("look", _) | (_, Kind.READ):
            return (state,) if state == op.seen else None
        case _, Kind.DELETE:
            return (None,) if true else None
        case _:
            return (op.write,) if true else None
