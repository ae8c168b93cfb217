"""Messages become counts and a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping

import pytest

from lockprovider.demo.run import COMPACT, PIPELINES, Report, Step, Track, draw, take
from lockprovider.lanes import LANE, WIDTH
from lockprovider.table import TableEvent

SVG = "{http://www.w3.org/2000/svg}"


Said = tuple[str, TableEvent | Step]


def message(kind: str, role: str, at_ms: int, instant: str = "", **detail: object) -> Said:
    return role, TableEvent(kind, 1_000_000 + at_ms, instant, detail)  # type: ignore[arg-type]


RUN: list[Said] = [
    ("ingest", Step(0, 2, "late-3")),
    message("progress", "ingest", 0, step="write files", number=1, of=1),  # of the table, about one write
    message("begin", "ingest", 10, "i1"),
    message("begin", "protect", 20, "p1"),
    message("written", "ingest", 900, "i1"),
    message("lock_wait", "ingest", 900, "i1"),
    message("lock_held", "ingest", 950, "i1"),
    message("committed", "ingest", 980, "i1"),
    message("lock_released", "ingest", 990, "i1"),
    message("lock_wait", "protect", 1000, "p1"),
    message("lock_held", "protect", 1000, "p1"),
    message("conflict", "protect", 1010, "p1", others=["i1"]),
    message("lock_released", "protect", 1020, "p1"),
    message("rolled_back", "protect", 1100, "p1"),
    message("retry", "protect", 1100, "p1"),
    message("begin", "protect", 1200, "p2"),
]
COMPACTION: list[Said] = [
    (COMPACT, Step(0, 0, "merges 4 log files")),
    message("compaction_scheduled", COMPACT, 1310, "c1"),
    message("compacted", COMPACT, 1400, "c1", file_groups=2),
]


def tracks(messages: Iterable[Said], *more: str) -> dict[str, Track]:
    found = {role: Track(role) for role in (*PIPELINES, *more)}
    for role, item in messages:
        take(found, role, item)
    return found


def drawn(messages: Iterable[Said], *more: str, title: str = "", died: Mapping[str, int] | None = None) -> str:
    return draw(list(tracks(messages, *more).values()), title, died or {})


def marks(svg: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(SVG + tag))  # noqa: S314 - our own text


def test_commits_conflicts_retries_and_lock_waits_are_counted():
    found = tracks(RUN)
    ingest, protect = found["ingest"], found["protect"]
    assert (ingest.commits, ingest.events["conflict"], ingest.waits_ms) == (1, 0, [50])
    said = protect.to_json()
    assert [said[name] for name in ("commits", "conflicts", "retries", "rollbacks")] == [0, 1, 1, 1]
    assert ingest.step == Step(0, 2, "late-3")


def test_clock_that_steps_back_makes_no_negative_wait():
    stepped = [message("lock_wait", "ingest", 50), message("lock_held", "ingest", 20)]
    assert tracks(stepped)["ingest"].waits_ms == [0]


@pytest.mark.parametrize(("waits", "median", "longest"), [([], 0, 0), ([5], 5, 5), ([9, 1, 4, 2], 2, 9)])
def test_median_of_the_lock_waits_is_the_lower_one(waits, median, longest):
    said = Track("ingest", waits_ms=waits).to_json()
    assert (said["lock_wait_median_ms"], said["lock_wait_max_ms"]) == (median, longest)


def test_columns_of_the_summary_line_up():
    rows = Report("t", (Track("ingest"), Track("backfill", waits_ms=[100])), (), None, "", "", 0.0).text().split("\n")
    assert len({len(row) for row in rows[:3]}) == 1


def test_attempt_knows_its_end_and_the_commit_it_lost_to():
    found = tracks(RUN)
    first, lost, second = (
        found[role].attempts[i] for role, i in (("ingest", "i1"), ("protect", "p1"), ("protect", "p2"))
    )
    assert (first.end, first.doing) == ("committed", "late-3")
    assert (lost.end, "i1" in lost.named, lost.rolled_back_ms) == ("lost a conflict", True, 1_001_100)
    assert second.end == "was left open"


def test_rollback_of_a_dead_writers_instant_reaches_its_attempt():
    found = tracks([*RUN, message("rolled_back", "", 9000, "p2")])
    assert found["protect"].attempts["p2"].rolled_back_ms == 1_009_000


def test_waits_and_holdings_of_the_lock_are_drawn():
    titles = [title.text for title in marks(drawn(RUN), "title")]
    assert "ingest waits for the lock for 50 ms" in titles
    assert "ingest holds the lock for 40 ms" in titles
    assert not any(title.startswith("protect waits") for title in titles if title)


def test_picture_is_well_formed_and_needs_nothing_from_elsewhere():
    svg = drawn(RUN, title="Flights & more <3", died={"protect": 1_001_500})
    assert "href" not in svg
    assert "<script" not in svg
    words = [element.text or "" for element in marks(svg, "text")]
    assert "Flights & more <3" in words
    assert "ended here" in words
    assert words[1] == "1 commit, 1 conflict, 0.1 s spent waiting for the lock"


@pytest.mark.parametrize("detail", [{"others": ["i1"]}, {"lost_to": "i1_900.commit"}, {"others": ["x9"]}])
def test_conflict_is_linked_to_the_commit_it_lost_to(detail):
    run = [
        message("conflict", "protect", 1010, "p1", **detail) if one[1].at_ms == 1_001_010 else one for one in RUN[1:]
    ]
    links = [path for path in marks(drawn(run), "path") if " C " in path.attrib["d"]]
    assert len(links) == ("x9" not in str(detail))


def test_compaction_has_its_own_lanes_and_is_no_commit_of_a_pipeline():
    one = tracks([*RUN, *COMPACTION], COMPACT)[COMPACT].attempts["c1"]
    assert (one.end, one.doing, one.end_ms - one.begin_ms) == ("committed", "merges 4 log files", 90)
    with_it, without = drawn([*RUN, *COMPACTION], COMPACT), drawn(RUN)
    words = [element.text or "" for element in marks(with_it, "text")]
    assert "1 compaction" in words
    assert words[1] == "1 commit, 1 conflict, 0.1 s spent waiting for the lock"
    heights = [float(ET.fromstring(svg).get("height", 0)) for svg in (with_it, without)]  # noqa: S314 - our own text
    assert heights[0] - heights[1] == 2 * LANE


def test_nothing_is_drawn_outside_the_picture():
    svg = drawn(RUN, died={"protect": 1_009_000})
    for element in marks(svg, "rect"):
        x, width = float(element.get("x", 0)), float(element.attrib["width"])
        assert x >= 0
        assert x + width <= WIDTH


def test_run_without_a_single_message_still_makes_a_picture():
    assert marks(drawn([], title="nothing"), "svg")
