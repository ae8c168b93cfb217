"""`Backend`, the contract of a store's client; checks of a write's attributes."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fsspec_cas.answer import Capabilities, FinishAnswer, ListAnswer, ReadAnswer, Upload, UploadAnswer, WriteAnswer
from fsspec_cas.errors import InvalidInput, NotSupported
from fsspec_cas.outcome import Attributes, Version, Write

WRITE_ID_KEY = "cas-id"


@dataclass(frozen=True, slots=True)
class PartRules:
    """Limits of an upload's parts; the last may be smaller.

    `tail_with_finish`: the completion carries the last bytes.
    """

    least_bytes: int = 1
    multiple_bytes: int = 1
    most_parts: int = 1 << 31
    tail_with_finish: bool = True


class Backend(Protocol):
    """Store's client that sends each request once, within `timeout_s` seconds, and returns an `answer`.

    It raises StoreError or NotSupported if no second send would help. Paths are `bucket/key`. Optional members:
    `delete_batch`, `endpoint`, `isolated_connections`, `remote`.
    """

    @property
    def name(self) -> str:
        """Prefix of this store's versions, e.g. `s3`."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def attribute_rules(self) -> AttributeRules: ...

    @property
    def blocking(self) -> bool:
        """True if the coroutines never suspend, so need no event loop."""

    @property
    def part_rules(self) -> PartRules: ...

    async def put(self, write: Write, data: bytes, *, timeout_s: float) -> WriteAnswer:
        """Write the whole object with its attributes, under the write's condition."""

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer: ...

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        """Read body and version from one response; `Unchanged` if still at `unless`."""

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """Delete the object, if at this version. Without a condition a missing object is `Applied`."""

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        """List objects with this prefix after `start_after`: the first page, or `token`'s."""

    async def begin(self, write: Write, *, timeout_s: float) -> UploadAnswer: ...

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        """Send the next part; a re-sent part replaces the first copy."""

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """Create the object from the parts and `tail`, if the path is empty."""

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Drop the upload's parts, if it is not completed."""

    def adapt(self, refused: str = "") -> bool:
        """Switch from the dialect `refused` to the other, unless done; return False if none exists."""
        return False

    async def close(self) -> None: ...


def _relayed(name: str) -> Any:
    async def call(self: Relay, *args: Any, **kwargs: Any) -> Any:
        return await self.relay(name, lambda: getattr(self.inner, name)(*args, **kwargs))

    return call


class Relay:
    """Base of a backend that passes each request, but `delete_batch`, to `inner` through `relay`."""

    def __init__(self, inner: Backend, *, blocking: bool) -> None:
        self.inner = inner
        self.blocking = blocking
        self.name, self.capabilities = inner.name, inner.capabilities
        self.attribute_rules, self.part_rules = inner.attribute_rules, inner.part_rules
        self.adapt = inner.adapt

    put, head, get, delete, list_page = (_relayed(name) for name in ("put", "head", "get", "delete", "list_page"))
    begin, add, finish, abort = (_relayed(name) for name in ("begin", "add", "finish", "abort"))

    async def relay(self, name: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The answer to the request `name`; `ask` sends it."""
        raise NotImplementedError

    async def close(self) -> None:
        await self.inner.close()


# S3 makes the names lower case; Azure requires identifiers.
_NAME = re.compile(r"[a-z_][a-z0-9_-]*")
_OF_THE_CALL = ("content_type", "metadata", "create_once", "timeout")


@dataclass(frozen=True, slots=True)
class AttributeRules:
    """Attributes that a kind of store keeps with an object; `keeps`: content type and metadata.

    Attributes:
        own: other API parameters for one write.
        same: API's names for content type and metadata.
        instead: API parameters that include one of them.
        refused: parameters that no single write can have, and why.
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
    """Return a write's checked attributes.

    Of `own`, None values are ignored, and the API's names of content type or metadata mean those. Raises InvalidInput
    for unknown, duplicate or malformed ones, NotSupported for what this store or a single write cannot have.
    """
    common: dict[str, Any] = {"content_type": content_type, "metadata": metadata}
    own_left = {name: value for name, value in own.items() if value is not None}
    for name in rules.same.keys() & own_left.keys():
        if common[rules.same[name]] is not None:
            raise InvalidInput(f"{name} and {rules.same[name]} say the same: give one of them")
        common[rules.same[name]] = own_left.pop(name)
    for name in own_left:
        _check_own(kind, rules, name)
        if common.get(rules.instead.get(name, "")) is not None:
            raise InvalidInput(f"{name} and {rules.instead[name]} say the same: give one of them")
    present = {name: value for name, value in common.items() if value is not None}
    if present and not rules.keeps:
        raise NotSupported(f"{' and '.join(present)} given, but {kind} objects are bytes alone: leave it out")
    media = common["content_type"]
    if media is not None and not (isinstance(media, str) and _is_header(media) and "/" in media):
        raise InvalidInput(f"content_type={media!r} is not a content type: write e.g. content_type='application/json'")
    _check_metadata(rules, common["metadata"])
    return Attributes(common["content_type"], dict(common["metadata"] or {}), own_left)


def _check_own(kind: str, rules: AttributeRules, name: str) -> None:
    """Raise InvalidInput for an unknown API parameter, NotSupported for one that no single write can have."""
    if name in rules.own:
        return
    if name in rules.refused:
        raise NotSupported(f"{name} cannot be given to one write: {rules.refused[name]}")
    from difflib import get_close_matches  # noqa: PLC0415

    names = sorted({*rules.own, *rules.same, *_OF_THE_CALL})
    alike = get_close_matches(name, names, n=1) or [option for option in names if _plain(option) == _plain(name)]
    hint = f"did you mean {alike[0]}?" if alike else f"there are {', '.join(names)}"
    raise InvalidInput(f"a conditional write to {kind} takes no {name!r}: {hint}")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _check_metadata(rules: AttributeRules, metadata: object) -> None:
    """Raise InvalidInput for metadata that a store could not keep unchanged; None passes.

    Names are lower-case and not reserved, values printable ASCII.
    """
    if metadata is None:
        return
    if not isinstance(metadata, Mapping):
        raise InvalidInput(
            f"metadata={metadata!r} must be a dict of names and texts, e.g. metadata={{'made_by': 'me'}}"
        )
    for name, value in metadata.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or ("-" in name and not rules.hyphens):
            hyphens = ", - " if rules.hyphens else " "
            raise InvalidInput(f"metadata has the name {name!r}: use a-z, 0-9, _{hyphens}and begin with a letter or _")
        if name == rules.reserved:
            raise InvalidInput(
                f"metadata has the name {name!r}, which is reserved for the identity of a write: use another name"
            )
        if not (isinstance(value, str) and _is_header(value)):
            raise InvalidInput(f"metadata[{name!r}]={value!r} must be printable ASCII text without blanks at its ends")


def _is_header(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and text == text.strip()
