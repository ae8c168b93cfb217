"""Merge of a file slice: fold its logs, then merge the base file in batches.

Source: Hudi `BufferedRecordMergerFactory`, `KeyBasedFileGroupRecordBuffer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from lockprovider.table.errors import UnsupportedTable
from lockprovider.table.files.base_file import array_of
from lockprovider.table.files.keys import KeyMatch
from lockprovider.table.format.properties import COMMIT_TIME, EVENT_TIME, TableConfig, unknown_merge

_ALL_BUT_SIGN = np.int64((1 << 63) - 1)


class LogEventKind(IntEnum):
    """Log event's kind; `GONE` is a delete without an ordering value."""

    ROW = 0
    DELETE = 1
    GONE = 2


@dataclass(frozen=True, slots=True)
class MergeRule:
    """Rule that chooses between a row's versions: the highest value of the `ordering` columns, then the latest.

    Null is lowest, NaN highest. A delete without a value wins over earlier events, any later row over it. Column `key`,
    if any, has the record keys as text.
    """

    ordering: tuple[str, ...] = ()
    key: str | None = None

    @classmethod
    def of(cls, config: TableConfig) -> MergeRule:
        if odd := unknown_merge(config):
            raise UnsupportedTable(
                f"table {config.name!r}: {odd} merges rows of log files in a way unknown here, only {EVENT_TIME} and "
                f"{COMMIT_TIME} are known; compact it with the engine that wrote it, or read it read-optimized"
            )
        return cls(config.deciding_fields, config.key_column)


@dataclass(frozen=True, slots=True)
class LogEvents:
    """All events of a slice's logs, in merge order; `rows` has the rows of `ROW` events only.

    `order` has each ordering column's values; `partial`, if any row is partial, each row's index in `column_sets`.
    """

    keys: pa.Array
    kinds: NDArray[np.int8]
    order: tuple[pa.Array, ...]
    rows: pa.Table
    partial: NDArray[np.int64] | None = None
    column_sets: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class LogSide:
    """Slice's folded logs: one state for each key. A delete's entry in `rows` is meaningless.

    `lacks` masks, for each column, the keys whose rows do not set it.
    """

    keys: pa.Array
    kinds: NDArray[np.int8]
    order: tuple[pa.Array, ...]
    rows: pa.Table
    lacks: dict[str, NDArray[np.bool_]]


def fold(events: LogEvents, rule: MergeRule) -> LogSide:
    """Each key's winning event by `rule`, in order of first appearance.

    `events.partial` must be None (see `fold_fields`).
    """
    chosen = _chosen(events, rule)
    if len(chosen) == events.rows.num_rows == len(events.keys):
        return LogSide(events.keys, events.kinds, events.order, events.rows, {})
    numbers = np.cumsum(events.kinds == LogEventKind.ROW) - 1
    kinds = events.kinds[chosen]
    rows = pa.array(numbers[chosen], mask=kinds != LogEventKind.ROW)
    taken = pa.array(chosen)
    return LogSide(
        events.keys.take(taken), kinds, tuple(values.take(taken) for values in events.order), events.rows.take(rows), {}
    )


def _chosen(events: LogEvents, rule: MergeRule) -> NDArray[np.int64]:
    """Position of each key's winning event by `rule`, keys in order of first appearance."""
    places = np.arange(len(events.keys))
    encoded = events.keys.dictionary_encode()
    codes, count = encoded.indices.to_numpy(), len(encoded.dictionary)
    if count == len(codes):
        return places
    if not rule.ordering:
        return _last(codes, places, count)
    alive = _alive(codes, events.kinds, count)
    ranked = np.lexsort((places[alive], _ranks(events.order)[alive]))
    return _last(codes[alive][ranked], places[alive][ranked], count)


def _last(codes: NDArray[np.int64], places: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    last = np.zeros(count, dtype=np.int64)
    last[codes] = places
    return last


def _alive(codes: NDArray[np.int64], kinds: NDArray[np.int8], count: int) -> NDArray[np.bool_]:
    """Mask the events that can win: of a key without a `GONE` (a delete without a value), all.

    After the last `GONE`, these are the first later row and all events after it or, without such a row, that `GONE`.
    `codes` numbers `count` keys.
    """
    hard_deletes = np.flatnonzero(kinds == LogEventKind.GONE)
    everything = np.ones(len(codes), dtype=np.bool_)
    if not len(hard_deletes):
        return everything
    places = np.arange(len(codes))
    last = np.full(count, -1)
    last[codes[hard_deletes]] = hard_deletes
    start = last.copy()
    later = np.flatnonzero((kinds == LogEventKind.ROW) & (last[codes] >= 0) & (places > last[codes]))[::-1]
    start[codes[later]] = later  # The first row stays.
    only = start == last
    return np.where(last[codes] < 0, everything, (places >= start[codes]) & (~only[codes] | (places == last[codes])))


def _ranks(order: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Each event's rank by its ordering columns; equal values share a rank, null is lowest, NaN highest."""
    places = order_of(order)
    ranked = [comparable(column).take(places) for column in order]
    steps = np.zeros(len(places), dtype=np.bool_)
    for column in ranked:
        steps[1:] |= ~_equal(column[1:], column[:-1])
    ranks = np.empty(len(places), dtype=np.int64)
    ranks[places.to_numpy()] = np.cumsum(steps)
    return ranks


def order_of(columns: Iterable[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Positions that sort rows by these columns: ascending, null lowest, NaN highest; ties stay."""
    parts = [part for column in map(comparable, columns) for part in (pc.is_valid(column), column)]
    names = [str(number) for number in range(len(parts))]
    return pc.sort_indices(pa.table(parts, names=names), sort_keys=[(name, "ascending") for name in names])


def _equal(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    equal = pc.equal(one, other)
    if one.null_count or other.null_count:
        equal = pc.fill_null(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
    return mask_of(equal)


def comparable(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert floats to integers in Java's order: -0.0 below 0.0, NaN above all. Nulls and other types stay."""
    if not types.is_floating(values.type):
        return values
    numbers = values.cast(pa.float64()).fill_null(0).to_numpy()
    # One bit pattern for NaN.
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    return pa.array(
        np.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits), mask=values.is_null().to_numpy(zero_copy_only=False)
    )


def at_least(mine: Sequence[pa.Array], theirs: Sequence[pa.Array]) -> NDArray[np.bool_]:
    """Mask where `mine` is not lower than `theirs`, an array for each field; null is lowest.

    The first field that differs decides.
    """
    result = np.ones(len(mine[0]), dtype=np.bool_)
    for pair in zip(reversed(mine), reversed(theirs), strict=True):
        left, right = map(comparable, pair)
        greater = pc.greater(left, right)
        if left.null_count or right.null_count:
            greater = pc.fill_null(greater, pc.and_(pc.is_valid(left), pc.is_null(right)))
        result = mask_of(greater) | (_equal(left, right) & result)
    return result


def mask_of(values: pa.Array) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return mask


class LogMerge:
    """Merge of one slice's folded logs with its base file. Not thread-safe.

    Pass all base batches to `merged`, then call `rest`. Partial updates imply `in_place`. After a delete without a
    value, a log row lets a base row of a higher value reappear.
    """

    def __init__(self, side: LogSide, rule: MergeRule, match: KeyMatch, *, in_place: bool = False) -> None:
        self._side = side
        self._rule = rule
        self._match = match
        self._in_place = in_place or bool(side.lacks)
        self._met = np.zeros(len(side.keys), dtype=np.bool_)
        self._replaced = np.zeros(len(side.keys), dtype=np.int64)

    def merged(self, batch: pa.Table) -> pa.Table:
        """Base batch merged with the logs, with the logs' columns and without deleted rows.

        `in_place` log rows stand where they replace others; else `rest` returns them. Records the batch's keys for
        `rest`.
        """
        old, new = self._match.met(batch)
        batch = batch.select(self._side.rows.column_names)
        if not len(old):
            return batch
        self._met[new] = True
        wins = self._wins(batch, old, new)
        old, new = old[wins], new[wins]
        is_row = self._side.kinds[new] == LogEventKind.ROW
        is_kept = np.ones(batch.num_rows, dtype=np.bool_)
        if not self._in_place:
            np.add.at(self._replaced, new[is_row], 1)
            is_kept[old] = False
            return batch.filter(pa.array(is_kept))
        places = np.arange(batch.num_rows)
        places[old[is_row]] = batch.num_rows + np.arange(int(np.count_nonzero(is_row)))
        is_kept[old[~is_row]] = False
        rows = self._rows(batch, old[is_row], new[is_row])
        return pa.concat_tables([batch, rows]).take(pa.array(places[is_kept]))

    def rest(self) -> pa.Table:
        """Return log rows whose keys no batch had, or that win over rows that `merged` dropped; call it last."""
        times = self._replaced + (~self._met & (self._side.kinds == LogEventKind.ROW))
        if (times == 1).all():
            return self._side.rows
        return self._side.rows.take(pa.array(np.repeat(np.arange(len(times)), times)))

    def _wins(self, batch: pa.Table, old: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not self._rule.ordering:
            return np.ones(len(old), dtype=np.bool_)
        base_values = [array_of(batch.column(name)).take(pa.array(old)) for name in self._rule.ordering]
        log_values = [column.take(pa.array(new)) for column in self._side.order]
        wins: NDArray[np.bool_] = at_least(log_values, base_values) | (self._side.kinds[new] == LogEventKind.GONE)
        return wins

    def _rows(self, batch: pa.Table, old: NDArray[np.int64], new: NDArray[np.int64]) -> pa.Table:
        """Return the log rows at `new`; columns that a partial update lacks come from `batch`, at `old`."""
        rows = self._side.rows.take(pa.array(new))
        for name, lacks in self._side.lacks.items():
            at = rows.column_names.index(name)
            base_values = array_of(batch.column(name)).take(pa.array(old))
            log_values = array_of(rows.column(name))
            values = pc.if_else(pa.array(lacks[new]), base_values, log_values)
            rows = rows.set_column(at, rows.schema.field(at), values)
        return rows


# Partial updates, from Spark SQL's `MERGE INTO ... UPDATE SET`. Source: Hudi `PartialUpdateHandler`,
# `SparkRecordMergingUtils.mergePartialRecords`.
@dataclass(slots=True)
class _State:
    event: int
    kind: LogEventKind
    fields: dict[str, int]


def fold_fields(events: LogEvents, rule: MergeRule) -> LogSide:
    """Fold events with partial updates to one state for each key, in order of first appearance.

    A winning row by `rule` takes columns that it lacks from the losing row.
    """
    columns = (comparable(column).to_pylist() for column in events.order)
    order = list(zip(*([(value is not None, value) for value in column] for column in columns), strict=True))
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


def _side(events: LogEvents, states: list[_State]) -> LogSide:
    """Folded logs of `states`; each column's value comes from its own row.

    `lacks` masks states without one.
    """
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
