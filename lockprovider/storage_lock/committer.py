"""One client of a lock that wants publishes to be decided, and need not hold the lock for that.

While nobody else is there it writes the lock record itself, with what it wants decided. Where somebody is on duty it
posts an intent, and looks what became of it. Where writes meet it announces duty, and combines for all who have posted,
for as long as there is something to decide. One thread does all of that, and ends when nothing is left to do;
`combine` has the decisions.
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
from lockprovider.storage_lock.commit_log import Pending, tells
from lockprovider.storage_lock.commit_requests import CommitAnswer, CommitRequest, CommitRequests, Intents
from lockprovider.storage_lock.driver import REQUEST_S, Known, RecordFile
from lockprovider.storage_lock.member import Member
from lockprovider.storage_lock.record_writer import Applying, RecordWriter
from lockprovider.storage_lock.states import Me

_SIGNALS_S = 1.0  # a signal that comes right before a wait is seen after it
_IDLE_S = 1.0  # for so long the thread waits for more
_LEFT = 4  # publishes, whose leftovers are removed by one request
_AT_EXIT_S = 5.0  # at most, for what is under way


class Committer:
    """Thread-safe: what several threads want at once goes into one write.

    `asked_for`: whether somebody in this process wants to hold the lock. `throttled`: whether the store has ever asked
    for patience at a write of the record.
    """

    def __init__(
        self,
        store: Store,
        records: Store,
        path: str,
        me: Me,
        world: World,
        *,
        asked_for: Callable[[], bool],
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
        self._new: list[tuple[CommitRequest, Known | None]] = []
        self._thread: threading.Thread | None = None
        self._exiting = False
        self._left: list[tuple[str, ...]] = []
        me = replace(me, owner=world.new_id())  # what it writes is not to be taken for what a holder wrote
        applying = Applying(store, world, self._wake.set)
        self._requests = CommitRequests(store, self._intents, world)
        self._writer = writer = RecordWriter(records, path, me, world, applying=applying, audit=audit)
        self._member = Member(
            store,
            me,
            world,
            requests=self._requests,
            writer=writer,
            applying=applying,
            asked_for=asked_for,
            throttled=throttled,
        )

    @property
    def known(self) -> Known | None:
        """What it knows of the record."""
        return self._writer.known

    def commit(self, intent: Intent, decider: Decider, known: Known | None, timeout_s: float) -> CommitAnswer:
        """Wait until it is decided and applied, or never will be by this intent.

        `known`: the record as it was seen by whoever has judged the intent.

        Returns:
            Decided: it is there. Void: whoever wants it looks again, and asks with another intent, if it is not there.
            Hold: the same, under a lock that is held; at once if there is more of it than the log keeps, or no body.

        Raises:
            Exception: what the decider refuses it with; it never was and never will be.
            NotAcquired: nobody decided it in time; nor will anybody.
            PublishUnknown: it may have been decided; or it is, and another applies it.
            CasError: the store failed; it never was and never will be.
        """
        if not intent.body or not tells(Pending.of_bytes(intent.stem, intent.body)):
            return Hold()
        now_s = self._world.monotonic_s()
        request = CommitRequest(intent, decider, now_s, now_s + timeout_s, Signal())
        is_wanted = False
        try:
            with self._guard:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = Worker(self._serve, "group-commit")
                    self._thread.start()  # if that fails nothing is wanted, and the next tries again
                    atexit.register(self._at_exit)
                self._rest.clear()
                self._new.append((request, known))
                is_wanted = True
            self._wake.set()
            while not request.done.wait(_SIGNALS_S):
                pass
        except BaseException:  # an interrupt: nobody waits for it any more
            request.deadline_s = now_s
            self._wake.set()
            if is_wanted:
                request.done.wait(REQUEST_S)
            raise
        if request.error is not None:
            raise request.error
        assert request.came is not None  # noqa: S101 - it is done
        return request.came

    def discard(self, paths: Iterable[str]) -> None:
        """Remove what a publish has left and nobody needs: with that of the next few, or when nothing is to be done.

        Not promised: that it is removed, should this process die or the store fail.

        Raises:
            InvalidInput: one is no path of an object; nothing is removed.
        """
        checked = tuple(map(check_path, paths))
        with self._guard:
            self._left.append(checked)
            waits = self._thread is not None and self._store.is_remote and len(self._left) < _LEFT
        if not waits:
            self._store.in_background(self._remove_left)

    def rest(self, timeout_s: float) -> None:
        """Return when all that was asked here is done, with what nobody waits for; at the latest after so long."""
        self._rest.wait(timeout_s)

    def sweep(self) -> int:
        """Remove the intents of those who died; how many.

        Raises:
            CasError: the store failed; may be repeated.
        """
        left = self._intents.left()  # first: their logs have begun, so those that the record has not have ended
        known = RecordFile(self._store, self._path, self._world).read(REQUEST_S)
        log = None if known is None else known.record.log
        over = [intent for intent in left if is_over(intent, log)]
        self._intents.remove(*over)
        return len(over)

    def _remove_left(self) -> None:
        with self._guard:
            left, self._left = self._left, []
        self._store.delete_all([path for paths in left for path in paths])

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (pause_s := self._turn()) is not None or not self._ends():
                if pause_s:
                    self._wake.wait(pause_s)
                    self._wake.clear()
        except BaseException as error:
            with self._guard:
                self._thread, new, self._new = None, self._new, []
                self._rest.set()
                self._member.take(new)
                for request in self._requests:
                    said = f"the publish of {request.intent.stem!r} may have been decided: {error!r}"
                    self._requests.end(request, PublishUnknown(said))
            raise

    def _turn(self) -> float | None:
        with self._guard:
            new, self._new = self._new, []
        self._member.take(new)
        return self._member.turn()

    def _ends(self) -> bool:
        """Nothing is left to do: wait a little for more, then remove what is left over."""
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
