"""Base of the HTTP backends."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, ClassVar

from fsspec_cas.answer import (
    Capabilities,
    FinishAnswer,
    ListAnswer,
    NoAnswer,
    NotApplied,
    ReadAnswer,
    Upload,
    UploadAnswer,
    WriteAnswer,
)
from fsspec_cas.backends.base import AttributeRules, Backend, PartRules
from fsspec_cas.backends.meaning import meaning
from fsspec_cas.backends.reply import (
    Confirm,
    Dialect,
    HttpReply,
    ReplyMeaning,
    StatementKind,
    StoreRequest,
    StoreStatement,
    Verb,
)
from fsspec_cas.errors import Unavailable
from fsspec_cas.machine import Machine
from fsspec_cas.outcome import Absent, Condition, Version, Write

_CLOCK = Machine()
ALL_CAPABILITIES = Capabilities(
    create=True,
    match=True,
    delete_match=True,
    read_changed=True,
    unique_versions=True,
    keeps_write_id=True,
    own_clock=True,
)


class HttpBackend(Backend):
    """A subclass implements `_exchange`, which sends one request once.

    `proven`: the endpoint has answered as a store.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    attribute_rules: ClassVar[AttributeRules]
    part_rules: ClassVar[PartRules]
    blocking = False

    def __init__(self, fs: Any, dialect: Dialect, *, gives_request_ids: bool | None = None) -> None:
        self._given = fs
        self._dialect = dialect
        self._pinned = gives_request_ids is not None
        self.gives_request_ids = gives_request_ids
        self.proven = False

    def isolated_connections(self) -> Any:
        kind: Any = type(self)
        return kind(self._given)

    async def _exchange(self, request: StoreRequest, timeout_s: float) -> HttpReply | NotApplied | NoAnswer:
        raise NotImplementedError

    def _form(self, path: str, condition: Condition) -> str:
        return ""

    def put(self, write: Write, data: bytes, *, timeout_s: float) -> Coroutine[Any, Any, WriteAnswer]:
        verb = Verb.CREATE if isinstance(write.condition, Absent) else Verb.MATCH
        form = self._form(write.path, write.condition)
        request = StoreRequest(verb, write.path, data, write.condition, write, dialect=form)
        return self._ask(request, timeout_s)

    def head(self, path: str, *, timeout_s: float) -> Coroutine[Any, Any, ReadAnswer]:
        return self._ask(StoreRequest(Verb.HEAD, path), timeout_s)

    def get(self, path: str, unless: Version | None, *, timeout_s: float) -> Coroutine[Any, Any, ReadAnswer]:
        return self._ask(StoreRequest(Verb.GET, path, condition=unless), timeout_s)

    def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> Coroutine[Any, Any, WriteAnswer]:
        verb = Verb.DELETE if condition is None else Verb.DELETE_MATCH
        return self._ask(StoreRequest(verb, path, condition=condition), timeout_s)

    def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> Coroutine[Any, Any, ListAnswer]:
        return self._ask(StoreRequest(Verb.LIST, prefix, start_after=start_after, token=token), timeout_s)

    def begin(self, write: Write, *, timeout_s: float) -> Coroutine[Any, Any, UploadAnswer]:
        return self._ask(StoreRequest(Verb.BEGIN, write.path, write=write), timeout_s)

    def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> Coroutine[Any, Any, UploadAnswer]:
        return self._ask(StoreRequest(Verb.PART, upload.write.path, data, upload=upload), timeout_s)

    def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> Coroutine[Any, Any, FinishAnswer]:
        if tail and not self.part_rules.tail_with_finish:
            raise ValueError("this store takes the last bytes as a part of their own")
        return self._ask(StoreRequest(Verb.FINISH, upload.write.path, tail, upload=upload), timeout_s)

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        await self._exchange(StoreRequest(Verb.ABORT, upload.write.path, upload=upload), timeout_s)

    def expect_request_ids(self) -> None:
        self.gives_request_ids, self._pinned = True, True

    async def _ask(self, request: StoreRequest, timeout_s: float) -> Any:
        """Send the request; return the answer, without a proven reply `NoAnswer` or `NotApplied`.

        A proven one marks the store proven. Else a listing may follow, which records if request ids come, or (not of a
        write) a confirming read. CasError: re-sending cannot help.
        """
        deadline_s = _CLOCK.monotonic_s() + timeout_s
        reply = await self._exchange(request, timeout_s)
        if not isinstance(reply, HttpReply):
            return reply
        heard = self._interpret(request, reply)
        if isinstance(heard, Confirm) and heard.by == "sign":
            short_list = StoreRequest(Verb.LIST, f"{request.path.partition('/')[0]}/", limit=1)
            listed = await self._exchange(short_list, _left(deadline_s))
            if isinstance(listed, HttpReply):
                self._interpret(short_list, listed)
            heard = self._interpret(request, reply)
        if isinstance(heard, Confirm) and heard.by != "sign" and not request.verb.writes:
            return await self._confirmed(request, heard, deadline_s)
        return self._answer(request, heard)

    def _interpret(self, request: StoreRequest, reply: HttpReply) -> ReplyMeaning:
        """Interpret a reply; record whether the endpoint is proven and gives request ids."""
        heard = self._dialect.interpret(request, reply, gives_request_ids=self.gives_request_ids)
        if isinstance(heard, StoreStatement):
            self.proven = True
            if heard.shows_request_ids and not self._pinned and (self.gives_request_ids is not False):
                self.gives_request_ids = heard.has_request_id
        return heard

    def _answer(self, request: StoreRequest, heard: ReplyMeaning) -> Any:
        """Return the answer of the interpreted reply `heard`.

        Raises CasError if re-sending cannot help. An unproven reply gives `NotApplied` if throttled; else, or if it
        needs confirmation, `NoAnswer`.
        """
        if isinstance(heard, StoreStatement):
            return self._meaning(request, heard)
        if isinstance(heard, Confirm):
            return self._nothing(heard.why)  # only `resolve` can settle such a write
        if heard.next_step:
            raise Unavailable(
                f"no store answers for {request.path!r}: {heard.why}; {heard.next_step}", path=request.path
            )
        if heard.throttled:
            return NotApplied(heard.why, heard.retry_after_s)
        return self._nothing(heard.why, heard.retry_after_s)

    def _nothing(self, why: str, retry_after_s: float | None = None) -> NoAnswer:
        return NoAnswer(why, retry_after_s, stranger=not self.proven)

    def _meaning(self, request: StoreRequest, statement: StoreStatement) -> Any:
        now = datetime.fromtimestamp(_CLOCK.now_ms() / 1000, timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        return meaning(request, statement, self._dialect.vendor, now)

    async def _confirmed(self, request: StoreRequest, confirm: Confirm, deadline_s: float) -> Any:
        """Confirm a head, delete or read by the read that `confirm` names.

        Return the proven answer, or raise the proven refusal, else return `NoAnswer`. Of a delete, only an absent
        object is proof.
        """
        other = StoreRequest(Verb.GET if confirm.by == "get" else Verb.HEAD, request.path)
        reply = await self._exchange(other, _left(deadline_s))
        if not isinstance(reply, HttpReply):
            return NoAnswer(reply.why, reply.retry_after_s)
        heard = self._interpret(other, reply)
        if not isinstance(heard, StoreStatement):
            return self._nothing(confirm.why)
        if heard.kind is not StatementKind.DONE:
            return self._meaning(request, heard)
        answer = self._meaning(other, heard)
        if request.verb is Verb.HEAD:
            return replace(answer, data=None)
        if request.verb is not Verb.GET or other.verb is not Verb.GET:
            return self._nothing(confirm.why)
        if answer.version == request.version:
            return self._meaning(request, replace(heard, kind=StatementKind.UNCHANGED))
        return answer


def _left(deadline_s: float) -> float:
    return max(0.05, deadline_s - _CLOCK.monotonic_s())


_SMALL_BYTES = 1 << 20
_LEAST_PATIENCE_S = 1.0
LONGEST_S = 86_400.0  # sockets refuse more than 24 days
_NO_HOST = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def patience_s(timeout_s: float, request: StoreRequest) -> float:
    """How long a connection may be silent: all of `timeout_s` for large bodies and completions, else a third."""
    if len(request.data) > _SMALL_BYTES or request.verb is Verb.FINISH:
        return min(timeout_s, LONGEST_S)
    return min(timeout_s, max(_LEAST_PATIENCE_S, timeout_s / 3), LONGEST_S)


def unreached(
    error: BaseException, hint: str, path: str, *, proven: bool, unsent: tuple[type[Exception], ...]
) -> str | None:
    """Return why the request was certainly not sent; None unless an error of `unsent` caused this one.

    A wrong address or certificate raises Unavailable, with `hint`, unless the store is `proven`.
    """
    causes = list(_causes(error))
    if not any(isinstance(cause, unsent) for cause in causes):
        return None  # a later break can show the same TLS error
    wrong = next(filter(None, (_misconfigured(cause, hint) for cause in causes)), None)
    if wrong is not None and not proven:
        raise Unavailable(f"{path!r} cannot be reached, and nothing was sent: {wrong}", path=path) from error
    return f"could not connect: {error}"


def _misconfigured(cause: BaseException, hint: str) -> str | None:
    """Return advice for a certificate (with `hint`), TLS or host name error; None for others."""
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
    """Yield the error and its causes, each once, also causes that HTTP libraries keep in attributes."""
    pending: list[object] = [error]
    visited: set[int] = set()
    while pending:
        candidate = pending.pop(0)
        if not isinstance(candidate, BaseException) or id(candidate) in visited:
            continue
        visited.add(id(candidate))
        yield candidate
        kwargs = getattr(candidate, "kwargs", None)
        pending += [candidate.__cause__, kwargs.get("error") if isinstance(kwargs, dict) else None]
        pending += [getattr(candidate, name, None) for name in ("os_error", "certificate_error", "inner_exception")]
