"""Which pending writers are dead: a heartbeat file's modification time is the writer's last sign of life.

All times are the store's own clock, so writers with wrong clocks are judged right. Local folders have none: there a
heartbeat says itself when it was written. A missing heartbeat counts as dead, which is why a writer creates it
before its instant.

Source: Hudi `HoodieHeartbeatClient` (interval 60 s, tolerable misses 2).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockprovider.bounded import parse_object, text_in

_LARGEST_BEAT = 4096


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


@dataclass(frozen=True, slots=True)
class SeenBeat:
    """What a heartbeat in a local folder says: by which run of which machine, and when by a clock that never steps.

    >>> SeenBeat("a boot", "a host", 100.0).silent_s("a boot", "another name of it", 130.0, unchanged_s=0.0)
    30.0
    """

    boot: str
    host: str
    uptime_s: float

    def encode(self) -> bytes:
        """The file's content."""
        return json.dumps({"boot": self.boot, "host": self.host, "s": self.uptime_s}).encode()

    @classmethod
    def decode(cls, data: bytes) -> SeenBeat | None:
        """Read it; None: a JVM writer's, which is empty, or not a heartbeat of ours."""
        try:
            said = parse_object(data, most=_LARGEST_BEAT)
            found = cls(text_in(said, "boot"), text_in(said, "host"), float(said["s"]))
        except (ValueError, TypeError, KeyError, OverflowError):
            return None
        return found if math.isfinite(found.uptime_s) else None

    def silent_s(self, boot: str, host: str, now_s: float, unchanged_s: float) -> float:
        """For how long it has not beaten, as the machine `boot` on `host` sees it at its uptime `now_s`.

        Infinite if that machine was started since. Of another machine it is `unchanged_s`: for how long this process
        has seen the file unchanged.
        """
        if self.boot and self.boot == boot:
            return max(0.0, now_s - self.uptime_s)
        if self.host != host:
            return unchanged_s
        was_restarted = bool(self.boot and boot) or self.uptime_s > now_s
        return math.inf if was_restarted else now_s - self.uptime_s


def dead(
    pending: Iterable[str], beats_ms: Mapping[str, int], store_now_ms: int, settings: HeartbeatSettings
) -> tuple[str, ...]:
    """The begin times among `pending` whose heartbeat is missing or too old.

    `beats_ms` maps begin times to the last beat, `store_now_ms` is the store's clock now or a little earlier: an
    earlier one only spares a dead writer for a while.
    """
    oldest_ms = store_now_ms - round(settings.tolerance_s * 1000)
    return tuple(begin for begin in pending if beats_ms.get(begin, 0) < oldest_ms)
