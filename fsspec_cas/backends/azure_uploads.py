"""Azure's staged blocks: the blocks go without conditions, the block list with If-None-Match: *.

Staged blocks belong to the blob's name, so their ids carry the identity of the write. Whoever commits the blob drops
the blocks of all others, who then see that it exists, or, if it was deleted since, that their blocks are gone. Blocks
that are never committed cannot be removed; the service drops them after a week.

Sources: Blob Storage REST reference, "Put Block", "Put Block List"; "Scalability targets for Blob storage".
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock
from azure.storage.blob.aio import BlobClient

from fsspec_cas.answer import Applied, Denied, FinishAnswer, Gone, NoAnswer, NotNow, Upload, UploadAnswer
from fsspec_cas.backends.base import PartRules
from fsspec_cas.version import Version

A = TypeVar("A")

_RULES = PartRules(most_parts=50_000, tail_with_finish=False)
_GONE = "InvalidBlockList"


class Ask(Protocol):
    """Sends once and translates what comes back."""

    async def __call__(
        self,
        path: str,
        send: Callable[[BlobClient, dict[str, Any]], Coroutine[Any, Any, A]],
        refusal: Callable[[int, str], A | None],
        timeout_s: float,
    ) -> A | NotNow | NoAnswer:
        """See `AzureBackend`."""


@dataclass(frozen=True, slots=True)
class AzureUploads:
    """Uploads over the Blob API; `id_key` names the metadata that carries a write's identity."""

    ask: Ask
    id_key: str
    refused: Callable[[int, str], Denied | None]
    rules: PartRules = _RULES

    async def begin(self, path: str, write_id: str, *, timeout_s: float) -> UploadAnswer:
        """Nothing to ask for: the first block begins it."""
        del timeout_s
        return Upload(path, write_id, write_id)

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        """Put Block; the same id again replaces the block."""
        block = _block_id(upload)

        async def send(blob: BlobClient, settings: dict[str, Any]) -> UploadAnswer:
            await blob.stage_block(block, data, length=len(data), **settings)
            return replace(upload, tags=(*upload.tags, block), sent=upload.sent + len(data))

        return await self.ask(upload.path, send, _never, timeout_s)

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """Put Block List with If-None-Match: *."""
        if tail:
            raise ValueError("Azure takes the last bytes as a block of their own")

        async def send(blob: BlobClient, settings: dict[str, Any]) -> FinishAnswer:
            answer = await blob.commit_block_list(
                [BlobBlock(tag) for tag in upload.tags],
                metadata={self.id_key: upload.write_id},
                match_condition=MatchConditions.IfMissing,
                **settings,
            )
            return Applied(Version("azure", str(answer["etag"])) if answer.get("etag") else None)

        return await self.ask(upload.path, send, self._finish_refusal, timeout_s)

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Nothing can be done, and nothing is visible."""
        del upload, timeout_s

    def _finish_refusal(self, status: int, code: str) -> FinishAnswer | None:
        if code == _GONE:
            return Gone(f"{status} {code}: the blocks were committed or dropped")
        return self.refused(status, code)


def _block_id(upload: Upload) -> str:
    """All ids of one blob must have the same length."""
    return f"{upload.write_id}-{len(upload.tags):05d}"


def _never(status: int, code: str) -> None:
    del status, code
