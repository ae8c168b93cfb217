"""Writer heartbeats, files that show that an instant's writer is not dead (SPECIFICATION.md, "Dead writers").

Source: Hudi `HoodieHeartbeatClient`.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from fsspec_cas import CasError, Lost, Machine, Store, Version, Won, World
from fsspec_cas.machine import Worker
from lockprovider.bounded import parse_object, text_in
from lockprovider.table.errors import Aborted
from lockprovider.table.format.layout import HEARTBEATS, heartbeat_path
from lockprovider.table.settings import HeartbeatSettings
from lockprovider.table.state.knowledge import TableKnowledge
from lockprovider.table.state.parallel import files_below

_LOCAL = "local"
_FOR_EVER_S = 1e9
_RESUMES = 5
_BEATS_PER_INTERVAL = 2
_LARGEST_BEAT = 4096


@dataclass(frozen=True, slots=True)
class LocalBeat:
    """Heartbeat in a local folder: machine, boot and uptime, which no clock change affects."""

    boot: str
    host: str
    uptime_s: float

    def encode(self) -> bytes:
        return json.dumps({"boot": self.boot, "host": self.host, "s": self.uptime_s}).encode()

    @classmethod
    def decode(cls, data: bytes) -> LocalBeat | None:
        """None for other content, such as a JVM writer's."""
        try:
            fields = parse_object(data, most=_LARGEST_BEAT)
            beat = cls(text_in(fields, "boot"), text_in(fields, "host"), float(fields["s"]))
        except (ValueError, TypeError, KeyError, OverflowError):
            return None
        return beat if math.isfinite(beat.uptime_s) else None

    def silent_s(self, boot: str, host: str, now_s: float, unchanged_s: float) -> float:
        """Seconds since the beat, at this machine's uptime `now_s`.

        `unchanged_s`: how long this process saw the file unchanged.
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
    """Those of `pending` whose heartbeat in `beats_ms` is missing or too old.

    `store_now_ms`: now by the clock of `beats_ms`, or earlier.
    """
    oldest_ms = store_now_ms - round(settings.tolerance_s * 1000)
    return tuple(begin for begin in pending if beats_ms.get(begin, 0) < oldest_ms)


def claim(store: Store, begin: str) -> Version | None:
    """Reserve `begin` by creating its heartbeat file; return its version, or None if another action has it.

    After an error, do not use `begin`.
    """
    outcome = store.put_if_absent(heartbeat_path(begin), _beat(store))
    return None if isinstance(outcome, Lost) else outcome.unwrap()


def last_beats(
    store: Store, knowledge: TableKnowledge, world: World, suspects: Iterable[str] | None = None
) -> tuple[dict[str, int], int]:
    """List heartbeats; return the last beats by begin time, and the time now, in ms of one clock.

    This is the store's clock, with the latest beat as now (0: no beats). A local folder uses this machine's: records
    versions, and reads the files of `suspects` (None: all), whose beats before a restart are 0.
    """
    entries = files_below(store, HEARTBEATS)
    beats_ms = {begin: entry.modified_ms or 0 for begin, entry in entries.items()}
    if store.kind != _LOCAL:
        return beats_ms, max(beats_ms.values(), default=0)  # a recent time of the store's clock
    now_ms = world.now_ms()
    unchanged_s = knowledge.watch_beats({begin: entry.version for begin, entry in entries.items()}, world.monotonic_s())
    for begin in entries if suspects is None else {*suspects} & {*entries}:
        seen_s = unchanged_s[begin]
        content = store.read_or_none(heartbeat_path(begin))
        beat = None if content is None else LocalBeat.decode(content.data)
        if beat is not None:
            silent_s = beat.silent_s(*_machine(), Machine().uptime_s(), seen_s)
            beats_ms[begin] = now_ms - round(silent_s * 1000) if silent_s < _FOR_EVER_S else 0
        elif beats_ms[begin] > now_ms:  # a JVM writer's clock was set back, or wrong
            beats_ms[begin] = now_ms - round(seen_s * 1000)
    return beats_ms, now_ms


def _beat(store: Store) -> bytes:
    return LocalBeat(*_machine(), Machine().uptime_s()).encode() if store.kind == _LOCAL else b""


@lru_cache(maxsize=1)
def _machine() -> tuple[str, str]:
    return Machine().boot()


class WriterHeartbeat:
    """Heartbeat of one instant: a thread renews its file until `leave`, `stop`, or the file is gone.

    Begin by exactly one of `start`, `resume` or `accompany`.
    """

    def __init__(self, store: Store, begin: str, settings: HeartbeatSettings, world: World) -> None:
        self._store = store
        self._begin = begin
        self._path = heartbeat_path(begin)
        self._settings = settings
        self._world = world
        self._version: Version | None = None
        self._last_s = -math.inf
        self._removed = False
        self._stop = threading.Event()
        self._thread = Worker(self._beat, f"writer-heartbeat-{begin}")

    @property
    def alive(self) -> bool:
        """Whether no other writer may judge this one dead yet."""
        return not self._removed and self._world.monotonic_s() - self._last_s < self._settings.tolerance_s

    def require_alive(self) -> None:
        """Raise `Aborted` unless `alive`."""
        if not self.alive:
            raise Aborted(f"the heartbeat of instant {self._begin} expired; others may roll it back; begin again")

    @property
    def is_started(self) -> bool:
        """Whether its thread was started, so that its file may exist."""
        return self._thread.ident is not None

    def start(self) -> bool:
        """Create the file, then start the thread; False, and no thread, if another writer has it."""
        sent_s = self._world.monotonic_s()
        self._version = claim(self._store, self._begin)
        if self._version is None:
            return False
        self._last_s = sent_s
        try:
            self.accompany()
        except BaseException:
            with contextlib.suppress(CasError):
                self.stop()
            raise
        return True

    def resume(self) -> bool:
        """Renew another process's file, then start the thread; False, and no thread, if it is gone.

        If `_RESUMES` tries fail, the thread goes on, and `alive` is false until it succeeds.
        """
        for _ in range(_RESUMES):  # the other process may still beat in between
            self._once()
            if self._removed:
                return False
            if self._last_s > -math.inf:
                break
        self.accompany()
        return True

    def accompany(self) -> None:
        """Start the thread for an existing file, first renewed after half an interval."""
        self._thread.start()

    def leave(self) -> None:
        """Stop beating; keep the file, for a successor or a cleaner."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def stop(self) -> None:
        """Stop beating and remove the file."""
        self.leave()
        self._store.delete(self._path)

    def _beat(self) -> None:
        while not self._stop.wait(self._settings.interval_s / _BEATS_PER_INTERVAL) and not self._removed:
            self._once()

    def _once(self) -> None:
        """Renew the heartbeat file conditionally, after a HEAD request if its version is unknown.

        If the file is gone, mark it removed; if overwritten, forget the version. Ignores store errors.
        """
        sent_s = self._world.monotonic_s()
        try:
            if self._version is None:
                self._version = self._store.head(self._path).version
            beat = _beat(self._store)
            outcome = self._store.put_if_match(self._path, beat, self._version, timeout=self._settings.interval_s)
        except FileNotFoundError:
            self._removed = True  # another writer took this one for dead
        except CasError:
            return  # the next beat tries again; `alive` counts the time
        else:
            self._version = outcome.version if isinstance(outcome, Won) else None
            self._last_s = sent_s if isinstance(outcome, Won) else self._last_s
