"""S3 and its kin, through aiobotocore, with the credentials and settings of the given s3fs filesystem.

No layer sends again by itself: see `s3_client`.

Sources: Amazon S3 User Guide, "Conditional requests"; API reference of PutObject, GetObject, DeleteObject.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

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

from fsspec_cas.answer import (
    Applied,
    Denied,
    ListAnswer,
    NoAnswer,
    NotNow,
    ReadAnswer,
    Seen,
    WriteAnswer,
)
from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.attributes import AttributeRules
from fsspec_cas.backends.base import WRITE_ID_KEY
from fsspec_cas.backends.s3_answers import (
    THROTTLE_STATUS,
    answer_of,
    create_refusal,
    page_of,
    read_refusal,
    version_of,
    write_refusal,
)
from fsspec_cas.backends.s3_client import S3_RULES, Connection, Settings, connect, key_of
from fsspec_cas.backends.s3_uploads import S3Uploads
from fsspec_cas.backends.wire import PerLoop, Trip, epoch_ms, http_date_ms, no_refusal, retry_after_s, within
from fsspec_cas.capability import Capabilities
from fsspec_cas.errors import AccessDenied, CasError, InvalidInput, NotSupported, StoreError
from fsspec_cas.version import Absent, Condition, Version

A = TypeVar("A")

_CAPABILITIES = Capabilities(
    create=True,
    match=True,
    delete_match=True,
    read_changed=True,
    unique_versions=False,  # the ETag is a hash of the content
    keeps_write_id=True,
    own_clock=True,
)
_UNREACHED = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError, SSLError)
_CONNECT_ERRORS = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
    socket.gaierror,
)
# Of a service that gives credentials, or of the one that is asked: a timeout, a connection, a body that stops half way.
_PASSING = (asyncio.TimeoutError, *_UNREACHED, HTTPClientError, aiohttp.ClientError)
_FAILURES = (asyncio.TimeoutError, ClientError, BotoCoreError, aiohttp.ClientError, OSError)


class S3Backend:
    """Conditional writes over the S3 API."""

    name = "s3"
    capabilities = _CAPABILITIES
    attribute_rules: AttributeRules = S3_RULES
    blocking = False

    def __init__(self, fs: Any) -> None:
        self._given = fs
        self._settings = Settings({**fs.s3_additional_kwargs, **fs.req_kw})
        self._quoted = True
        self._batches = True
        self._proved: bool | None = None  # the dialect in which a condition was last seen to hold
        self._connections: PerLoop[Connection] = PerLoop()

    def isolated_connections(self) -> S3Backend:
        """The same store over connections of its own."""
        return S3Backend(self._given)

    @property
    def uploads(self) -> S3Uploads:
        """Multipart uploads."""
        return S3Uploads(self._ask, self._settings)

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
        """PutObject with If-None-Match: * or If-Match."""
        creating, quoted = isinstance(condition, Absent), self._quoted
        dialect = "" if creating else _dialect(quoted=quoted)
        if_header = {"IfNoneMatch": "*"} if isinstance(condition, Absent) else {"IfMatch": self._etag(condition)}

        async def send(client: Any) -> WriteAnswer:
            answer = await client.put_object(
                **self._settings.making(write_id, attributes),
                **key_of(path),
                Body=data,
                **if_header,
            )
            if not creating:
                self._proved = quoted
            # No ETag: an error inside a 200, or a proxy that strips headers.
            return Applied(version_of(answer.get("ETag")))

        def refusal(status: int, code: str) -> Denied | None:
            false = (create_refusal if creating else write_refusal)(status, code)
            return Denied(dialect) if false else None

        return await self._ask(path, send, refusal, timeout_s)

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        """HeadObject."""

        async def send(client: Any) -> ReadAnswer:
            return _seen(
                path, await client.head_object(**key_of(path), **self._settings.known_to(client, "HeadObject")), None
            )

        return await self._ask(path, send, read_refusal, timeout_s)

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        """GetObject, with If-None-Match for a reader that has a version already."""
        if_header = {} if unless is None else {"IfNoneMatch": unless.token}

        async def send(client: Any) -> ReadAnswer:
            answer = await client.get_object(
                **key_of(path), **if_header, **self._settings.known_to(client, "GetObject")
            )
            async with answer["Body"] as body:
                return _seen(path, answer, await body.read())

        return await self._ask(path, send, read_refusal, timeout_s)

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """DeleteObject, with If-Match where there is a condition."""
        if_header = {} if condition is None else {"IfMatch": self._etag(condition)}

        async def send(client: Any) -> WriteAnswer:
            await client.delete_object(**key_of(path), **if_header, **self._settings.known_to(client, "DeleteObject"))
            return Applied(None)

        return await self._ask(path, send, write_refusal, timeout_s)

    async def delete_batch(self, paths: Sequence[str], *, timeout_s: float) -> WriteAnswer:
        """DeleteObjects; all of one bucket.

        Raises:
            NotSupported: this store has no such request, or wants it in another form; nothing was deleted.
        """
        if not self._batches:
            raise NotSupported(f"the store at {paths[0]!r} takes no DeleteObjects")
        keys = [key_of(path) for path in paths]
        objects = [{"Key": key["Key"]} for key in keys]

        async def send(client: Any) -> WriteAnswer:
            what = {"Objects": objects, "Quiet": True}
            more = self._settings.known_to(client, "DeleteObjects")
            answer = await client.delete_objects(Bucket=keys[0]["Bucket"], Delete=what, **more)
            failed = answer.get("Errors") or ()
            return NoAnswer(f"{failed[0].get('Code')} for {failed[0].get('Key')}") if failed else Applied(None)

        try:
            return await self._ask(paths[0], send, no_refusal, timeout_s)
        except (StoreError, NotSupported) as error:
            self._batches = False
            raise NotSupported(f"the store at {paths[0]!r} takes no DeleteObjects: {error}") from error

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        """ListObjectsV2."""
        bucket, _, key_prefix = prefix.partition("/")
        start = (
            {"ContinuationToken": token}
            if token
            else {"StartAfter": start_after.partition("/")[2]}
            if start_after
            else {}
        )

        async def send(client: Any) -> ListAnswer:
            more = self._settings.known_to(client, "ListObjectsV2")
            answer = await client.list_objects_v2(Bucket=bucket, Prefix=key_prefix, **start, **more)
            return page_of(bucket, answer)

        return await self._ask(prefix, send, no_refusal, timeout_s)

    async def endpoint(self) -> str:
        """The URL that requests go to, as settings, environment and profile have it; nothing is sent."""
        return str((await self._client()).meta.endpoint_url)

    def adapt(self, refused: str = "") -> bool:
        """Quote the ETag in If-Match or not: Ceph 16, Spaces and Hetzner accept only the form they did not send.

        Callers share what is learned: the first of many that find out must not be undone by the next.
        """
        if refused in ("", _dialect(quoted=self._quoted)):
            known = self._proved
            self._quoted = not self._quoted if known is None or known == self._quoted else known
        return True

    async def close(self) -> None:
        """Close the client that belongs to the running loop."""
        await self._connections.close()

    def _etag(self, version: Version) -> str:
        return version.token if self._quoted else version.token.strip('"')

    async def _client(self) -> Any:
        """A client for the running loop and process: as the user's filesystem would make it, but sending once."""
        return (await self._connections.get(partial(connect, self._given))).client

    async def _ask(
        self,
        path: str,
        send: Callable[[Any], Coroutine[Any, Any, A]],
        refusal: Callable[[int, str], A | None],
        timeout_s: float,
    ) -> A | NotNow | NoAnswer:
        """Send once; translate whatever comes back."""
        trip = Trip.begin()
        try:
            client = await self._client()
            async with within(timeout_s):
                return await send(client)
        except CasError:
            raise
        except (*_FAILURES, ValueError, RuntimeError) as error:
            if not trip.left:
                return _unsent(error, path)
            if isinstance(error, asyncio.TimeoutError):
                return NoAnswer(f"no answer within {timeout_s:.3g} s")
            if isinstance(error, ClientError):
                later_s = retry_after_s(_headers(error.response).get("retry-after"))
                return answer_of(*_status(error), path, refusal, later_s)
            if isinstance(error, _UNREACHED):
                return _without_connection(error)
            if isinstance(error, _FAILURES):
                return NoAnswer(f"{type(error).__name__}: {error}")
            raise


def _unsent(error: Exception, path: str) -> NotNow:
    """What failed was getting ready, mostly credentials, for now or for good."""
    if isinstance(error, ParamValidationError):
        raise InvalidInput(f"S3 does not accept {path!r}: {error}", path=path) from error
    status, code = _status(error) if isinstance(error, ClientError) else (0, "")
    if isinstance(error, _PASSING) or status >= 500 or status == THROTTLE_STATUS or "Throttl" in code:
        return NotNow(f"no credentials, and nothing was sent: {type(error).__name__}: {error}")
    what = f"no usable S3 credentials for {path!r}, nothing was sent: {error}"
    raise AccessDenied(f"{what}; check key, profile, role and token", path=path) from error


def _status(error: ClientError) -> tuple[int, str]:
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, str(error.response.get("Error", {}).get("Code", ""))


def _without_connection(error: BotoCoreError) -> NotNow | NoAnswer:
    # aiobotocore says "could not connect" also of a connection that was reset after the request had left.
    unsent = isinstance(error.kwargs.get("error"), _CONNECT_ERRORS)
    return NotNow(f"could not connect: {error}") if unsent else NoAnswer(f"the connection broke: {error}")


def _dialect(*, quoted: bool) -> str:
    return "quoted" if quoted else "unquoted"


def _seen(path: str, answer: dict[str, Any], data: bytes | None) -> Seen:
    version = version_of(answer.get("ETag"))
    if version is None:
        raise StoreError(f"the answer for {path!r} has no ETag; what was read has no version", path=path)
    return Seen(
        version,
        answer["ContentLength"] if data is None else len(data),
        epoch_ms(answer.get("LastModified")),
        answer.get("Metadata", {}).get(WRITE_ID_KEY),
        data,
        http_date_ms(_headers(answer).get("date")),
        answer.get("ContentType"),
        {name: value for name, value in answer.get("Metadata", {}).items() if name != WRITE_ID_KEY},
    )


def _headers(answer: Mapping[str, Any]) -> Mapping[str, str]:
    headers: Mapping[str, str] = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers
