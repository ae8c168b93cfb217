"""Which claims have lapsed, as one who looks on may say. Pure.

Nobody's wall clock is compared with another's: a claim has lapsed when its heartbeat was not seen to move for its time,
by the watcher's own monotonic clock. Who has just begun would have to wait that long for all that is there; so for
those that it finds at its first look the end that the claim names counts, by the clock of the store, where the store
says it. A wrong clock means a delivery twice, and the older worker's ack is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockprovider.recipes.queue.contents import Contents
from lockprovider.recipes.queue.operations import Lapse


@dataclass(slots=True)
class Watch:
    """The heartbeats that were seen, and until when (monotonic s) each may stay as it is."""

    seen: dict[tuple[int, str, int], float] | None = None

    def look(self, contents: Contents, now_s: float, now_ms: int) -> None:
        """The claims as they are now; `now_ms` is the store's time, or ours where it says none."""
        first, known = self.seen is None, self.seen or {}
        self.seen = {}
        for n, claim in contents.claims.items():
            name = (n, claim.token, claim.beat)
            left_ms = min(claim.visible_ms, claim.until_ms - now_ms) if first else claim.visible_ms
            self.seen[name] = known.get(name, now_s + left_ms / 1000)

    def lapsed(self, now_s: float) -> list[Lapse]:
        """Those that did not move in time."""
        return [Lapse(*name) for name, until_s in (self.seen or {}).items() if now_s > until_s]

    def next_s(self, now_s: float) -> float:
        """Seconds until the next may lapse; infinite if there is none."""
        return min((max(0.0, until_s - now_s) for until_s in (self.seen or {}).values()), default=float("inf"))
