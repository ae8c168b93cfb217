"""What the backends that speak HTTP through aiohttp have in common.

A connection belongs to the event loop it was made on and to the process; `PerLoop` keeps one for each. `sends_once`
takes away aiohttp's own second send. `Trip` tells what failed before a request left, and so was certainly not done.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, TypeVar

from fsspec_cas.answer import NoAnswer, NotNow
from fsspec_cas.bridge.drive import close_from_any_thread
from fsspec_cas.errors import NotSupported

if sys.version_info >= (3, 11):
    from asyncio import timeout as within  # `wait_for` made a task of its own for each request before Python 3.12
else:
    from async_timeout import timeout as within  # comes with aiohttp

__all__ = ["Ask", "PerLoop", "Trip", "epoch_ms", "http_date_ms", "no_refusal", "retry_after_s", "sends_once", "within"]

A = TypeVar("A")
C = TypeVar("C", bound=AbstractAsyncContextManager[Any])
P = ParamSpec("P")


class Ask(Protocol[P]):
    """Sends once and translates what comes back; `refusal` says what a status and the store's code for it mean."""

    async def __call__(
        self,
        path: str,
        send: Callable[P, Coroutine[Any, Any, A]],
        refusal: Callable[[int, str], A | None],
        timeout_s: float,
    ) -> A | NotNow | NoAnswer:
        """Ask for what `send` does, within so many seconds."""


def no_refusal(*_: object) -> None:
    """The refusal that says nothing in particular, of requests without a condition."""


class Trip:
    """One call of a backend, from `begin` in the task that makes it; `leave` is called where the request goes out."""

    __slots__ = ("left",)

    _now: ClassVar[ContextVar[Trip | None]] = ContextVar("trip", default=None)

    def __init__(self) -> None:
        self.left = False

    @classmethod
    def begin(cls) -> Trip:
        """What is sent from here on is this call's."""
        trip = cls()
        cls._now.set(trip)
        return trip

    @classmethod
    def leave(cls) -> None:
        """From now on nobody knows, until there is an answer."""
        trip = cls._now.get()
        if trip is not None:
            trip.left = True


@dataclass(frozen=True, slots=True)
class _Opened(Generic[C]):
    connection: C
    loop: asyncio.AbstractEventLoop
    closer: weakref.finalize[..., Any]


class PerLoop(Generic[C]):
    """One connection for each event loop and process, closed when this object is garbage."""

    def __init__(self) -> None:
        self._opened: dict[tuple[int, int], _Opened[C]] = {}
        self._opening: dict[tuple[int, int], asyncio.Lock] = {}

    async def get(self, open_one: Callable[[], Awaitable[C]]) -> C:
        """The running loop's connection; `open_one` makes it at the first call."""
        here = _here()
        if here not in self._opened:
            self._forget_closed_loops()
            async with self._opening.setdefault(here, asyncio.Lock()):
                if here not in self._opened:
                    self._opened[here] = self._keep(await open_one())
        return self._opened[here].connection

    async def close(self) -> None:
        """Close the running loop's connection, if there is one."""
        opened = self._opened.pop(_here(), None)
        if opened is not None:
            opened.closer.detach()
            await opened.connection.__aexit__(None, None, None)

    def _keep(self, connection: C) -> _Opened[C]:
        loop = asyncio.get_running_loop()
        return _Opened(connection, loop, weakref.finalize(self, close_from_any_thread, loop, connection))

    def _forget_closed_loops(self) -> None:
        for place in [place for place, opened in self._opened.items() if opened.loop.is_closed()]:
            self._opened.pop(place).closer.detach()
            self._opening.pop(place, None)


def sends_once(session: Any) -> Any:
    """The aiohttp session, told not to send a PUT or DELETE again when its connection breaks.

    Raises:
        NotSupported: this aiohttp cannot be told so.

    Source: aiohttp.client, `_retry_connection`; there is no public switch.
    """
    if not hasattr(session, "_retry_connection"):
        raise NotSupported("this aiohttp re-sends requests unseen and cannot be told not to; use aiohttp >= 3.11")
    session._retry_connection = False  # noqa: SLF001 - see above
    return session


def epoch_ms(moment: datetime | None) -> int | None:
    """Epoch ms of a time with a zone."""
    return None if moment is None else int(moment.timestamp() * 1000)


def http_date_ms(text: str | None) -> int | None:
    """Epoch ms of a `Date` header; None for none, and for one that is no date."""
    try:
        return epoch_ms(parsedate_to_datetime(text)) if text else None
    except ValueError:
        return None


def retry_after_s(text: str | None) -> float | None:
    """Seconds of a `Retry-After` header; None for none, and for one that is a date."""
    return float(text) if text and text.isdigit() else None


def _here() -> tuple[int, int]:
    return os.getpid(), id(asyncio.get_running_loop())
