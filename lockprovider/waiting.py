"""When a waiting client looks at the lock record again."""

from __future__ import annotations

FIRST_S = 0.05
_DOUBLINGS = 10


def next_look_s(looks: int, draw: float, *, lapses_in_s: float, poll_s: float) -> float:
    """Seconds until the next look, after `looks` looks in vain; `draw` is in [0, 1).

    Full jitter under a ceiling that doubles up to `poll_s`, so that waiters do not march in step. Never later than the
    moment at which the lease that was seen lapses, plus a draw of up to a tenth of the pace against a herd.
    """
    ceiling = min(poll_s, FIRST_S * (1 << min(looks, _DOUBLINGS)))
    return min(ceiling * draw, max(0.0, lapses_in_s) + draw * poll_s / 10)
