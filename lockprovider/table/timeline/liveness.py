"""Which pending writers are dead: a heartbeat file's modification time is the writer's last sign of life.

All times are the store's own clock, so writers with wrong clocks are judged right. A missing heartbeat counts as dead,
which is why a writer creates it before its instant.

Source: Hudi `HoodieHeartbeatClient` (interval 60 s, tolerable misses 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """Hudi's defaults; all writers of a table should agree.

    Attributes:
        interval_s: `hoodie.client.heartbeat.interval_in_ms`, in seconds.
        misses: `hoodie.client.heartbeat.tolerable.misses`.

    >>> HeartbeatSettings(interval_s=10).tolerance_s
    20
    """

    interval_s: float = 60.0
    misses: int = 2

    @property
    def tolerance_s(self) -> float:
        """Seconds after its last beat at which a writer is dead."""
        return self.interval_s * self.misses


def dead(
    pending: Iterable[str], beats_ms: Mapping[str, int], store_now_ms: int, settings: HeartbeatSettings
) -> tuple[str, ...]:
    """The begin times among `pending` whose heartbeat is missing or too old.

    `beats_ms` maps begin times to the last beat, `store_now_ms` is the store's clock now or a little earlier: an
    earlier one only spares a dead writer for a while.
    """
    oldest_ms = store_now_ms - round(settings.tolerance_s * 1000)
    return tuple(begin for begin in pending if beats_ms.get(begin, 0) < oldest_ms)
