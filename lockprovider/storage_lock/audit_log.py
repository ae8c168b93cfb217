"""Writer and reader of Hudi's audit records, which never slow or fail the lock."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fsspec_cas import Machine, Store, Version, Won, World
from fsspec_cas.machine import Signal, Worker
from lockprovider.storage_lock.audit import AuditRecord, AuditStep, Places, decode_switch, encode_switch, places
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, LockRecord

_ASK_AGAIN_S = 60.0
_REQUEST_S = 10.0
_EXIT_S = 5.0
_LEAST_S = 0.1
_PAGES = 100
_READERS = 8

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Page:
    path: str
    began_ms: int
    owner: str
    valid_until_ms: int
    data: bytes = b""
    written: int = 0
    version: Version | None = None


class AuditLog:
    """Audit of one lock client, for `Lock(..., audit=AuditLog(store))`; a background thread writes it.

    At exit the process waits at most `exit_s` seconds for it. Not promised: that a record exists.

    >>> store = Store.from_url("memory://docs/table")
    >>> audit = lockprovider.AuditLog(store)
    >>> with lockprovider.Lock(store, audit=audit):  # recorded if `lockprovider audit --enable` has asked for it
    ...     pass
    """

    def __init__(
        self,
        store: Store,
        lock_path: str = HUDI_LOCK_PATH,
        *,
        world: World | None = None,
        exit_s: float = _EXIT_S,
    ) -> None:
        self.__setstate__((store, places(lock_path), world or Machine(), exit_s))

    def __getstate__(self) -> tuple[Store, Places, World, float]:
        return self._store, self._places, self.world, self._exit_s

    def __setstate__(self, state: tuple[Store, Places, World, float]) -> None:
        self._store, self._places, self.world, self._exit_s = state
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        """Reset all but the arguments, at first and after a fork."""
        self._guard = threading.Lock()
        self._idle = Signal()
        self._idle.set()
        self._began_ms, self._running = 0, False
        self.open_page: _Page | None = None
        self._pages: deque[_Page] = deque(maxlen=_PAGES)
        self._wanted = False
        self.off_until_s = -math.inf  # until then the switch counts as off
        self._pid = os.getpid()  # last: then another thread takes the new guard

    def begin_if_forked(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def __repr__(self) -> str:
        return f"<AuditLog in {self._store.url!r}>"

    def taken(self, record: LockRecord) -> None:
        """Replace the open audit file by a new holder's; queue its START line, start the thread if needed."""
        at_ms = self.world.now_ms() if record.holder is None else record.holder.since_ms
        with self._guard:
            # Distinct times: two holdings must not share a file.
            began_ms = self._began_ms = max(at_ms, self._began_ms + 1)
            path = self._places.file(began_ms, record.owner)
            page = self.open_page = _Page(path, began_ms, record.owner, record.valid_until_ms)
        self._add(page, "START", at_ms, held=True)

    def renewed(self, record: LockRecord, validity_s: float) -> None:
        if (page := self.open_page) is not None:
            page.valid_until_ms = record.valid_until_ms
            self._add(page, "RENEW", record.valid_until_ms - round(validity_s * 1000), held=True)

    def ended(self, at_ms: int, *, held: bool) -> None:
        with self._guard:
            page, self.open_page = self.open_page, None
        if page is not None:
            self._add(page, "END", at_ms, held=held)

    def _add(self, page: _Page, step: AuditStep, at_ms: int, *, held: bool) -> None:
        """Append a line to a file's queued content, and start the writing thread unless it runs.

        Beyond 100 queued files the oldest is dropped; a RENEW of a file no longer open is ignored.
        """
        line = AuditRecord(page.owner, page.began_ms, at_ms, step, page.valid_until_ms, held).encode()
        with self._guard:
            if step == "RENEW" and self.open_page is not page:
                return
            page.data += line
            if page not in self._pages:
                self._pages.append(page)
            self._idle.clear()
        self._start()

    def _start(self) -> bool:
        """Start the writing thread if files are queued and it does not run; False if no thread can start.

        Takes the guard.
        """
        with self._guard:
            if self._running or not self._pages:
                return True
            self._running = True
        try:
            Worker(self._write_all, "lock-audit").start()
        except RuntimeError:  # the interpreter may be ending: see `_finish`
            self._running = False
            return False
        return True

    def flush(self, timeout_s: float = _EXIT_S) -> bool:
        """Wait until all records so far are written or dropped; False after `timeout_s` seconds, or without a thread.

        >>> audit.flush()
        True
        """
        return self._start() and self._idle.wait(timeout_s)

    def _write_all(self) -> None:
        while (page := self._next()) is not None:
            self._write(page)

    def _next(self) -> _Page | None:
        with self._guard:
            if self._pages:
                return self._pages.popleft()
            self._running = False
            self._idle.set()
            return None

    def _write(self, page: _Page, timeout_s: Callable[[], float] = lambda: _REQUEST_S) -> None:
        """Write the file if the audit's switch is on, else drop it and its later lines.

        Reads the switch until it is on, at most once a minute. Store errors only log a warning; a later line tries
        again.
        """
        try:
            if self._is_wanted(timeout_s):
                self._put(page, timeout_s)
                return
        except Exception as error:  # noqa: BLE001 - the thread writes later lines
            _log.warning("the audit of the lock is incomplete: writing %s failed: %s", page.path, error)
            return
        with self._guard:
            self.open_page = None if self.open_page is page else self.open_page

    def _is_wanted(self, timeout_s: Callable[[], float]) -> bool:
        now_s = self.world.monotonic_s()
        if not self._wanted and now_s >= self.off_until_s:
            self._wanted = is_enabled(self._store, self._places.switch, timeout_s=timeout_s())
            self.off_until_s = -math.inf if self._wanted else now_s + _ASK_AGAIN_S
        return self._wanted

    def _put(self, page: _Page, timeout_s: Callable[[], float]) -> None:
        """Write the whole file if it has grown, and note version and length in `page`.

        Unless the conditional write is won, overwrites at once whatever is stored. Raises store errors.
        """
        data, version = page.data, page.version
        if len(data) == page.written:
            return
        if version is None:
            outcome = self._store.put_if_absent(page.path, data, timeout=timeout_s())
        else:
            outcome = self._store.put_if_match(page.path, data, version, timeout=timeout_s())
        if isinstance(outcome, Won):
            page.version = outcome.version
        else:
            page.version = self._store.update(page.path, lambda _: data, timeout=timeout_s())
        page.written = len(data)

    def _finish(self, until_s: float) -> None:
        """At exit, wait for the thread, or write what is queued if none runs, until `until_s` by `world`'s clock.

        Logs a warning if files that it wrote itself are left, not if the thread is late. Does nothing after a fork.
        """

        def left_s() -> float:
            return max(_LEAST_S, until_s - self.world.monotonic_s())

        if self._pid != os.getpid() or (self._running and not self.flush(left_s())):
            return

        while left_s() > _LEAST_S and (page := self._next()) is not None:
            self._write(page, left_s)
        if self._pages:
            _log.warning("the audit of the lock is incomplete: %d files were not written in time", len(self._pages))


_ALL: weakref.WeakSet[AuditLog] = weakref.WeakSet()


@atexit.register  # in reverse order: leases, registered later, end first
def _at_exit() -> None:
    logs = [(log, log.world.monotonic_s() + log._exit_s) for log in list(_ALL)]  # noqa: SLF001 - same module
    for log, until_s in logs:
        try:
            log._finish(until_s)  # noqa: SLF001 - same module
        except Exception:  # noqa: BLE001 - other logs must be finished
            _log.exception("the audit of the lock is incomplete: writing the last records of %r failed", log)


def is_enabled(store: Store, switch: str, *, timeout_s: float) -> bool:
    content = store.read_or_none(switch, timeout=timeout_s)
    return content is not None and decode_switch(content.data)


def set_enabled(store: Store, switch: str, *, enabled: bool, timeout_s: float) -> None:
    store.update(switch, lambda _: encode_switch(enabled=enabled), timeout=timeout_s)


def read_files(store: Store, folder: str, last: int | None = None, *, timeout_s: float) -> dict[str, bytes]:
    """Return the contents, by name, of the folder's `.jsonl` files, or only of the `last` most recently modified.

    Sorted by that time. A file deleted since the listing is left out.
    """
    entries = [entry for entry in store.list(f"{folder}/", timeout=timeout_s) if entry.path.endswith(".jsonl")]
    entries.sort(key=lambda entry: (entry.modified_ms or 0, entry.path))
    chosen = [entry.path for entry in (entries if last is None else entries[-last:])]
    with ThreadPoolExecutor(_READERS) as pool:
        read = pool.map(lambda path: store.read_or_none(path, timeout=timeout_s), chosen)
        return {
            path.rpartition("/")[2]: content.data
            for path, content in zip(chosen, read, strict=True)
            if content is not None
        }
