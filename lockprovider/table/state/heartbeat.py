"""A writer's heartbeat: a thread that keeps the modification time of one small file fresh.

Not to be confused with the lease's: this one lives as long as the transaction, and only says that its instant is not
dead.

On a store the file's modification time is the store's clock. In a local folder it is the writer's, which may step or be
wrong, so there the file says by which run of which machine it was written, and when by a clock that never steps. What
another machine has written there is judged by whether this process has seen it change.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import lru_cache

from fsspec_cas import CasError, Lost, Machine, Store, Version, Won, World
from fsspec_cas.waiting import Worker
from lockprovider.table.format.layout import HEARTBEATS, heartbeat_path
from lockprovider.table.state.knowledge import TableKnowledge
from lockprovider.table.state.parallel import files_below
from lockprovider.table.timeline.liveness import HeartbeatSettings, SeenBeat

_LOCAL = "local"
_FOR_EVER_S = 1e9
_RESUMES = 5
_BEATS_PER_INTERVAL = 2  # two tries before one interval is missed


def claim(store: Store, begin: str) -> Version | None:
    """Make `begin` the time of one action only, by creating its heartbeat file; None if it is another's already.

    Raises:
        CasError: the store failed; do not use this time.
    """
    outcome = store.put_if_absent(heartbeat_path(begin), _beat(store))
    return None if isinstance(outcome, Lost) else outcome.unwrap()


def last_beats(
    store: Store, knowledge: TableKnowledge, world: World, suspects: Iterable[str] | None = None
) -> tuple[dict[str, int], int]:
    """When each instant that has a heartbeat beat last, and the time now, both in ms by one clock.

    `suspects`: the begin times that are asked about; None: all. What is seen of others is noted in `knowledge`.

    Raises:
        CasError: the store failed.
    """
    entries = files_below(store, HEARTBEATS)
    beats_ms = {begin: entry.modified_ms or 0 for begin, entry in entries.items()}
    if store.kind != _LOCAL:
        return beats_ms, max(beats_ms.values(), default=0)  # the newest beat is the store's own clock a moment ago
    now_ms = world.now_ms()
    unchanged_s = knowledge.watch_beats({begin: entry.version for begin, entry in entries.items()}, world.monotonic_s())
    for begin in entries if suspects is None else {*suspects} & {*entries}:
        seen_s = unchanged_s[begin]
        content = store.read_or_none(heartbeat_path(begin))
        beat = None if content is None else SeenBeat.decode(content.data)
        if beat is not None:
            silent_s = beat.silent_s(*_machine(), Machine().uptime_s(), seen_s)
            beats_ms[begin] = now_ms - round(silent_s * 1000) if silent_s < _FOR_EVER_S else 0
        elif beats_ms[begin] > now_ms:  # a JVM's, before the clock was set back; or it is dead, and was wrong
            beats_ms[begin] = now_ms - round(seen_s * 1000)
    return beats_ms, now_ms


def _beat(store: Store) -> bytes:
    return SeenBeat(*_machine(), Machine().uptime_s()).encode() if store.kind == _LOCAL else b""


@lru_cache(maxsize=1)
def _machine() -> tuple[str, str]:
    return Machine().boot()


class WriterHeartbeat:
    """Beats for one instant from `start` to `stop`. `alive` turns false when others may take the writer for dead."""

    def __init__(self, store: Store, begin: str, settings: HeartbeatSettings, world: World) -> None:
        self._store = store
        self._begin = begin
        self._path = heartbeat_path(begin)
        self._settings = settings
        self._world = world
        self._version: Version | None = None
        self._last_s = 0.0
        self._removed = False
        self._stop = threading.Event()
        self._thread = Worker(self._beat, f"writer-heartbeat-{begin}")

    @property
    def alive(self) -> bool:
        """Whether the last beat is recent enough that nobody may have rolled this instant back for its age."""
        return not self._removed and self._world.monotonic_s() - self._last_s < self._settings.tolerance_s

    @property
    def is_started(self) -> bool:
        """Whether it beats, or has beaten: then its file may be there."""
        return self._thread.ident is not None

    def start(self) -> bool:
        """Create the file, then beat in the background; False if another writer has this begin time already.

        Raises:
            CasError: the first beat failed; the instant must not begin.
        """
        sent_s = self._world.monotonic_s()
        self._version = claim(self._store, self._begin)
        if self._version is None:
            return False
        self._last_s = sent_s
        self._thread.start()
        return True

    def resume(self) -> bool:
        """Beat for an instant that another process of this writer began; False if its file is gone: it is over.

        If the first beats do not get through, `alive` is false from the start.
        """
        for _ in range(_RESUMES):  # the other process may still beat, in between
            self._once()
            if self._removed:
                return False
            if self._last_s:
                break
        self._thread.start()
        return True

    def accompany(self) -> None:
        """Beat, from half an interval on, for an instant whose writer is another process: while it works, so do I."""
        self._thread.start()

    def leave(self) -> None:
        """Stop beating; another process of this writer goes on with the instant."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def stop(self) -> None:
        """Stop beating, and remove the file: the instant is completed or gone."""
        self.leave()
        self._store.delete(self._path)

    def _beat(self) -> None:
        while not self._stop.wait(self._settings.interval_s / _BEATS_PER_INTERVAL) and not self._removed:
            self._once()

    def _once(self) -> None:
        sent_s = self._world.monotonic_s()
        try:
            if self._version is None:
                self._version = self._store.head(self._path).version
            beat = _beat(self._store)
            outcome = self._store.put_if_match(self._path, beat, self._version, timeout=self._settings.interval_s)
        except FileNotFoundError:
            self._removed = True  # rolled back by somebody who took us for dead
        except CasError:
            return  # the next beat tries again; `alive` counts the time
        else:
            self._version = outcome.version if isinstance(outcome, Won) else None
            self._last_s = sent_s if isinstance(outcome, Won) else self._last_s
