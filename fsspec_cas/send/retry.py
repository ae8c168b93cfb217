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
_FLOOR_S = 0.5


def delay_s(failures: int, draw: float, retry_after_s: float | None = None) -> float:
    """Seconds to wait after the `failures`-th failure in a row; `draw` is in [0, 1).

    A store's own Retry-After is a floor, up to a quarter more, so that not all come back at once. The floor is at most
    0.5 s after the first failure, twice that after each further one, 5 s in the end: MinIO asks for 60 s whenever it
    has many requests at once, and a second later it answers.
    """
    ceiling = min(CEILING_S, BASE_S * (1 << min(failures, _DOUBLINGS)))
    most = min(CEILING_S, _FLOOR_S * (1 << min(max(failures - 1, 0), _DOUBLINGS)))
    return max(min(retry_after_s or 0.0, most) * (1 + draw / 4), ceiling * draw)


def enough_s(slowest_s: float) -> float:
    """Seconds that must be left for another try, where the slowest so far took `slowest_s`.

    With less, its own timeout would come before its answer, and "certainly not done" would become "nobody knows".
    """
    return max(_LEAST_S, 2 * slowest_s)
