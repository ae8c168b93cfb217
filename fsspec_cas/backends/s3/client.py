"""S3 and compatible stores through aiobotocore, with an s3fs filesystem's settings."""

from __future__ import annotations

import asyncio
from functools import cache, partial
from io import BytesIO
from typing import Any

import aiobotocore.httpsession
import aiobotocore.session
import aiohttp
import botocore.loaders
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ParamValidationError
from botocore.exceptions import ConnectionError as NotConnected
from s3fs import S3FileSystem

from fsspec_cas.answer import NotApplied
from fsspec_cas.backends.base import WRITE_ID_KEY, AttributeRules
from fsspec_cas.backends.last_byte import hold_last_byte, signs_bodies
from fsspec_cas.backends.reply import HttpReply, StoreRequest, Verb
from fsspec_cas.backends.s3 import S3Api, is_amazon
from fsspec_cas.backends.s3.answers import S3Dialect
from fsspec_cas.backends.wire import AioBackend, Answered, Refusing, Trip, sends_once, within
from fsspec_cas.errors import AccessDenied, InvalidInput
from fsspec_cas.outcome import Write

_OURS = ("Bucket", "Key", "Body", "IfMatch", "IfNoneMatch", "UploadId", "PartNumber", "MultipartUpload")
_OF_ALL = "later reads of the object need it too, so give it to all requests, in s3_additional_kwargs"
_DIALECT = S3Dialect()
_SMALL_BYTES = 64 * 1024  # sent before a server could refuse it


def key_of(path: str) -> dict[str, str]:
    bucket, _, key = path.partition("/")
    return {"Bucket": bucket, "Key": key}


_loader = cache(botocore.loaders.create_loader)  # botocore parses its files slowly


class _SendsOnce(aiobotocore.httpsession.AIOHTTPSession):  # type: ignore[misc] # untyped base
    """Keeps replies from botocore, which would believe any page."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        return Refusing(sends_once(await super()._get_session(proxy_url)))

    async def send(self, request: Any) -> Any:
        """Send once, store the reply in the trip, and raise Answered; TimeoutError after the trip's patience.

        A reply that names the bucket's region is returned: botocore re-sends there, once.
        """
        trip = Trip.leave()
        request.body = hold_last_byte(request.body)
        async with within(trip.patience_s):
            response = await super().send(request)
        body = await response.content
        trip.reply = HttpReply(response.status_code, response.raw.headers.items(), body)
        if _DIALECT.region_of(trip.reply) is not None:
            return response
        raise Answered


def _send_at_once(params: dict[str, Any], **_: object) -> None:
    body = params.get("body")
    if isinstance(body, BytesIO) and body.getbuffer().nbytes <= _SMALL_BYTES:
        params["headers"].pop("Expect", None)


def _sign_no_body_in_a_race(request: Any, **_: object) -> None:
    if not signs_bodies():
        config = request.context.get("client_config") or Config()
        request.context["client_config"] = config.merge(
            Config(s3={**(config.s3 or {}), "payload_signing_enabled": False})
        )


_PASSING = (asyncio.TimeoutError, NotConnected, HTTPClientError, aiohttp.ClientError)


class S3Backend(S3Api, AioBackend):
    attribute_rules = AttributeRules(
        own=frozenset(
            {"ACL", "BucketKeyEnabled", "CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage"}
            | {"Expires", "GrantFullControl", "GrantRead", "GrantReadACP", "GrantWriteACP", "ObjectLockLegalHoldStatus"}
            | {"ObjectLockMode", "ObjectLockRetainUntilDate", "SSEKMSEncryptionContext", "SSEKMSKeyId"}
            | {"ServerSideEncryption", "StorageClass", "Tagging", "WebsiteRedirectLocation"}
        ),
        same={"ContentType": "content_type", "Metadata": "metadata"},
        refused=dict.fromkeys(("SSECustomerAlgorithm", "SSECustomerKey", "SSECustomerKeyMD5"), _OF_ALL),
    )
    failures = (ClientError, BotoCoreError, aiohttp.ClientError, OSError)
    hint = "give client_kwargs={'verify': 'path of the authority's certificate'}, or set AWS_CA_BUNDLE"

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        self._additional = {**fs.s3_additional_kwargs, **fs.req_kw}
        for name in _OURS:
            if name in self._additional:
                raise InvalidInput(f"s3_additional_kwargs has {name!r}, which each call sets itself: leave it out")
        if not isinstance(self._additional.get("Metadata", {}), dict):
            raise InvalidInput("s3_additional_kwargs has a 'Metadata' that is not a dict of names and texts")

    async def endpoint(self) -> str:
        return str((await self._client()).meta.endpoint_url)

    async def _open(self) -> Any:
        """Create a client as the user's filesystem would, without retries, redirects, or `Expect` for small bodies."""
        filesystem = self._given
        session = aiobotocore.session.AioSession(**filesystem.kwargs)
        session.lazy_register_component("data_loader", lambda: _loader(session.get_config_variable("data_path")))
        options = {
            "session": session,
            **filesystem.storage_options,
            "config_kwargs": {
                # aiobotocore fails on a 304 with a checksum, which rclone sends.
                "response_checksum_validation": "when_required",
                **filesystem.config_kwargs,
                "retries": {"mode": "standard", "total_max_attempts": 1},
                "http_session_cls": _SendsOnce,
            },
            "asynchronous": True,  # else s3fs closes from the garbage collector's thread
            "skip_instance_cache": True,
        }
        client = await S3FileSystem(*filesystem.storage_args, **options).set_session()
        client.meta.events.register_last("before-call.s3", _send_at_once)
        client.meta.events.register_last("before-sign.s3.PutObject", _sign_no_body_in_a_race)
        client.meta.events.unregister("needs-retry.s3", unique_id="retry-config-s3")
        # Building the User-Agent costs a tenth of a small request.
        if named := getattr(client, "_user_agent_creator", None):
            text = named.to_string()
            named.to_string = lambda: text
        return client

    async def _client(self) -> Any:
        client = await super()._client()
        if self.gives_request_ids is None and is_amazon(client.meta.endpoint_url):
            self.expect_request_ids()
        return client

    def _preparation_failed(self, error: Exception, path: str) -> NotApplied:
        """Return `NotApplied` for a passing failure to get credentials.

        A name that botocore rejects raises InvalidInput, any other failure AccessDenied.
        """
        if isinstance(error, ParamValidationError):
            raise InvalidInput(f"S3 does not accept {path!r}: {error}", path=path) from error
        response = error.response if isinstance(error, ClientError) else {}
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        throttled = "Throttl" in str(response.get("Error", {}).get("Code", ""))
        if isinstance(error, _PASSING) or status >= 500 or status == 429 or throttled:
            return NotApplied(f"no credentials, and nothing was sent: {type(error).__name__}: {error}")
        summary = f"no usable S3 credentials for {path!r}, nothing was sent: {error}"
        raise AccessDenied(f"{summary}; check key, profile, role and token", path=path) from error

    def _making(self, write: Write) -> dict[str, Any]:
        more = write.attributes
        kind = {"ContentType": more.content_type} if more.content_type else {}
        metadata = {**self._additional.get("Metadata", {}), **more.metadata, WRITE_ID_KEY: write.write_id}
        return {**self._additional, **kind, **more.own, "Metadata": metadata}

    def _known_to(self, client: Any, operation: str) -> dict[str, Any]:
        if not self._additional:
            return {}
        accepted = client.meta.service_model.operation_model(operation).input_shape.members
        return {name: value for name, value in self._additional.items() if name in accepted}

    async def _send(self, client: Any, request: StoreRequest) -> None:
        """Send the request through botocore's client, with the filesystem's additional parameters.

        The transport keeps the reply and raises Answered.
        """
        key, more = {**key_of(request.path), **self._conditions(request)}, partial(self._known_to, client)
        match request.verb:
            case Verb.CREATE | Verb.MATCH:
                attributes = self._making(request.the_write())
                await client.put_object(**attributes, **key, Body=request.data)
            case Verb.HEAD:
                await client.head_object(**key, **more("HeadObject"))
            case Verb.GET:
                await client.get_object(**key, **more("GetObject"))
            case Verb.DELETE | Verb.DELETE_MATCH:
                await client.delete_object(**key, **more("DeleteObject"))
            case Verb.DELETE_MANY:
                objects = [{"Key": key_of(path)["Key"]} for path in request.paths]
                deletion = {"Objects": objects, "Quiet": True}
                await client.delete_objects(Bucket=key["Bucket"], Delete=deletion, **more("DeleteObjects"))
            case Verb.LIST:
                await client.list_objects_v2(**_listing(request), **more("ListObjectsV2"))
            case _:
                await self._sent_of_upload(client, request)

    async def _sent_of_upload(self, client: Any, request: StoreRequest) -> None:
        """Send a multipart upload's start (no `upload` yet), part, completion or abort.

        The transport keeps the reply and raises Answered.
        """
        key, more = {**key_of(request.path), **self._conditions(request)}, partial(self._known_to, client)
        upload = request.upload
        if upload is None:
            attributes = self._making(request.the_write())
            await client.create_multipart_upload(**attributes, **key)
            return
        named = {**key, "UploadId": upload.token}
        if request.verb is Verb.PART:
            number = len(upload.tags) + 1
            await client.upload_part(**more("UploadPart"), **named, PartNumber=number, Body=request.data)
        elif request.verb is Verb.FINISH:
            parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(upload.tags, 1)]
            settings = more("CompleteMultipartUpload")
            await client.complete_multipart_upload(**settings, **named, MultipartUpload={"Parts": parts})
        else:
            await client.abort_multipart_upload(**more("AbortMultipartUpload"), **named)


def _listing(request: StoreRequest) -> dict[str, Any]:
    """Return the parameters of ListObjectsV2, with the page's token, else the start."""
    bucket, _, prefix = request.path.partition("/")
    begin: dict[str, Any] = {}
    if request.token:
        begin = {"ContinuationToken": request.token}
    elif request.start_after:
        begin = {"StartAfter": request.start_after.partition("/")[2]}
    limit = {} if request.limit is None else {"MaxKeys": request.limit}
    return {"Bucket": bucket, "Prefix": prefix, **begin, **limit}
