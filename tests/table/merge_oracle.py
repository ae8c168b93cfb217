"""The merge of a file slice, plainly: one event after the other, as Hudi's readers do it, one key at a time.

A state is (kind, ordering value, fields): kind is `row`, `delete` (with an ordering value) or `gone` (without one).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Event = tuple[str, str, Any, dict[str, Any]]  # key, kind, ordering value, fields
State = tuple[str, Any, dict[str, Any]]


def at_least(one: Any, other: Any) -> bool:
    """Null is the lowest."""
    return other is None or (one is not None and one >= other)


def over(winner: State, loser: State) -> State:
    """Field by field: of rows that are whole that is the winner."""
    kind, value, fields = winner
    return (kind, value, {**loser[2], **fields}) if kind == loser[0] == "row" else winner


def of_logs(events: Iterable[Event], *, by_event_time: bool) -> dict[str, State]:
    """What the logs come to."""
    states: dict[str, State] = {}
    for key, kind, value, fields in events:
        new, old = (kind, value, fields), states.get(key)
        if old is None or not by_event_time:
            states[key] = new if old is None else over(new, old)
        elif old[0] == "gone":
            if kind != "delete":
                states[key] = new
        elif kind == "gone":
            states[key] = new
        else:
            states[key] = over(new, old) if at_least(value, old[1]) else over(old, new)
    return states


def merged(
    base: dict[str, tuple[Any, dict[str, Any]]], events: Iterable[Event], *, by_event_time: bool
) -> dict[str, dict[str, Any]]:
    """The rows of a slice, by key; `base` has an ordering value and fields for each."""
    rows = {key: fields for key, (_, fields) in base.items()}
    for key, (kind, value, fields) in of_logs(events, by_event_time=by_event_time).items():
        old = base.get(key)
        if old is not None and by_event_time and kind != "gone" and not at_least(value, old[0]):
            continue
        if kind == "row":
            rows[key] = {**({} if old is None else old[1]), **fields}
        else:
            rows.pop(key, None)
    return rows
