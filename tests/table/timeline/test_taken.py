"""What a reader takes of a listing; all orders of requests are searched in `tests/model`."""

from __future__ import annotations

from lockprovider.table.format.layout import Instant, parse_instant
from lockprovider.table.timeline.timeline import Decisions, Timeline, visible_part

A, B, C, D = (f"2026010100000000{n}" for n in range(4))
FIRST, SECOND, PLAN = f"{A}_{B}.commit", f"{C}_{D}.commit", f"{C}.clean.requested"


def decided(*names: str, unapplied: tuple[str, ...] = ()) -> Decisions:
    found, missing = ([_instant(name) for name in some] for some in (names, unapplied))
    return Decisions(str(len(names)), "log", len(names), tuple(found), tuple(missing))


def _instant(name: str) -> Instant:
    found = parse_instant(name)
    assert found is not None
    return found


def test_commits_after_a_gap_are_left_out_and_stay_pending() -> None:
    listed = Timeline.of([f"{A}.commit.requested", f"{C}.commit.requested", SECOND])
    found = visible_part(listed, decided(FIRST, SECOND, unapplied=(FIRST, SECOND)))
    assert found == Timeline.of([f"{A}.commit.requested"])


def test_plan_not_yet_applied_hides_nothing() -> None:
    listed = Timeline.of([FIRST])
    assert visible_part(listed, decided(FIRST, PLAN, unapplied=(PLAN,))) is listed


def test_commit_newer_than_the_log_needs_another_read() -> None:
    listed, before = Timeline.of([FIRST, SECOND]), decided(FIRST)
    assert visible_part(listed, before) is None
    assert visible_part(listed, before, before) is listed, "it is of one who knows nothing of the log"
    assert visible_part(listed, before, decided(FIRST, SECOND)) is listed
    assert visible_part(listed, before, Decisions("another")) is None, "the log has ended"
