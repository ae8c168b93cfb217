"""A faulty network between an SDK and a real server: an HTTP/1.1 proxy in a thread.

    with FaultProxy("127.0.0.1", server.port) as proxy:
        rule = proxy.rule(match=lambda req: req.method == "PUT", action=lose_answer())
        ...a client with proxy.endpoint...
        assert rule.fired == 1

Promised: a request no rule matches passes unchanged, its Host header too (it is signed), once; nothing is ever sent
again; what is logged was logged before the client could see it.
NOT promised: streaming (bodies are held in memory), TLS, pipelining, upgrades.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from faults.actions import Cut, Ending
from faults.wire import Answer, Request, read_answer, read_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from faults.actions import Action, Outcome

# Longer than the slowest contended write of a test server.
RELEASE_S = 60.0
START_S = 10.0
LIMIT_BYTES = 1 << 20


@dataclass
class Rule:
    """What to do to the requests it matches; its counters are the proof that it did."""

    match: Callable[[Request], bool]
    action: Action
    times: int | None
    until: Callable[[Request], bool] | None
    proxy: FaultProxy
    fired: int = 0
    answers: list[int] = field(default_factory=list)  # what the server said to what was delivered under this rule
    kept: list[Request] = field(default_factory=list)

    def takes(self, request: Request) -> bool:
        return (self.times is None or self.fired < self.times) and self.match(request)

    def release(self) -> list[int]:
        """Deliver what was kept back, now; the server's statuses. Call it from the test's thread."""
        return self.proxy.run(self.deliver_kept())

    async def deliver_kept(self) -> list[int]:
        kept, self.kept = self.kept, []
        return [(await _Exchange(self.proxy, _Upstream(self.proxy), one, self).alone()).status for one in kept]


class FaultProxy:
    """Listens on a free port of 127.0.0.1 and speaks to one server.

    `log` has (method, path, what the client got: a status or "close", "reset", "hang", "cut");
    `delivered` has (method, path and query, status) of all that reached the server.
    """

    def __init__(self, host: str, port: int, *, dialect: str = "s3") -> None:
        self.target = (host, port)
        self.dialect = dialect
        self.port = 0
        self.log: list[tuple[str, str, int | str]] = []
        self.delivered: list[tuple[str, str, int]] = []
        self.rules: list[Rule] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="fault-proxy", daemon=True)
        self._listening = threading.Event()
        self._done = asyncio.Event()
        self._broken: BaseException | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def rule(
        self,
        *,
        action: Action,
        match: Callable[[Request], bool] = lambda _request: True,
        times: int | None = 1,
        until: Callable[[Request], bool] | None = None,
    ) -> Rule:
        """Add a rule; the oldest that matches and has not fired `times` times (None: no limit) is taken.

        `until`: what the rule keeps back is delivered when the server has answered a later request that matches,
        before the client gets that answer.
        """
        rule = Rule(match, action, times, until, self)
        self.rules.append(rule)
        return rule

    def run(self, coroutine):
        """Run a coroutine in the proxy's thread and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(RELEASE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._listening.wait(START_S):
            raise RuntimeError(f"the proxy does not listen after {START_S:g} s")
        if self._broken:
            raise self._broken
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(START_S)
        if self._broken:
            raise self._broken

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._listen())
        except Exception as error:  # noqa: BLE001 (shown by whoever leaves the `with`)
            self._broken = error
        finally:
            self._loop.close()
            self._listening.set()

    async def _listen(self) -> None:
        clients: set[asyncio.Task[None]] = set()

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            clients.add(task := asyncio.current_task())
            try:
                await self._client(reader, writer)
            finally:
                clients.discard(task)

        server = await asyncio.start_server(client, "127.0.0.1", 0, limit=LIMIT_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._done.wait()
        server.close()
        for task in tuple(clients):
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await asyncio.sleep(0)  # closed transports say their last word in the next turn of the loop

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = _Upstream(self)
        try:
            await self._talk(reader, writer, upstream)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the proxy is closing
        except Exception as error:  # noqa: BLE001 (a broken rule must fail its test)
            self._broken = error
        upstream.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            writer.close()
            await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: _Upstream) -> None:
        def go_on() -> None:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")

        while request := await read_request(reader, go_on):
            if not await self._one(request, reader, writer, upstream):
                return

    async def _one(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: _Upstream
    ) -> bool:
        """One exchange; whether the client's connection lives on."""
        rule = next((rule for rule in self.rules if rule.takes(request)), None)
        if rule:
            rule.fired += 1
        outcome = await self._outcome(_Exchange(self, upstream, request, rule))
        for other in self.rules:
            if other.kept and other is not rule and other.until and other.until(request):
                await other.deliver_kept()
        self.log.append((request.method, request.path, _word(outcome)))
        return await _give(outcome, request, reader, writer)

    async def _outcome(self, exchange: _Exchange) -> Outcome:
        try:
            return await (exchange.rule.action(exchange) if exchange.rule else exchange.deliver())
        except (ConnectionError, asyncio.IncompleteReadError):
            return Ending.CLOSE  # the server itself went away: the client sees just that


class _Exchange:
    """One request on its way: what an action may do with it."""

    def __init__(self, proxy: FaultProxy, upstream: _Upstream, request: Request, rule: Rule | None) -> None:
        self.proxy, self.upstream, self.request, self.rule = proxy, upstream, request, rule
        self.dialect = proxy.dialect

    async def deliver(self, request: Request | None = None) -> Answer:
        asked = request or self.request
        answer = await self.upstream.ask(asked)
        self.proxy.delivered.append((asked.method, asked.target, answer.status))
        if self.rule:
            self.rule.answers.append(answer.status)
        return answer

    def keep(self) -> None:
        assert self.rule
        self.rule.kept.append(self.request)

    async def alone(self) -> Answer:
        """Deliver on a connection of its own."""
        try:
            return await self.deliver()
        finally:
            self.upstream.close()


class _Upstream:
    """The connection to the server behind one client connection; opened when first needed."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request) -> Answer:
        if self.streams and (self.streams[0].at_eof() or self.streams[1].is_closing()):
            self.close()
        if self.streams is None:
            self.streams = await asyncio.open_connection(*self.proxy.target, limit=LIMIT_BYTES)
        reader, writer = self.streams
        writer.write(request.encode())
        await writer.drain()
        answer = await read_answer(reader, request.method)
        if answer.last:
            self.close()
        return self._seen_from_here(answer)

    def _seen_from_here(self, answer: Answer) -> Answer:
        """A Location of the server itself leads through the proxy, too (resumable uploads)."""
        theirs = "http://{}:{}".format(*self.proxy.target)
        lines = tuple(
            (name, value.replace(theirs, self.proxy.endpoint) if name.lower() == "location" else value)
            for name, value in answer.lines
        )
        # Google gives an id with each answer, and fake-gcs-server does not.
        google = (("X-GUploader-UploadID", "proxy"),) if self.proxy.dialect == "gs" else ()
        return replace(answer, lines=(*lines, *google))

    def close(self) -> None:
        if self.streams:
            self.streams[1].close()
        self.streams = None


def _word(outcome: Outcome) -> int | str:
    match outcome:
        case Answer():
            return outcome.status
        case Cut():
            return "cut"
        case Ending():
            return outcome.value


async def _give(outcome: Outcome, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Give the client its outcome; whether its connection lives on."""
    match outcome:
        case Answer():
            shown = replace(outcome, body=b"") if request.method == "HEAD" else outcome
            writer.write(shown.encode())
            await writer.drain()
            return not outcome.last and request.headers.get("connection", "").lower() != "close"
        case Cut():
            writer.write(outcome)
            await writer.drain()
        case Ending.RESET:
            # Linger zero: what is closed now is closed with RST.
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        case Ending.HANG:
            await reader.read()
        case Ending.CLOSE:
            pass
    return False
