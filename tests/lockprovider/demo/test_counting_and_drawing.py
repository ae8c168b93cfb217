"""Messages become counts and a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from lockprovider.demo import attempts, picture, tally
from lockprovider.demo.lines import Job, Line, decode, encode

SVG = "{http://www.w3.org/2000/svg}"


def line(kind: str, role: str, at_ms: int, instant: str = "", **detail: object) -> Line:
    return Line(kind, role, 1_000_000 + at_ms, instant, detail)


RUN = [
    line("progress", "ingest", 0, done=0, total=2, doing="late-3"),
    line("begin", "ingest", 10, "i1"),
    line("begin", "protect", 20, "p1"),
    line("written", "ingest", 900, "i1"),
    line("lock_wait", "ingest", 900, "i1"),
    line("lock_held", "ingest", 950, "i1"),
    line("committed", "ingest", 980, "i1"),
    line("lock_released", "ingest", 990, "i1"),
    line("lock_wait", "protect", 1000, "p1"),
    line("lock_held", "protect", 1000, "p1"),
    line("conflict", "protect", 1010, "p1", others=["i1"]),
    line("lock_released", "protect", 1020, "p1"),
    line("rolled_back", "protect", 1100, "p1"),
    line("retry", "protect", 1100, "p1"),
    line("begin", "protect", 1200, "p2"),
]


def test_a_message_survives_the_pipe_and_half_a_message_is_dropped():
    message = line("conflict", "protect", 5, "p1", others=["i1", "i2"])
    assert decode(encode(message)) == message
    assert decode(encode(message)[:-9]) is None
    assert decode(b'{"kind":"x"}') is None


def test_a_job_survives_standard_input():
    job = Job("s3://b/t", {"key": "k", "client_kwargs": {"region_name": "r"}}, (1, 2))
    assert Job.from_json(job.to_json()) == job
    beside = Job("t", {}, (1,), is_merge_on_read=True)
    assert Job.from_json(beside.to_json()).roles == (*job.roles, "compact")


def test_commits_conflicts_retries_and_lock_waits_are_counted():
    ingest, protect = (tally.add_all(role, RUN) for role in ("ingest", "protect"))
    assert (ingest.commits, ingest.conflicts, ingest.lock_waits_ms) == (1, 0, (50,))
    assert (protect.commits, protect.conflicts, protect.retries, protect.rollbacks) == (0, 1, 1, 1)
    assert (ingest.done, ingest.total, ingest.doing) == (0, 2, "late-3")


def test_a_clock_that_steps_back_makes_no_negative_wait():
    stepped = [line("lock_wait", "ingest", 50), line("lock_held", "ingest", 20)]
    assert tally.add_all("ingest", stepped).lock_waits_ms == (0,)


@pytest.mark.parametrize(("waits", "median", "longest"), [((), 0, 0), ((5,), 5, 5), ((9, 1, 4, 2), 2, 9)])
def test_the_median_of_the_lock_waits_is_the_lower_one(waits, median, longest):
    one = tally.Tally("ingest", lock_waits_ms=waits)
    assert (one.lock_wait_median_ms, one.lock_wait_max_ms) == (median, longest)


def test_the_columns_of_the_summary_line_up():
    rows = tally.table([tally.Tally("ingest", commits=24), tally.Tally("backfill", conflicts=3)]).splitlines()
    assert len({len(row) for row in rows}) == 1


def test_an_attempt_knows_its_end_and_the_commit_it_lost_to():
    first, lost, second = attempts.attempts(RUN)
    assert (first.instant, first.end, first.doing) == ("i1", "committed", "late-3")
    assert (lost.end, lost.lost_to, lost.rolled_back_ms) == ("conflict", ("i1",), 1_001_100)
    assert second.end == "open"


def test_a_winner_named_by_its_file_on_the_timeline_is_known():
    named = [
        line("conflict", "protect", 1010, "p1", lost_to="i1_900.commit") if m.kind == "conflict" else m for m in RUN
    ]
    assert attempts.attempts(named)[1].lost_to == ("i1",)


def test_a_tenure_at_the_lock_has_its_three_moments():
    ingest, protect = attempts.tenures(RUN)
    assert (ingest.asked_ms, ingest.held_ms, ingest.end_ms) == (1_000_900, 1_000_950, 1_000_990)
    assert protect.held_ms == protect.asked_ms


def test_a_lock_that_was_never_had_is_drawn_as_a_wait():
    [tenure] = attempts.tenures([line("lock_wait", "ingest", 0), line("progress", "ingest", 700)])
    assert (tenure.held_ms, tenure.end_ms) == (None, 1_000_700)


def marks(svg: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(SVG + tag))  # noqa: S314 - our own text


def test_the_picture_is_well_formed_and_needs_nothing_from_elsewhere():
    svg = picture.draw(RUN, "Flights & more <3", {"protect": 1_001_500})
    assert "href" not in svg
    assert "<script" not in svg
    words = [element.text for element in marks(svg, "text")]
    assert "Flights & more <3" in words
    assert "ended here" in words
    assert "1 commit, 1 conflict, 1 retry, 0.1 s spent waiting for the lock, " in words[1]


def test_a_conflict_is_linked_to_the_commit_it_lost_to():
    linked = [path for path in marks(picture.draw(RUN, ""), "path") if " C " in path.attrib["d"]]
    stranger = [line("conflict", "protect", 1010, "p1", others=["x9"]) if m.kind == "conflict" else m for m in RUN]
    unlinked = [path for path in marks(picture.draw(stranger, ""), "path") if " C " in path.attrib["d"]]
    assert (len(linked), len(unlinked)) == (1, 0)


COMPACTION = [
    line("progress", "compact", 1300, done=0, total=0, doing="merges 4 log files"),
    line("compaction_scheduled", "compact", 1310, "c1"),
    line("compacted", "compact", 1400, "c1", file_groups=2),
]


def test_a_compaction_has_a_lane_of_its_own_and_is_no_commit_of_the_pipelines():
    [one] = [attempt for attempt in attempts.attempts([*RUN, *COMPACTION]) if attempt.role == "compact"]
    assert (one.end, one.doing, one.end_ms - one.begin_ms) == ("committed", "merges 4 log files", 90)
    with_it, without = (picture.draw(lines, "") for lines in ([*RUN, *COMPACTION], RUN))
    words = [element.text for element in marks(with_it, "text")]
    assert "1 compaction" in words
    assert "1 commit, 1 conflict, 1 retry, 0.1 s spent waiting for the lock, " in words[1]
    heights = [float(ET.fromstring(svg).get("height", 0)) for svg in (with_it, without)]  # noqa: S314 - our own text
    assert heights[0] - heights[1] == picture.LANE


def test_nothing_is_drawn_outside_the_picture():
    svg = picture.draw(RUN, "t", {"protect": 1_009_000})
    for element in marks(svg, "rect"):
        x, width = float(element.get("x", 0)), float(element.attrib["width"])
        assert x >= 0
        assert x + width <= picture.WIDTH


def test_a_run_without_a_single_message_still_makes_a_picture():
    assert marks(picture.draw([], "nothing"), "svg")
