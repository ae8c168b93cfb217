"""S3 and its kin, through aiobotocore, with the credentials and settings of the given s3fs filesystem.

No layer sends again by itself: see `client`.

Sources: Amazon S3 User Guide, "Conditional requests"; API reference of PutObject, GetObject, DeleteObject,
CreateMultipartUpload, UploadPart, CompleteMultipartUpload ("conditional writes"), AbortMultipartUpload; "Amazon S3
multipart upload limits".
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ParamValidationError,
    ProxyConnectionError,
    SSLError,
)

from fsspec_cas.answer import NoAnswer, NotNow
from fsspec_cas.backends.http.reply import HttpReply, StoreRequest, Verb
from fsspec_cas.backends.reach import patience_s, unreached
from fsspec_cas.backends.s3.api import S3Api, is_amazon
from fsspec_cas.backends.s3.client import S3_RULES, Connection, Settings, connect, key_of
from fsspec_cas.backends.wire import AIOHTTP_UNSENT, Answered, PerLoop, Trip, within
from fsspec_cas.errors import AccessDenied, CasError, InvalidInput

_HINT = "give client_kwargs={'verify': 'path of the authority's certificate'}, or set AWS_CA_BUNDLE"
# Of a service that gives credentials, or of the one that is asked: a timeout, a connection, a body that stops half way.
_UNREACHED = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError, SSLError)
_PASSING = (asyncio.TimeoutError, *_UNREACHED, HTTPClientError, aiohttp.ClientError)
_FAILURES = (asyncio.TimeoutError, ClientError, BotoCoreError, aiohttp.ClientError, OSError)


class S3Backend(S3Api):
    """Conditional writes over the S3 API."""

    attribute_rules = S3_RULES

    def __init__(self, fs: Any) -> None:
        super().__init__()
        self._given = fs
        self._settings = Settings({**fs.s3_additional_kwargs, **fs.req_kw})
        self._connections: PerLoop[Connection] = PerLoop()

    def isolated_connections(self) -> S3Backend:
        """The same store over connections of its own."""
        return S3Backend(self._given)

    async def endpoint(self) -> str:
        """The URL that requests go to, as settings, environment and profile have it; nothing is sent."""
        return str((await self._client()).meta.endpoint_url)

    async def close(self) -> None:
        """Close the client that belongs to the running loop."""
        await self._connections.close()

    async def _client(self) -> Any:
        """A client for the running loop and process: as the user's filesystem would make it, but sending once."""
        client = (await self._connections.get(partial(connect, self._given))).client
        if self._listener.signs is None and is_amazon(client.meta.endpoint_url):
            self._listener.expect_signatures()
        return client

    async def _exchange(self, asked: StoreRequest, timeout_s: float) -> HttpReply | NotNow | NoAnswer:
        trip = Trip.begin(patience_s(timeout_s, asked))
        try:
            client = await self._client()
            async with within(timeout_s):
                await self._sent(client, asked)
        except (Answered, *_FAILURES, ValueError, RuntimeError) as error:
            if trip.reply is None and not isinstance(error, CasError):
                return self._failed(error, asked.path, left=trip.left, timeout_s=timeout_s)
            if trip.reply is None:
                raise
            error.__traceback__ = None  # botocore keeps the error in a frame of it: a cycle that would keep the body
        return trip.reply or NoAnswer("the client library kept the reply to itself")

    def _failed(self, error: Exception, path: str, *, left: bool, timeout_s: float) -> NotNow | NoAnswer:
        if not left:
            return _unsent(error, path)
        if isinstance(error, asyncio.TimeoutError):
            return NoAnswer(f"no answer within {timeout_s:.3g} s")
        if not isinstance(error, _FAILURES):
            raise error
        # aiobotocore says "could not connect" also of a connection that was reset after the request had left.
        why = unreached(error, _HINT, path, proven=self._listener.proven, unsent=AIOHTTP_UNSENT)
        return NotNow(why) if why else NoAnswer(f"{type(error).__name__}: {error}")

    async def _sent(self, client: Any, asked: StoreRequest) -> None:
        key, more = key_of(asked.path), partial(self._settings.known_to, client)
        match asked.verb:
            case Verb.CREATE | Verb.MATCH:
                version = asked.version
                condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": self._etag(version)}
                made = self._settings.making(asked.write_id, asked.attributes)
                await client.put_object(**made, **key, Body=asked.data, **condition)
            case Verb.HEAD:
                await client.head_object(**key, **more("HeadObject"))
            case Verb.GET:
                known = {} if asked.version is None else {"IfNoneMatch": asked.version.token}
                await client.get_object(**key, **known, **more("GetObject"))
            case Verb.DELETE | Verb.DELETE_MATCH:
                condition = {} if asked.version is None else {"IfMatch": self._etag(asked.version)}
                await client.delete_object(**key, **condition, **more("DeleteObject"))
            case Verb.DELETE_MANY:
                objects = [{"Key": key_of(path)["Key"]} for path in asked.paths]
                what = {"Objects": objects, "Quiet": True}
                await client.delete_objects(Bucket=key["Bucket"], Delete=what, **more("DeleteObjects"))
            case Verb.LIST:
                await client.list_objects_v2(**_listing(asked), **more("ListObjectsV2"))
            case _:
                await self._sent_of_upload(client, asked)

    async def _sent_of_upload(self, client: Any, asked: StoreRequest) -> None:
        key, more = key_of(asked.path), partial(self._settings.known_to, client)
        upload = asked.upload
        if upload is None:
            made = self._settings.making(asked.write_id, asked.attributes)
            await client.create_multipart_upload(**made, **key)
            return
        named = {**key, "UploadId": upload.token}
        if asked.verb is Verb.PART:
            number = len(upload.tags) + 1
            await client.upload_part(**more("UploadPart"), **named, PartNumber=number, Body=asked.data)
        elif asked.verb is Verb.FINISH:
            parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(upload.tags, 1)]
            known = more("CompleteMultipartUpload")
            await client.complete_multipart_upload(**known, **named, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
        else:
            await client.abort_multipart_upload(**more("AbortMultipartUpload"), **named)


def _listing(asked: StoreRequest) -> dict[str, Any]:
    bucket, _, prefix = asked.path.partition("/")
    begin: dict[str, Any] = {}
    if asked.token:
        begin = {"ContinuationToken": asked.token}
    elif asked.start_after:
        begin = {"StartAfter": asked.start_after.partition("/")[2]}
    limit = {} if asked.limit is None else {"MaxKeys": asked.limit}
    return {"Bucket": bucket, "Prefix": prefix, **begin, **limit}


def _unsent(error: Exception, path: str) -> NotNow:
    """What failed was getting ready, mostly credentials, for now or for good."""
    if isinstance(error, ParamValidationError):
        raise InvalidInput(f"S3 does not accept {path!r}: {error}", path=path) from error
    status, code = _status(error) if isinstance(error, ClientError) else (0, "")
    if isinstance(error, _PASSING) or status >= 500 or status == 429 or "Throttl" in code:
        return NotNow(f"no credentials, and nothing was sent: {type(error).__name__}: {error}")
    what = f"no usable S3 credentials for {path!r}, nothing was sent: {error}"
    raise AccessDenied(f"{what}; check key, profile, role and token", path=path) from error


def _status(error: ClientError) -> tuple[int, str]:
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, str(error.response.get("Error", {}).get("Code", ""))
