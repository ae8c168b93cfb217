"""Detection of dead pending writers, by the modification times of their heartbeat files.

On a store the times are the store's, so wrong clocks of writers do not matter. A missing heartbeat counts as dead, so a
writer creates it before its instant.

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
    """The heartbeat intervals, by default Hudi's; all writers of a table should agree.

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
        """The seconds after its last beat at which a writer is dead."""
        return self.interval_s * self.misses


@dataclass(frozen=True, slots=True)
class LocalBeat:
    """A heartbeat in a local folder: machine, boot and uptime, which no clock change affects."""

    boot: str
    host: str
    uptime_s: float

    def encode(self) -> bytes:
        """Return the file's content."""
        return json.dumps({"boot": self.boot, "host": self.host, "s": self.uptime_s}).encode()

    @classmethod
    def decode(cls, data: bytes) -> LocalBeat | None:
        """Decode a heartbeat; None for other content, such as a JVM writer's empty file."""
        try:
            fields = parse_object(data, most=_LARGEST_BEAT)
            beat = cls(text_in(fields, "boot"), text_in(fields, "host"), float(fields["s"]))
        except (ValueError, TypeError, KeyError, OverflowError):
            return None
        return beat if math.isfinite(beat.uptime_s) else None

    def silent_s(self, boot: str, host: str, now_s: float, unchanged_s: float) -> float:
        """Return the seconds since the beat, for this machine's boot, host and uptime `now_s`.

        Infinite after a restart. For another machine `unchanged_s`, how long this process saw the file unchanged.
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
    """Return the begin times among `pending` whose heartbeat in `beats_ms` is missing or too old; reads nothing.

    `store_now_ms`: now by the clock of `beats_ms`, or earlier, which only delays a verdict.
    """
    oldest_ms = store_now_ms - round(settings.tolerance_s * 1000)
    return tuple(begin for begin in pending if beats_ms.get(begin, 0) < oldest_ms)
