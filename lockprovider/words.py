"""Text for people: times, spans and counts; and `storable`, which escapes what UTF-8 lacks."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_MINUTE_S, _HOUR_S = 60, 3600


def storable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def is_storable(text: str) -> bool:
    return storable(text) == text


def moment(at_ms: int) -> str:
    try:
        at = datetime.fromtimestamp(at_ms / 1000, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} (epoch ms)"
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d} UTC"


def iso(at_ms: int) -> str:
    return re.sub(r"^(\S+) (\S+) UTC$", r"\1T\2Z", moment(at_ms))


def until(at_ms: int, now_ms: int) -> str:
    return f"{iso(at_ms)} ({distance(at_ms - now_ms)})"


def distance(ms: int) -> str:
    return f"in {span(ms)}" if ms >= 0 else f"{span(-ms)} ago"


def span(ms: int) -> str:
    """Format a duration, negative too, without its smaller units: 250 ms, 12.3 s, 4 min 10 s, 49 h 0 min."""
    seconds = abs(ms) / 1000
    sign = "-" if ms < 0 else ""
    if seconds < 1:
        return f"{ms} ms"
    if seconds < _MINUTE_S:
        return f"{sign}{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{sign}{int(seconds // _MINUTE_S)} min {int(seconds % _MINUTE_S)} s"
    return f"{sign}{int(seconds // _HOUR_S)} h {int(seconds % _HOUR_S // _MINUTE_S)} min"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
