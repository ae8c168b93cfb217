"""A writer's heartbeat: a thread that keeps the modification time of one small file fresh.

Not to be confused with the lease's: this one lives as long as the transaction, and only says that its instant is not
dead.
"""

from __future__ import annotations

import threading

from fsspec_cas import CasError, Lost, Store, Version, Won, World
from lockprovider.table.format.layout import heartbeat_path
from lockprovider.table.timeline.liveness import HeartbeatSettings

_RESUMES = 5
_BEATS_PER_INTERVAL = 2  # two tries before one interval is missed


def claim(store: Store, begin: str) -> Version | None:
    """Make `begin` the time of one action only, by creating its heartbeat file; None if it is another's already.

    Raises:
        CasError: the store failed; do not use this time.
    """
    outcome = store.put_if_absent(heartbeat_path(begin), b"")
    return None if isinstance(outcome, Lost) else outcome.unwrap()


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
        self._thread = threading.Thread(target=self._beat, name=f"writer-heartbeat-{begin}", daemon=True)

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
            outcome = self._store.put_if_match(self._path, b"", self._version, timeout=self._settings.interval_s)
        except FileNotFoundError:
            self._removed = True  # rolled back by somebody who took us for dead
        except CasError:
            return  # the next beat tries again; `alive` counts the time
        else:
            self._version = outcome.version if isinstance(outcome, Won) else None
            self._last_s = sent_s if isinstance(outcome, Won) else self._last_s
