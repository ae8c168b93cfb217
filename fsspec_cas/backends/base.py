"""The smallest contract between this package and a store.

A backend translates one call into one request and its answer into `fsspec_cas.answer`, at the SDK call. It never
retries, never decides what a refusal meant, and never reads the clock: `timeout_s` bounds each request. Paths are
what the fsspec filesystem calls them (`bucket/key`).

What a store keeps beside an object's bytes is checked by `attributes_of` before anything is sent, so that nothing is
left out unseen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fsspec_cas.answer import Capabilities, FinishAnswer, ListAnswer, ReadAnswer, Upload, UploadAnswer, WriteAnswer
from fsspec_cas.errors import InvalidInput, NotSupported
from fsspec_cas.outcome import Attributes, Version, Write

WRITE_ID_KEY = "cas-id"  # the user metadata that carries a write's identity


@dataclass(frozen=True, slots=True)
class PartRules:
    """What a store wants of the parts of an upload, the last one excepted.

    Attributes:
        least_bytes: the size of the smallest part.
        multiple_bytes: what the size must be a multiple of.
        most_parts: how many parts an object may have.
        tail_with_finish: the last bytes travel in the request that finishes the upload.
    """

    least_bytes: int = 1
    multiple_bytes: int = 1
    most_parts: int = 1 << 31
    tail_with_finish: bool = True


class Backend(Protocol):
    """Sends exactly once. One dialect of conditions and nothing to close are the default, for a class that inherits."""

    @property
    def name(self) -> str:
        """What versions of this store are marked with, e.g. `s3`."""

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store is documented to do."""

    @property
    def attribute_rules(self) -> AttributeRules:
        """What it keeps beside an object's bytes."""

    @property
    def blocking(self) -> bool:
        """True if the coroutines below never suspend, so that they can be run without an event loop."""

    @property
    def part_rules(self) -> PartRules:
        """What the parts of an upload must be like."""

    async def put(self, write: Write, data: bytes, *, timeout_s: float) -> WriteAnswer:
        """Write the whole object if the condition of `write` holds, with its identity and its attributes."""

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        """The object's version, size, time and identity; no body."""

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        """Body and version out of one response; `Unchanged` if the version is still `unless`."""

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """Remove the object (if it is at this version). Removing what is not there is `Applied` without one."""

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        """Objects whose path starts with `prefix` and comes after `start_after`: the first page, or `token`'s."""

    async def begin(self, write: Write, *, timeout_s: float) -> UploadAnswer:
        """Open an upload: an object sent in parts. Nothing is visible at its path before it is finished."""

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        """Send the next part, without conditions; sent again after a lost answer it takes the first one's place."""

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """Make the object out of the parts and `tail`, if nothing is there."""

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Drop the parts of the upload. Do nothing if the upload was finished or aborted before."""

    def adapt(self, refused: str = "") -> bool:
        """Switch to the store's other dialect of conditions; False if there is none.

        `refused` is the one that did not do (`Denied.dialect`): if others have left it already, nothing changes.
        """
        del refused
        return False

    async def close(self) -> None:
        """Let go of connections that belong to the running loop."""


def _relayed(name: str) -> Any:
    async def call(self: Relay, *args: Any, **kwargs: Any) -> Any:
        return await self.relay(name, lambda: getattr(self.inner, name)(*args, **kwargs))

    return call


class Relay:
    """A backend in front of another one, `inner`: each request goes by way of `relay`, all else is the other's."""

    def __init__(self, inner: Backend, *, blocking: bool) -> None:
        self.inner = inner
        self.blocking = blocking
        self.name, self.capabilities = inner.name, inner.capabilities
        self.attribute_rules, self.part_rules = inner.attribute_rules, inner.part_rules
        self.adapt = inner.adapt

    put, head, get, delete, list_page = (_relayed(name) for name in ("put", "head", "get", "delete", "list_page"))
    begin, add, finish, abort = (_relayed(name) for name in ("begin", "add", "finish", "abort"))

    async def relay(self, name: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What the request of this name came to; `ask` sends it to the other backend."""
        raise NotImplementedError

    async def close(self) -> None:
        """As the backend below."""
        await self.inner.close()


# HTTP headers carry them: S3 makes names lower case, and Azure wants them to be identifiers.
_NAME = re.compile(r"[a-z_][a-z0-9_-]*")
_OF_THE_CALL = ("content_type", "metadata", "create_once", "timeout")


@dataclass(frozen=True, slots=True)
class AttributeRules:
    """What a kind of store keeps.

    Attributes:
        keeps: a content type and metadata, at all.
        own: what else its API takes by name, for one write.
        same: its API's names for the content type and the metadata.
        instead: what of its API stands for one of ours, and may not be given with it.
        refused: what its API takes and a single write cannot be given, with the reason.
        hyphens: whether the names of metadata may have some.
        reserved: the metadata that carries a write's identity.
    """

    keeps: bool = True
    own: frozenset[str] = frozenset()
    same: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    hyphens: bool = True
    reserved: str = "cas-id"


def attributes_of(
    kind: str, rules: AttributeRules, content_type: str | None, metadata: Mapping[str, str] | None, own: dict[str, Any]
) -> Attributes:
    """What a caller asked for.

    Raises:
        InvalidInput: naming what no object can be made with.
        NotSupported: this kind of store keeps nothing beside an object's bytes.
    """
    given: dict[str, Any] = {"content_type": content_type, "metadata": metadata}
    left = {name: value for name, value in own.items() if value is not None}
    for name in rules.same.keys() & left.keys():
        if given[rules.same[name]] is not None:
            raise InvalidInput(f"{name} and {rules.same[name]} say the same: give one of them")
        given[rules.same[name]] = left.pop(name)
    for name in left:
        _check_own(kind, rules, name)
        if given.get(rules.instead.get(name, "")) is not None:
            raise InvalidInput(f"{name} and {rules.instead[name]} say the same: give one of them")
    kept = {name: value for name, value in given.items() if value is not None}
    if kept and not rules.keeps:
        raise NotSupported(f"{' and '.join(kept)} given, but {kind} objects are bytes alone: leave it out")
    _check_type(given["content_type"])
    _check_metadata(rules, given["metadata"])
    return Attributes(given["content_type"], dict(given["metadata"] or {}), left)


def _check_own(kind: str, rules: AttributeRules, name: str) -> None:
    if name in rules.own:
        return
    if name in rules.refused:
        raise NotSupported(f"{name} cannot be given to one write: {rules.refused[name]}")
    from difflib import get_close_matches  # noqa: PLC0415 - only for a message

    known = sorted({*rules.own, *rules.same, *_OF_THE_CALL})
    alike = get_close_matches(name, known, n=1) or [one for one in known if _plain(one) == _plain(name)]
    hint = f"did you mean {alike[0]}?" if alike else f"there are {', '.join(known)}"
    raise InvalidInput(f"a conditional write to {kind} takes no {name!r}: {hint}")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _check_type(given: object) -> None:
    if given is not None and not (isinstance(given, str) and _is_header(given) and "/" in given):
        raise InvalidInput(f"content_type={given!r} is none: write e.g. content_type='application/json'")


def _check_metadata(rules: AttributeRules, given: object) -> None:
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise InvalidInput(f"metadata={given!r} must be a dict of names and texts, e.g. metadata={{'made_by': 'me'}}")
    for name, value in given.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or ("-" in name and not rules.hyphens):
            hyphens = ", - " if rules.hyphens else " "
            raise InvalidInput(f"metadata has the name {name!r}: use a-z, 0-9, _{hyphens}and begin with a letter or _")
        if name == rules.reserved:
            raise InvalidInput(f"metadata has the name {name!r}, which carries the identity of a write: use another")
        if not (isinstance(value, str) and _is_header(value)):
            raise InvalidInput(f"metadata[{name!r}]={value!r} must be printable ASCII text without blanks at its ends")


def _is_header(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and text == text.strip()
