"""`Lease` and `until_signal`."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, overload

from fsspec_cas import AlreadyExists, CasError, check_bytes
from fsspec_cas.machine import Signal, Worker
from lockprovider.errors import (
    LeaseLost,
    LockError,
    LossReason,
    MalformedRecord,
    NotPicklable,
    PublishUnknown,
    Unappliable,
)
from lockprovider.storage_lock.client import Client, Heartbeat, add_details, run_callbacks
from lockprovider.storage_lock.driver import must_match
from lockprovider.storage_lock.machine import Done, Ended
from lockprovider.storage_lock.record import LockRecord, Pending

if TYPE_CHECKING:
    from lockprovider.storage_lock.acquire import FifoTurn


OnLost = Callable[[LeaseLost], None]

_LOG = logging.getLogger("lockprovider")
_FORKED = Ended("it belongs to the parent process, from which this process was forked", LossReason.FORKED)
_RELEASED = Ended("it was released", LossReason.RELEASED)
_RELEASING = Ended("it is being released", LossReason.RELEASED)


def warn_and_give_back(lease: Lease, name: str) -> None:
    message = f"{name} was garbage-collected while it was held, and is now released: use `with`, or call release()"
    warnings.warn(message, ResourceWarning, stacklevel=3, source=lease)
    with contextlib.suppress(RuntimeError):
        Worker(lease.end, "dropped-lease").start(wait=False)


def end_if_referenced(reference: weakref.ref[Lease]) -> None:
    lease = reference()
    if lease is not None:
        lease.end()


class Lease:
    """A held lock, given back by `release()` or at the end of `with`.

    Not promised: that no other client acts while your process was paused. Only `publish` is safe then.

    Without a reference to it or its lock, it is released with a `ResourceWarning`.

    >>> lock = lockprovider.lock("memory://docs/lock")
    >>> lease = lock.acquire()
    """

    def __init__(self, client: Client, on_lost: OnLost | None, turn: FifoTurn, thread: threading.Thread) -> None:
        held = client.driver.held()
        assert held is not None  # noqa: S101 - only made by Lock.acquire
        self.epoch = held.record.epoch
        self.owner = client.owner
        self.thread = thread
        self.lost = Signal()
        self._ended: Ended | None = None
        self._loss_guard = threading.Lock()
        self._on_lost: list[OnLost] = [] if on_lost is None else [on_lost]
        self._depth = 1
        self._pid = os.getpid()
        self.turn: FifoTurn | None = turn
        self._given_back = True  # by the caller, if no heartbeat starts
        self._client = client
        self._heartbeat = Heartbeat(
            self,
            client.settings.renew,
            client.pulse,
            keeps=False,
            max_hold=client.settings.max_hold,
            world=client.world,
        )
        self._at_exit = partial(end_if_referenced, weakref.ref(self))
        self._heartbeat.start()
        self._given_back = False
        atexit.register(self._at_exit)

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            f"the lease on {self._client.path!r} belongs to this process and cannot be pickled or copied: "
            "acquire the lock where it is needed"
        )

    @property
    def record(self) -> LockRecord:
        """Lock record as last written or read here; may raise `LeaseLost`."""
        held = None if self.released else self._client.driver.held()
        if held is None:
            raise self._lost(self._ended or _RELEASED)
        return held.record

    @property
    def deadline_s(self) -> float:
        """When, on `time.monotonic`'s clock, the lease lapses here; 0 if over."""
        held = None if self.released or self.lost.is_set() else self._client.driver.held()
        return 0.0 if held is None else held.deadline_s

    def check(self) -> None:
        """Raise `LeaseLost` if this process knows that the lease is lost or released; sends no request.

        A lapse first noticed here calls `on_lost`.

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
        if self._client.driver.held() is None:
            raise self._lost(_RELEASING)

    @overload
    def publish(self, path: str, data: bytes, *, new: bool = False) -> None: ...
    @overload
    def publish(self, path: Pending, data: bytes | None = None, *, new: bool = False) -> None: ...
    def publish(self, path: str | Pending, data: bytes | None = None, *, new: bool = False) -> None:
        """Create `path` with `data` if and only if this lease is still the newest, whatever the clocks.

        When this returns, the object is at `path`. To stage ahead, pass the handle of `Lock.stage` as `path`. With
        `data`, the staged copy is not read, but must exist.

        `new` promises that nothing is at the path; with the bytes at hand it is not read. If other bytes are there,
        they stay, the publish is set aside, and the log ends. A copy staged ahead is deleted here, but with `new`
        remove it yourself (`Lock.unstage`), after the release.

        Raises:
            LeaseLost: another client took over before the commit point; `path` was not and will not be written.
            AlreadyExists: `path` has other bytes, so this publish never will be there. With `new`, the message names an
                object with its details.
            LockError: `data` is not what was staged, or the staged copy is gone; nothing was sent.
            PublishUnknown: read `path` after the next acquisition.

        >>> lease.publish("state/7", b"seven")
        >>> Store.from_url("memory://docs/lock").read("state/7").data
        b'seven'
        >>> staged = lock.stage("state/8", b"eight")  # may come before the lock is needed
        >>> lease.publish(staged)
        """
        publisher = self._client.publisher
        if self.released:
            self.check()
        if isinstance(path, Pending):
            at_hand = path.data if data is None else data
            pending, checked = path, None if at_hand is None else must_match(path, at_hand)
        else:
            checked = check_bytes(path, data)
            pending = publisher.stage(path, checked)
        with self._client.detailed_errors():
            self._publish(pending, checked, new=new)
        if pending is not path or not new:
            with contextlib.suppress(CasError):
                publisher.discard(pending)

    def _publish(self, pending: Pending, data: bytes | None, *, new: bool) -> None:
        """Commit and apply the publish; `new`: its path is free.

        Errors while a sent commit is unsettled become `PublishUnknown`, except `AlreadyExists`. If the lease ends, note
        a loss (`_learn`), then read whether it took effect: `LeaseLost` if not, `PublishUnknown` if unknown or left to
        the next holder.
        """
        publisher, tried = self._client.publisher, False
        try:
            ended = publisher.commit(pending, data, new=new, over=self._over)
            if ended is None:
                return
            tried = publisher.tried(pending)  # after `_learn` the next lease may begin
            if ended is not _RELEASED:
                self._learn(ended)
            verdict = publisher.settle(pending, self.epoch, tried=tried)
        except AlreadyExists:
            raise
        except (CasError, MalformedRecord, Unappliable) as error:
            if tried or publisher.tried(pending):
                raise PublishUnknown(f"{pending.path!r} may have been published: {error}") from error
            if self._lapsed():
                self.check()
            raise
        match verdict:
            case "apply":  # applying could restore what a later holder removed
                raise PublishUnknown(
                    f"the publish of {pending.path!r} was decided, and the next holder of the lock applies it"
                )
            case "not_committed":
                self.check()
            case "unknown":
                raise PublishUnknown(
                    f"the lease has lapsed, and {pending.path!r} may still be published by a late write"
                )

    def _over(self) -> Ended | None:
        if self.released:  # another thread releases
            return _RELEASED
        return self._ended or self._client.driver.tick()

    def renew(self) -> bool:
        """Prolong the lease now, and apply left-over decided publishes; raises store errors.

        Returns False if the outcome is unknown, the call only settled an earlier write, or the lease is over; `check`
        tells. A loss noticed here calls `on_lost`.

        >>> lease.renew()
        True
        """
        if self.released:
            return False
        answer = None
        try:
            answer = self._client.renew(self.epoch)
        finally:  # it lapses whatever the store does
            if isinstance(answer, Ended):
                self._learn(answer)
            else:
                self._lapsed()
        return isinstance(answer, Done) and answer.what == "renewed"

    def release(self) -> None:
        """Stop the heartbeat and release the lock; an inner release only counts down, a repeated one does nothing.

        Raises:
            CasError: the store failed; the lease lapses by itself.

        >>> lease.release()
        >>> lock.locked()
        False
        """
        if self.released:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        turn, self.turn = self.turn, None
        try:
            metrics = self._client.metrics
            with contextlib.nullcontext() if metrics is None else metrics.release():
                self._give_back()
        finally:
            atexit.unregister(self._at_exit)  # until now an exit waits for the release
            self._client.end(turn)

    def _give_back(self) -> None:
        self._heartbeat.stop()
        self._client.give_back(self.epoch)
        self._given_back = True

    def abandon(self, why: str) -> None:
        """Mark the lease as lost, calling its callbacks. With its thread dead, it also counts as released."""
        self._learn(Ended(why, LossReason.LAPSED))
        if not self.thread.is_alive():
            turn, self.turn, self._given_back = self.turn, None, True
            atexit.unregister(self._at_exit)
            self._client.end(turn)

    def when_lost(self, call: OnLost) -> None:
        """Call `call` once the lease is lost, in the noticing thread; at once if it is. Its error is only logged.

        >>> lease.when_lost(lambda lost: print(lost.reason.value))
        """
        with self._loss_guard:
            if not self.lost.is_set():
                self._on_lost.append(call)
                return
        run_callbacks([partial(call, self._lost(self._ended or _RELEASED))])

    def again(self, *, keeps_log: bool) -> Lease:
        """Count one more `acquire`; return this lease.

        Raises `LeaseLost` if it is over, or `LockError` if only the outer one keeps the log.
        """
        self.check()
        if self.record.log is not None and not keeps_log:
            raise LockError(
                f"the outer lease on {self._client.path!r} was acquired with keeps_log=True: acquire the inner one "
                "with it too, or after the outer one is released"
            )
        self._depth += 1
        return self

    def end(self) -> None:
        """Release the lease, however often acquired; ignores errors."""
        self._depth = min(self._depth, 1)
        with contextlib.suppress(CasError, LockError):
            if self.turn is not None:
                self.release()
            else:  # its release was interrupted, or goes on
                self._give_back()

    def __repr__(self) -> str:
        state = "released" if self.released else "lost" if self.lost.is_set() else "held"
        return f"<Lease on {self._client.where!r}, epoch {self.epoch}, {state}>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return self.release()
        with contextlib.suppress(CasError, LockError):
            self.release()
        return None

    @property
    def released(self) -> bool:
        """Whether the lease was released, or belongs to another process."""
        return self.turn is None or self._pid != os.getpid()

    def _lapsed(self) -> bool:
        if not self.released:
            self._learn(self._client.driver.tick())
        return self.lost.is_set()

    def _lost(self, ended: Ended) -> LeaseLost:
        message = f"the lease of {self.owner} on {self._client.where!r} (epoch {self.epoch}) is lost: {ended.why}"
        error = LeaseLost(message, reason=ended.reason, why=ended.why)
        known = self._client.known
        other = None if known is None or known.record.owner == self.owner else known.record
        add_details(error, self._client.where, other, self._client.world.now_ms())
        return error

    def _learn(self, ended: Ended | None) -> None:
        """Note the end once: set `lost`, log and audit it, free the process's queue, call back on this thread.

        Ignores None and later ends, logs callbacks' errors.
        """
        with self._loss_guard:
            if ended is None or self.lost.is_set():
                return
            self._ended = ended
            self.lost.set()
            _LOG.info("%s", self._lost(ended))
            self._client.note_loss()
        run_callbacks([partial(call, self._lost(ended)) for call in self._on_lost])

    def __del__(self) -> None:
        if getattr(self, "_heartbeat", None) is not None and not self._given_back and self._pid == os.getpid():
            warn_and_give_back(self, repr(self))


_FIRST_CODE = 128


@contextlib.contextmanager
def until_signal(*numbers: int) -> Iterator[None]:
    """End this block by `SystemExit(128 + N)` when signal N comes (default: SIGTERM).

        with lockprovider.until_signal(), lockprovider.lock(url) as lease:
            serve(lease)

    Each `with` is left and its lock released; other threads' locks at the interpreter's end. The block's end restores
    the handlers. A second signal has no effect; an ignored one (nohup) stays ignored. Not promised: anything after
    SIGKILL, nor that other threads end, unless they are daemons.

    Raises:
        LockError: this is not the main thread.

    >>> with lockprovider.until_signal(), lockprovider.lock("memory://docs/lock") as lease:
    ...     lease.check()
    """
    if threading.current_thread() is not threading.main_thread():
        raise LockError(
            "until_signal() sets signal handlers, which only the main thread may do: enter it in the main thread"
        )
    came = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal came
        del frame
        if not came:
            came = True
            raise SystemExit(_FIRST_CODE + number)

    before: dict[int, Any] = {}
    try:
        for number in numbers or (signal.SIGTERM,):
            handler = before.setdefault(number, signal.getsignal(number))
            if handler is not signal.SIG_IGN:
                signal.signal(number, stop)
        yield
    finally:
        restore_handlers(before)


def restore_handlers(handlers: Mapping[Any, Any]) -> None:
    """Set signal handlers that `getsignal` returned; the default for None, a handler of no Python code."""
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
