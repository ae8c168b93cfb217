"""`Committer`: group commit for clients that do not hold the lock.

A lone client writes the record. While another leads, it posts an intent and polls. After a lost write, or without a
leader, it announces itself.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from fsspec_cas import CasError, Store, World, check_path
from fsspec_cas.waiting import Signal, Worker
from lockprovider.errors import PublishUnknown
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.combine import Decider, Hold, Intent, is_over
from lockprovider.storage_lock.commit_requests import CommitAnswer, CommitRequest, CommitRequests, Intents
from lockprovider.storage_lock.driver import REQUEST_S, KnownRecord, RecordFile
from lockprovider.storage_lock.machine import Me
from lockprovider.storage_lock.member import Member
from lockprovider.storage_lock.record import Pending, fits_log
from lockprovider.storage_lock.record_writer import Applying, RecordWriter

_IDLE_S = 1.0
_LEFT = 4  # publishes whose leftovers go together
_AT_EXIT_S = 5.0  # wait at exit for requests


class Committer:
    """One client of group commit, with a thread while there are requests. Thread-safe.

    `wants_hold`: whether a thread of this process wants to hold the lock. `throttled`: whether the store ever throttled
    a request for the record.
    """

    def __init__(
        self,
        store: Store,
        records: Store,
        path: str,
        me: Me,
        world: World,
        *,
        wants_hold: Callable[[], bool],
        throttled: Callable[[], bool],
        audit: AuditLog | None,
    ) -> None:
        self._store = store
        self._path = path
        self._world = world
        self._intents = Intents(store, path.rpartition("/")[0])
        self._wake = Signal()
        self._guard = threading.Lock()
        self._rest = Signal()
        self._rest.set()
        self._new: list[tuple[CommitRequest, KnownRecord | None]] = []
        self._thread: threading.Thread | None = None
        self._exiting = False
        self._left: list[tuple[str, ...]] = []
        me = replace(me, owner=world.new_id())  # tells its writes from a holder's
        applying = Applying(store, world, self._wake.set)
        self._requests = CommitRequests(store, self._intents, world)
        self._writer = writer = RecordWriter(records, path, me, world, applying=applying, audit=audit)
        self._member = Member(
            store,
            me,
            world,
            requests=self._requests,
            writer=writer,
            wants_hold=wants_hold,
            throttled=throttled,
        )

    @property
    def known(self) -> KnownRecord | None:
        """Record as this client last read or wrote it."""
        return self._writer.known

    def commit(self, intent: Intent, decider: Decider, known: KnownRecord | None, timeout_s: float) -> CommitAnswer:
        """Wait until the publish is decided and applied, or can no longer be; starts the thread if needed.

        `known`: the record by which the caller judged the intent. An interrupt first gives the request up, for at most
        20 s.

        Returns:
            Decided: the publish is applied.
            Void: read whether it was published; if not, ask with a new intent.
            Hold: as `Void`, but ask under a held lock. At once for an empty intent, or one too large for the log.

        Raises:
            Exception: the decider's refusal; it is never published.
            NotAcquired: it was not decided in time, and never will be.
            PublishUnknown: it may have been decided; or it is, and another client applies it.
            CasError: the store failed; it is never published.
        """
        if not intent.body or not fits_log(Pending.of_bytes(intent.stem, intent.body)):
            return Hold()
        now_s = self._world.monotonic_s()
        request = CommitRequest(intent, decider, now_s, now_s + timeout_s, Signal())
        is_wanted = False
        try:
            with self._guard:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = Worker(self._serve, "group-commit")
                    self._thread.start()  # if it fails, no request was added
                    atexit.register(self._at_exit)
                self._rest.clear()
                self._new.append((request, known))
                is_wanted = True
            self._wake.set()
            request.done.wait()
        except BaseException:  # an interrupt ends the wait
            request.deadline_s = now_s
            self._wake.set()
            if is_wanted:
                request.done.wait(REQUEST_S)
            raise
        if request.error is not None:
            raise request.error
        assert request.answer is not None  # noqa: S101 - it is done
        return request.answer

    def discard(self, paths: Iterable[str]) -> None:
        """Delete these objects in the background, later and with others; not promised.

        A bad path raises `InvalidInput`, and nothing is removed.
        """
        checked = tuple(map(check_path, paths))
        with self._guard:
            self._left.append(checked)
            waits = self._thread is not None and self._store.is_remote and len(self._left) < _LEFT
        if not waits:
            self._store.in_background(self._remove_left)

    def rest(self, timeout_s: float) -> None:
        """Wait until all requests are done and applied, at most `timeout_s` seconds."""
        self._rest.wait(timeout_s)

    def sweep(self) -> int:
        """List the intents of all logs, read the record, and delete those that no write can decide.

        Returns their number. May be repeated.
        """
        # Listed before the read: an intent of another log is over.
        intents = self._intents.left()
        known = RecordFile(self._store, self._path, self._world).read(REQUEST_S)
        log = None if known is None else known.record.log
        over = [intent for intent in intents if is_over(intent, log)]
        self._intents.remove(*over)
        return len(over)

    def _remove_left(self) -> None:
        with self._guard:
            leftovers, self._left = self._left, []
        self._store.delete_all([path for paths in leftovers for path in paths])

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Serve requests on the thread until none is left.

        An error ends all, even new ones, by `PublishUnknown`, and passes.
        """
        try:
            while (pause_s := self._turn()) is not None or not self._ends():
                if pause_s:
                    self._wake.wait(pause_s)
                    self._wake.clear()
        except BaseException as error:
            with self._guard:
                self._thread, requests, self._new = None, self._new, []
                self._rest.set()
                self._member.take(requests)
                for request in self._requests:
                    message = f"{request.intent.stem!r} may have been published: {error!r}"
                    self._requests.end(request, PublishUnknown(message))
            raise

    def _turn(self) -> float | None:
        with self._guard:
            requests, self._new = self._new, []
        self._member.take(requests)
        return self._member.turn()

    def _ends(self) -> bool:
        """Wait a second for requests, else delete leftovers; return True if the thread ends, after unregistering it.

        `CasError` is ignored.
        """
        with self._guard:
            if self._new:
                return False
            self._rest.set()
        if not self._exiting:
            self._wake.wait(_IDLE_S)
            self._wake.clear()
        if not self._new:
            with contextlib.suppress(CasError):
                self._remove_left()
        with self._guard:
            if self._new or self._left:
                return False
            self._thread = None
            atexit.unregister(self._at_exit)
            return True

    def _at_exit(self) -> None:
        self._exiting = True
        self._wake.set()
        thread = self._thread
        if thread is not None:
            thread.join(_AT_EXIT_S)
