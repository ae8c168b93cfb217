"""What the backends that speak HTTP have in common: each call is one `StoreRequest` of a `Listener`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fsspec_cas.answer import (
    FinishAnswer,
    ListAnswer,
    NoAnswer,
    NotNow,
    ReadAnswer,
    Upload,
    UploadAnswer,
    WriteAnswer,
)
from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.attributes import AttributeRules
from fsspec_cas.backends.base import PartRules
from fsspec_cas.backends.http.listener import Listener
from fsspec_cas.backends.http.reply import Dialect, HttpReply, StoreRequest, Verb
from fsspec_cas.capability import Capabilities
from fsspec_cas.version import Absent, Condition, Version


class HttpBackend:
    """Sends by `exchange`, which a subclass has: one request, once."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    attribute_rules: ClassVar[AttributeRules]
    part_rules: ClassVar[PartRules]
    blocking = False

    def __init__(self, dialect: Dialect, *, signs: bool | None = None) -> None:
        self._listener = Listener(dialect, self._exchange, signs=signs)

    async def _exchange(self, asked: StoreRequest, timeout_s: float) -> HttpReply | NotNow | NoAnswer:
        raise NotImplementedError

    @property
    def uploads(self) -> HttpUploads:
        """Uploads in parts."""
        return HttpUploads(self._listener, self.part_rules)

    def _form(self, path: str, condition: Condition) -> str:
        """How a condition is written now; see `Backend.adapt`."""
        del path, condition
        return ""

    async def put(
        self,
        path: str,
        data: bytes,
        condition: Condition,
        write_id: str,
        *,
        timeout_s: float,
        attributes: Attributes | None = None,
    ) -> WriteAnswer:
        """Write the whole object if the condition holds."""
        verb = Verb.CREATE if isinstance(condition, Absent) else Verb.MATCH
        form = self._form(path, condition)
        asked = StoreRequest(verb, path, data, condition, write_id, attributes=attributes, dialect=form)
        answer: WriteAnswer = await self._listener.ask(asked, timeout_s)
        return answer

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        """The object's version, size, time and identity; no body."""
        answer: ReadAnswer = await self._listener.ask(StoreRequest(Verb.HEAD, path), timeout_s)
        return answer

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        """Body and version out of one response; `Unchanged` if the version is still `unless`."""
        answer: ReadAnswer = await self._listener.ask(StoreRequest(Verb.GET, path, condition=unless), timeout_s)
        return answer

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """Remove the object (if it is at this version)."""
        verb = Verb.DELETE if condition is None else Verb.DELETE_MATCH
        asked = StoreRequest(verb, path, condition=condition)
        answer: WriteAnswer = await self._listener.ask(asked, timeout_s)
        return answer

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        """Objects whose path starts with `prefix` and comes after `start_after`: the first page, or `token`'s."""
        asked = StoreRequest(Verb.LIST, prefix, start_after=start_after, token=token)
        answer: ListAnswer = await self._listener.ask(asked, timeout_s)
        return answer

    def adapt(self, refused: str = "") -> bool:
        """There is one dialect."""
        del refused
        return False


@dataclass(frozen=True, slots=True)
class HttpUploads:
    """Objects in parts."""

    listener: Listener
    rules: PartRules

    async def begin(
        self, path: str, write_id: str, *, timeout_s: float, attributes: Attributes | None = None
    ) -> UploadAnswer:
        """Open an upload."""
        asked = StoreRequest(Verb.BEGIN, path, write_id=write_id, attributes=attributes)
        answer: UploadAnswer = await self.listener.ask(asked, timeout_s)
        return answer

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        """Send the next part."""
        asked = StoreRequest(Verb.PART, upload.path, data, write_id=upload.write_id, upload=upload)
        answer: UploadAnswer = await self.listener.ask(asked, timeout_s)
        return answer

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """Make the object out of the parts and `tail`, if nothing is there."""
        if tail and not self.rules.tail_with_finish:
            raise ValueError("this store takes the last bytes as a part of their own")
        asked = StoreRequest(Verb.FINISH, upload.path, tail, write_id=upload.write_id, upload=upload)
        answer: FinishAnswer = await self.listener.ask(asked, timeout_s)
        return answer

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Drop the parts, as far as the store can be reached; its answer is used for nothing."""
        await self.listener.send(StoreRequest(Verb.ABORT, upload.path, upload=upload), timeout_s)
