"""Draws a timeline as one SVG that needs nothing else: a lane for each writer, bars from begin to completion.

Pure: what the timeline tells in, text out. A bar in red was rolled back: its writer gave way to another, or died.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from lockprovider.table.instant import format_ms

Kind = Literal["write", "replace", "clean", "rollback", "restore", "undone", "pending"]
WIDTH = 1200
_LEFT, _RIGHT, _TOP, _LANE, _BAR, _AXIS, _LEGEND = 152, 56, 64, 30, 16, 34, 44
_LEAST_PX, _TICKS, _LETTERS = 3.0, 8, 18
_INK, _FAINT, _GRID = "#24292f", "#6e7781", "#e7eaee"
_COLOURS: dict[Kind, str] = {
    "write": "#3b78c3",
    "replace": "#8a5cc2",
    "clean": "#2f9e6e",
    "rollback": "#f0a202",
    "restore": "#b35c00",
    "undone": "#cf222e",
    "pending": "#ffffff",
}
_MEANINGS: dict[Kind, str] = {
    "write": "commit",
    "replace": "overwrite",
    "clean": "clean",
    "rollback": "rollback",
    "restore": "restore",
    "undone": "rolled back",
    "pending": "pending",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One instant from its begin to its end, epoch ms. `lane` names who; empty: any lane that is free."""

    start_ms: int
    end_ms: int
    kind: Kind
    label: str
    lane: str = ""
    savepoint: bool = False


@dataclass(frozen=True, slots=True)
class _Scale:
    start_ms: int
    end_ms: int

    def x(self, at_ms: float) -> float:
        return _LEFT + (at_ms - self.start_ms) / (self.end_ms - self.start_ms) * (WIDTH - _LEFT - _RIGHT)


def draw(bars: Sequence[Bar], title: str) -> str:
    """The picture."""
    placed, names = lanes(bars)
    start = min((bar.start_ms for bar in bars), default=0)
    scale = _Scale(start, max([bar.end_ms for bar in bars] + [start + 1]))
    bottom = _TOP + _LANE * len(names)
    body = [
        f'<text x="20" y="30" font-size="17" font-weight="600">{escape(title)}</text>',
        *_axis(scale, bottom),
        *(_name(number, name) for number, name in enumerate(names)),
        *(part for bar, lane in placed for part in _bar(bar, lane, scale)),
        *_legend(bottom + _AXIS),
    ]
    height = bottom + _AXIS + _LEGEND
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" fill="{_INK}">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *body, "</svg>", ""])


def lanes(bars: Sequence[Bar]) -> tuple[list[tuple[Bar, int]], list[str]]:
    """Each bar with its lane, and the lanes' names: no two bars of a lane overlap, writers keep to their own."""
    busy: list[tuple[str, int]] = []
    placed: list[tuple[Bar, int]] = []
    for bar in sorted(bars, key=lambda bar: (bar.start_ms, bar.end_ms)):
        group = bar.lane or ("table services" if bar.kind in ("clean", "rollback", "restore") else "writers")
        free = (n for n, (name, until_ms) in enumerate(busy) if name == group and until_ms <= bar.start_ms)
        lane = next(free, len(busy))
        busy[lane : lane + 1] = [(group, max(bar.end_ms, bar.start_ms + 1))]
        placed.append((bar, lane))
    order = sorted(range(len(busy)), key=lambda n: (busy[n][0] == "table services", busy[n][0], n))
    return [(bar, order.index(lane)) for bar, lane in placed], [busy[n][0] for n in order]


def _name(lane: int, name: str) -> str:
    short = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
    return f'<text x="20" y="{_TOP + lane * _LANE + 20}" font-size="12" fill="{_FAINT}">{escape(short)}</text>'


def _bar(bar: Bar, lane: int, scale: _Scale) -> list[str]:
    x, y = scale.x(bar.start_ms), _TOP + lane * _LANE + 6
    wide = max(scale.x(bar.end_ms) - x, _LEAST_PX)
    colour = _COLOURS[bar.kind]
    line = f' stroke="{_FAINT}" stroke-dasharray="3 2"' if bar.kind == "pending" else ""
    shape = f'x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_BAR}" rx="2" fill="{colour}"{line}'
    parts = [f"<rect {shape}><title>{escape(bar.label)}</title></rect>"]
    if bar.savepoint:
        end = x + wide
        parts.append(f'<path d="M{end:.1f} {y - 4} l5 5 l-5 5 l-5 -5 z" fill="{_INK}"><title>savepoint</title></path>')
    return parts


def _axis(scale: _Scale, bottom: int) -> list[str]:
    parts: list[str] = []
    for tick in range(_TICKS + 1):
        at_ms = scale.start_ms + (scale.end_ms - scale.start_ms) * tick // _TICKS
        x, time = scale.x(at_ms), format_ms(at_ms)
        text = f"{time[8:10]}:{time[10:12]}:{time[12:14]}.{time[14:]}"
        parts += [
            f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{_GRID}"/>',
            f'<text x="{x:.1f}" y="{bottom + 16}" font-size="11" text-anchor="middle" fill="{_FAINT}">{text}</text>',
        ]
    day = format_ms(scale.start_ms)
    date = f"{day[:4]}-{day[4:6]}-{day[6:8]} UTC"
    parts.append(f'<text x="20" y="{bottom + 45}" font-size="12" fill="{_FAINT}">{date}</text>')
    return parts


def _legend(y: int) -> list[str]:
    parts: list[str] = []
    for number, (kind, meaning) in enumerate(_MEANINGS.items()):
        x = _LEFT + number * 130
        line = f' stroke="{_FAINT}" stroke-dasharray="3 2"' if kind == "pending" else ""
        parts += [
            f'<rect x="{x}" y="{y}" width="14" height="12" rx="2" fill="{_COLOURS[kind]}"{line}/>',
            f'<text x="{x + 20}" y="{y + 11}" font-size="12">{meaning}</text>',
        ]
    return parts
