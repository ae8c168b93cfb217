"""The fold of a slice's logs where some rows are partial updates: field by field, in order, a key at a time.

The winner's fields stand over the loser's. So a late row, with a lower ordering value, only gives what the winner
lacks; and a row that is not partial lacks nothing. Written by Spark SQL's `MERGE INTO ... UPDATE SET`.

Source: Hudi `PartialUpdateHandler`, `SparkRecordMergingUtils.mergePartialRecords`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lockprovider.table.files.merge_log import LogEventKind, LogEvents, LogSide, MergeRule, comparable


@dataclass(slots=True)
class _State:
    """Of one key: `fields` has the number of the row that each column's value is of."""

    event: int
    kind: LogEventKind
    fields: dict[str, int]


def fold_fields(events: LogEvents, rule: MergeRule) -> LogSide:
    """One state a key, whose rows may lack columns."""
    order = list(zip(*(_sortable(column) for column in events.order), strict=True))
    states: dict[str, _State] = {}
    row = -1
    for event, (key, kind) in enumerate(zip(events.keys.to_pylist(), events.kinds.tolist(), strict=True)):
        row += kind == LogEventKind.ROW
        fields = dict.fromkeys(_columns_of(events, row), row) if kind == LogEventKind.ROW else {}
        new, old = _State(event, LogEventKind(kind), fields), states.get(key)
        if old is None:
            states[key] = new
        elif _wins(new, old, order if rule.ordering else ()):
            states[key] = _over(new, old)
        else:
            states[key] = _over(old, new)
    return _side(events, list(states.values()))


def _wins(new: _State, old: _State, order: Sequence[Any]) -> bool:
    if not order or new.kind is LogEventKind.GONE:
        return True
    if old.kind is LogEventKind.GONE:
        return new.kind is LogEventKind.ROW
    return bool(order[new.event] >= order[old.event])


def _over(winner: _State, loser: _State) -> _State:
    if winner.kind is not LogEventKind.ROW or loser.kind is not LogEventKind.ROW:
        return winner
    return _State(winner.event, winner.kind, {**loser.fields, **winner.fields})


def _columns_of(events: LogEvents, row: int) -> frozenset[str]:
    sets = events.partial
    return frozenset(events.rows.column_names) if sets is None else events.column_sets[int(sets[row])]


def _sortable(column: pa.Array) -> list[tuple[bool, Any]]:
    """Null is the lowest."""
    return [(value is not None, value) for value in comparable(column).to_pylist()]


def _side(events: LogEvents, states: list[_State]) -> LogSide:
    places = pa.array([state.event for state in states], pa.int64())
    columns, lacks = [], {}
    for name in events.rows.column_names:
        numbers = [state.fields.get(name) for state in states]
        columns.append(events.rows.column(name).take(pa.array(numbers, pa.int64())))
        lacking = np.array([number is None for number in numbers], dtype=np.bool_)
        if lacking.any():
            lacks[name] = lacking
    return LogSide(
        events.keys.take(places),
        np.array([state.kind for state in states], dtype=np.int8),
        tuple(column.take(places) for column in events.order),
        pa.table(columns, schema=events.rows.schema),
        lacks,
    )
