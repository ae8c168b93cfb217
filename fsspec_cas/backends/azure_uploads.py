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
from azure.storage.blob import BlobBlock, ContentSettings
from azure.storage.blob.aio import BlobClient

from fsspec_cas.answer import Applied, Denied, FinishAnswer, Gone, Upload, UploadAnswer
from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.attributes import AttributeRules
from fsspec_cas.backends.base import PartRules
from fsspec_cas.backends.wire import Ask
from fsspec_cas.errors import StoreError
from fsspec_cas.version import Version

_RULES = PartRules(most_parts=50_000, tail_with_finish=False)
BLOB_ID_KEY = "cas_id"  # Azure wants names of metadata to be C# identifiers, so no hyphen
_OF_ALL = "later looks at the blob need it too, and adlfs has no place for it"
AZURE_RULES = AttributeRules(
    own=frozenset({"content_settings", "immutability_policy", "legal_hold", "standard_blob_tier", "tags"}),
    refused=dict.fromkeys(("cpk", "encryption_scope"), _OF_ALL),
    instead={"content_settings": "content_type"},
    hyphens=False,
    reserved=BLOB_ID_KEY,
)
_OTHER_IDS = "InvalidBlobOrBlock"
_GONE = "InvalidBlockList"


@dataclass(frozen=True, slots=True)
class AzureUploads:
    """Uploads over the Blob API."""

    ask: Ask[[BlobClient, dict[str, Any]]]
    refused: Callable[[int, str], Denied | None]
    rules: PartRules = _RULES

    async def begin(
        self, path: str, write_id: str, *, timeout_s: float, attributes: Attributes | None = None
    ) -> UploadAnswer:
        """Nothing to ask for: the first block begins it."""
        del timeout_s
        return Upload(path, write_id, write_id, attributes=attributes)

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
                **described(upload.write_id, upload.attributes),
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


def described(write_id: str, attributes: Attributes | None) -> dict[str, Any]:
    """What a request that makes a blob says of it."""
    more = attributes or Attributes()
    own = dict(more.own)
    if more.content_type:
        own["content_settings"] = ContentSettings(content_type=more.content_type)
    return {**own, "metadata": {**more.metadata, BLOB_ID_KEY: write_id}}


def _block_id(upload: Upload) -> str:
    """All ids of one blob must have the same length."""
    return f"{upload.write_id}-{len(upload.tags):05d}"
