"""The smallest contract between this package and a store.

A backend translates one call into one request and its answer into `fsspec_cas.answer`, at the SDK call. It never
retries, never decides what a refusal meant, and never reads the clock: `timeout_s` bounds each request. Paths are
what the fsspec filesystem calls them (`bucket/key`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fsspec_cas.answer import FinishAnswer, ListAnswer, ReadAnswer, Upload, UploadAnswer, WriteAnswer
from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.attributes import AttributeRules
from fsspec_cas.capability import Capabilities
from fsspec_cas.version import Condition, Version

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


class Uploads(Protocol):
    """Objects sent in parts, which appear when they are finished, if nothing is there. Sends exactly once, too."""

    @property
    def rules(self) -> PartRules:
        """What the parts must be like."""

    async def begin(
        self, path: str, write_id: str, *, timeout_s: float, attributes: Attributes | None = None
    ) -> UploadAnswer:
        """Open an upload; nothing is visible at `path`."""

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        """Send the next part, without conditions; sent again after a lost answer it takes the first one's place."""

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """Make the object out of the parts and `tail`, if nothing is there."""

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Drop the parts; one that is finished or dropped already is fine."""


class Backend(Protocol):
    """Sends exactly once."""

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
    def uploads(self) -> Uploads:
        """The same store, for objects that are sent in parts."""

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
        """Write the whole object if the condition holds. `attributes` are given only where the caller gave some."""

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

    def adapt(self, refused: str = "") -> bool:
        """Switch to the store's other dialect of conditions; False if there is none.

        `refused` is the one that did not do (`Denied.dialect`): if others have left it already, nothing changes.
        """

    async def close(self) -> None:
        """Let go of connections that belong to the running loop."""
