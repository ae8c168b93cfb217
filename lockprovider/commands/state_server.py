"""HTTP server of `state run` and `state serve` on loopback: passes requests to `TerraformBackend`.

A password keeps out the machine's other users.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fsspec_cas import InvalidInput
from lockprovider.recipes.state.terraform import LARGEST_BODY, Reply, TerraformBackend
from lockprovider.state import State

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

USER = "lockprovider"
_AT_ONCE = 8
_SILENT = 256  # connections without a right password
_END_S = 60.0

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request."""

    headers_s: float = 10.0
    next_s: float = 30.0
    body_s: float = 600.0
    body_bytes: int = LARGEST_BODY


class StateServer:
    """Backend on a port of 127.0.0.1, bound at creation. InvalidInput: no aiohttp, or the port is taken."""

    def __init__(
        self,
        state: State[bytes],
        password: str,
        port: int = 0,
        *,
        on_rejected: Report | None = None,
        limits: Limits | None = None,
    ) -> None:
        try:
            from aiohttp import web  # noqa: PLC0415 - only these commands need it
        except ImportError as error:
            raise InvalidInput("this command needs aiohttp: install the extra 'serve' of fsspec-cas") from error
        self._web = web
        self.backend = TerraformBackend(state)
        self._password = password
        self._token = f"Basic {base64.b64encode(f'{USER}:{password}'.encode()).decode()}".encode()
        self._on_rejected = on_rejected or (lambda _: None)
        self._limits = limits or Limits()
        self._socket = _bound(port)
        self._silent: dict[Any, asyncio.TimerHandle] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._reading: set[asyncio.Task[Any]] = set()
        self._serving = threading.Event()
        self.was_asked = False

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/state"

    def environment(self, *, force: bool = False) -> dict[str, str]:
        """Terraform's variables, password included; `force`: accept any lineage and serial."""
        return {
            "TF_HTTP_ADDRESS": f"{self.address}?force=true" if force else self.address,
            "TF_HTTP_LOCK_ADDRESS": self.address,
            "TF_HTTP_UNLOCK_ADDRESS": self.address,
            "TF_HTTP_USERNAME": USER,
            "TF_HTTP_PASSWORD": self._password,
        }

    def serve(self) -> None:
        """Handle requests until `shutdown`, then release locks and close the socket."""
        try:
            asyncio.run(self._serve())
        finally:
            self._serving.set()
            self.backend.close()
            self._socket.close()

    def shutdown(self) -> None:
        """Let `serve`, once it runs, drop incomplete requests, finish the others, and return."""
        self._serving.wait()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)

    async def _serve(self) -> None:
        """Set `_serving`, and handle requests on 8 threads until `shutdown`.

        Then drops incomplete ones, and finishes others within 60 s.
        """
        self._loop = asyncio.get_running_loop()
        answering = ThreadPoolExecutor(_AT_ONCE, "state-answering")
        self._loop.set_default_executor(answering)
        quiet = logging.getLogger(f"{__name__}.aiohttp")
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False  # stderr belongs to the command
        requests = self._web.Server(
            self._handled, access_log=None, logger=quiet, auto_decompress=False, lingering_time=1.0
        )
        listening = await self._loop.create_server(lambda: self._connected(requests), sock=self._socket)
        self._serving.set()
        try:
            await self._end.wait()
        finally:
            listening.close()
            for reading in self._reading:  # an incomplete request belongs to a dead run
                reading.cancel()
            requests.pre_shutdown()
            await requests.shutdown(_END_S)

    def _connected(self, requests: Any) -> Any:
        """Protocol of a new connection, closed unless the password comes in time; closes the oldest of 256."""
        assert self._loop is not None  # noqa: S101
        if len(self._silent) >= _SILENT:
            self._close(next(iter(self._silent)))
        connection = requests()
        self._silent[connection] = self._loop.call_later(self._limits.headers_s, self._close, connection)
        return connection

    def _close(self, connection: Any) -> None:
        self._heard(connection)
        assert self._loop is not None  # noqa: S101
        self._loop.call_soon(connection.force_close)  # a new connection has no transport yet

    def _heard(self, connection: Any) -> None:
        if (timer := self._silent.pop(connection, None)) is not None:
            timer.cancel()

    async def _handled(self, request: BaseRequest) -> StreamResponse:
        """Answer one request, close the connection; report refusals to `on_rejected`, except of a wrong password."""
        reply = await self._reply(request)
        if reply.message and reply.status is not HTTPStatus.UNAUTHORIZED:
            self._on_rejected(f"{request.method} was refused ({reply.status.value}): {reply.message}")
        response: StreamResponse = self._web.Response(
            status=reply.status, body=reply.body, content_type="application/json"
        )
        if reply.status is HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = 'Basic realm="state"'
        response.force_close()
        return response

    async def _reply(self, request: BaseRequest) -> Reply:
        """Check the password, path and encoding (401, 404, 415), read the body, answer on a thread, 8 at once.

        Returns the body's refusals. A right password sets `was_asked`, and ends the connection's timeout.
        """
        if not hmac.compare_digest(_raw(request.headers.get("Authorization", "")), self._token):
            message = "set TF_HTTP_USERNAME and TF_HTTP_PASSWORD"
            return Reply.refusal(HTTPStatus.UNAUTHORIZED, "AccessDenied", message)
        self._heard(request.protocol)
        self.was_asked = True
        if request.path != "/state":
            return Reply.refusal(HTTPStatus.NOT_FOUND, "InvalidInput", f"the state is at {self.address}")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            message = "send the state without a Content-Encoding"
            return Reply.refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "InvalidInput", message)
        async with self._places:
            body = await self._body(request)
            if isinstance(body, Reply):
                return body
            return await asyncio.to_thread(self.backend.answer, request.method, request.query_string, body)

    async def _body(self, request: BaseRequest) -> bytes | Reply:
        """Read the body, or return a refusal: too large (413), late (408), cut off, or unlike its Content-MD5 (400)."""
        most = self._limits.body_bytes
        message = f"the body is larger than {most} bytes"
        too_large = Reply.refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TooLarge", message)
        if (request.content_length or 0) > most:
            return too_large
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        reading = asyncio.current_task()
        assert reading is not None  # noqa: S101 - aiohttp runs each handler in a task
        self._reading.add(reading)
        try:
            body = await self._whole_body(request)
        except asyncio.TimeoutError:
            message = "the body did not come in time; nothing was written"
            return Reply.refusal(HTTPStatus.REQUEST_TIMEOUT, "Unavailable", message)
        except (self._web.RequestPayloadError, ConnectionError, ValueError) as error:
            message = f"the body is not whole, nothing was written ({type(error).__name__})"
            return Reply.refusal(HTTPStatus.BAD_REQUEST, "InvalidInput", message)
        finally:
            self._reading.discard(reading)
        if body is None:
            return too_large
        if not _fits_md5(body, request.headers.get("Content-MD5")):
            message = "the body does not fit its Content-MD5: it was changed on its way; nothing was written"
            return Reply.refusal(HTTPStatus.BAD_REQUEST, "InvalidInput", message)
        return body

    async def _whole_body(self, request: BaseRequest) -> bytes | None:
        """Read the body; None: too large. TimeoutError: nothing for `next_s`, or longer than `body_s`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._limits.body_s
        pieces: list[bytes] = []
        size = 0
        while size <= self._limits.body_bytes:
            left_s = min(self._limits.next_s, deadline_s - loop.time())
            piece = await asyncio.wait_for(request.content.readany(), left_s)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
        return None


def _raw(header: str) -> bytes:
    return header.encode(errors="surrogateescape")  # aiohttp decodes so


def _fits_md5(body: bytes, header: str | None) -> bool:
    if header is None:
        return True
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    return hmac.compare_digest(base64.b64encode(digest), _raw(header.strip()))


def _bound(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"port {port} of 127.0.0.1 cannot be had ({error}): give another one") from error
