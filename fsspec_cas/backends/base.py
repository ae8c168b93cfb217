"""The smallest contract between this package and a store.

A backend translates one call into one request and its answer into `fsspec_cas.answer`, at the SDK call. It never
retries, never decides what a refusal meant, and never reads the clock: `timeout_s` bounds each request. Paths are
what the fsspec filesystem calls them (`bucket/key`).
"""

from __future__ import annotations

from typing import Protocol

from fsspec_cas.answer import ListAnswer, ReadAnswer, WriteAnswer
from fsspec_cas.capability import Capabilities
from fsspec_cas.version import Condition, Version

WRITE_ID_KEY = "cas-id"  # the user metadata that carries a write's identity


class Backend(Protocol):
    """Sends exactly once."""

    @property
    def name(self) -> str:
        """What versions of this store are marked with, e.g. `s3`."""

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store is documented to do."""

    @property
    def blocking(self) -> bool:
        """True if the coroutines below never suspend, so that they can be run without an event loop."""

    async def put(
        self, path: str, data: bytes, condition: Condition, write_id: str, *, timeout_s: float
    ) -> WriteAnswer:
        """Write the whole object if the condition holds."""

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

    def adapt(self) -> bool:
        """Switch to the store's other dialect of conditions; False if there is none (left) to try."""

    async def close(self) -> None:
        """Let go of connections that belong to the running loop."""
