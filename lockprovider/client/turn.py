"""`FreeLock`: what `Lock.wait_for_turn` returns where a lock need not be held for what is to be done.

Not promised: anything, but that its `publish_last` cannot happen after somebody else took the lock, or published.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING

from fsspec_cas import CasError
from lockprovider.errors import LeaseLost, LossReason, MalformedRecord, PublishUnknown, Unappliable
from lockprovider.lease.states import Apply, Busy, Done, Ended, Free
from lockprovider.publish.steps import must_match
from lockprovider.record.pending import Pending
from lockprovider.record.record import LockRecord

if TYPE_CHECKING:
    from lockprovider.client.client import Client


class FreeLock:
    """A lock that is free at one version of its record, and this client's turn; `release` ends it in any case.

    So does the end of the thread that got it, once another thread of this `Lock` wants it.
    """

    def __init__(self, client: Client, free: Free, *, looked: bool) -> None:
        self.looked = looked  # if not, the record was the own last one, and another may have written since
        self._client = client
        self._free = free
        self.thread = threading.current_thread()
        self._ending = threading.Lock()
        self._over = self._published = False
        self._freeing: Future[None] | None = None
        self._pid = os.getpid()

    @property
    def record(self) -> LockRecord:
        """The lock record; what stands in it holds until somebody writes another."""
        return self._free.record

    @property
    def epoch(self) -> int:
        """Of the last who had it."""
        return self._free.record.epoch

    def publish_last(self, pending: Pending, data: bytes) -> None:
        """Create the pending object with `data`, if and only if nobody has taken the lock since; as of a `Lease`.

        While nobody waits, the record is then written once more, so that JVM writers need not wait. The caller need not
        wait for that, but whoever asks for this `Lock` next does.

        Raises:
            LeaseLost: somebody was faster; nothing was written, and will not be.
            PublishUnknown: it could not be found out whether it was decided, or it was, and somebody else applies it.
                What is decided next must be decided under a lock that is held: a copy may be on its way. Or other bytes
                are at the path, which the caller said is new.
            LockError: `data` is not what was staged; nothing was sent.
        """
        given = must_match(pending, data)
        try:
            self._publish(pending, given, self._client.world.monotonic_s())
        except (CasError, MalformedRecord) as error:
            raise PublishUnknown(f"the publish of {pending.path!r} may have been decided: {error}") from error

    def _publish(self, pending: Pending, data: bytes, began_s: float) -> None:
        if self._over or self._pid != os.getpid():
            forked = self._pid != os.getpid()
            reason = LossReason.FORKED if forked else LossReason.RELEASED
            raise self._lost("it was released, or belongs to the process that this one was forked from", reason)
        what, answer = self._client.publisher.publish_free(self._free, pending)
        match answer:
            case Done("handed_over"):
                self._apply(what, data, began_s)
            case Done("not_written"):
                raise PublishUnknown(f"a publish of {pending.path!r} may be on its way still")
            case Ended() as ended:
                self._settle(pending, ended)
            case Busy() | Done() | None:
                raise self._lost("somebody was faster")

    def release(self) -> None:
        """End the turn; what was not published will not be. Whoever waits has the next one.

        In a process that was forked from the one whose turn it is, it does nothing.
        """
        if self._pid != os.getpid():
            return
        if self._freeing is not None:
            return  # the turn ends with that
        try:
            if not self._over:
                self._client.go_last(self._free)
        finally:
            self.end()

    def __enter__(self) -> FreeLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _apply(self, what: Apply, data: bytes, began_s: float) -> None:
        self._published = True
        if waited_for := self._client.is_waited_for:
            self.end()
        try:
            self._client.publisher.apply_late(what, data, began_s)
        except (CasError, Unappliable) as error:
            reason = f"{what.pending.path!r} was decided, and the next holder puts it there: {error}"
            raise PublishUnknown(reason) from error
        if not waited_for:
            self._freeing = self._client.free_again()
            self._freeing.add_done_callback(lambda _: self.end())  # until then it is the turn of this thread

    def end(self) -> None:
        """The turn is over, without a request."""
        with self._ending:
            over, self._over = self._over, True
        if not over:
            with self._client.metrics.release() if self._published else contextlib.nullcontext():
                self._client.left_free()

    def _settle(self, pending: Pending, ended: Ended) -> None:
        match self._client.publisher.settle(pending, 0):
            case "committed":
                return
            case "not_committed":
                raise self._lost(ended.why, ended.reason)
            case "apply" | "unknown":
                raise PublishUnknown(f"{pending.path!r} may have been decided, and the next holder puts it there")

    def _lost(self, why: str, reason: LossReason = LossReason.TAKEN_OVER) -> LeaseLost:
        said = f"the turn of {self._client.owner} at {self._client.where!r} is over: {why}"
        return LeaseLost(said, reason=reason, why=why)
