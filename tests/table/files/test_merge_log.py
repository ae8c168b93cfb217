"""The merge of logs and base file: the vectorised one does what the plain one does, and what goes wrong otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from table import merge_oracle as plain

from lockprovider.table import UnsupportedTable
from lockprovider.table.errors import Corrupt
from lockprovider.table.files import merge_log, slice_rows
from lockprovider.table.files.base_file import read_columns
from lockprovider.table.files.keys import TextMatch, number_match
from lockprovider.table.files.merge_log import LogEvents, LogMerge, MergeRule, fold, fold_fields
from lockprovider.table.files.slice_rows import events_of
from lockprovider.table.format import schema
from lockprovider.table.format.log_block import BlockKind, Header, LogBlock, encode_avro, encode_blocks, encode_deletes
from lockprovider.table.format.properties import COMMIT_TIME, EVENT_TIME, TableConfig

COLUMNS = pa.schema([(schema.RECORD_KEY, pa.string()), ("ts", pa.int64()), ("ts2", pa.string()), ("v", pa.int64())])
WITH_ID = pa.schema([*COLUMNS, ("id", pa.int32())])
BY_EVENT, BY_COMMIT = MergeRule(("ts",)), MergeRule()
BEGIN = "20261122013243900"

keys = st.sampled_from("abc")
times = st.none() | st.integers(0, 4)
kinds = st.sampled_from(["row", "row", "row", "delete", "gone"])
event = st.tuples(keys, kinds, times)
numbers = st.sampled_from(["1", "-2", "30"])


def blocks_of(events: list[tuple[str, str, Any]], partial: Collection[int] = (), columns: pa.Schema = COLUMNS) -> bytes:
    """A log file with a block an event; row number n has `v` n, and without `v` and `id` if it is among `partial`."""
    found = []
    for number, (key, kind, value) in enumerate(events):
        header = {Header.SCHEMA: "", Header.INSTANT_TIME: BEGIN}
        if kind != "row":
            values = None if kind == "gone" else [value or 0]
            found.append(LogBlock(BlockKind.DELETE, header, encode_deletes([key], "", values, "LongWrapper")))
            continue
        row = pa.Table.from_pylist([a_row(key, value, number)], schema=columns)
        if number in partial:
            row = row.select([name for name in row.column_names if name not in ("v", "id")])
            header = {**header, Header.IS_PARTIAL: "true"}
        text = schema.to_avro(row.schema, "t")
        found.append(LogBlock(BlockKind.AVRO, {**header, Header.SCHEMA: text}, encode_avro(row, text)))
    return encode_blocks(found)


def a_row(key: str, value: Any, number: int) -> dict[str, Any]:
    row = {schema.RECORD_KEY: key, "ts": value, "ts2": f"{number}", "v": number}
    return row if key.isalpha() else {**row, "id": int(key)}


def as_plain(events: list[tuple[str, str, Any]], partial: Collection[int] = ()) -> list[plain.Event]:
    """The same for the oracle."""
    rows = [a_row(key, value, number) for number, (key, _, value) in enumerate(events)]
    for number in partial:
        rows[number] = {name: value for name, value in rows[number].items() if name not in ("v", "id")}
    typed = [(value or 0) if kind == "delete" else value for _, kind, value in events]
    return [
        (key, kind, value, row if kind == "row" else {})
        for (key, kind, _), value, row in zip(events, typed, rows, strict=True)
    ]


def merged(base: pa.Table, data: bytes, rule: MergeRule) -> dict[str, dict[str, Any]]:
    """The rows by key; in place or not they are the same, and in place in the order of the base file's."""
    last, in_place = (rows_of(base, data, rule, in_place=in_place) for in_place in (False, True))
    there = base.column(schema.RECORD_KEY).to_pylist()
    found = {row[schema.RECORD_KEY]: row for row in in_place}
    assert {row[schema.RECORD_KEY]: row for row in last} == found
    assert len(last) == len(in_place) == len(found)
    kept = [key for key in there if key in found]
    assert list(found)[: len(kept)] == kept
    return found


def rows_of(base: pa.Table, data: bytes, rule: MergeRule, *, in_place: bool) -> list[dict[str, Any]]:
    events = events_of([("log", data)], base.schema, rule)
    side = fold(events, rule) if events.partial is None else fold_fields(events, rule)
    match = number_match(side.keys, rule.key, base.schema) or TextMatch(side.keys)
    merge = LogMerge(side, rule, match, in_place=in_place)
    parts = [merge.merged(base[start : start + 2]) for start in range(0, base.num_rows, 2)]
    return pa.concat_tables([*parts, merge.rest()]).to_pylist()


def a_base(
    given_rows: dict[str, Any], columns: pa.Schema = COLUMNS
) -> tuple[pa.Table, dict[str, tuple[Any, dict[str, Any]]]]:
    rows = {key: (value, a_row(key, value, -1)) for key, value in given_rows.items()}
    return pa.Table.from_pylist([row for _, row in rows.values()], schema=columns), rows


@settings(max_examples=75)
@given(st.dictionaries(keys, times), st.lists(event, max_size=8), st.booleans())
@example({"a": 10}, [("a", "gone", None), ("a", "row", 1)], True)  # M4
@example({}, [("a", "gone", None), ("a", "delete", 3), ("a", "row", 1)], True)
@example({"a": 1}, [("a", "delete", 3), ("a", "gone", None), ("a", "delete", 3)], True)
def test_vectorised_merge_equals_the_plain_merge(
    base: dict[str, Any], events: list[tuple[str, str, Any]], by_event_time: bool
) -> None:
    table, rows = a_base(base)
    expected = plain.merged(rows, as_plain(events), by_event_time=by_event_time)
    assert merged(table, blocks_of(events), BY_EVENT if by_event_time else BY_COMMIT) == expected


@settings(max_examples=40)
@given(st.dictionaries(keys, times), st.lists(event, max_size=8), st.sets(st.integers(0, 7)), st.booleans())
def test_vectorised_merge_equals_the_plain_merge_with_partial_updates(
    base: dict[str, Any], events: list[tuple[str, str, Any]], partial: set[int], by_event_time: bool
) -> None:
    partial = {number for number in partial if number < len(events) and events[number][1] == "row"}
    table, rows = a_base(base)
    expected = plain.merged(rows, as_plain(events, partial), by_event_time=by_event_time)
    whole = {key: {name: row.get(name) for name in COLUMNS.names} for key, row in expected.items()}
    assert merged(table, blocks_of(events, partial), BY_EVENT if by_event_time else BY_COMMIT) == whole


@settings(max_examples=50)
@given(
    st.dictionaries(numbers, times),
    st.lists(st.tuples(numbers, kinds, times) | st.tuples(st.just("007"), st.just("delete"), times), max_size=8),
    st.sets(st.integers(0, 7)),
    st.booleans(),
)
def test_vectorised_merge_equals_the_plain_merge_by_a_column_of_numbers(
    base: dict[str, Any], events: list[tuple[str, str, Any]], partial: set[int], by_event_time: bool
) -> None:
    partial = {number for number in partial if number < len(events) and events[number][1] == "row"}
    table, rows = a_base(base, WITH_ID)
    expected = plain.merged(rows, as_plain(events, partial), by_event_time=by_event_time)
    whole = {key: {name: row.get(name) for name in WITH_ID.names} for key, row in expected.items()}
    rule = MergeRule(("ts",) if by_event_time else (), "id")
    assert merged(table, blocks_of(events, partial, WITH_ID), rule) == whole


def test_rows_that_a_base_file_has_twice_are_each_replaced() -> None:
    base = pa.Table.from_pylist([a_row("a", 9, -1), a_row("a", 1, -1), a_row("a", 3, -1)], schema=COLUMNS)
    log = blocks_of([("a", "row", 5)])
    found = [rows_of(base, log, BY_EVENT, in_place=in_place) for in_place in (False, True)]
    assert [[row["ts"] for row in rows] for rows in found] == [[9, 5, 5], [9, 5, 5]]


def test_only_needed_columns_of_parquet_blocks_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[list[str]] = []

    def read(file: pq.ParquetFile, columns: list[str]) -> pa.Table:
        decoded.append(columns)
        return read_columns(file, columns)

    monkeypatch.setattr(slice_rows, "read_columns", read)
    out = BytesIO()
    pq.write_table(pa.Table.from_pylist([a_row("7", 1, 0)], schema=WITH_ID), out)
    block = LogBlock(BlockKind.PARQUET, {Header.INSTANT_TIME: BEGIN}, out.getvalue())
    for rule in (BY_COMMIT, MergeRule(("ts",), "id")):
        events_of([("log", encode_blocks([block]))], pa.schema([WITH_ID.field("ts"), WITH_ID.field("id")]), rule)
    assert decoded == [[schema.RECORD_KEY, "ts", "id"], ["ts", "id"]]


def test_log_row_without_a_key_is_reported() -> None:
    for columns in (COLUMNS, WITH_ID):
        row = pa.Table.from_pylist([{"ts": 1}], schema=columns)
        text = schema.to_avro(columns, "t")
        header = {Header.SCHEMA: text, Header.INSTANT_TIME: BEGIN}
        data = encode_blocks([LogBlock(BlockKind.AVRO, header, encode_avro(row, text))])
        with pytest.raises(Corrupt, match="'p/log' has rows without a value in key column"):
            events_of([("p/log", data)], columns, MergeRule(("ts",), "id"))


@settings(max_examples=50)
@given(st.lists(st.tuples(keys, st.just("row"), times), max_size=8), st.dictionaries(keys, times))
def test_several_ordering_fields_compare_in_order(events: list[tuple[str, str, Any]], base: dict[str, Any]) -> None:
    table, rows = a_base(base)

    def both(key: str, kind: str, _: Any, row: dict[str, Any]) -> plain.Event:
        return (key, kind, (-1 if row["ts"] is None else row["ts"], row["ts2"]), row)

    two = {key: ((-1 if value is None else value, row["ts2"]), row) for key, (value, row) in rows.items()}
    expected = plain.merged(two, [both(*one) for one in as_plain(events)], by_event_time=True)
    assert merged(table, blocks_of(events), MergeRule(("ts", "ts2"))) == expected


def test_text_is_ordered_by_code_points_as_hudi_does() -> None:
    beyond, below = "\U0001f600", "\uffee"  # by UTF-16 the first is the lower one
    texts = pa.schema([(schema.RECORD_KEY, pa.string()), ("ts", pa.string())])
    rows = pa.table({schema.RECORD_KEY: ["a", "a"], "ts": [beyond, below]}, schema=texts)
    text = schema.to_avro(texts, "t")
    block = LogBlock(BlockKind.AVRO, {Header.SCHEMA: text, Header.INSTANT_TIME: BEGIN}, encode_avro(rows, text))
    side = fold(events_of([("log", encode_blocks([block]))], texts, BY_EVENT), BY_EVENT)
    assert side.rows["ts"].to_pylist() == [beyond]


def test_hfile_blocks_are_no_rows() -> None:
    data = encode_blocks([LogBlock(BlockKind.HFILE, {Header.INSTANT_TIME: "1"})])
    with pytest.raises(UnsupportedTable, match="'p/log' has HFile blocks"):
        events_of([("p/log", data)], COLUMNS, BY_EVENT)


def test_rows_marked_as_deleted_are_deletes_with_their_value() -> None:
    columns = pa.schema([*COLUMNS, ("_hoodie_is_deleted", pa.bool_())])
    given_rows = [{**a_row(key, value, 0), "_hoodie_is_deleted": ends} for key, value, ends in
                  [("a", 5, True), ("b", 1, True), ("c", 5, None)]]  # fmt: skip
    rows, text = pa.Table.from_pylist(given_rows, schema=columns), schema.to_avro(columns, "t")
    block = LogBlock(BlockKind.AVRO, {Header.SCHEMA: text, Header.INSTANT_TIME: BEGIN}, encode_avro(rows, text))
    base, _ = a_base({"a": 4, "b": 4, "c": 4})
    assert {key: row["v"] for key, row in merged(base, encode_blocks([block]), BY_EVENT).items()} == {"b": -1, "c": 0}


# -- what goes wrong otherwise -----------------------------------------------------------------------------------------


def test_m4_delete_without_value_then_low_row_restores_the_base_row() -> None:
    base, _ = a_base({"a": 10})
    low = blocks_of([("a", "gone", None), ("a", "row", 1)])
    assert merged(base, low, BY_EVENT)["a"]["ts"] == 10
    with_value = blocks_of([("a", "delete", 10), ("a", "row", 1)])  # so a table by event time writes its deletes
    assert merged(base, with_value, BY_EVENT) == {}


def test_m2_later_log_row_wins_among_equal_values_and_over_the_base_row() -> None:
    base, _ = a_base({"a": 5})
    assert merged(base, blocks_of([("a", "row", 5), ("a", "row", 5)]), BY_EVENT)["a"]["v"] == 1
    assert merged(base, blocks_of([("a", "row", 5)]), BY_EVENT)["a"]["v"] == 0


def _last_of_all(events: LogEvents, rule: MergeRule) -> Any:
    encoded = events.keys.dictionary_encode()
    return merge_log._last(encoded.indices.to_numpy(), np.arange(len(events.keys)), len(encoded.dictionary))


def _greatest_of_all(events: LogEvents, rule: MergeRule) -> Any:
    encoded = events.keys.dictionary_encode()
    codes, places = encoded.indices.to_numpy(), np.arange(len(events.keys))
    ranked = np.lexsort((places, merge_log._ranks(events.order)))
    return merge_log._last(codes[ranked], places[ranked], len(encoded.dictionary))


TWINS: dict[str, Callable[[LogEvents, MergeRule], Any]] = {
    "the last event wins, whatever its value": _last_of_all,
    "a delete without a value is the lowest of all": _greatest_of_all,
}


@pytest.mark.parametrize("twin", TWINS)
def test_mutant_merge_loses_or_restores_rows(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    histories = [
        [("a", "row", 3), ("a", "row", 1)],
        [("a", "row", 3), ("a", "gone", None)],
        [("a", "row", 3), ("a", "gone", None), ("a", "row", 1)],
        [("a", "gone", None), ("a", "delete", 3), ("a", "row", 1)],
    ]
    monkeypatch.setattr(merge_log, "_chosen", TWINS[twin])
    found = [merged(COLUMNS.empty_table(), blocks_of(one), BY_EVENT) for one in histories]
    assert found != [plain.merged({}, as_plain(one), by_event_time=True) for one in histories]


# -- which tables ------------------------------------------------------------------------------------------------------


def test_merge_rule_comes_from_the_table_properties() -> None:
    config = TableConfig("t", ("id",), ordering_fields=("ts",))
    assert MergeRule.of(config) == MergeRule(("ts",), "id")
    assert MergeRule.of(replace(config, merge_mode=COMMIT_TIME)) == MergeRule((), "id")
    assert MergeRule.of(replace(config, ordering_fields=(), merge_mode=EVENT_TIME)) == MergeRule((), "id")


@pytest.mark.parametrize(
    ("mode", "raw"),
    [
        ("CUSTOM", {}),
        (EVENT_TIME, {"hoodie.compaction.payload.class": "org.example.Mine"}),
        (EVENT_TIME, {"hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000"}),
    ],
)
def test_unknown_merge_mode_is_refused(mode: str, raw: dict[str, str]) -> None:
    config = TableConfig("t", ("id",), ordering_fields=("ts",), merge_mode=mode, raw=raw)
    with pytest.raises(UnsupportedTable, match=r"compact it .* or read it read-optimized"):
        MergeRule.of(config)
