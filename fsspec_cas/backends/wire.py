"""Base of the aiohttp backends: a client per event loop and process, which sends each request once."""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from contextvars import ContextVar
from typing import Any, ClassVar

import aiohttp

from fsspec_cas.answer import NoAnswer, NotApplied
from fsspec_cas.backends.http import HttpBackend, patience_s, unreached
from fsspec_cas.backends.reply import Dialect, HttpReply, StoreRequest
from fsspec_cas.bridge.drive import close_from_any_thread
from fsspec_cas.errors import CasError, NotSupported

if sys.version_info >= (3, 11):
    from asyncio import timeout as within  # before Python 3.12 `wait_for` makes a task
else:
    from async_timeout import timeout as within

__all__ = ["AIOHTTP_UNSENT", "AioBackend", "Answered", "Refusing", "Trip", "sends_once", "within"]

_LONG_S = 1e6
AIOHTTP_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


class Trip:
    """State of one request: `left` once the transport sends it, then its `reply`.

    `patience_s`: how long the reply may be silent.
    """

    __slots__ = ("left", "patience_s", "reply")

    _now: ClassVar[ContextVar[Trip | None]] = ContextVar("trip", default=None)

    def __init__(self, patience_s: float) -> None:
        self.left = False
        self.patience_s = patience_s
        self.reply: HttpReply | None = None

    @classmethod
    def begin(cls, patience_s: float) -> Trip:
        trip = cls(patience_s)
        cls._now.set(trip)
        return trip

    @classmethod
    def leave(cls) -> Trip:
        """Mark this task's trip, or a new one, as sent without a reply."""
        trip = cls._now.get() or cls(_LONG_S)
        trip.left, trip.reply = True, None
        return trip


class AioBackend(HttpBackend):
    """Garbage collection closes the clients."""

    failures: ClassVar[tuple[type[Exception], ...]]
    unsent: ClassVar[tuple[type[Exception], ...]] = AIOHTTP_UNSENT
    hint: ClassVar[str] = "set SSL_CERT_FILE to the file of the authority's certificate"

    def __init__(self, fs: Any, dialect: Dialect, *, gives_request_ids: bool | None = None) -> None:
        super().__init__(fs, dialect, gives_request_ids=gives_request_ids)
        self._clients: dict[tuple[int, int], tuple[Any, asyncio.AbstractEventLoop, weakref.finalize[..., Any]]] = {}
        self._opening: weakref.WeakValueDictionary[tuple[int, int], asyncio.Lock] = weakref.WeakValueDictionary()

    async def close(self) -> None:
        if _here() in self._clients:
            client, _, closer = self._clients.pop(_here())
            closer.detach()
            await client.__aexit__(None, None, None)

    async def _open(self) -> Any:
        raise NotImplementedError

    async def _client(self) -> Any:
        """Return the running loop's client; the first call opens it, and drops those of closed loops."""
        here = _here()
        if here not in self._clients:
            for key, (_, loop, closer) in [*self._clients.items()]:  # other threads' loops change it
                if loop.is_closed():
                    self._clients.pop(key, None)
                    closer.detach()
            async with self._opening.setdefault(here, asyncio.Lock()):
                if here not in self._clients:
                    loop, client = asyncio.get_running_loop(), await self._open()
                    self._clients[here] = client, loop, weakref.finalize(self, close_from_any_thread, loop, client)
        return self._clients[here][0]

    async def _send(self, client: Any, request: StoreRequest) -> None:
        """Send the request; the transport marks the trip, stores the reply, and may raise `Answered`."""
        raise NotImplementedError

    def _preparation_failed(self, error: Exception, path: str) -> NotApplied:
        raise NotImplementedError

    async def _exchange(self, request: StoreRequest, timeout_s: float) -> HttpReply | NotApplied | NoAnswer:
        """Send the request once; return its reply, or the answer for a failure.

        `timeout_s` begins when a client is open. Raises CasError if no second try would help, and unknown errors.
        """
        trip = Trip.begin(patience_s(timeout_s, request))
        try:
            client = await self._client()  # no timeout: a short try must not discard the loop's client
            async with within(timeout_s):
                await self._send(client, request)
        except CasError:
            raise
        except Exception as error:  # noqa: BLE001 - `_failed` re-raises unknown errors
            if trip.reply is None:
                return self._failed(error, request.path, left=trip.left, timeout_s=timeout_s)
            error.__traceback__ = None  # the cycle with an SDK's frame would keep the body
        return trip.reply or NoAnswer("the client library did not pass on the reply")

    def _failed(self, error: Exception, path: str, *, left: bool, timeout_s: float) -> NotApplied | NoAnswer:
        """Return the answer for a client's exception; raise unknown ones, and CasError if no second try would help.

        `left`: it may have been sent.
        """
        if not left and isinstance(error, (*self.failures, asyncio.TimeoutError, ValueError, RuntimeError)):
            return self._preparation_failed(error, path)
        if left and isinstance(error, asyncio.TimeoutError) and not isinstance(error, self.unsent):
            return NoAnswer(f"no answer within {timeout_s:.3g} s")
        if not isinstance(error, self.failures):
            raise error
        # SDKs also report "could not connect" after the request had left.
        why = unreached(error, self.hint, path, proven=self.proven, unsent=self.unsent)
        cause = getattr(error, "inner_exception", None) or error
        return NotApplied(why) if why else NoAnswer(f"{type(cause).__name__}: {error}")


class Answered(Exception):
    """Raised by a transport once its `Trip` has the reply."""


class Refusing:
    """aiohttp session that follows no redirect."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def request(self, method: str, **kwargs: Any) -> Any:
        return self._session.request(method, **{**kwargs, "allow_redirects": False})


def sends_once(session: Any) -> Any:
    if not hasattr(session, "_retry_connection"):
        raise NotSupported(
            "this aiohttp repeats requests by itself and has no option against it: install aiohttp >= 3.11"
        )
    session._retry_connection = False  # noqa: SLF001 - see above
    return session


def _here() -> tuple[int, int]:
    return os.getpid(), id(asyncio.get_running_loop())
