"""Races whose requests all reach the server before any is complete: each last byte is held back.

Only S3 clients do so, first with unsigned bodies; see "Proof before a lock" in SPECIFICATION.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from contextvars import ContextVar
from io import BytesIO
from itertools import count
from typing import Any, TypeVar

from fsspec_cas.errors import StoreError, Unavailable

T = TypeVar("T")

_LONGEST_S = 1.0


class _Barrier:
    """Racing requests wait here for all others, at most 1 s."""

    def __init__(self, racers: int, *, signed: bool) -> None:
        self.signed = signed
        self._last = racers
        self._arrivals = count(1)
        self._open: Future[None] = Future()

    def arrive(self) -> Future[None]:
        if next(self._arrivals) >= self._last:
            self.let_go()
        return self._open

    def let_go(self) -> None:
        with suppress(InvalidStateError):
            self._open.set_result(None)


_barrier: ContextVar[_Barrier | None] = ContextVar("line", default=None)


async def run_race(make: Callable[[], Sequence[Coroutine[Any, Any, T]]]) -> list[T]:
    """Run the coroutines of `make()` at once; return their results in order.

    Last bytes wait up to 1 s. Once all ended, raises the first error. After a StoreError other than Unavailable, all
    are made and run again, signed.
    """
    results = await _run(make(), signed=False)
    if any(isinstance(answer, StoreError) and not isinstance(answer, Unavailable) for answer in results):
        results = await _run(make(), signed=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value] # no exceptions are left


async def _run(calls: Sequence[Coroutine[Any, Any, T]], *, signed: bool) -> list[T | BaseException]:
    token = _barrier.set(_Barrier(len(calls), signed=signed))
    try:
        return await asyncio.gather(*calls, return_exceptions=True)
    finally:
        _barrier.reset(token)


def signs_bodies() -> bool:
    barrier = _barrier.get()
    return barrier is None or barrier.signed


def hold_last_byte(body: Any) -> Any:
    barrier = _barrier.get()
    if barrier is None or not isinstance(body, (bytes, BytesIO)):
        return body
    return _in_two(body if isinstance(body, bytes) else body.getvalue(), barrier)


def hold_last_byte_here(body: bytes) -> bytes | Iterator[bytes]:
    barrier = _barrier.get()
    return body if barrier is None or not body else _in_two_here(body, barrier)


async def _in_two(body: bytes, barrier: _Barrier) -> AsyncIterator[bytes]:
    yield body[:-1]
    await asyncio.wait([asyncio.wrap_future(barrier.arrive())], timeout=_LONGEST_S)
    barrier.let_go()
    yield body[-1:]


def _in_two_here(body: bytes, barrier: _Barrier) -> Iterator[bytes]:
    yield body[:-1]
    wait([barrier.arrive()], _LONGEST_S)
    barrier.let_go()
    yield body[-1:]
