from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockprovider.table.format.layout import Action, Instant, InstantState, format_ms
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import OPERATION, Order, changed_rows, latest_checkpoint, touched, window

A, B, C, D, E, F = (format_ms(1_000 * number) for number in range(1, 7))


def commits(*times: tuple[str, str], pending: tuple[str, ...] = ()) -> Timeline:
    names = [name for begin, end in times for name in (f"{begin}.commit.requested", f"{begin}_{end}.commit")]
    return Timeline.of([*names, *(f"{begin}.commit.requested" for begin in pending)])


def begins(instants: tuple[Instant, ...]) -> list[str]:
    return [instant.begin for instant in instants]


def test_late_finisher_is_read_by_completion_when_it_completes() -> None:
    first = window(commits((B, C), pending=(A,)), "", F, Order.COMPLETION)
    assert (begins(first.commits), first.checkpoint) == ([B], C)
    second = window(commits((A, D), (B, C)), first.checkpoint, F, Order.COMPLETION)
    assert (begins(second.commits), second.checkpoint) == ([A], D)
    assert begins(second.before.writes) == [B]
    assert begins(second.then.writes) == [B, A]


def test_fenced_order_holds_commits_behind_a_pending_writer() -> None:
    held = window(commits((A, B), (D, E), pending=(C,)), "", F, Order.FENCED)
    assert (begins(held.commits), held.checkpoint) == ([A], A)
    again = window(commits((A, B), (D, E), pending=(C,)), A, F, Order.FENCED)
    assert (again.commits, again.checkpoint) == ((), A)
    free = window(commits((A, B), (D, E), (C, F)), A, F, Order.FENCED)
    assert (begins(free.commits), free.checkpoint) == ([C, D], D)
    assert begins(free.before.writes) == [A]


def test_late_finisher_is_missed_by_begin_order() -> None:
    """What makes the other two orders necessary."""
    first = window(commits((B, C), pending=(A,)), "", F, Order.BEGIN)
    assert (begins(first.commits), first.checkpoint) == ([B], B)
    assert window(commits((A, D), (B, C)), first.checkpoint, F, Order.BEGIN).commits == ()


@pytest.mark.parametrize("action", [Action.CLUSTERING, Action.REPLACECOMMIT])
def test_only_pending_writes_that_change_rows_hold_the_fence(action: Action) -> None:
    names = [Instant(A, action, InstantState.REQUESTED).file_name, f"{B}_{C}.commit"]
    assert window(Timeline.of(names), "", F, Order.FENCED).commits == ()
    for other in ("clean", "compaction"):
        timeline = Timeline.of([f"{A}.{other}.requested", f"{B}_{C}.commit"])
        assert begins(window(timeline, "", F, Order.FENCED).commits) == [B]


def test_window_is_open_below_closed_above_and_ends_at_a_commit() -> None:
    timeline = commits((A, B), (C, D), (E, F))
    found = window(timeline, B, E, Order.COMPLETION)
    assert (begins(found.commits), found.checkpoint) == ([C], D)
    assert begins(found.then.writes) == [A, C]
    assert latest_checkpoint(timeline, Order.COMPLETION) == F
    assert latest_checkpoint(timeline, Order.FENCED) == E
    assert latest_checkpoint(Timeline(), Order.BEGIN) == ""
    assert window(Timeline(), B, F, Order.COMPLETION).checkpoint == B


Times = st.lists(st.integers(0, 40), min_size=2, max_size=16, unique=True)


@given(Times, st.lists(st.integers(0, 42), max_size=8), st.sampled_from([Order.COMPLETION, Order.FENCED]))
def test_consumer_gets_every_commit_once_whenever_it_reads(times: list[int], looks: list[int], order: Order) -> None:
    """Begin and completion times in any interleaving, looked at as they come to be."""
    pairs = [tuple(sorted(pair)) for pair in zip(times[::2], times[1::2], strict=False)]
    given_, checkpoint = [], ""
    for now in [*sorted(looks), 50]:
        done = [(format_ms(begin), format_ms(end)) for begin, end in pairs if end <= now]
        pending = tuple(format_ms(begin) for begin, end in pairs if begin <= now < end)
        timeline = commits(*done, pending=pending)
        found = window(timeline, checkpoint, latest_checkpoint(timeline, order), order)
        assert {i.begin for i in found.before.writes} == set(given_)
        given_ += begins(found.commits)
        assert {i.begin for i in found.then.writes} == set(given_)
        checkpoint = found.checkpoint
    assert sorted(given_) == sorted(format_ms(begin) for begin, _ in pairs)
    assert len(set(given_)) == len(given_)
    if order is Order.FENCED:
        assert given_ == sorted(given_)


def rows(*found: tuple[str, str, int]) -> pa.Table:
    """Rows of (key, sequence number, value)."""
    names = ["_hoodie_record_key", "_hoodie_commit_seqno", "value"]
    schema = pa.schema([(names[0], pa.string()), (names[1], pa.string()), (names[2], pa.int64())])
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in found], schema=schema)


def told(old: pa.Table, new: pa.Table) -> set[tuple[str, str, int]]:
    found = changed_rows(old, new)
    assert found.column_names[0] == OPERATION
    return {(row[OPERATION], row["_hoodie_record_key"], row["value"]) for row in found.to_pylist()}


def test_exactly_the_inserted_changed_and_deleted_rows_are_reported() -> None:
    old = rows(("same", "1_0_0", 1), ("changed", "1_0_1", 2), ("gone", "1_0_2", 3))
    new = rows(("same", "1_0_0", 1), ("changed", "2_0_0", 20), ("new", "2_0_1", 4))
    assert told(old, new) == {("update", "changed", 20), ("delete", "gone", 3), ("insert", "new", 4)}


def test_rewrite_is_no_change_and_neither_is_another_order() -> None:
    old = rows(("a", "1_0_0", 1), ("b", "1_0_1", 2))
    assert told(old, rows(("b", "1_0_1", 2), ("a", "1_0_0", 1))) == set()


def test_new_rows_are_inserts_and_missing_rows_are_deletes() -> None:
    some = rows(("a", "1_0_0", 1))
    assert told(rows(), some) == {("insert", "a", 1)}
    assert told(some, rows()) == {("delete", "a", 1)}
    assert told(rows(), rows()) == set()


def test_keys_and_numbers_that_look_alike_when_joined_are_not_mixed_up() -> None:
    assert told(rows(("1", "1_0_1", 1)), rows(("11", "1_0_", 1))) == {("insert", "11", 1), ("delete", "1", 1)}


def test_touched_groups_are_those_written_and_those_ended() -> None:
    one = CommitMetadata({"p": (WriteStat("f", "p/f", "p"),), "q": (WriteStat("g", "q/g", "q"),)}, "UPSERT")
    two = CommitMetadata({"p": (WriteStat("h", "p/h", "p"),)}, "INSERT_OVERWRITE", replaced={"p": ("f", "e")})
    assert touched([one, two]) == {"p": frozenset({"e", "f", "h"}), "q": frozenset({"g"})}
