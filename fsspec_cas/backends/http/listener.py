"""One exchange with a store: send, hear, and confirm where the reply alone proves nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from fsspec_cas.answer import NoAnswer, NotNow
from fsspec_cas.backends.http.meaning import meaning
from fsspec_cas.backends.http.reply import Confirm, Dialect, Heard, HttpReply, Says, Spoken, StoreRequest, Verb
from fsspec_cas.clock import Machine
from fsspec_cas.errors import Unavailable

_CLOCK = Machine()

Exchange = Callable[[StoreRequest, float], Awaitable[HttpReply | NotNow | NoAnswer]]


class Listener:
    """What a backend knows of the store that it talks to, and how it hears it.

    `exchange` sends one request, once. `signs` is True where the store is documented to give request ids.
    """

    def __init__(self, dialect: Dialect, exchange: Exchange, *, signs: bool | None = None) -> None:
        self._dialect = dialect
        self._exchange = exchange
        self._pinned = signs is not None
        self.signs = signs
        self.proven = False

    def expect_signatures(self) -> None:
        """From now on only answers with a request id count as such: the store is documented to give one."""
        self.signs, self._pinned = True, True

    async def ask(self, asked: StoreRequest, timeout_s: float) -> Any:
        """What the request came to. At most two more requests, within `timeout_s`, confirm what proves nothing.

        Raises:
            StoreError: the store refuses, and no second send mends that. `NotSupported`: it does not implement it.
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
        """Send a request whose reply is used for nothing."""
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
            return self._nothing(heard.why)  # a write to a bare store: only the object can show it, and `resolve` looks
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
        """Of a look, a delete, or a read: a plain read or a look decides."""
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
            return self._nothing(confirm.why)  # what was to be gone is there
        return self._meaning(asked, replace(heard, says=Says.UNCHANGED)) if answer.version == asked.version else answer


def _left(deadline_s: float) -> float:
    return max(0.05, deadline_s - _CLOCK.monotonic_s())
