"""What RFC-91's test plan wants measured: commit latency, throughput and lock wait, from what tables tell."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockprovider.table.state.events import TableEvent

# What is measured, from which event of an instant to which.
SPANS = {
    "transaction": ("begin", "committed"),  # from its instant to its commit, the writing of its files included
    "commit": ("written", "committed"),  # once all files are there, the waiting for the lock included
    "lock wait": ("lock_wait", "lock_held"),
    "lock held": ("lock_held", "lock_released"),
}
PERCENTS = (50, 95, 99)


class Metrics:
    """A watcher for any number of tables."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._since: dict[tuple[str, str], int] = {}
        self._took_ms: defaultdict[str, list[int]] = defaultdict(list)

    def __call__(self, event: TableEvent) -> None:
        with self._guard:
            self.counts[event.kind] += 1
            self._since[event.instant, event.kind] = event.at_ms
            for name, (start, end) in SPANS.items():
                if event.kind == end and (began := self._since.get((event.instant, start))) is not None:
                    self._took_ms[name].append(event.at_ms - began)
            if event.kind in {"lock_released", "rolled_back"}:
                self._since = {key: at for key, at in self._since.items() if key[0] != event.instant}

    def report(self, seconds: float) -> dict[str, Any]:
        """Milliseconds by percentile, and how often what happened."""
        with self._guard:
            took = {name: sorted(self._took_ms[name]) for name in SPANS}
            counts = dict(self.counts.most_common())
        return {
            "commits_per_s": round(counts.get("committed", 0) / seconds, 2),
            "ms": {name: _percentiles(ms) for name, ms in took.items() if ms},
            "events": counts,
        }


def _percentiles(ms: list[int]) -> dict[str, int]:
    found = {f"p{percent}": ms[min(len(ms) - 1, len(ms) * percent // 100)] for percent in PERCENTS}
    return {**found, "max": ms[-1], "count": len(ms)}
