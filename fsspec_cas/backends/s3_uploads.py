"""S3's multipart uploads: the parts go without conditions, the completion with If-None-Match: *.

An answer "conflict" (409) to the completion is certainly not applied; the completion alone is sent again, and where the
store has dropped the upload with it, that says so (NoSuchUpload). So does a second completion of an upload that the
first has finished.

Sources: API reference of CreateMultipartUpload, UploadPart, CompleteMultipartUpload ("conditional writes"),
AbortMultipartUpload; "Amazon S3 multipart upload limits".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fsspec_cas.answer import Applied, Denied, FinishAnswer, Gone, Upload, UploadAnswer
from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.base import PartRules
from fsspec_cas.backends.s3_client import Settings, key_of
from fsspec_cas.backends.wire import Ask, no_refusal
from fsspec_cas.version import Version

_RULES = PartRules(least_bytes=5 * 1024 * 1024, most_parts=10_000, tail_with_finish=False)
_GONE = "NoSuchUpload"


@dataclass(frozen=True, slots=True)
class S3Uploads:
    """Uploads over the S3 API. `settings` are the user's."""

    ask: Ask[[Any]]
    settings: Settings
    rules: PartRules = _RULES

    async def begin(
        self, path: str, write_id: str, *, timeout_s: float, attributes: Attributes | None = None
    ) -> UploadAnswer:
        """CreateMultipartUpload."""

        async def send(client: Any) -> UploadAnswer:
            answer = await client.create_multipart_upload(**self.settings.making(write_id, attributes), **key_of(path))
            return Upload(path, write_id, answer["UploadId"])

        return await self.ask(path, send, no_refusal, timeout_s)

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        """UploadPart; the same number again replaces the part."""

        async def send(client: Any) -> UploadAnswer:
            number = len(upload.tags) + 1
            answer = await client.upload_part(**self._named(client, "UploadPart", upload), PartNumber=number, Body=data)
            return replace(upload, tags=(*upload.tags, answer["ETag"]), sent=upload.sent + len(data))

        return await self.ask(upload.path, send, no_refusal, timeout_s)

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """CompleteMultipartUpload with If-None-Match: *."""
        if tail:
            raise ValueError("S3 takes the last bytes as a part of their own")
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(upload.tags, 1)]

        async def send(client: Any) -> FinishAnswer:
            answer = await client.complete_multipart_upload(
                **self._named(client, "CompleteMultipartUpload", upload),
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )
            return Applied(Version("s3", answer["ETag"]) if answer.get("ETag") else None)

        return await self.ask(upload.path, send, _finish_refusal, timeout_s)

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """AbortMultipartUpload."""

        async def send(client: Any) -> bool:
            await client.abort_multipart_upload(**self._named(client, "AbortMultipartUpload", upload))
            return True

        await self.ask(upload.path, send, lambda _status, code: code == _GONE or None, timeout_s)

    def _named(self, client: Any, operation: str, upload: Upload) -> dict[str, Any]:
        return {**self.settings.known_to(client, operation), **key_of(upload.path), "UploadId": upload.token}


def _finish_refusal(status: int, code: str) -> FinishAnswer | None:
    if code == _GONE:
        return Gone(f"{status} {code}: the upload was finished or dropped")
    return Denied() if status in (304, 412) else None  # 304: as old MinIO says it
