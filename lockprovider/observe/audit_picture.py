"""Draws an audit as one SVG that needs nothing else: the lock on top, a lane for each owner below, one time axis.

Pure: an audit in, text out. Times are the writers' own clocks; the picture proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape

from lockprovider.observe.audit import Audit, Flag, How, Tenure
from lockprovider.observe.svg import FAINT, INK, RED, Scale, heading, rule, sheet, text, tick
from lockprovider.words import count, moment, span

TOP = 84
LANE, BAR, AXIS, LEGEND = 26, 14, 34, 40
LANES, TICKS, OWNER_LETTERS = 40, 8, 13
STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)

UNSEEN = 'fill="none" pointer-events="all"'  # to be pointed at
COLOURS: dict[How, str] = {"released": "#3b78c3", "lost": "#cf222e", "lapsed": "#f0a202", "held": "#2f9e6e"}
MEANINGS: dict[How, str] = {
    "released": "released",
    "lost": "lost",
    "lapsed": "no end recorded: until it lapsed",
    "held": "held now",
}


def draw_audit(audit: Audit, title: str) -> str:
    """The picture."""
    owners = _lanes(audit.tenures)
    scale = _scale(audit)
    bottom = TOP + LANE * (len(owners) + 1) + 8
    body = [
        *_head(audit, title),
        *_axis(scale, bottom),
        *_lock(audit, scale),
        *(part for lane, owner in enumerate(owners) for part in _label(lane, owner)),
        *(_tenure(tenure, owners, scale) for tenure in audit.tenures),
        *(_flag(flag, scale, bottom) for flag in audit.flags if flag.kind in ("overlap", "early", "lapse")),
        *_legend(bottom + AXIS),
    ]
    return sheet(bottom + AXIS + LEGEND, body)


def _lanes(tenures: Sequence[Tenure]) -> list[str]:
    """Owners in order of their first holding; beyond so many they share the last lane, an empty name."""
    owners = list(dict.fromkeys(tenure.owner for tenure in tenures))
    return owners if len(owners) <= LANES else [*owners[: LANES - 1], ""]


def _scale(audit: Audit) -> Scale:
    start = min((tenure.start_ms for tenure in audit.tenures), default=audit.now_ms)
    end = max((tenure.end_ms for tenure in audit.tenures), default=audit.now_ms)
    return Scale.around(start, end)


def _head(audit: Audit, title: str) -> list[str]:
    overlaps = sum(flag.kind == "overlap" for flag in audit.flags)
    owners = count(len({tenure.owner for tenure in audit.tenures}), "owner")
    words = f"held {count(len(audit.tenures), 'time')} by {owners}"
    if audit.tenures:
        words += (
            f", from {moment(audit.tenures[0].start_ms)} to {moment(max(tenure.end_ms for tenure in audit.tenures))}"
        )
    wrong = f"; {count(overlaps, 'overlap')}" if overlaps else "; no overlap"
    return heading(title, words + wrong, RED if overlaps else FAINT)


def _axis(scale: Scale, bottom: int) -> list[str]:
    span_s = (scale.end_ms - scale.start_ms) / 1000
    step_s = next((s for s in STEPS_S if span_s / s <= TICKS), span_s / TICKS)
    first = -(-scale.start_ms // (step_s * 1000))
    parts: list[str] = []
    for number in range(int(span_s / step_s) + 1):
        at_ms = (first + number) * step_s * 1000
        if at_ms <= scale.end_ms:
            parts += tick(scale.x(at_ms), TOP, bottom, _clock(at_ms, step_s))
    return parts


def _clock(at_ms: float, step_s: float) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, tz=timezone.utc)
    if step_s >= STEPS_S[-1]:
        return f"{at:%Y-%m-%d}"
    return f"{at:%H:%M:%S}" if step_s >= 1 else f"{at:%H:%M:%S}.{at.microsecond // 100_000}"


def _lock(audit: Audit, scale: Scale) -> list[str]:
    """One bar where anybody held it; what is left white was free."""
    parts = [text(24, TOP + 15, "the lock", font_weight="bold")]
    parts += [_bar((tenure.start_ms, tenure.end_ms), TOP + 4, f'fill="{INK}"', scale) for tenure in audit.tenures]
    for from_ms, to_ms in audit.free:
        words = f"free for {span(to_ms - from_ms)} from {moment(from_ms)}"
        parts.append(_bar((from_ms, to_ms), TOP + 4, UNSEEN, scale, words))
    return parts


def _label(lane: int, owner: str) -> list[str]:
    y = TOP + LANE * (lane + 1)
    name = f"{owner[:OWNER_LETTERS]}…" if len(owner) > OWNER_LETTERS else owner
    return [
        rule(y),
        f"<g><title>{escape(owner)}</title>{text(24, y + 17, name or 'others', fill=FAINT, font_size='12')}</g>",
    ]


def _tenure(tenure: Tenure, owners: Sequence[str], scale: Scale) -> str:
    lane = owners.index(tenure.owner) if tenure.owner in owners else len(owners) - 1
    words = f"{tenure.owner}: {span(tenure.end_ms - tenure.start_ms)} from {moment(tenure.start_ms)}"
    words += f", renewed {count(tenure.renewals, 'time')}, {MEANINGS[tenure.how]}"
    y = TOP + LANE * (lane + 1) + (LANE - BAR) // 2
    return _bar((tenure.start_ms, tenure.end_ms), y, f'fill="{COLOURS[tenure.how]}"', scale, words)


def _bar(span_ms: tuple[int, int], y: int, look: str, scale: Scale, words: str = "") -> str:
    x, width = scale.extent(*span_ms)
    title = f"<title>{escape(words)}</title>" if words else ""
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" {look}>{title}</rect>'


def _flag(flag: Flag, scale: Scale, bottom: int) -> str:
    """A stripe through all lanes: the stretch in which the records do not fit together."""
    x, width = scale.extent(flag.from_ms, flag.to_ms)
    words = f"{flag.kind}: {' and '.join(flag.owners)}, {span(flag.to_ms - flag.from_ms)} from {moment(flag.from_ms)}"
    opacity = "0.35" if flag.wrong else "0.12"
    return (
        f'<rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{bottom - TOP}" fill="{RED}" opacity="{opacity}">'
        f"<title>{escape(words)}</title></rect>"
    )


def _legend(top: int) -> list[str]:
    samples = [(COLOURS[how], "1", words) for how, words in MEANINGS.items()]
    samples += [(RED, "0.35", "held by two at once"), (RED, "0.12", "taken early, or held on too long")]
    parts: list[str] = []
    x = 24
    for colour, opacity, words in samples:
        parts.append(f'<rect x="{x}" y="{top + 6}" width="22" height="{BAR}" fill="{colour}" opacity="{opacity}"/>')
        parts.append(text(x + 30, top + 18, words))
        x += 50 + 7 * len(words)
    return parts
