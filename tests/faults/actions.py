"""What a proxy can do to one exchange. An action gets a `Hop` and says what the client gets.

AFTER the server applied the request: the answer is lost or changed, the write is there.
BEFORE: the server never saw it, and the answer is true.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol
from xml.sax.saxutils import escape

from faults.wire import Answer, Request, set_headers, without

if TYPE_CHECKING:
    from faults.wire import Lines


class Ending(str, Enum):
    """What a client gets instead of an answer."""

    CLOSE = "close"  # FIN where the answer should be
    RESET = "reset"  # RST
    HANG = "hang"  # nothing, until the client gives up


class Cut(bytes):
    """These bytes of an answer, then FIN."""


Outcome = Answer | Ending | Cut


class Hop(Protocol):
    """One exchange as an action sees it."""

    request: Request
    dialect: str

    async def deliver(self, request: Request | None = None) -> Answer:
        """Send the request (or a changed one) to the server once; what it said."""

    def keep(self) -> None:
        """Hold the request back for `Rule.release` or for the rule's `until`."""


Action = Callable[[Hop], Awaitable[Outcome]]


def error(status: int, code: str, *, dialect: str = "s3", headers: Lines = ()) -> Answer:
    """An error as the vendor itself gives it, with its proofs; `code` as S3 and Azure name it (GCS has the status)."""
    if dialect == "gs":
        each = f'[{{"reason":"{code}"}}]'
        kind, body = "application/json", f'{{"error":{{"code":{status},"message":"{code}","errors":{each}}}}}'.encode()
    else:
        xml = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>injected</Message></Error>'
        kind, body = "application/xml", xml.format(escape(code)).encode()
    named = (("x-ms-error-code", code), ("x-ms-request-id", "injected"))
    vendor = named if dialect == "az" else (("x-amz-request-id", "injected"),) if dialect == "s3" else ()
    own = (("Content-Type", kind), ("Content-Length", str(len(body))), *vendor)
    return Answer(status, set_headers(own, headers), body)


# After the server applied the request.


def lose_answer(how: Ending = Ending.CLOSE) -> Action:
    """The server did it; the client sees the connection closed (or reset, or nothing at all)."""

    async def act(hop: Hop) -> Outcome:
        await hop.deliver()
        return how

    return act


def replace_answer(status: int, code: str = "InternalError") -> Action:
    """The server did it; the client is told 500, 502, 503, ... (200 is `ok_with_error`)."""

    async def act(hop: Hop) -> Outcome:
        await hop.deliver()
        return error(status, code, dialect=hop.dialect)

    return act


def ok_with_error(code: str = "InternalError") -> Action:
    """The server did it; the client is told 200 with an error as the body, as S3 may on long requests."""
    return replace_answer(200, code)


def cut_answer(keep: int) -> Action:
    """The server did it; the client gets the head and `keep` bytes of the body, then FIN."""

    async def act(hop: Hop) -> Outcome:
        answer = await hop.deliver()
        whole = answer.encode()
        return Cut(whole[: len(whole) - len(answer.body) + keep])

    return act


# Before.


def refuse(status: int, code: str, *, retry_after_s: int | None = None) -> Action:
    """The server never sees it."""
    headers = (("Retry-After", str(retry_after_s)),) if retry_after_s is not None else ()

    async def act(hop: Hop) -> Outcome:
        return error(status, code, dialect=hop.dialect, headers=headers)

    return act


def conflict() -> Action:
    """S3's 409 of a conditional write that met another one in flight: nothing is known, try again."""
    return refuse(409, "ConditionalRequestConflict")


def failed_condition() -> Action:
    """A 412 of its own, whatever is stored."""
    return refuse(412, "PreconditionFailed")


def too_many(retry_after_s: int | None = None) -> Action:
    return refuse(429, "TooManyRequests", retry_after_s=retry_after_s)


def slow_down(retry_after_s: int | None = None) -> Action:
    return refuse(503, "SlowDown", retry_after_s=retry_after_s)


def server_error() -> Action:
    return refuse(500, "InternalError")


def never_deliver(how: Ending = Ending.RESET) -> Action:
    """The connection is reset (closed, silent) and the server never sees the request."""

    async def act(_hop: Hop) -> Outcome:
        return how

    return act


# In another number, or at another time.


def deliver_twice() -> Action:
    """The network repeats the request; the client gets the answer to the second."""

    async def act(hop: Hop) -> Outcome:
        await hop.deliver()
        return await hop.deliver()

    return act


def deliver_late(answer: Outcome | int = Ending.RESET) -> Action:
    """The client is told at once that it failed; the server gets the request later (`release`, `until`)."""

    async def act(hop: Hop) -> Outcome:
        hop.keep()
        return error(answer, "InternalError", dialect=hop.dialect) if isinstance(answer, int) else answer

    return act


# Rewriting.


def strip_request_headers(*names: str) -> Action:
    """A proxy that drops conditions on the way in."""

    async def act(hop: Hop) -> Outcome:
        return await hop.deliver(hop.request.without_headers(*names))

    return act


def strip_query(*names: str) -> Action:
    """The same for GCS, whose conditions are in the query."""

    async def act(hop: Hop) -> Outcome:
        return await hop.deliver(hop.request.without_query(*names))

    return act


def rewrite_answer(change: Callable[[Answer], Answer]) -> Action:
    async def act(hop: Hop) -> Outcome:
        return change(await hop.deliver())

    return act


def strip_answer_headers(*names: str) -> Action:
    return rewrite_answer(lambda answer: replace(answer, lines=without(answer.lines, *names)))


def unquote_etag() -> Action:
    """A server that writes its ETag without the quotes RFC 9110 asks for."""

    def change(answer: Answer) -> Answer:
        lines = tuple((n, v.strip('"') if n.lower() == "etag" else v) for n, v in answer.lines)
        return replace(answer, lines=lines)

    return rewrite_answer(change)
