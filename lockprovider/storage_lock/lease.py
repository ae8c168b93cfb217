"""`Lease`: what `Lock.acquire` returns; checked, published with, and given back.

Not promised: that nobody else acts while you hold it and the process was paused. Only `publish` is safe then.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn, overload

from fsspec_cas import AlreadyExists, CasError, check_bytes
from fsspec_cas.waiting import Signal, Worker
from lockprovider.errors import (
    LeaseLost,
    LockError,
    LossReason,
    MalformedRecord,
    NotPicklable,
    PublishUnknown,
    Unappliable,
)
from lockprovider.storage_lock.commit_log import Pending
from lockprovider.storage_lock.heartbeat import Heartbeat
from lockprovider.storage_lock.record import LockRecord
from lockprovider.storage_lock.states import Done, Ended
from lockprovider.storage_lock.status import say_all
from lockprovider.storage_lock.steps import must_match

if TYPE_CHECKING:
    from lockprovider.storage_lock.acquire import FifoTurn
    from lockprovider.storage_lock.client import Client


OnLost = Callable[[LeaseLost], None]  # what `check` raises from then on

_LOG = logging.getLogger("lockprovider")
_FORKED = Ended("it belongs to the process that this one was forked from", LossReason.FORKED)
_RELEASED = Ended("it was released", LossReason.RELEASED)
_RELEASING = Ended("it is being released", LossReason.RELEASED)


def warn_and_give_back(lease: Lease, name: str) -> None:
    """Say that it was dropped while it was held, and give it back.

    In a thread of its own: a collection may come in any, in the middle of anything.
    """
    said = f"{name} was dropped while it was held, and is given back: use `with`, or release()"
    warnings.warn(said, ResourceWarning, stacklevel=3, source=lease)
    with contextlib.suppress(RuntimeError):  # at the end of the interpreter: then it lapses
        Worker(lease.end, "dropped-lease").start(wait=False)


def end_at_exit(lease: Lease) -> Callable[[], None]:
    """For `atexit`."""
    there = weakref.ref(lease)

    def end() -> None:
        found = there()
        if found is not None:
            found.end()

    return end


class Lease:
    """A held lock. Leave it (`with`, or `release()`) to give the lock back.

    One that nobody refers to any more, nor to the lock that it was acquired by, is given back with a `ResourceWarning`.
    It belongs to the process that took it: a forked child finds it lost, does not renew it and cannot release it.

    >>> lock = lockprovider.lock("memory://docs/lock")
    >>> lease = lock.acquire()
    """

    def __init__(self, client: Client, on_lost: OnLost | None, turn: FifoTurn) -> None:
        held = client.held()
        assert held is not None  # noqa: S101 - only made by Lock.acquire
        self.epoch = held.record.epoch
        self.owner = client.owner
        self.thread = threading.current_thread()
        self.lost = Signal()
        self._ended: Ended | None = None
        self._telling = threading.Lock()
        self._told_too: list[OnLost] = []
        self._depth = 1
        self._pid = os.getpid()
        self.turn: FifoTurn | None = turn  # among the threads of its client, until it is released
        self._given_back = False
        self._client = client
        self._on_lost = on_lost
        self._heartbeat = Heartbeat(
            self,
            client.settings.renew,
            client.pulse,
            keeps=False,
            max_hold=client.settings.max_hold,
            world=client.world,
        )
        self._at_exit = end_at_exit(self)

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            f"the lease on {self._client.path!r} belongs to this process and cannot be pickled or copied: "
            "acquire the lock where it is needed"
        )

    @property
    def record(self) -> LockRecord:
        """The lock record as this lease last wrote it, or found that others have joined its line.

        Raises:
            LeaseLost: there is none of this lease any more.
        """
        held = None if self._closed else self._client.held()
        if held is None:
            raise self._lost(self._ended or _RELEASED)
        return held.record

    @property
    def deadline_s(self) -> float:
        """When this process stops believing in the lease, on `time.monotonic`'s clock."""
        held = self._client.held()
        return 0.0 if held is None else held.deadline_s

    @property
    def deadline(self) -> datetime | None:
        """The same as a time of day (UTC) on this machine's clock, for people; None once nothing is held."""
        held = self._client.held()
        return None if held is None else self._client.time_of(held.deadline_s)

    def check(self) -> None:
        """Return if the lease is held as far as this process can know, without a request.

        Raises:
            LeaseLost: it lapsed, was taken over, broken or released.

        >>> lease.check()
        >>> lease.release()
        >>> lease.check()
        Traceback (most recent call last):
        ...
        lockprovider.errors.LeaseLost: ...released...
        """
        if self._pid != os.getpid():
            raise self._lost(_FORKED)
        if self.lost.is_set() or self._lapsed():
            raise self._lost(self._ended or _RELEASED)
        if self.turn is None:
            raise self._lost(_RELEASED)
        if self._client.held() is None:
            raise self._lost(_RELEASING)

    @overload
    def publish(self, path: str, data: bytes, *, new: bool = False) -> None: ...
    @overload
    def publish(self, path: Pending, data: bytes | None = None, *, new: bool = False) -> None: ...
    def publish(self, path: str | Pending, data: bytes | None = None, *, new: bool = False) -> None:
        """Create `path` with `data`, if and only if this lease still is the newest.

        Three requests, where the bytes fit into the lock record (6144, deflated); else five, as they are staged first.
        What was staged ahead (`Lock.stage`) is published by its handle. `data` spares reading its staged copy again;
        you know then that the copy still is there. Once this returns, `path` is there. No clock is involved: see
        `lockprovider.storage_lock.steps`.

        `new`: you know that nothing is at the path. With the bytes at hand it is not looked at, one request less. A
        copy that was staged ahead is left to you to remove (`Lock.unstage`), once the lock is released. If other bytes
        are at the path all the same, they stay; but whoever looked at the record or its log in between has seen the
        publish as decided. It is set aside (see `AlreadyExists`), and the log ends.

        Raises:
            LeaseLost: somebody took over before the commit point; `path` was not and will not be written.
            AlreadyExists: `path` is there with other bytes, and it never will be published. Nothing was written; with
                `new`, what is known of it is kept, as the message says.
            LockError: `data` is not what was staged, or that is gone; nothing was sent.
            PublishUnknown: neither could be found out; read `path` after the next acquisition.

        >>> lease.publish("state/7", b"seven")
        >>> Store.from_url("memory://docs/lock").read("state/7").data
        b'seven'
        >>> staged = lock.stage("state/8", b"eight")  # may come before the lock is needed
        >>> lease.publish(staged)
        """
        publisher = self._client.publisher
        if isinstance(path, Pending):
            at_hand = path.data if data is None else data
            pending, given = path, None if at_hand is None else must_match(path, at_hand)
        else:
            given = check_bytes(path, data)
            pending = publisher.stage(path, given)
        with self._client.telling():
            self._publish(pending, given, new=new)
        if pending is not path or not new:
            with contextlib.suppress(CasError):  # an orphan, not an error
                publisher.discard(pending)

    def _publish(self, pending: Pending, data: bytes | None, *, new: bool) -> None:
        try:
            self._decide(pending, data, new=new)
        except (AlreadyExists, LeaseLost, PublishUnknown):
            raise
        except (CasError, MalformedRecord, Unappliable) as error:
            if not self._client.publisher.tried(pending):
                if self._lapsed():
                    self.check()  # the better reason
                raise
            raise _in_doubt(pending, error) from error

    def _decide(self, pending: Pending, data: bytes | None, *, new: bool) -> None:
        if self._closed:
            self.check()
        publisher = self._client.publisher
        ended = publisher.commit(pending, data, new=new, over=self._over)
        if ended is None:
            return
        tried = publisher.tried(pending)  # asked first: whoever is told of the end may begin another lease
        if ended is not _RELEASED:
            self._learn(ended)
        try:
            verdict = publisher.settle(pending, self.epoch, tried=tried)
        except (CasError, MalformedRecord) as error:  # of requests that are made only if it was tried
            raise _in_doubt(pending, error) from error
        match verdict:
            case "committed":
                return
            case "apply":  # not by us, who hold nothing: it could come back after a later holder removed it
                raise PublishUnknown(f"{pending.path!r} was decided, and the next holder puts it there")
            case "not_committed":
                self.check()
            case "unknown":
                raise PublishUnknown(f"a commit of {pending.path!r} may still be on its way, and the lease has lapsed")

    def _over(self) -> Ended | None:
        """How the lease has ended, as far as is known without a request; None while it is held. Tells nobody."""
        if self._closed:  # by another thread, which waits for this publish
            return _RELEASED
        return self._ended or self._client.tick()

    def renew(self) -> bool:
        """Prolong the lease now; the heartbeat does it by itself. False while the answer is not known.

        >>> lease.renew()
        True
        """
        if self._closed:
            return False
        answer = None
        try:
            answer = self._client.renew()
        finally:  # the store may be out of reach, and the lease lapses all the same
            self._learn(answer if isinstance(answer, Ended) else self._client.tick())
        return isinstance(answer, Done) and answer.what == "renewed"

    def release(self) -> None:
        """Give the lock back; an inner release of a lock acquired twice only counts down.

        Again, or in a process that was forked from the holder's, it does nothing.

        Raises:
            CasError: the store could not be reached; the lease lapses by itself.

        >>> lease.release()
        >>> lock.locked()
        False
        """
        if self._closed:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        turn, self.turn = self.turn, None  # released from here on; the turn ends with this call, also by an interrupt
        try:
            with self._client.metrics.release():
                self._stop()
                self._client.give_back()
                self._given_back = True
        finally:
            self._client.end(self, turn)

    def _stop(self) -> None:
        atexit.unregister(self._at_exit)
        self._heartbeat.stop()

    def abandon(self, why: str) -> None:
        """The heartbeat has stopped by itself: the lease is as good as lost."""
        self._learn(Ended(why, LossReason.LAPSED))
        if not self.thread.is_alive():  # nobody is left to release it
            turn, self.turn, self._given_back = self.turn, None, True
            atexit.unregister(self._at_exit)
            self._client.end(self, turn)

    def when_lost(self, call: OnLost) -> None:
        """Call it once the lease is lost, from whatever thread finds out; at once if that is known already.

        >>> lease.when_lost(lambda lost: print(lost.reason.value))
        """
        with self._telling:
            if not self.lost.is_set():
                self._told_too.append(call)
                return
        call(self._lost(self._ended or _RELEASED))

    def again(self, *, keeps_log: bool) -> Lease:
        """The same lease for an inner `acquire` of the same thread.

        Raises:
            LeaseLost: there is nothing left to share.
            LockError: the outer one keeps the log, and the inner one does not.
        """
        self.check()
        if self.record.log is not None and not keeps_log:
            raise LockError(
                f"the lease on {self._client.path!r} keeps a log, an inner one must keep it too, or come later"
            )
        self._depth += 1
        return self

    def end(self) -> None:
        """Give it back, however often it was acquired; failures are not told."""
        self._depth = min(self._depth, 1)
        with contextlib.suppress(CasError, LockError):
            if self.turn is not None:
                self.release()
            else:  # an interrupt has ended its release
                self._stop()
                self._client.give_back()

    def start(self) -> None:
        """Start the heartbeat; called once by `Lock.acquire`."""
        self._heartbeat.start()
        atexit.register(self._at_exit)

    def __repr__(self) -> str:
        state = "released" if self._closed else "lost" if self.lost.is_set() else "held"
        return f"<Lease on {self._client.where!r}, epoch {self.epoch}, {state}>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return self.release()
        with contextlib.suppress(CasError):  # the error on its way is the news
            self.release()
        return None

    @property
    def released(self) -> bool:
        """Whether it was given back, or belongs to another process: then `release` does nothing."""
        return self._closed

    @property
    def _closed(self) -> bool:
        """Released, or not of this process: the lock's machine is not ours to move."""
        return self.turn is None or self._pid != os.getpid()

    def _lapsed(self) -> bool:
        if not self._closed:
            self._learn(self._client.tick())
        return self.lost.is_set()

    def _lost(self, ended: Ended) -> LeaseLost:
        said = f"the lease of {self.owner} on {self._client.where!r} (epoch {self.epoch}) is lost: {ended.why}"
        error = LeaseLost(said, reason=ended.reason, why=ended.why)
        known = self._client.known
        others = None if known is None or known.record.owner == self.owner else known.record
        say_all(error, self._client.where, others, self._client.world.now_ms())
        return error

    def _learn(self, ended: Ended | None) -> None:
        with self._telling:
            if ended is None or self.lost.is_set():
                return
            self._ended = ended
            self.lost.set()
            _LOG.info("%s", self._lost(ended))
            self._client.note_end(held=False)
            self._client.step_aside()
        for call in (self._on_lost, *self._told_too):
            if call is not None:
                call(self._lost(ended))

    def __del__(self) -> None:
        if getattr(self, "_heartbeat", None) is not None and not self._given_back and self._pid == os.getpid():
            warn_and_give_back(self, repr(self))


def _in_doubt(pending: Pending, error: Exception) -> PublishUnknown:
    return PublishUnknown(f"the publish of {pending.path!r} may have been decided: {error}")


_FIRST_CODE = 128  # of a process that ended by a signal, as shells say it


@contextlib.contextmanager
def until_signal(*numbers: int) -> Iterator[None]:
    """End this block by `SystemExit(128 + N)` when signal N comes (default: SIGTERM), as Ctrl-C ends it.

        with lockprovider.until_signal(), lockprovider.lock(url) as lease:
            serve(lease)

    So each `with` is left and each lock given back; leases of other threads are when the interpreter ends. Without
    this a process ends at once by SIGTERM, and others wait until the lease has lapsed. A second signal does nothing
    more. A signal that is ignored already (nohup) stays ignored. Not promised: anything after SIGKILL; that other
    threads end, which the interpreter waits for unless they are daemons.

    Raises:
        LockError: this is not the main thread, which alone may say what a signal does.

    >>> with lockprovider.until_signal(), lockprovider.lock("memory://docs/lock") as lease:
    ...     lease.check()  # SIGTERM leaves the block, which gives the lock back
    """
    if threading.current_thread() is not threading.main_thread():
        raise LockError("until_signal() sets signal handlers, which only the main thread may: enter it there")
    came = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal came
        del frame
        if not came:
            came = True
            raise SystemExit(_FIRST_CODE + number)

    before = {number: signal.getsignal(number) for number in numbers or (signal.SIGTERM,)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
