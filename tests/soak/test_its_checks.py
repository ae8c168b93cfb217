"""What the soak of tables looks for is found when it is there."""

from __future__ import annotations

import pytest

from lockprovider.table.state.events import EventKind, TableEvent
from soak.market import FOUNDED, LISTS, Row, lists, rows
from soak.market_audit import differ, once, ordering
from soak.metrics import Metrics
from soak.readers import check_moment

GOOD: list[Row] = [(LISTS[0], LISTS[0], 1, "e1"), ("log-1", "log", 1, ""), ("scratch-0", "scratch", 1, "g1 of 1")]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (("log-1", "log", 1, ""), "twice"),
        (("scratch-1", "scratch", 1, "g2 of 1"), "half an overwrite"),
        (("scratch-1", "scratch", 1, "g1 of 1"), "2 rows of g1"),
        (("ghost-1", "log", 9, ""), "nobody committed"),
    ],
)
def test_wrong_row_at_a_past_time_is_detected(bad: Row, said: str) -> None:
    check_moment(rows(*GOOD))
    with pytest.raises(AssertionError, match=said):
        check_moment(rows(*GOOD, bad))


def test_lists_are_read_back_as_written() -> None:
    found = rows((LISTS[0], LISTS[0], 2, "e1 e2"), ("found-1", f"{FOUNDED}0", 1, "f1"), *GOOD[1:])
    assert lists(found) == {LISTS[0]: ["e1", "e2"], "found-1": ["f1"]}


def test_stale_and_uncommitted_rows_are_detected() -> None:
    best = {"rated-1": (5, "v5"), "rated-2": (7, "v7")}
    right: list[Row] = [("rated-1", "rated", 5, "v5"), ("rated-2", "rated", 7, "v7")]
    assert ordering(best, rows(*right)) == []
    assert len(ordering(best, rows(right[0], ("rated-2", "rated", 6, "v6")))) == 1, "an older one is there"
    assert len(ordering(best, rows(right[0], ("rated-2", "rated", 8, "v8")))) == 1, "a vanished writer's is there"
    assert len(ordering(best, rows(right[0]))) == 1, "it is gone"


def test_missing_surplus_and_duplicate_rows_are_detected() -> None:
    assert differ({"a"}, {"a"}) == once({"a"}, ["a"]) == []
    assert differ({"a", "b"}, {"b", "c"}) == ["a is missing", "c is too much"]
    assert once({"a"}, ["a", "a"]) == ["a is there 2 times"]


def test_durations_are_between_two_events_of_an_instant() -> None:
    metrics = Metrics()
    told: list[tuple[EventKind, str, int]] = [
        ("begin", "1", 0),
        ("begin", "2", 5),
        ("written", "1", 10),
        ("lock_wait", "1", 11),
        ("lock_held", "1", 31),
        ("committed", "1", 40),
        ("lock_released", "1", 41),
    ]
    for kind, instant, at_ms in told:
        metrics(TableEvent(kind, at_ms, instant))
    report = metrics.report(2.0)
    assert report["commits_per_s"] == 0.5
    assert {name: found["p50"] for name, found in report["ms"].items()} == {
        "transaction": 40,
        "commit": 30,
        "lock wait": 20,
        "lock held": 10,
    }
    assert report["events"]["begin"] == 2
