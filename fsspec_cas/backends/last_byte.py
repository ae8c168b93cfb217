"""Races whose requests all reach the server before any is complete: each one's last byte is held back.

A server that checks a condition first and writes later is then sure to be caught. Bodies are unsigned, as a server
could verify a whole body first.
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


class _Line:
    """Barrier at which racing requests wait, on loops and on threads."""

    def __init__(self, racers: int, *, signed: bool) -> None:
        self.signed = signed
        self._last = racers
        self._coming = count(1)
        self._open: Future[None] = Future()

    async def cross(self) -> None:
        """Wait on the loop for all racers, at most `_LONGEST_S`."""
        self._come()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._open)), _LONGEST_S)
        self._let_go()

    def cross_here(self) -> None:
        """Wait in this thread for all racers, at most `_LONGEST_S`."""
        self._come()
        wait([self._open], _LONGEST_S)
        self._let_go()

    def _come(self) -> None:
        if next(self._coming) >= self._last:
            self._let_go()

    def _let_go(self) -> None:
        with suppress(InvalidStateError):
            self._open.set_result(None)


_line: ContextVar[_Line | None] = ContextVar("line", default=None)


async def raced(make: Callable[[], Sequence[Coroutine[Any, Any, T]]]) -> list[T]:
    """Run the calls that `make` returns, each sending one body, at the same moment; return their results in order.

    If the store refuses unsigned bodies, `make` is called again.
    """
    results = await _run(make(), signed=False)
    if any(isinstance(one, StoreError) and not isinstance(one, Unavailable) for one in results):
        results = await _run(make(), signed=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value] # no exceptions are left


async def _run(calls: Sequence[Coroutine[Any, Any, T]], *, signed: bool) -> list[T | BaseException]:
    token = _line.set(_Line(len(calls), signed=signed))
    try:
        return await asyncio.gather(*calls, return_exceptions=True)
    finally:
        _line.reset(token)


def signs_bodies() -> bool:
    """Return whether a request's signature must cover its body."""
    line = _line.get()
    return line is None or line.signed


def held(body: Any) -> Any:
    """Return the body for a loop's transport; a race holds back its last byte."""
    line = _line.get()
    if line is None or not isinstance(body, (bytes, BytesIO)):
        return body
    return _in_two(body if isinstance(body, bytes) else body.getvalue(), line)


def held_here(body: bytes) -> bytes | Iterator[bytes]:
    """Return the body for a thread's transport; a race holds back its last byte."""
    line = _line.get()
    return body if line is None or not body else _in_two_here(body, line)


async def _in_two(body: bytes, line: _Line) -> AsyncIterator[bytes]:
    yield body[:-1]
    await line.cross()
    yield body[-1:]


def _in_two_here(body: bytes, line: _Line) -> Iterator[bytes]:
    yield body[:-1]
    line.cross_here()
    yield body[-1:]
