"""Races in which all requests are at the server before one of them is whole.

Each request's last byte is held back until all are there: what looks first and writes later is then sure to be caught.
A transport that can do it asks `held`; over any other the requests just start together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextvars import ContextVar
from io import BytesIO
from typing import Any, TypeVar

T = TypeVar("T")

_LONGEST_S = 1.0  # for which the first of them waits for the last


class _Line:
    def __init__(self, racers: int) -> None:
        self._missing = racers
        self._open = asyncio.Event()

    async def cross(self) -> None:
        """Wait until all have come, or for as long as it is worth while."""
        self._missing -= 1
        if self._missing <= 0:
            self._open.set()
        try:
            await asyncio.wait_for(self._open.wait(), _LONGEST_S)
        except asyncio.TimeoutError:
            self._open.set()


_line: ContextVar[_Line | None] = ContextVar("line", default=None)


async def raced(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run calls that send one body each, at the same moment; their results in order."""
    token = _line.set(_Line(len(calls)))
    try:
        return await asyncio.gather(*calls)
    finally:
        _line.reset(token)


def held(body: Any) -> Any:
    """The body as the transport is to send it: if it is in a race, in two parts, with a pause between them."""
    line = _line.get()
    if line is None or not isinstance(body, (bytes, BytesIO)):
        return body
    return _in_two(body if isinstance(body, bytes) else body.getvalue(), line)


async def _in_two(body: bytes, line: _Line) -> AsyncIterator[bytes]:
    yield body[:-1]
    await line.cross()
    yield body[-1:]
