"""Azure Blob Storage, with the account and credential of the given adlfs filesystem.

Every layer that would send again by itself is off: azure-core's retries are set to none, and aiohttp's re-send of a PUT
whose connection broke is switched off on the session of the transport that this module makes.

The version is the ETag, which Azure makes anew with every write. Promised only for block blobs written as a whole, up
to the service's 5000 MiB for one Put Blob.

Sources: Azure Blob Storage REST reference, "Specifying conditional headers for Blob service operations", "Put Blob",
"Get Blob", "Delete Blob", "Blob service error codes".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import aiohttp
from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.blob.aio import BlobClient, BlobServiceClient, ContainerClient

from fsspec_cas.answer import (
    Applied,
    Denied,
    Entry,
    Gone,
    ListAnswer,
    Missing,
    NoAnswer,
    NotNow,
    Page,
    ReadAnswer,
    Seen,
    Unchanged,
    Upload,
    WriteAnswer,
)
from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.attributes import AttributeRules
from fsspec_cas.backends.azure_uploads import AZURE_RULES, BLOB_ID_KEY, AzureUploads, described
from fsspec_cas.backends.wire import PerLoop, Trip, epoch_ms, http_date_ms, no_refusal, retry_after_s, sends_once
from fsspec_cas.capability import Capabilities
from fsspec_cas.errors import AccessDenied, BucketNotFound, CasError, InvalidInput, StoreError
from fsspec_cas.version import Absent, Condition, Version

A = TypeVar("A")

_CAPABILITIES = Capabilities(
    create=True,
    match=True,
    delete_match=True,
    read_changed=True,
    unique_versions=True,
    keeps_write_id=True,
    own_clock=True,
)
_ONE_REQUEST_BYTES = 5000 * 1024 * 1024  # the most that one Put Blob takes
_FALSE_CONDITION_CODES = ("ConditionNotMet", "TargetConditionNotMet", "")  # "": a middlebox strips headers
_EXISTS = "BlobAlreadyExists"
_FOLDER_MARK = "hdi_isfolder"  # how an account with a hierarchical namespace marks its directories
_FAILURES = (AzureError, asyncio.TimeoutError, OSError, ValueError)  # ValueError: what the SDK cannot read
_NOT_NOW_CODES = ("ContainerBeingDeleted", "ContainerBeingCreated")


class _SendsOnce(AioHttpTransport):  # type: ignore[misc] # loaded lazily, so mypy sees no type
    """aiohttp would send a PUT or DELETE again, unseen, when its connection breaks."""

    async def open(self) -> None:
        await super().open()
        sends_once(self.session)

    async def send(self, *args: Any, **kwargs: Any) -> Any:
        Trip.leave()
        return await super().send(*args, **kwargs)


class AzureBackend:
    """Conditional writes over the Blob API."""

    name = "azure"
    capabilities = _CAPABILITIES
    attribute_rules: AttributeRules = AZURE_RULES
    blocking = False

    def __init__(self, fs: Any) -> None:
        self._given = fs
        self._unfinished: set[str] = set()  # where a create was refused though no blob is there
        self._services: PerLoop[BlobServiceClient] = PerLoop()

    def isolated_connections(self) -> AzureBackend:
        """The same store over connections of its own."""
        return AzureBackend(self._given)

    @property
    def uploads(self) -> AzureUploads:
        """Staged blocks."""
        return AzureUploads(self._ask_blob, _create_refusal)

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
        """Put Blob with If-None-Match: * or If-Match; see `_create_in_a_block` for the other way to create."""
        if isinstance(condition, Absent) and path in self._unfinished:
            self._unfinished.discard(path)
            return await self._create_in_a_block(
                Upload(path, write_id, write_id, attributes=attributes), data, timeout_s
            )

        async def send(blob: BlobClient, settings: dict[str, Any]) -> WriteAnswer:
            answer = await blob.upload_blob(
                data,
                length=len(data),
                **described(write_id, attributes),
                **_put_condition(condition),
                **settings,
            )
            return Applied(Version(self.name, answer["etag"]) if answer.get("etag") else None)

        def exists(status: int, code: str) -> Denied | None:
            denied = _create_refusal(status, code)
            return Denied(path) if denied and code == _EXISTS else denied

        refusal = exists if isinstance(condition, Absent) else _write_refusal
        return await self._ask_blob(path, send, refusal, timeout_s)

    async def _create_in_a_block(self, upload: Upload, data: bytes, timeout_s: float) -> WriteAnswer:
        """Put Block and Put Block List with If-None-Match: *, which looks at nothing but committed blobs.

        Azurite takes a blob's staged blocks for the blob and refuses Put Blob while an upload is open, or was left. The
        blocks of that upload are dropped with the commit; whoever still sends it sees that the blob exists.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        staged = await self.uploads.add(upload, data, timeout_s=timeout_s)
        if isinstance(staged, (NotNow, NoAnswer)):
            return NotNow(staged.why, staged.retry_after_s)  # a staged block is nobody's to see
        if isinstance(staged, Denied):
            return Denied(upload.path)
        answer = await self.uploads.finish(staged, b"", timeout_s=deadline - clock())
        if isinstance(answer, Gone):
            return NotNow(answer.why)  # another commit dropped my block before mine
        return Denied(upload.path) if isinstance(answer, Denied) else answer

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        """Get Blob Properties."""

        async def send(blob: BlobClient, settings: dict[str, Any]) -> ReadAnswer:
            dates: list[str | None] = []

            def note(answer: Any) -> None:
                dates.append(answer.http_response.headers.get("Date"))

            properties = await blob.get_blob_properties(**settings, raw_response_hook=note)
            return replace(_seen(path, properties, None), answered_ms=http_date_ms(dates[-1] if dates else None))

        return await self._ask_blob(path, send, _read_refusal, timeout_s)

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        """Get Blob, with If-None-Match for a reader that has a version already."""
        condition = {} if unless is None else _condition(unless, MatchConditions.IfModified)

        async def send(blob: BlobClient, settings: dict[str, Any]) -> ReadAnswer:
            stream = await blob.download_blob(**condition, **settings)
            return _seen(path, stream.properties, await stream.readall())

        return await self._ask_blob(path, send, _read_refusal, timeout_s)

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """Delete Blob, with If-Match where there is a condition."""
        matching = {} if condition is None else _condition(condition, MatchConditions.IfNotModified)

        async def send(blob: BlobClient, settings: dict[str, Any]) -> WriteAnswer:
            await blob.delete_blob(**matching, **settings)
            return Applied(None)

        refusal = _delete_refusal if condition is None else _write_refusal
        return await self._ask_blob(path, send, refusal, timeout_s)

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        """List Blobs. It cannot start after a name, so what comes before is listed and dropped."""
        container, _, key_prefix = prefix.partition("/")
        after = start_after.partition("/")[2] if start_after else ""

        async def send(client: ContainerClient, settings: dict[str, Any]) -> ListAnswer:
            found = client.list_blobs(name_starts_with=key_prefix or None, include=["metadata"], **settings)
            pages: Any = found.by_page(continuation_token=token)
            items = [item async for item in await anext(pages)]
            entries = tuple(_entry(container, item) for item in items if item.name > after and not _is_folder(item))
            return Page(entries, pages.continuation_token or None)

        async def ask(service: BlobServiceClient) -> ListAnswer:
            return await send(service.get_container_client(container), self._settings())

        return await self._ask(prefix, ask, no_refusal, timeout_s)

    def adapt(self, refused: str = "") -> bool:
        """Create at the path `refused` by a block next time; conditions have one dialect."""
        if refused:
            self._unfinished.add(refused)
        return bool(refused)

    async def close(self) -> None:
        """Close the client that belongs to the running loop."""
        await self._services.close()

    async def _open(self) -> BlobServiceClient:
        """A client for the same account and credential, sending once."""
        given = self._given.service_client
        return BlobServiceClient(
            given.url,
            credential=given.credential,
            transport=_SendsOnce(),
            retry_total=0,
            max_single_put_size=_ONE_REQUEST_BYTES,
            max_single_get_size=_ONE_REQUEST_BYTES,
        )

    def _settings(self) -> dict[str, Any]:
        return dict(getattr(self._given, "_timeout_kwargs", {}))

    async def _ask_blob(
        self,
        path: str,
        send: Callable[[BlobClient, dict[str, Any]], Coroutine[Any, Any, A]],
        refusal: Callable[[int, str], A | None],
        timeout_s: float,
    ) -> A | NotNow | NoAnswer:
        container, _, key = path.partition("/")

        async def ask(service: BlobServiceClient) -> A:
            try:
                blob = service.get_blob_client(container, key)
            except ValueError as error:
                raise InvalidInput(f"Azure does not accept {path!r}: {error}", path=path) from error
            return await send(blob, self._settings())

        return await self._ask(path, ask, refusal, timeout_s)

    async def _ask(
        self,
        path: str,
        send: Callable[[BlobServiceClient], Coroutine[Any, Any, A]],
        refusal: Callable[[int, str], A | None],
        timeout_s: float,
    ) -> A | NotNow | NoAnswer:
        """Send once; translate whatever comes back."""
        trip = Trip.begin()
        try:
            service = await self._services.get(self._open)
            return await asyncio.wait_for(send(service), timeout_s)
        except CasError:
            raise
        except _FAILURES as error:
            if not trip.left:
                return _unsent(error, path)
            if isinstance(error, asyncio.TimeoutError):
                return NoAnswer(f"no answer within {timeout_s:.3g} s")
            return _translate(error, path, refusal) if isinstance(error, HttpResponseError) else _without_answer(error)


def _condition(version: Version, match: MatchConditions) -> dict[str, Any]:
    return {"etag": version.token, "match_condition": match}


def _put_condition(condition: Condition) -> dict[str, Any]:
    if isinstance(condition, Absent):
        return {"overwrite": False}  # the SDK sends If-None-Match: *
    return {"overwrite": True, **_condition(condition, MatchConditions.IfNotModified)}


def _seen(path: str, properties: Any, data: bytes | None) -> Seen:
    if not properties.etag:
        raise StoreError(f"the answer for {path!r} has no ETag; what was read has no version", path=path)
    metadata = {name.lower(): value for name, value in (properties.metadata or {}).items()}
    size = properties.size if data is None else len(data)
    return Seen(
        Version("azure", properties.etag),
        size,
        epoch_ms(properties.last_modified),
        metadata.pop(BLOB_ID_KEY, None),
        data,
        content_type=getattr(properties.content_settings, "content_type", None),
        metadata=metadata,
    )


def _entry(container: str, item: Any) -> Entry:
    etag = item.etag and (item.etag if item.etag.startswith('"') else f'"{item.etag}"')  # listed without its quotes
    version = Version("azure", etag) if etag else None
    return Entry(f"{container}/{item.name}", item.size, epoch_ms(item.last_modified), version)


def _is_folder(item: Any) -> bool:
    return str((item.metadata or {}).get(_FOLDER_MARK, "")).lower() == "true"


def _no_blob(status: int, code: str) -> bool:
    return status == 404 and code != "ContainerNotFound"


def _create_refusal(status: int, code: str) -> Denied | None:
    false = code == _EXISTS or (status == 412 and code in _FALSE_CONDITION_CODES)
    return Denied() if false else None


def _write_refusal(status: int, code: str) -> WriteAnswer | None:
    # Other codes of 412 (LeaseIdMissing ...) do not speak of our condition.
    false = _no_blob(status, code) or (status == 412 and code in _FALSE_CONDITION_CODES)
    return Denied() if false else None


def _delete_refusal(status: int, code: str) -> WriteAnswer | None:
    return Applied(None) if _no_blob(status, code) else None


def _read_refusal(status: int, code: str) -> ReadAnswer | None:
    if status == 304:
        return Unchanged()
    return Missing() if _no_blob(status, code) else None


def _unsent(error: Exception, path: str) -> NotNow:
    """The credential failed, for now or for good: nothing was sent."""
    passing = (asyncio.TimeoutError, ServiceRequestError, ServiceResponseError)
    if isinstance(error, passing) or (isinstance(error, HttpResponseError) and (error.status_code or 0) >= 500):
        return NotNow(f"no credentials, and nothing was sent: {type(error).__name__}: {error}")
    raise AccessDenied(f"no usable Azure credentials for {path!r}, nothing was sent: {error}", path=path) from error


def _without_answer(error: Exception) -> NotNow | NoAnswer:
    # The SDK says "request error" also when the connection broke after the request had left.
    cause = getattr(error, "inner_exception", None)
    unreached = isinstance(error, ServiceRequestTimeoutError) or isinstance(cause, aiohttp.ClientConnectorError)
    why = f"{type(cause or error).__name__}: {error}"
    return NotNow(f"could not connect: {why}") if unreached else NoAnswer(why)


def _translate(error: HttpResponseError, path: str, refusal: Callable[[int, str], A | None]) -> A | NotNow | NoAnswer:
    status = error.status_code or 0
    code = _code(error)
    why = f"{status} {code}".strip()
    later_s = retry_after_s(getattr(error.response, "headers", {}).get("Retry-After"))
    answer = refusal(status, code)
    if answer is not None:
        return answer
    if status == 429 or code in _NOT_NOW_CODES:
        return NotNow(why, later_s)
    if status in (401, 403) or isinstance(error, ClientAuthenticationError):
        reason = why if status else str(error)
        raise AccessDenied(f"Azure refused access to {path!r}: {reason}; check account, key and roles", path=path)
    if status == 404:
        container = path.partition("/")[0]
        raise BucketNotFound(f"there is no container {container!r}; create it first", path=path)
    if 300 <= status < 500 and status != 408:
        raise StoreError(f"Azure refused the request for {path!r}: {why}", path=path)
    return NoAnswer(why, later_s)  # every 5xx, and what has no status


def _code(error: HttpResponseError) -> str:
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")
