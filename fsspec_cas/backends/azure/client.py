"""Azure Blob Storage, with an adlfs filesystem's account and credential."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import aiohttp
from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.blob import BlobBlock, ContentSettings
from azure.storage.blob.aio import BlobServiceClient

from fsspec_cas.answer import ConditionFailed, NoAnswer, NotApplied, Upload, UploadAnswer, UploadGone, WriteAnswer
from fsspec_cas.backends.azure.answers import BLOB_ID_KEY, AzureDialect, block_id
from fsspec_cas.backends.base import AttributeRules, PartRules
from fsspec_cas.backends.http import ALL_CAPABILITIES
from fsspec_cas.backends.reply import HttpReply, StoreRequest, Verb
from fsspec_cas.backends.wire import AIOHTTP_UNSENT, AioBackend, Answered, Trip, sends_once, within
from fsspec_cas.errors import AccessDenied, InvalidInput
from fsspec_cas.outcome import Absent, Condition, Version, Write

_OF_ALL = "later reads of the blob need it too, and adlfs has no option for it"
_ONE_REQUEST_BYTES = 5000 * 1024 * 1024
_DIALECT = AzureDialect()


class _SendsOnce(AioHttpTransport):  # type: ignore[misc] # loaded lazily, so mypy sees no type
    """Keeps replies from the SDK, which would believe any page."""

    async def open(self) -> None:
        await super().open()
        sends_once(self.session)

    async def send(self, request: Any, **kwargs: Any) -> Any:
        """Send once, store the reply in the trip, and raise Answered; TimeoutError after the trip's patience.

        A 401 that names a tenant is returned: the SDK re-sends with that tenant's token.
        """
        trip = Trip.leave()
        async with within(trip.patience_s):
            response = await super().send(request, **{**kwargs, "stream": True})
        raw = response.internal_response
        async with raw:
            body = await raw.read()
        trip.reply = HttpReply(raw.status, raw.headers.items(), body)
        if _DIALECT.challenges(trip.reply):
            return response
        raise Answered


class AzureBackend(AioBackend):
    """Block blobs, written as a whole (at most 5000 MiB per Put Blob).

    An upload's commit drops the blocks of all others to its name.
    """

    name = "azure"
    capabilities = ALL_CAPABILITIES
    attribute_rules = AttributeRules(
        own=frozenset({"content_settings", "immutability_policy", "legal_hold", "standard_blob_tier", "tags"}),
        refused=dict.fromkeys(("cpk", "encryption_scope"), _OF_ALL),
        instead={"content_settings": "content_type"},
        hyphens=False,
        reserved=BLOB_ID_KEY,
    )
    part_rules = PartRules(most_parts=50_000, tail_with_finish=False)
    failures = (AzureError, aiohttp.ClientError, OSError, ValueError)
    unsent = (*AIOHTTP_UNSENT, ServiceRequestTimeoutError)

    def __init__(self, fs: Any) -> None:
        super().__init__(fs, _DIALECT, gives_request_ids=True)
        self._unfinished: set[str] = set()  # paths whose create was refused without a blob

    def _form(self, path: str, condition: Condition) -> str:
        return path if isinstance(condition, Absent) else ""

    async def put(self, write: Write, data: bytes, *, timeout_s: float) -> WriteAnswer:
        if isinstance(write.condition, Absent) and write.path in self._unfinished:
            answer = await self._create_in_a_block(Upload(write, write.write_id), data, timeout_s)
            if not isinstance(answer, NotApplied):
                self._unfinished.discard(write.path)
            return answer
        return await super().put(write, data, timeout_s=timeout_s)

    async def _create_in_a_block(self, upload: Upload, data: bytes, timeout_s: float) -> WriteAnswer:
        """Create the blob by Put Block and Put Block List, which checks only committed blobs.

        Returns the second's answer, `NotApplied` if the block failed or was dropped, or either's refusal, whose
        `dialect` is the path, for `adapt`.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        staged = await self.add(upload, data, timeout_s=timeout_s)
        if isinstance(staged, (NotApplied, NoAnswer)):
            return NotApplied(staged.why, staged.retry_after_s)  # a staged block is invisible
        if isinstance(staged, ConditionFailed):
            return replace(staged, dialect=upload.write.path)
        answer = await self.finish(staged, b"", timeout_s=deadline - clock())
        if isinstance(answer, UploadGone):
            return NotApplied(answer.why)
        return replace(answer, dialect=upload.write.path) if isinstance(answer, ConditionFailed) else answer

    def adapt(self, refused: str = "") -> bool:
        """Let the next create of the path `refused` go by a block."""
        if refused:
            self._unfinished.add(refused)
        return bool(refused)

    async def begin(self, write: Write, *, timeout_s: float) -> UploadAnswer:
        return Upload(write, write.write_id)

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Do nothing: staged blocks cannot be removed."""

    async def _open(self) -> BlobServiceClient:
        """Open a client of the filesystem's account and credential, without retries, which sends bodies whole."""
        service = self._given.service_client
        return BlobServiceClient(
            service.url,
            credential=service.credential,
            transport=_SendsOnce(),
            retry_total=0,
            max_single_put_size=_ONE_REQUEST_BYTES,
            max_single_get_size=_ONE_REQUEST_BYTES,
        )

    def _preparation_failed(self, error: Exception, path: str) -> NotApplied:
        passing = (asyncio.TimeoutError, ServiceRequestError, ServiceResponseError)
        if isinstance(error, passing) or (isinstance(error, HttpResponseError) and (error.status_code or 0) >= 500):
            return NotApplied(f"no credentials, and nothing was sent: {type(error).__name__}: {error}")
        raise AccessDenied(f"no usable Azure credentials for {path!r}, nothing was sent: {error}", path=path) from error

    async def _send(self, client: BlobServiceClient, request: StoreRequest) -> None:
        """Send the request through the SDK; the transport stores the reply and raises Answered.

        A bad name raises InvalidInput.
        """
        settings = dict(getattr(self._given, "_timeout_kwargs", {}))
        container, _, key = request.path.partition("/")
        version = request.version
        if request.verb is Verb.LIST:
            limit: dict[str, Any] = {} if request.limit is None else {"results_per_page": request.limit}
            listing = client.get_container_client(container).list_blobs(
                name_starts_with=key or None, include=["metadata"], **limit, **settings
            )
            pages: Any = listing.by_page(continuation_token=request.token)
            await anext(pages)
            return
        try:
            blob = client.get_blob_client(container, key)
        except ValueError as error:
            raise InvalidInput(f"Azure does not accept {request.path!r}: {error}", path=request.path) from error
        upload = request.upload
        same = _condition(version, MatchConditions.IfNotModified)
        match request.verb:
            case Verb.CREATE | Verb.MATCH:
                attributes = _described(request.the_write())
                # Without `overwrite` the SDK sends If-None-Match: *
                await blob.upload_blob(
                    request.data, length=len(request.data), overwrite=bool(version), **attributes, **same, **settings
                )
            case Verb.HEAD:
                await blob.get_blob_properties(**settings)
            case Verb.GET:
                other = _condition(version, MatchConditions.IfModified)
                await blob.download_blob(**other, **settings, raw_request_hook=_ask_for_all)
            case Verb.DELETE | Verb.DELETE_MATCH:
                await blob.delete_blob(**same, **settings)
            case Verb.PART if upload is not None:
                await blob.stage_block(block_id(upload), request.data, length=len(request.data), **settings)
            case Verb.FINISH if upload is not None:
                blocks = [BlobBlock(tag) for tag in upload.tags]
                attributes = _described(upload.write)
                await blob.commit_block_list(
                    blocks, **attributes, match_condition=MatchConditions.IfMissing, **settings
                )


def _condition(version: Version | None, how: MatchConditions) -> dict[str, Any]:
    return {} if version is None else {"etag": version.token, "match_condition": how}


def _ask_for_all(request: Any) -> None:
    """The SDK's range costs an empty blob a second request."""
    request.http_request.headers.pop("x-ms-range", None)


def _described(write: Write) -> dict[str, Any]:
    more = write.attributes
    own = dict(more.own)
    if more.content_type:
        own["content_settings"] = ContentSettings(content_type=more.content_type)
    return {**own, "metadata": {**more.metadata, BLOB_ID_KEY: write.write_id}}
