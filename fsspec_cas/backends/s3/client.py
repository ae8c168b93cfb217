"""The client that S3 requests go through: as the user's s3fs would make it, but it sends once, and at once.

Every layer that would send again by itself is off: s3fs's loop is not used, botocore's retries are set to one attempt,
aiohttp's re-send of a PUT whose connection broke is switched off on the session that is made here, and redirects are
not followed. The reply is read in the transport, below botocore, which would take a gateway's page for an answer.

What botocore does for each request, and a small request does not need, is left out: it asks first whether it may send
a body ("Expect: 100-continue"), a way there and back for every PUT; it puts the same User-Agent together twice; and it
has a retry handler look at every answer.

What botocore reads from its own files for each session (the model of S3, the endpoints: most of the time that opening a
store takes) is read once a process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any

import aiobotocore.httpsession
import aiobotocore.session
import botocore.loaders
from botocore.config import Config
from s3fs import S3FileSystem

from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.attributes import AttributeRules
from fsspec_cas.backends.base import WRITE_ID_KEY
from fsspec_cas.backends.http.reply import HttpReply
from fsspec_cas.backends.http.s3 import S3Dialect
from fsspec_cas.backends.last_byte import held, signs_bodies
from fsspec_cas.backends.wire import Answered, Refusing, Trip, sends_once, within
from fsspec_cas.errors import InvalidInput

_OURS = ("Bucket", "Key", "Body", "IfMatch", "IfNoneMatch", "UploadId", "PartNumber", "MultipartUpload")
_OF_ALL = "later looks at the object need it too, so give it to all requests, in s3_additional_kwargs"
S3_RULES = AttributeRules(
    own=frozenset(
        {"ACL", "BucketKeyEnabled", "CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage"}
        | {"Expires", "GrantFullControl", "GrantRead", "GrantReadACP", "GrantWriteACP", "ObjectLockLegalHoldStatus"}
        | {"ObjectLockMode", "ObjectLockRetainUntilDate", "SSEKMSEncryptionContext", "SSEKMSKeyId"}
        | {"ServerSideEncryption", "StorageClass", "Tagging", "WebsiteRedirectLocation"}
    ),
    same={"ContentType": "content_type", "Metadata": "metadata"},
    refused=dict.fromkeys(("SSECustomerAlgorithm", "SSECustomerKey", "SSECustomerKeyMD5"), _OF_ALL),
)
_DIALECT = S3Dialect()
_SMALL_BYTES = 64 * 1024  # on its way before a server that refuses it could have said so


@dataclass(frozen=True, slots=True)
class Connection:
    """A client, and what s3fs itself would close it with."""

    client: Any
    creator: Any

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.creator.__aexit__(*error)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user wants of requests: s3fs's `s3_additional_kwargs`, and who pays."""

    given: dict[str, Any]

    def __post_init__(self) -> None:
        for name in _OURS:
            if name in self.given:
                raise InvalidInput(f"s3_additional_kwargs has {name!r}, which each call says itself: leave it out")
        if not isinstance(self.given.get("Metadata", {}), dict):
            raise InvalidInput("s3_additional_kwargs has a 'Metadata' that is no dict of names and texts")

    def making(self, write_id: str, attributes: Attributes | None = None) -> dict[str, Any]:
        """For a request that makes an object: all of them, so that S3's client refuses what it does not know.

        What one write is given goes before what holds for all.
        """
        more = attributes or Attributes()
        kind = {"ContentType": more.content_type} if more.content_type else {}
        metadata = {**self.given.get("Metadata", {}), **more.metadata, WRITE_ID_KEY: write_id}
        return {**self.given, **kind, **more.own, "Metadata": metadata}

    def known_to(self, client: Any, operation: str) -> dict[str, Any]:
        """For any other request: what it knows of them, such as the key without which an object cannot be looked at."""
        if not self.given:
            return {}
        known = client.meta.service_model.operation_model(operation).input_shape.members
        return {name: value for name, value in self.given.items() if name in known}


def key_of(path: str) -> dict[str, str]:
    """An object's bucket and key, as requests name them."""
    bucket, _, key = path.partition("/")
    return {"Bucket": bucket, "Key": key}


async def connect(given: Any) -> Connection:
    """A client for the running loop, with the credentials and settings of the s3fs filesystem `given`."""
    options = {
        "session": _session(given),
        **given.storage_options,
        "config_kwargs": {
            # aiobotocore fails on a 304 with a checksum, as rclone sends it: it takes the empty body for a stream.
            "response_checksum_validation": "when_required",
            **given.config_kwargs,
            "retries": {"mode": "standard", "total_max_attempts": 1},
            "http_session_cls": _SendsOnce,
        },
        "asynchronous": True,  # s3fs would close from whatever thread collects garbage
        "skip_instance_cache": True,
    }
    fs = S3FileSystem(*given.storage_args, **options)
    client = await fs.set_session()
    client.meta.events.register_last("before-call.s3", _send_at_once)
    client.meta.events.register_last("before-sign.s3.PutObject", _sign_no_body_in_a_race)
    # It would count to one; under another name it stays, and does that.
    client.meta.events.unregister("needs-retry.s3", unique_id="retry-config-s3")
    _keep_user_agent(client)
    return Connection(client, fs._s3creator)  # noqa: SLF001 - there is no public way to close a client


_loader = cache(botocore.loaders.create_loader)


def _session(given: Any) -> Any:
    """As s3fs would make it. What is read of botocore's files is nobody's in particular: clients only look at it."""
    session = aiobotocore.session.AioSession(**given.kwargs)
    session.lazy_register_component("data_loader", lambda: _loader(session.get_config_variable("data_path")))
    return session


class _SendsOnce(aiobotocore.httpsession.AIOHTTPSession):  # type: ignore[misc] # untyped base
    """botocore's session over aiohttp sessions that send once; it keeps each reply for the trip, unread by botocore.

    A reply in which the store itself names the bucket's region goes on to botocore, which sends again there, once.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        return Refusing(sends_once(await super()._get_session(proxy_url)))

    async def send(self, request: Any) -> Any:
        trip = Trip.leave()
        request.body = held(request.body)
        async with within(trip.patience_s):
            response = await super().send(request)
        body = await response.content
        trip.reply = HttpReply(response.status_code, response.raw.headers.items(), body)
        if _DIALECT.names_region(trip.reply):
            return response
        raise Answered


def _send_at_once(params: dict[str, Any], **_: object) -> None:
    """Send a small body along with its headers. After botocore's handler that has the server asked first."""
    body = params.get("body")
    if isinstance(body, BytesIO) and body.getbuffer().nbytes <= _SMALL_BYTES:
        params["headers"].pop("Expect", None)


def _sign_no_body_in_a_race(request: Any, **_: object) -> None:
    if not signs_bodies():
        given = request.context.get("client_config") or Config()
        request.context["client_config"] = given.merge(
            Config(s3={**(given.s3 or {}), "payload_signing_enabled": False})
        )


def _keep_user_agent(client: Any) -> None:
    """Build the User-Agent once; it costs a tenth of a small request. A botocore that has none of this is left alone.

    Source: botocore.useragent, `UserAgentString.to_string`; a fixed text in the config would lose the app id.
    """
    named = getattr(client, "_user_agent_creator", None)
    if named is not None:
        text = named.to_string()
        named.to_string = lambda: text
