"""Drawings of lanes over time as one SVG, pure.

Times are of the writers' clocks: the order of events in two lanes proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from lockprovider.words import moment

WIDTH = 1200
INK, FAINT, GRID, RED = "#24292f", "#6e7781", "#e7eaee", "#cf222e"
LANE, BOX = 28, 16
_TOP, _AXIS, _LEFT, _RIGHT, _MARGIN = 84, 36, 152, WIDTH - 60, 24
_LEAST_PX = 2.0
_LETTER_PX, _TITLE, _NAME = 7, 80, 15  # a letter's width; letters that fit
_TICKS = 8
_STEPS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000),
    *(600_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000),
)
_SECOND_MS, _MINUTE_MS = 1000, 60_000
_NO_XML = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Shape = Literal["dot", "cross", "triangle", "diamond", "line"]
_PATHS: dict[Shape, str] = {
    "dot": "M -4 0 a 4 4 0 1 0 8 0 a 4 4 0 1 0 -8 0",
    "cross": "M -4 -4 l 8 8 m 0 -8 l -8 8",
    "triangle": "M -4 -3 h 8 l -4 5 z",
    "diamond": "M 0 -4 l 4 4 l -4 4 l -4 -4 z",
    "line": "M 0 -12 v 24",
}
_BESIDE: dict[Shape, int] = {"triangle": BOX // 2 + 3, "diamond": -BOX // 2}


@dataclass(frozen=True, slots=True)
class Box:
    """Stretch of time in a lane. `words`: tooltip, or meaning in a legend."""

    start_ms: int
    end_ms: int
    colour: str
    words: str = ""
    label: str = ""
    hollow: bool = False
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Moment in a lane."""

    at_ms: int
    shape: Shape
    colour: str
    words: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """Row of the drawing; later boxes cover earlier."""

    name: str
    boxes: Sequence[Box] = ()
    marks: Sequence[Mark] = ()
    colour: str = FAINT


@dataclass(frozen=True, slots=True)
class Curve:
    """Curve between moments of two lanes, given by index."""

    lane: int
    at_ms: int
    to_lane: int
    to_ms: int


@dataclass(frozen=True, slots=True)
class _Scale:
    start_ms: int
    end_ms: int

    def x(self, at_ms: float) -> float:
        inside = min(max(at_ms, self.start_ms), self.end_ms)
        return _LEFT + (inside - self.start_ms) / (self.end_ms - self.start_ms) * (_RIGHT - _LEFT)


def draw_lanes(
    title: str,
    words: str,
    lanes: Sequence[Lane],
    *,
    legend: Sequence[Box | Mark] = (),
    stripes: Sequence[Box] = (),
    links: Sequence[Curve] = (),
    is_wrong: bool = False,
    elapsed: bool = False,
) -> str:
    """Draw SVG: title (cut to fit), subtitle `words` (red if `is_wrong`), `lanes` downwards, axis, legend.

    `stripes` cross all lanes; `links` join two. The axis has UTC times, or milliseconds if `elapsed`.
    """
    scale, bottom = _scale([*lanes, Lane("", stripes)]), _TOP + LANE * len(lanes) + 8
    samples = _legend(legend, bottom + _AXIS + 12)
    height = bottom + _AXIS + 12 + LANE * (samples[-1][0] + 1 if samples else 0)
    shown = title if len(title) <= _TITLE else f"…{title[1 - _TITLE :]}"
    body = [
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_MARGIN, 36, shown, font_size="20", font_weight="bold"),
        _text(_MARGIN, 60, words, fill=RED if is_wrong else FAINT, font_size="14"),
        *_axis(scale, bottom, elapsed=elapsed),
        *(part for number, lane in enumerate(lanes) for part in _lane(lane, _TOP + LANE * number, scale)),
        *(_box(stripe, _TOP, bottom - _TOP, scale) for stripe in stripes),
        *(_link(link, scale) for link in links),
        *(sample for _, sample in samples),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">'
    )
    return "\n".join([head, *body, "</svg>", ""])


def _scale(lanes: Sequence[Lane]) -> _Scale:
    boxes = [box for lane in lanes for box in lane.boxes]
    moments = [mark.at_ms for lane in lanes for mark in lane.marks]
    start = min([box.start_ms for box in boxes] + moments, default=0)
    end = max([box.end_ms for box in boxes] + moments, default=start)
    room = max(1, (end - start) // 60)
    return _Scale(start - room, end + room)


def _axis(scale: _Scale, bottom: int, *, elapsed: bool) -> list[str]:
    """SVG of about eight grid lines with labels: milliseconds if `elapsed`, else UTC times."""
    span_ms = scale.end_ms - scale.start_ms
    step_ms = next((step for step in _STEPS_MS if span_ms / step <= _TICKS), span_ms // _TICKS)
    days = moment(scale.start_ms)[:10] != moment(scale.end_ms)[:10]
    parts: list[str] = []
    for at_ms in range(-(-scale.start_ms // step_ms) * step_ms, scale.end_ms + 1, step_ms):
        x = scale.x(at_ms)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>')
        time = f"{at_ms:,} ms" if elapsed else _clock(at_ms, step_ms, days=days)
        parts.append(_text(x, bottom + 17, time, text_anchor="middle", fill=FAINT))
    return parts if elapsed else [*parts, _text(_MARGIN, bottom + 17, f"{moment(scale.start_ms)[:10]} UTC", fill=FAINT)]


def _clock(at_ms: int, step_ms: int, *, days: bool) -> str:
    time = moment(at_ms)
    if days and step_ms >= _MINUTE_MS:
        return time[5:16]
    return time[11:19] if step_ms >= _SECOND_MS else time[11:23]


def _lane(lane: Lane, y: int, scale: _Scale) -> list[str]:
    """SVG of one lane at height `y`: boxes, marks, and name, cut to fit, with the whole as tooltip."""
    short = lane.name if len(lane.name) <= _NAME else f"{lane.name[: _NAME - 1]}…"
    name = _text(_MARGIN, y + 19, short, fill=lane.colour)
    if short != lane.name:
        name = f"<g><title>{_escaped(lane.name)}</title>{name}</g>"
    parts = [name, *(_box(box, y + (LANE - BOX) // 2, BOX, scale) for box in lane.boxes)]
    for mark in lane.marks:
        x = scale.x(mark.at_ms)
        parts.append(_mark(mark, x, y + LANE // 2 + _BESIDE.get(mark.shape, 0), mark.words))
        if mark.label:
            anchor = "end" if x > WIDTH / 2 else "start"
            at = x - 8 if anchor == "end" else x + 8
            parts.append(_text(at, y + 19, mark.label, text_anchor=anchor, fill=mark.colour, font_weight="bold"))
    return parts


def _box(box: Box, y: int, height: int, scale: _Scale) -> str:
    """SVG of a box, at least 2 px wide, with tooltip, and label if that fits."""
    x = scale.x(box.start_ms)
    width = max(_LEAST_PX, scale.x(box.end_ms) - x)
    title = f"<title>{_escaped(box.words)}</title>" if box.words else ""
    shape = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="2"'
    rect = f"<rect {shape} {_look(box)}>{title}</rect>"
    if not box.label or width < _LETTER_PX * (len(box.label) + 2):
        return rect
    ink = box.colour if box.hollow else "#ffffff"
    return rect + _text(x + width / 2, y + 12, box.label, text_anchor="middle", font_size="11", fill=ink)


def _look(box: Box) -> str:
    look = f'fill="#ffffff" stroke="{box.colour}" stroke-dasharray="3 2"' if box.hollow else f'fill="{box.colour}"'
    return look if box.opacity == 1 else f'{look} opacity="{box.opacity:g}"'


def _mark(mark: Mark, x: float, y: float, words: str) -> str:
    title = f"<title>{_escaped(words)}</title>" if words else ""
    look = f'd="{_PATHS[mark.shape]}" fill="{mark.colour}" stroke="{mark.colour}" stroke-width="2"'
    return f'<path transform="translate({x:.1f} {y:.1f})" {look}>{title}</path>'


def _link(link: Curve, scale: _Scale) -> str:
    x1, x2 = scale.x(link.at_ms), scale.x(link.to_ms)
    y1, y2 = (_TOP + LANE * (lane + 0.5) for lane in (link.lane, link.to_lane))
    middle = (y1 + y2) / 2
    curve = f"M {x1:.1f} {y1:.1f} C {x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    return f'<path d="{curve}" fill="none" stroke="{RED}" stroke-width="1.2" opacity="0.75"/>'


def _legend(samples: Sequence[Box | Mark], top: int) -> list[tuple[int, str]]:
    """Each sample's row, from 0, and SVG; a sample too wide for its row begins a new row."""
    parts: list[tuple[int, str]] = []
    x, row = _MARGIN, 0
    for sample in samples:
        width = 44 + _LETTER_PX * len(sample.words)
        if x + width > WIDTH:
            x, row = _MARGIN, row + 1
        y = top + LANE * row
        if isinstance(sample, Box):
            drawn = f'<rect x="{x}" y="{y}" width="18" height="12" rx="2" {_look(sample)}/>'
        else:
            drawn = _mark(sample, x + 9, y + 6, "")
        parts.append((row, drawn + _text(x + 24, y + 11, sample.words)))
        x += width
    return parts


def _text(x: float, y: float, words: str, **style: str) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{_escaped(words)}</text>'


def _escaped(text: str) -> str:
    return escape(_NO_XML.sub("\ufffd", text))
