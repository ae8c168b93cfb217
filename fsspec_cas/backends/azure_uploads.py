"""Azure's staged blocks: the blocks go without conditions, the block list with If-None-Match: *.

Staged blocks belong to the blob's name, so their ids carry the identity of the write. Whoever commits the blob drops
the blocks of all others, who then see that it exists, or, if it was deleted since, that their blocks are gone. Blocks
that are never committed cannot be removed without a blob that readers see; the service drops them with the next commit
of that blob, or after a week. Until then they are in nobody's way: not in that of `put_if_absent` (see
`AzureBackend`), and other programs' Put Blob goes through on Azure, not on Azurite. All ids at one name must have the
same length, so only the unfinished upload of another program can stop one of ours.

Sources: Blob Storage REST reference, "Put Block", "Put Block List"; "Scalability targets for Blob storage".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock
from azure.storage.blob.aio import BlobClient

from fsspec_cas.answer import Applied, Denied, FinishAnswer, Gone, Upload, UploadAnswer
from fsspec_cas.backends.base import PartRules
from fsspec_cas.backends.wire import Ask
from fsspec_cas.errors import StoreError
from fsspec_cas.version import Version

_RULES = PartRules(most_parts=50_000, tail_with_finish=False)
_OTHER_IDS = "InvalidBlobOrBlock"
_GONE = "InvalidBlockList"


@dataclass(frozen=True, slots=True)
class AzureUploads:
    """Uploads over the Blob API; `id_key` names the metadata that carries a write's identity."""

    ask: Ask[[BlobClient, dict[str, Any]]]
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

        def refusal(status: int, code: str) -> Denied | None:
            if code == _OTHER_IDS:
                raise StoreError(
                    f"{upload.path!r} has the unfinished upload of another program, whose blocks stop ours ({code}): "
                    "let it finish, or write and delete the blob there once to drop it; Azure does so after a week",
                    path=upload.path,
                )
            return self.refused(status, code)

        return await self.ask(upload.path, send, refusal, timeout_s)

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
        """Nothing can be done, nothing is visible, and no other create is in its way."""
        del upload, timeout_s

    def _finish_refusal(self, status: int, code: str) -> FinishAnswer | None:
        if code == _GONE:
            return Gone(f"{status} {code}: the blocks were committed or dropped")
        return self.refused(status, code)


def _block_id(upload: Upload) -> str:
    """All ids of one blob must have the same length."""
    return f"{upload.write_id}-{len(upload.tags):05d}"
