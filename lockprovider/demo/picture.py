"""Draws a run as one SVG that needs nothing else: a lane for each process over a common time axis.

Pure: messages in, text out. Times are the writers' wall clocks; the picture shows what went on, it proves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from lockprovider.demo.attempts import Attempt, Tenure, attempts, tenures
from lockprovider.demo.lines import COMPACT, ROLES
from lockprovider.demo.tally import add_all
from lockprovider.observe.svg import FAINT, INK, RED, WIDTH, Scale, heading, rule, sheet, text, tick
from lockprovider.words import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockprovider.demo.lines import Line
    from lockprovider.demo.tally import Tally

TOP = 84
LANE = 108
BAR_TOP = 26
BAR = 28
STRIP = 9
STRIP_GAP = 5
AXIS = 34
LEGEND = 66
LETTER_PX = 7
DOT_PX = 8
TICKS = 10

WAIT = "#f0a202"
COLOURS = {"ingest": "#3b78c3", "protect": "#2f9e6e", "backfill": "#8a5cc2", COMPACT: "#a9643b"}
PALE = {"ingest": "#d5e4f7", "protect": "#d2efe2", "backfill": "#e6dbf5", COMPACT: "#f3e0d3"}


def draw(lines: Sequence[Line], title: str, died: Mapping[str, int] | None = None) -> str:
    """The picture. `died` names processes that ended before their work did, with the moment (epoch ms)."""
    died = died or {}
    roles = (*ROLES, COMPACT) if any(line.role == COMPACT for line in lines) else ROLES
    tries = [_until_death(attempt, died) for attempt in attempts(lines) if attempt.role in roles]
    locks = [tenure for tenure in tenures(lines) if tenure.role in roles]
    scale = _scale(tries, locks, died)
    tallies = {role: add_all(role, lines) for role in roles}
    bottom = TOP + LANE * len(roles)
    body = [
        *_head(title, tallies, scale),
        *_axis(scale, bottom),
        *(part for lane, role in enumerate(roles) for part in _lane(lane, tallies[role])),
        *(_tenure(tenure, scale) for tenure in locks),
        *(_bar(attempt, scale) for attempt in tries),
        *_links(tries, scale),
        *(part for attempt in tries for part in _marks(attempt, scale)),
        *(_death(role, at_ms, scale) for role, at_ms in died.items() if role in roles),
        *_legend(bottom + AXIS),
    ]
    return sheet(bottom + AXIS + LEGEND, body)


def _scale(tries: Sequence[Attempt], locks: Sequence[Tenure], died: Mapping[str, int]) -> Scale:
    starts = [a.begin_ms for a in tries] + [s.asked_ms for s in locks]
    ends = [max(a.end_ms, a.rolled_back_ms or 0) for a in tries] + [s.end_ms for s in locks]
    start, end = min(starts, default=0), max([*ends, *died.values()], default=1)
    return Scale.around(start, end)


def _until_death(attempt: Attempt, died: Mapping[str, int]) -> Attempt:
    if attempt.end == "open" and attempt.role in died:
        return replace(attempt, end_ms=max(attempt.end_ms, died[attempt.role]))
    return attempt


def _lane_y(role: str) -> int:
    return TOP + LANE * (*ROLES, COMPACT).index(role)


def _head(title: str, tallies: Mapping[str, Tally], scale: Scale) -> list[str]:
    conflicts = sum(t.conflicts for t in tallies.values())
    retries = sum(t.retries for t in tallies.values())
    waits = sum(sum(t.lock_waits_ms) for t in tallies.values())
    totals = (
        f"{count(sum(t.commits for t in tallies.values() if t.role != COMPACT), 'commit')}, "
        f"{count(conflicts, 'conflict')}, "
        f"{'1 retry' if retries == 1 else f'{retries} retries'}, {waits / 1000:.1f} s spent waiting for the lock, "
        f"{(scale.end_ms - scale.start_ms) / 1000:.0f} s of writing (the start of Spark is not drawn)"
    )
    return heading(title, totals)


def _axis(scale: Scale, bottom: int) -> list[str]:
    span_s = (scale.end_ms - scale.start_ms) / 1000
    step = next((s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120) if span_s / s <= TICKS), 300)
    parts: list[str] = []
    for number in range(int(span_s / step) + 1):
        parts += tick(scale.x(scale.start_ms + number * step * 1000), TOP, bottom, f"{number * step:g} s")
    return parts


def _lane(lane: int, tally: Tally) -> list[str]:
    y = TOP + LANE * lane
    return [
        rule(y),
        text(24, y + 36, tally.role, font_size="16", font_weight="bold", fill=COLOURS[tally.role]),
        text(24, y + 56, count(tally.commits, "compaction" if tally.role == COMPACT else "commit"), fill=FAINT),
        text(24, y + 73, count(tally.conflicts, "conflict"), fill=RED if tally.conflicts else FAINT),
    ]


def _bar(attempt: Attempt, scale: Scale) -> str:
    """The write span, from the instant's beginning to its end; a lost one is hollow."""
    x, width = scale.extent(attempt.begin_ms, attempt.end_ms)
    y = _lane_y(attempt.role) + BAR_TOP
    colour, fill = COLOURS[attempt.role], PALE[attempt.role]
    look = f'fill="{fill}" stroke="{colour}"'
    if attempt.end != "committed":
        look = f'fill="#ffffff" stroke="{RED}" stroke-dasharray="3 2"'
    label = _label(attempt.doing)
    words = ""
    # The mark at the bar's end covers its last pixels; a label that would touch it is left to the tooltip.
    if width >= DOT_PX + 6 + LETTER_PX * len(label):
        ink = colour if attempt.end == "committed" else RED
        middle = x + (width - DOT_PX) / 2
        words = text(middle, y + BAR / 2 + 4, label, text_anchor="middle", font_size="11", fill=ink)
    return (
        f'<g><title>{escape(_story(attempt))}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{BAR}" rx="3" {look}/>{words}</g>'
    )


def _label(doing: str) -> str:
    """`main-3` and `month 3` are drawn as 3, `late-3` as 3+."""
    number = "".join(c for c in doing if c.isdigit())
    return number + ("+" if doing.startswith("late") else "")


def _story(attempt: Attempt) -> str:
    ends = {"committed": "committed", "conflict": "lost a conflict", "open": "was left open"}
    story = f"{attempt.role} {attempt.doing}: instant {attempt.instant} {ends[attempt.end]}"
    story += f" after {(attempt.end_ms - attempt.begin_ms) / 1000:.2f} s"
    if attempt.lost_to:
        story += f", to {', '.join(attempt.lost_to)}"
    return story + ("; rolled back" if attempt.rolled_back_ms else "")


def _tenure(tenure: Tenure, scale: Scale) -> str:
    """Two strips under the bars: waiting for the lock, and holding it."""
    y = _lane_y(tenure.role) + BAR_TOP + BAR + STRIP_GAP + 7
    held = tenure.end_ms if tenure.held_ms is None else tenure.held_ms
    parts = []
    if held > tenure.asked_ms:
        words = f"{tenure.role} waits for the lock for {held - tenure.asked_ms} ms"
        parts.append(_strip(scale, (tenure.asked_ms, held), y, WAIT, words))
    if tenure.held_ms is not None:
        words = f"{tenure.role} holds the lock for {tenure.end_ms - tenure.held_ms} ms"
        parts.append(_strip(scale, (tenure.held_ms, tenure.end_ms), y + STRIP + 2, INK, words))
    return "".join(parts)


def _strip(scale: Scale, span_ms: tuple[int, int], y: int, colour: str, words: str) -> str:
    x, width = scale.extent(*span_ms)
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{STRIP}" fill="{colour}">'
        f"<title>{escape(words)}</title></rect>"
    )


def _links(tries: Sequence[Attempt], scale: Scale) -> list[str]:
    """From each conflict to the commit it lost to."""
    winners = {attempt.instant: attempt for attempt in tries if attempt.end == "committed"}
    return [_link(loser, winners[i], scale) for loser in tries for i in loser.lost_to if i in winners]


def _link(loser: Attempt, winner: Attempt, scale: Scale) -> str:
    x1, y1 = scale.x(loser.end_ms), _lane_y(loser.role) + BAR_TOP + BAR / 2
    x2, y2 = scale.x(winner.end_ms), _lane_y(winner.role) + BAR_TOP + BAR / 2
    middle = (y1 + y2) / 2
    return (
        f'<path d="M {x1:.1f} {y1} C {x1:.1f} {middle} {x2:.1f} {middle} {x2:.1f} {y2}" fill="none" '
        f'stroke="{RED}" stroke-width="1.2" opacity="0.75"/>'
    )


def _marks(attempt: Attempt, scale: Scale) -> list[str]:
    y = _lane_y(attempt.role) + BAR_TOP + BAR / 2
    title = f"<title>{escape(_story(attempt))}</title>"
    x = scale.x(attempt.end_ms)
    parts: list[str] = []
    if attempt.end == "committed":
        parts.append(_dot(x, y, COLOURS[attempt.role], title))
    elif attempt.end == "conflict":
        parts.append(_cross(x, y, title))
    if attempt.rolled_back_ms is not None:
        parts.append(_triangle(scale.x(attempt.rolled_back_ms), y + BAR / 2, title))
    return parts


def _dot(x: float, y: float, colour: str, title: str = "") -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}" stroke="#ffffff" stroke-width="1.5">{title}</circle>'


def _cross(x: float, y: float, title: str = "") -> str:
    return (
        f'<path d="M {x - 5:.1f} {y - 5} l 10 10 m 0 -10 l -10 10" stroke="{RED}" stroke-width="3" '
        f'stroke-linecap="round" fill="none">{title}</path>'
    )


def _triangle(x: float, y: float, title: str = "") -> str:
    return f'<path d="M {x - 5:.1f} {y + 1} h 10 l -5 7 z" fill="{FAINT}">{title}</path>'


def _death(role: str, at_ms: int, scale: Scale) -> str:
    x, y = scale.x(at_ms), _lane_y(role)
    anchor = "end" if x > WIDTH / 2 else "start"
    offset = -6 if anchor == "end" else 6
    words = text(x + offset, y + 18, "ended here", text_anchor=anchor, fill=RED, font_weight="bold")
    return f'<line x1="{x:.1f}" y1="{y + 4}" x2="{x:.1f}" y2="{y + LANE - 4}" stroke="{RED}" stroke-width="2"/>{words}'


def _legend(top: int) -> list[str]:
    samples = (
        ((f'<rect x="0" y="-8" width="26" height="16" rx="3" fill="{PALE["ingest"]}" '
         f'stroke="{COLOURS["ingest"]}"/>'), 34, "writes (month; + late corrections)"),
        (_dot(8, 0, COLOURS["ingest"]), 20, "commit"),
        ((f'<rect x="0" y="-8" width="26" height="16" rx="3" fill="#ffffff" stroke="{RED}" '
         'stroke-dasharray="3 2"/>'), 34, "lost attempt"),
        (_cross(8, 0), 20, "conflict, linked to the commit it lost to"),
        (_triangle(8, -5), 20, "rolled back"),
        (f'<rect x="0" y="-5" width="22" height="{STRIP}" fill="{WAIT}"/>', 30, "waits for the lock"),
        (f'<rect x="0" y="-5" width="22" height="{STRIP}" fill="{INK}"/>', 30, "holds the lock"),
    )  # fmt: skip
    parts: list[str] = []
    for number, (sample, gap, words) in enumerate(samples):
        x, y = 24 + 290 * (number % 4), top + 14 + 24 * (number // 4)
        parts.append(f'<g transform="translate({x} {y})">{sample}{text(gap, 4.5, words)}</g>')
    return parts
