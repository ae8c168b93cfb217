"""Draws a timeline as one SVG that needs nothing else: a lane for each writer, bars from begin to completion.

Pure: what the timeline and the lock's audit tell in, text out. A bar in red was rolled back: its writer gave way to
another, or died. Where the audit tells when a writer got the lock, its bar is pale from its last file to that moment
(it waited for no longer than that), and black while it held the lock until its commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from lockprovider.observe.svg import FAINT, GRID, INK, RED, WIDTH, Scale, heading, sheet, text, tick
from lockprovider.table.format.instant import format_ms
from lockprovider.words import count, span

BarKind = Literal["write", "replace", "clean", "rollback", "restore", "undone", "pending"]
Holding = tuple[int, int, str]  # from, until, who
_TOP, _LANE, _BAR, _AXIS, _LEGEND = 84, 30, 16, 34, 44
_TICKS, _LETTERS, _LAST_LABEL = 8, 14, 60
_WAIT = "#b9d3f0"
_COLOURS: dict[BarKind, str] = {
    "write": "#3b78c3",
    "replace": "#8a5cc2",
    "clean": "#2f9e6e",
    "rollback": "#f0a202",
    "restore": "#b35c00",
    "undone": RED,
    "pending": "#ffffff",
}
_MEANINGS: dict[BarKind, str] = {
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
    """One instant from its begin to its end, epoch ms. `lane` names who; empty: any lane that is free.

    Its files were all there by `ready_ms`, and it had the lock from `held_ms` on; None: not known.
    """

    start_ms: int
    end_ms: int
    kind: BarKind
    label: str
    lane: str = ""
    savepoint: bool = False
    ready_ms: int | None = None
    held_ms: int | None = None


def draw_timeline(bars: Sequence[Bar], title: str, holdings: Sequence[Holding] = ()) -> str:
    """The picture."""
    placed, names = lanes(bars)
    start = min((bar.start_ms for bar in bars), default=0)
    end = max([bar.end_ms for bar in bars] + [start + 1])
    scale = Scale(start, end, left=152, right=WIDTH - _LAST_LABEL)
    shown = [one for one in holdings if one[1] >= scale.start_ms and one[0] <= scale.end_ms]
    bottom = _TOP + _LANE * (len(names) + bool(shown))
    body = [
        *heading(title, _words(bars, shown)),
        *_axis(scale, bottom),
        *(_name(number, name) for number, name in enumerate([*_once(names), *(["the lock"] if shown else [])])),
        *(part for bar, lane in placed for part in _bar(bar, lane, scale)),
        *(_holding(one, len(names), scale) for one in shown),
        *_legend(bottom + _AXIS),
    ]
    return sheet(bottom + _AXIS + _LEGEND, body)


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


def _once(names: Sequence[str]) -> list[str]:
    """Each name beside the first of its lanes: the others are what overlaps."""
    return ["" if name in names[:number] else name for number, name in enumerate(names)]


def _words(bars: Sequence[Bar], holdings: Sequence[Holding]) -> str:
    words = count(len(bars), "instant")
    if not holdings:
        return f"{words}; waits for the lock are not known: no audit of it was kept"
    known = sum(bar.held_ms is not None for bar in bars)
    return f"{words}; the lock's audit tells when {known} of them got the lock"


def _name(lane: int, name: str) -> str:
    short = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
    return text(24, _TOP + lane * _LANE + 20, short, font_size="12", fill=FAINT)


def _bar(bar: Bar, lane: int, scale: Scale) -> list[str]:
    y = _TOP + lane * _LANE + 6
    line = f' stroke="{FAINT}" stroke-dasharray="3 2"' if bar.kind == "pending" else ""
    parts = [_rect((bar.start_ms, bar.end_ms), y, f'rx="2" fill="{_COLOURS[bar.kind]}"{line}', scale, bar.label)]
    if bar.held_ms is not None:
        parts += _with_lock(bar, bar.held_ms, y, scale)
    if bar.savepoint:
        end = sum(scale.extent(bar.start_ms, bar.end_ms))
        parts.append(_savepoint(end, y - 4))
    return parts


def _with_lock(bar: Bar, held_ms: int, y: int, scale: Scale) -> list[str]:
    words = f"{bar.label}: held the lock for {span(bar.end_ms - held_ms)} until its commit"
    parts = [_rect((held_ms, bar.end_ms), y, f'fill="{INK}"', scale, words)]
    if bar.ready_ms is not None and bar.ready_ms < held_ms:
        words = f"{bar.label}: waited for the lock for {span(held_ms - bar.ready_ms)} at most"
        parts.insert(0, _rect((bar.ready_ms, held_ms), y, f'fill="{_WAIT}"', scale, words))
    return parts


def _holding(holding: Holding, lane: int, scale: Scale) -> str:
    start_ms, end_ms, owner = holding
    words = f"{owner} held the lock for {span(end_ms - start_ms)}"
    return _rect((start_ms, end_ms), _TOP + lane * _LANE + 6, f'fill="{INK}"', scale, words)


def _rect(span_ms: tuple[int, int], y: int, look: str, scale: Scale, words: str) -> str:
    x, wide = scale.extent(*span_ms)
    shape = f'x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_BAR}"'
    return f"<rect {shape} {look}><title>{escape(words)}</title></rect>"


def _axis(scale: Scale, bottom: int) -> list[str]:
    parts: list[str] = []
    day, last = format_ms(scale.start_ms), format_ms(scale.end_ms)
    for number in range(_TICKS + 1):
        at_ms = scale.start_ms + (scale.end_ms - scale.start_ms) * number // _TICKS
        parts += tick(scale.x(at_ms), _TOP, bottom, _clock(format_ms(at_ms), days=last[:8] != day[:8]))
    return [*parts, text(24, bottom + _AXIS + 11, f"{day[:4]}-{day[4:6]}-{day[6:8]} UTC", fill=FAINT, font_size="12")]


def _clock(time: str, *, days: bool) -> str:
    if days:
        return f"{time[4:6]}-{time[6:8]} {time[8:10]}:{time[10:12]}"
    return f"{time[8:10]}:{time[10:12]}:{time[12:14]}.{time[14:]}"


def _legend(y: int) -> list[str]:
    samples = [(_COLOURS[kind], meaning) for kind, meaning in _MEANINGS.items()]
    samples += [(_WAIT, "waits for lock"), (INK, "has the lock")]
    parts: list[str] = []
    x = 152
    for colour, meaning in samples:
        line = f' stroke="{FAINT}" stroke-dasharray="3 2"' if colour == _COLOURS["pending"] else f' stroke="{GRID}"'
        parts.append(f'<rect x="{x}" y="{y}" width="14" height="12" rx="2" fill="{colour}"{line}/>')
        parts.append(text(x + 20, y + 11, meaning, font_size="12"))
        x += 42 + 7 * len(meaning)
    return [*parts, _savepoint(x + 7, y + 1, ""), text(x + 20, y + 11, "savepoint", font_size="12")]


def _savepoint(x: float, y: float, inside: str = "<title>savepoint</title>") -> str:
    return f'<path d="M{x:.1f} {y} l5 5 l-5 5 l-5 -5 z" fill="{INK}">{inside}</path>'
