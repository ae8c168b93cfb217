"""How long to wait before the same guarded request is sent again.

Full jitter: a wait drawn uniformly from zero to a ceiling that doubles spreads contenders better than a
fixed or half-jittered one.

Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
"""

from __future__ import annotations

BASE_S = 0.05
CEILING_S = 5.0
_DOUBLINGS = 10  # beyond this the ceiling rules, and 2**n stays small
_LEAST_S = 0.05


def delay_s(failures: int, draw: float, retry_after_s: float | None = None) -> float:
    """Seconds to wait after the `failures`-th failure in a row; `draw` is in [0, 1).

    A store's own Retry-After is a floor, not a hint; up to a quarter more, so that not all come back at once.
    """
    ceiling = min(CEILING_S, BASE_S * (1 << min(failures, _DOUBLINGS)))
    return max((retry_after_s or 0.0) * (1 + draw / 4), ceiling * draw)


def enough_s(slowest_s: float) -> float:
    """Seconds that must be left for another try, where the slowest so far took `slowest_s`.

    With less, its own timeout would come before its answer, and "certainly not done" would become "nobody knows".
    """
    return max(_LEAST_S, 2 * slowest_s)
