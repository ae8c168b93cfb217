"""Base of the HTTP backends: a `Listener` sends and interprets each call's `StoreRequest`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, ClassVar

from fsspec_cas.answer import (
    Capabilities,
    FinishAnswer,
    ListAnswer,
    NoAnswer,
    NotNow,
    ReadAnswer,
    Upload,
    UploadAnswer,
    WriteAnswer,
)
from fsspec_cas.backends.base import AttributeRules, Backend, PartRules
from fsspec_cas.backends.meaning import meaning
from fsspec_cas.backends.reply import Confirm, Dialect, Heard, HttpReply, Says, Spoken, StoreRequest, Verb
from fsspec_cas.clock import Machine
from fsspec_cas.errors import Unavailable
from fsspec_cas.outcome import Absent, Condition, Version, Write


class HttpBackend(Backend):
    """Backend over HTTP; a subclass implements `_exchange`, which sends one request once."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    attribute_rules: ClassVar[AttributeRules]
    part_rules: ClassVar[PartRules]
    blocking = False

    def __init__(self, fs: Any, dialect: Dialect, *, signs: bool | None = None) -> None:
        self._given = fs
        self._listener = Listener(dialect, self._exchange, signs=signs)

    def isolated_connections(self) -> Any:
        """Return the same store with new connections."""
        kind: Any = type(self)
        return kind(self._given)

    async def _exchange(self, asked: StoreRequest, timeout_s: float) -> HttpReply | NotNow | NoAnswer:
        raise NotImplementedError

    def _form(self, path: str, condition: Condition) -> str:
        del path, condition
        return ""

    def put(self, write: Write, data: bytes, *, timeout_s: float) -> Coroutine[Any, Any, WriteAnswer]:
        """Write the whole object if the write's condition holds."""
        verb = Verb.CREATE if isinstance(write.condition, Absent) else Verb.MATCH
        form = self._form(write.path, write.condition)
        asked = StoreRequest(verb, write.path, data, write.condition, write, dialect=form)
        return self._listener.ask(asked, timeout_s)

    def head(self, path: str, *, timeout_s: float) -> Coroutine[Any, Any, ReadAnswer]:
        """Read the object's version, size, time and identity."""
        return self._listener.ask(StoreRequest(Verb.HEAD, path), timeout_s)

    def get(self, path: str, unless: Version | None, *, timeout_s: float) -> Coroutine[Any, Any, ReadAnswer]:
        """Read body and version; `Unchanged` if still at `unless`."""
        return self._listener.ask(StoreRequest(Verb.GET, path, condition=unless), timeout_s)

    def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> Coroutine[Any, Any, WriteAnswer]:
        """Delete the object, if at this version."""
        verb = Verb.DELETE if condition is None else Verb.DELETE_MATCH
        asked = StoreRequest(verb, path, condition=condition)
        return self._listener.ask(asked, timeout_s)

    def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> Coroutine[Any, Any, ListAnswer]:
        """List one page of objects with this prefix."""
        asked = StoreRequest(Verb.LIST, prefix, start_after=start_after, token=token)
        return self._listener.ask(asked, timeout_s)

    def begin(self, write: Write, *, timeout_s: float) -> Coroutine[Any, Any, UploadAnswer]:
        """Begin an upload in parts."""
        return self._listener.ask(StoreRequest(Verb.BEGIN, write.path, write=write), timeout_s)

    def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> Coroutine[Any, Any, UploadAnswer]:
        """Send the next part."""
        return self._listener.ask(StoreRequest(Verb.PART, upload.write.path, data, upload=upload), timeout_s)

    def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> Coroutine[Any, Any, FinishAnswer]:
        """Create the object from its parts, if the path is empty."""
        if tail and not self.part_rules.tail_with_finish:
            raise ValueError("this store takes the last bytes as a part of their own")
        return self._listener.ask(StoreRequest(Verb.FINISH, upload.write.path, tail, upload=upload), timeout_s)

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Drop the parts; the store's answer is ignored."""
        await self._listener.send(StoreRequest(Verb.ABORT, upload.write.path, upload=upload), timeout_s)


_CLOCK = Machine()

Exchange = Callable[[StoreRequest, float], Awaitable[HttpReply | NotNow | NoAnswer]]


class Listener:
    """Sends a backend's requests by `exchange`, interprets replies, and records whether the store gives request ids.

    `signs` is True if it is documented to give them.
    """

    def __init__(self, dialect: Dialect, exchange: Exchange, *, signs: bool | None = None) -> None:
        self._dialect = dialect
        self._exchange = exchange
        self._pinned = signs is not None
        self.signs = signs
        self.proven = False

    def expect_signatures(self) -> None:
        """From now on accept only answers with a request id."""
        self.signs, self._pinned = True, True

    async def ask(self, asked: StoreRequest, timeout_s: float) -> Any:
        """Send the request and return its answer; up to two more requests confirm a reply that proves nothing.

        May raise StoreError, if no second send would help, or NotSupported.
        """
        deadline_s = _CLOCK.monotonic_s() + timeout_s
        reply = await self._exchange(asked, timeout_s)
        if not isinstance(reply, HttpReply):
            return reply
        heard = self._hear(asked, reply)
        if isinstance(heard, Confirm) and heard.by == "sign":
            listed = await self._exchange(asked.as_short_list(), _left(deadline_s))
            if isinstance(listed, HttpReply):
                self._hear(asked.as_short_list(), listed)
            heard = self._hear(asked, reply)
        if isinstance(heard, Confirm) and heard.by != "sign" and not asked.verb.writes:
            return await self._confirmed(asked, heard, deadline_s)
        return self._answer(asked, heard)

    async def send(self, asked: StoreRequest, timeout_s: float) -> None:
        """Send a request and ignore its reply."""
        await self._exchange(asked, timeout_s)

    def _hear(self, asked: StoreRequest, reply: HttpReply) -> Heard:
        heard = self._dialect.hear(asked, reply, signs=self.signs)
        if isinstance(heard, Spoken):
            self.proven = True
            if heard.telling and not self._pinned and (self.signs is not False):
                self.signs = heard.signed
        return heard

    def _answer(self, asked: StoreRequest, heard: Heard) -> Any:
        if isinstance(heard, Spoken):
            return self._meaning(asked, heard)
        if isinstance(heard, Confirm):
            return self._nothing(heard.why)  # only `resolve` can settle such a write
        if heard.next_step:
            raise Unavailable(f"no store answers for {asked.path!r}: {heard.why}; {heard.next_step}", path=asked.path)
        if heard.throttled:
            return NotNow(heard.why, heard.retry_after_s)
        return self._nothing(heard.why, heard.retry_after_s)

    def _nothing(self, why: str, retry_after_s: float | None = None) -> NoAnswer:
        return NoAnswer(why, retry_after_s, stranger=not self.proven)

    def _meaning(self, asked: StoreRequest, spoken: Spoken) -> Any:
        now = datetime.fromtimestamp(_CLOCK.now_ms() / 1000, timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        return meaning(asked, spoken, self._dialect.vendor, now)

    async def _confirmed(self, asked: StoreRequest, confirm: Confirm, deadline_s: float) -> Any:
        """Confirm a head, delete or read by another request, and return its answer."""
        other = asked.as_read() if confirm.by == "get" else asked.as_head()
        reply = await self._exchange(other, _left(deadline_s))
        if not isinstance(reply, HttpReply):
            return NoAnswer(reply.why, reply.retry_after_s)
        heard = self._hear(other, reply)
        if not isinstance(heard, Spoken):
            return self._nothing(confirm.why)
        if heard.says is not Says.DONE:
            return self._meaning(asked, heard)
        answer = self._meaning(other, heard)
        if asked.verb is Verb.HEAD:
            return replace(answer, data=None)
        if asked.verb is not Verb.GET or other.verb is not Verb.GET:
            return self._nothing(confirm.why)  # the object to delete still exists
        return self._meaning(asked, replace(heard, says=Says.UNCHANGED)) if answer.version == asked.version else answer


def _left(deadline_s: float) -> float:
    return max(0.05, deadline_s - _CLOCK.monotonic_s())


_SMALL_BYTES = 1 << 20
_LEAST_PATIENCE_S = 1.0
_NO_HOST = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def patience_s(timeout_s: float, asked: StoreRequest) -> float:
    """Return how long a connection may be silent: a third of `timeout_s`, which leaves time for another one.

    For a large body or a completion it is the whole timeout.
    """
    if len(asked.data) > _SMALL_BYTES or asked.verb is Verb.FINISH:
        return timeout_s
    return min(timeout_s, max(_LEAST_PATIENCE_S, timeout_s / 3))


def unreached(
    error: BaseException, hint: str, path: str, *, proven: bool, unsent: tuple[type[BaseException], ...] = ()
) -> str | None:
    """Return the reason if the request was certainly not sent; None if it may have been.

    `unsent` are the client's errors before a send. Raises Unavailable for a wrong address or certificate, unless the
    store has answered before (`proven`).
    """
    causes = list(_causes(error))
    wrong = next(filter(None, (_misconfigured(cause, hint) for cause in causes)), None)
    if wrong is not None and not proven:
        raise Unavailable(f"{path!r} cannot be reached, and nothing was sent: {wrong}", path=path) from error
    if wrong is not None or any(isinstance(one, (*unsent, socket.gaierror, ConnectionRefusedError)) for one in causes):
        return f"could not connect: {error}"
    return None


def _misconfigured(cause: BaseException, hint: str) -> str | None:
    """Return advice for a certificate, TLS or host name error; else None."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({getattr(cause, 'verify_message', cause)}): {hint}"
    if isinstance(cause, ssl.SSLError) and getattr(cause, "reason", "") in (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
    ):
        return "the server does not speak TLS: write http:// instead of https:// in the endpoint"
    if isinstance(cause, socket.gaierror) and cause.errno in _NO_HOST:
        return f"the host was not found ({cause}): check the endpoint and the region"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all its causes."""
    left: list[object] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        kept = getattr(one, "kwargs", None)
        left += [one.__cause__, kept.get("error") if isinstance(kept, dict) else None]
        left += [getattr(one, name, None) for name in ("os_error", "certificate_error", "inner_exception")]
