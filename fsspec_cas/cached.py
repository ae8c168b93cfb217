"""`Cached` and `AsyncCached`: one object, with shared reads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from fsspec_cas.answer import Content
from fsspec_cas.arguments import Bytes, check_bytes, check_path, check_seconds
from fsspec_cas.async_store import TIMEOUT_S, AsyncStore
from fsspec_cas.bridge.drive import refuse_on_fsspecs_loop, sync
from fsspec_cas.errors import InvalidInput
from fsspec_cas.machine import SLICE_S, Machine, Signal, World
from fsspec_cas.outcome import Outcome, Version, Won
from fsspec_cas.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedRead(Generic[T]):
    """Read under way that asks whether the object has changed since `known`.

    `caller` returns its caller, or None once gone; `after`: `events_ended` at its begin.
    """

    number: int
    caller: Callable[[], object]
    known: T | None
    after: int
    began_s: float


@dataclass(frozen=True, slots=True)
class ReadResult(Generic[T]):
    number: int
    content: T | None


@dataclass(frozen=True, slots=True)
class Failed:
    number: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ReadState(Generic[T]):
    """State of one object's reads; each event method returns the next state.

    One read is under way at a time, as versions have no order. A caller never gets a read that began before its call.

    Attributes:
        events_ended: reads answered and writes ended, ever.
        as_of_s: `known` was current at this time or later.
        written: `events_ended` after the last write won here.
    """

    reads_begun: int = 0
    events_ended: int = 0
    read: SharedRead[T] | None = None
    known: T | None = None
    as_of_s: float | None = None
    written: int = 0
    waiting: int = 0
    last_result: ReadResult[T] | None = None
    failed: Failed | None = None

    def is_recent(self, now_s: float, max_age_s: float) -> bool:
        return self.as_of_s is not None and now_s - self.as_of_s < max_age_s

    def with_caller(self) -> tuple[ReadState[T], int]:
        """Add a waiting caller; return also its first read's number."""
        return replace(self, waiting=self.waiting + 1), self.reads_begun + 1

    def answer(self, number: int) -> ReadResult[T] | Failed | None:
        if self.last_result is not None and self.last_result.number >= number:
            return self.last_result
        return self.failed if self.failed is not None and self.failed.number >= number else None

    def must_wait(self, number: int) -> bool:
        return self.answer(number) is None and self.read is not None

    def without_caller(self) -> ReadState[T]:
        """Remove a waiting caller; the last one drops the kept answers."""
        if self.waiting > 1:
            return replace(self, waiting=self.waiting - 1)
        return replace(self, waiting=0, last_result=None, failed=None)

    def with_read_begun(self, caller: Callable[[], object], now_s: float) -> tuple[ReadState[T], SharedRead[T]]:
        read = SharedRead(self.reads_begun + 1, caller, self.known, self.events_ended, now_s)
        return replace(self, reads_begun=read.number, read=read), read

    def with_answer(self, read: SharedRead[T], content: T | None) -> ReadState[T]:
        """Return the state after `read`, whose waiting callers get `content` (None: no object).

        It becomes `known`, unless a write was won since the read began. An overlapping write clears `as_of_s`.
        """
        return replace(
            self,
            events_ended=self.events_ended + 1,
            read=None,
            known=self.known if self.written > read.after else content,
            as_of_s=read.began_s if self.events_ended == read.after else None,
            last_result=ReadResult(read.number, content),
        )

    def with_failure(self, read: SharedRead[T], error: Exception) -> ReadState[T]:
        return replace(self, read=None, failed=Failed(read.number, error))

    def without_read(self) -> ReadState[T]:
        return replace(self, read=None)

    def with_won_write(self, after: int, began_s: float, content: T | None) -> ReadState[T]:
        """End a won write, at whose begin `after` reads and writes were over."""
        as_of_s = began_s if self.events_ended == after else None
        return replace(
            self, events_ended=self.events_ended + 1, written=self.events_ended + 1, known=content, as_of_s=as_of_s
        )

    def with_other_write(self) -> ReadState[T]:
        return replace(self, events_ended=self.events_ended + 1, as_of_s=None)

    def after_fork(self) -> ReadState[T]:
        return replace(self, read=None, waiting=0, last_result=None, failed=None)


class _Caller:
    """Identity of one `get`, dead once the call ends."""


class _Shared:
    _new_signal: Callable[[], Any]
    _async_store: AsyncStore

    def __init__(self, store: object, kind: type, path: str, timeout: float, world: World | None) -> None:
        if not isinstance(store, kind):
            raise InvalidInput(f"store={store!r} must be {_A[kind]}: Cached takes a Store, AsyncCached an AsyncStore")
        self._path = check_path(path)
        self._timeout_s = check_seconds(timeout)
        self._world = world or Machine()
        self._state: ReadState[Content] = ReadState()
        self._guard = threading.Lock()
        self._woken = self._new_signal()
        _ALL.add(self)

    @property
    def path(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path!r}>"

    def _must_wait(self, number: int) -> bool:
        """Drop a read whose caller is gone; return whether to wait for another. Threads hold the guard."""
        if self._state.read is not None and self._state.read.caller() is None:
            self._state = self._state.without_read()
        return self._state.must_wait(number)

    def _leave(self, caller: object, number: int) -> None:
        """End a call: drop its unfinished read and wake waiting callers. Threads hold the guard."""
        if self._state.read is not None and self._state.read.caller() is caller:
            self._state = self._state.without_read()
            self._wake()
        if number:
            self._state = self._state.without_caller()

    def _record_answer(self, read: SharedRead[Content], content: Content | None) -> Content | None:
        with self._guard:
            self._state = self._state.with_answer(read, content)
            self._wake()
        return content

    @contextlib.contextmanager
    def _failure_shared(self, read: SharedRead[Content]) -> Iterator[None]:
        """End the read if the block raises an Exception, give that to all waiting callers, and re-raise.

        Interrupts only pass.
        """
        try:
            yield
        except Exception as error:
            with self._guard:
                self._state = self._state.with_failure(read, error)
                self._wake()
            raise

    def _wake(self) -> None:
        self._woken.set()
        self._woken = self._new_signal()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[_Writing]:
        """Yield a `_Writing` for the block's data and outcome.

        At its end, even by an error, cache a won write's content, else forget the cached age.
        """
        with self._guard:
            after, began_s = self._state.events_ended, self._world.monotonic_s()
        write = _Writing(self._path)
        try:
            yield write
        finally:
            with self._guard:
                if write.won:
                    self._state = self._state.with_won_write(after, began_s, write.content)
                else:
                    self._state = self._state.with_other_write()

    def _after_fork(self) -> None:
        self._guard = threading.Lock()
        self._woken = self._new_signal()
        self._state = self._state.after_fork()


class _Writing:
    def __init__(self, path: str) -> None:
        self.won = False
        self.content: Content | None = None
        self.data: bytes | None = None
        self._path = path

    def of(self, data: Bytes) -> bytes:
        self.data = check_bytes(self._path, data)
        return self.data

    def by(self, fn: Callable[[bytes | None], Bytes]) -> Callable[[bytes | None], bytes]:
        return (lambda old: self.of(fn(old))) if callable(fn) else fn

    def record_outcome(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Won):
            self.won, self.content = True, None if self.data is None else Content(self.data, outcome.version)
        return outcome


class AsyncCached(_Shared):
    """One object for any number of tasks of one event loop, with the promises and errors of `Cached`.

    A cancelled task cancels its request; another waiting task begins the next one.

    >>> flags = AsyncCached(AsyncStore.from_url("memory://docs/store"), "flags.json")
    >>> outcome = await flags.put_if_absent(b"{}")
    >>> version = outcome.unwrap()
    """

    _new_signal = asyncio.Event

    def __init__(self, store: AsyncStore, path: str, *, timeout: float = TIMEOUT_S, world: World | None = None) -> None:
        super().__init__(store, AsyncStore, path, timeout, world)
        self._async_store = store

    async def get(self, *, max_age_s: float = 0.0) -> Content | None:
        """Return the object, or None if none exists, by a read that concurrent tasks share.

        Content current less than `max_age_s` seconds ago needs no request.

        Raises:
            StoreError: no answer, or access refused.

        >>> content = await flags.get(max_age_s=60)
        >>> content.data
        b'{}'
        """
        max_age_s = check_seconds(max_age_s, "max_age_s")
        if self._state.is_recent(self._world.monotonic_s(), max_age_s):
            return self._state.known
        caller = _Caller()
        self._state, number = self._state.with_caller()
        try:
            while self._must_wait(number):
                await self._woken.wait()
            if (answer := self._state.answer(number)) is not None:
                return _given(answer)
            self._state, read = self._state.with_read_begun(weakref.ref(caller), self._world.monotonic_s())
            with self._failure_shared(read):
                content = await self._async_store.read_or_none(self._path, read.known, timeout=self._timeout_s)
            return self._record_answer(read, content)
        finally:
            self._leave(caller, number)

    async def put_if_absent(self, data: Bytes) -> Outcome:
        """See `AsyncStore.put_if_absent`; a won write is cached.

        >>> outcome = await flags.put_if_absent(b"mine")
        >>> type(outcome).__name__
        'Lost'
        """
        with self._writing() as write:
            return write.record_outcome(
                await self._async_store.put_if_absent(self._path, write.of(data), timeout=self._timeout_s)
            )

    async def put_if_match(self, data: Bytes, version: Version | str) -> Outcome:
        """See `AsyncStore.put_if_match`; a won write is cached.

        >>> outcome = await flags.put_if_match(b"[]", version)
        >>> type(outcome).__name__
        'Won'
        """
        with self._writing() as write:
            put = self._async_store.put_if_match(self._path, write.of(data), version, timeout=self._timeout_s)
            return write.record_outcome(await put)

    async def delete_if_match(self, version: Version | str) -> Outcome:
        """See `AsyncStore.delete_if_match`; if won, the cached content becomes None.

        >>> outcome = await flags.delete_if_match(version)
        >>> outcome.unwrap() == version
        True
        """
        with self._writing() as write:
            return write.record_outcome(
                await self._async_store.delete_if_match(self._path, version, timeout=self._timeout_s)
            )

    async def update(self, fn: Callable[[bytes | None], Bytes]) -> Version:
        """See `AsyncStore.update`; starts from the store's content, and caches the result.

        >>> newer = await flags.update(lambda old: old + b" ")
        >>> newer == version
        False
        """
        with self._writing() as write:
            version = await self._async_store.update(self._path, write.by(fn), timeout=self._timeout_s)
            return write.record_outcome(Won(version)).unwrap()


class Cached(_Shared):
    """One object for any number of threads: concurrent reads share requests, and only a changed body is sent.

    - A failed request fails for all callers that share it. Another caller repeats an interrupted one.
    - A forked child keeps the cached content. No thread or task is started.
    - Memory: the body once, up to three times during requests.

    "Shared reads" in `fsspec_cas/README.md` has the promises.

    `timeout` (seconds) is for each request with its retries; a `get` waits for at most two, unless a caller is
    interrupted.

    Raises:
        InvalidInput: `store` is not a `Store`, or another argument is invalid.

    >>> flags = Cached(Store.from_url("memory://docs/store"), "flags.json")
    >>> version = flags.put_if_absent(b"{}").unwrap()
    """

    _new_signal = Signal

    def __init__(self, store: Store, path: str, *, timeout: float = TIMEOUT_S, world: World | None = None) -> None:
        super().__init__(store, Store, path, timeout, world)
        self._store = store
        self._async_store, self._drive = store._async, store._drive  # noqa: SLF001

    def get(self, *, max_age_s: float = 0.0) -> Content | None:
        """Return the object, or None if none exists, by a conditional GET, which concurrent callers share.

        Content current less than `max_age_s` seconds ago needs no request; it is never older than content that this
        cache returned or wrote before.

        Raises:
            StoreError: no answer, or access refused.
            CasError: called on fsspec's own event loop.

        >>> flags.get().data, flags.get(max_age_s=60).version == version  # the second costs nothing
        (b'{}', True)
        """
        max_age_s = check_seconds(max_age_s, "max_age_s")
        if not self._store.backend.blocking:
            refuse_on_fsspecs_loop()
        caller, number = _Caller(), 0
        try:
            with self._guard:
                if self._state.is_recent(self._world.monotonic_s(), max_age_s):
                    return self._state.known
                self._state, number = self._state.with_caller()
            while True:
                with self._guard:
                    if (answer := self._state.answer(number)) is not None:
                        return _given(answer)
                    if not self._must_wait(number):
                        self._state, read = self._state.with_read_begun(weakref.ref(caller), self._world.monotonic_s())
                        break
                    woken = self._woken
                woken.wait(SLICE_S)
            with self._failure_shared(read):
                content = self._store.read_or_none(self._path, read.known, timeout=self._timeout_s)
            return self._record_answer(read, content)
        finally:
            with self._guard:
                self._leave(caller, number)

    put_if_absent = sync(AsyncCached.put_if_absent)
    put_if_match = sync(AsyncCached.put_if_match)
    delete_if_match = sync(AsyncCached.delete_if_match)
    update = sync(AsyncCached.update)

    @property
    def _async(self) -> Any:
        return self


def _given(answer: ReadResult[Content] | Failed) -> Content | None:
    if isinstance(answer, Failed):
        raise answer.error
    return answer.content


_A: dict[type[Any], str] = {Store: "a Store", AsyncStore: "an AsyncStore"}
_ALL: weakref.WeakSet[_Shared] = weakref.WeakSet()


def _in_child() -> None:
    for cache in _ALL:
        cache._after_fork()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
