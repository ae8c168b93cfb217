"""Lean blocking client of S3 and compatible stores, at a third of aiobotocore's CPU time per request.

obstore gives only the options: its transport follows redirects, hides headers, and has no conditional delete.
"""

from __future__ import annotations

import hashlib
import http.client
import os
from base64 import b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from xml.sax.saxutils import escape

import obstore.store
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session
from obstore.exceptions import BaseError
from obstore.fsspec import FsspecStore

from fsspec_cas.answer import NoAnswer, NotApplied
from fsspec_cas.backends.base import WRITE_ID_KEY, AttributeRules
from fsspec_cas.backends.http import patience_s, unreached
from fsspec_cas.backends.last_byte import signs_bodies
from fsspec_cas.backends.obstore.connections import Connections, NeverSent, Times
from fsspec_cas.backends.reply import HttpReply, StoreRequest, Verb
from fsspec_cas.backends.s3 import S3Api, is_amazon
from fsspec_cas.backends.s3.answers import S3Dialect
from fsspec_cas.errors import AccessDenied, CasError, InvalidInput, NotSupported
from fsspec_cas.machine import Machine
from fsspec_cas.outcome import Write

_CONDITIONS = {"IfMatch": "if-match", "IfNoneMatch": "if-none-match"}
_HEADERS = {
    "CacheControl": "cache-control",
    "ContentDisposition": "content-disposition",
    "ContentEncoding": "content-encoding",
    "ContentLanguage": "content-language",
    "StorageClass": "x-amz-storage-class",
}
_NO_CONFIG = frozenset(
    {"config", "client_options", "retry_config", "credential_provider", "max_cache_size", "asynchronous", "loop"}
    | {"batch_size", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"}
)
_CONFIG = frozenset(
    {"access_key_id", "secret_access_key", "session_token", "token", "endpoint", "endpoint_url", "endpoint_url_s3"}
    | {"region", "default_region", "skip_signature", "virtual_hosted_style_request", "request_payer", "bucket"}
    | {"metadata_endpoint", "allow_http", "conditional_put", "disable_bulk_delete", "disable_tagging"}
    | {"server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "copy_if_not_exists"}
)
_HTTP = frozenset(
    {"allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "default_headers", "user_agent"}
    | {"proxy_url", "pool_max_idle_per_host", "pool_idle_timeout", "http1_only", "read_timeout"}
)
_HINT = "set SSL_CERT_FILE or AWS_CA_BUNDLE to the file of the authority's certificate"
_DIALECT = S3Dialect()
_DEBUG = "\n\nDebug source:"


class S3OverObstore(FsspecStore):
    protocol = "s3"


class LeanS3Backend(S3Api):
    attribute_rules = AttributeRules(
        own=frozenset(_HEADERS), same={"ContentType": "content_type", "Metadata": "metadata"}
    )
    blocking = True
    remote = True

    def __init__(self, fs: Any) -> None:
        if fs.protocol not in ("s3", "s3a"):
            raise NotSupported(f"obstore serves s3:// here, and not {fs.protocol}://: open it with fsspec's own client")
        super().__init__(fs)
        self._site: _Site | None = None
        self._connections: dict[str, Connections] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (LeanS3Backend, (self._given,))

    async def endpoint(self) -> str:
        return self._opened("bucket").endpoint

    async def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def _opened(self, path: str) -> _Site:
        if self._site is None:
            self._site = _Site(self._given, path)
            if is_amazon(self._site.endpoint):
                self.expect_request_ids()
        return self._site

    async def _exchange(self, request: StoreRequest, timeout_s: float) -> HttpReply | NotApplied | NoAnswer:
        """Send the request once; if the store's refusal names another region, move there for good and re-send."""
        site = self._opened(request.path)
        reply = self._sent(site, request, timeout_s)
        region = _DIALECT.region_of(reply) if isinstance(reply, HttpReply) else None
        if region is not None and region != site.region:
            site.region = region
            return self._sent(site, request, timeout_s)  # the store proved its refusal
        return reply

    def _sent(self, site: _Site, request: StoreRequest, timeout_s: float) -> HttpReply | NotApplied | NoAnswer:
        """Sign and send the request once; without a reply `NotApplied` if nothing was sent, else `NoAnswer`.

        Raises InvalidInput, AccessDenied, or Unavailable for a wrong address.
        """
        try:
            signed = site.signed(
                request, {_CONDITIONS[name]: value for name, value in self._conditions(request).items()}
            )
        except CasError:
            raise
        except (
            BotoCoreError,
            ClientError,
            OSError,
            RuntimeError,
        ) as error:  # RuntimeError: refreshed, and still expired
            return NotApplied(f"no credentials, and nothing was sent: {type(error).__name__}: {error}")
        url = urlsplit(signed.url)
        origin = f"{url.scheme}://{url.netloc}"
        silent_s = patience_s(timeout_s, request)
        times = Times(timeout_s, min(silent_s, site.connect_s or timeout_s / 2), silent_s)
        target = f"{url.path}?{url.query}" if url.query else url.path
        try:
            headers = dict(signed.headers.raw_items())
            if origin not in self._connections:
                self._connections[origin] = Connections(origin, verify=site.verify, proxy=site.proxy)
            return self._connections[origin].exchange(signed.method, target, headers, signed.data, times)
        except NeverSent as error:
            cause = error.__cause__ or error
            unreached(error, _HINT, request.path, proven=self.proven, unsent=(NeverSent,))
            return NotApplied(f"could not connect: {type(cause).__name__}: {cause}")
        except TimeoutError:
            return NoAnswer(f"no answer within {silent_s:.3g} s")
        except (OSError, http.client.HTTPException) as error:
            return NoAnswer(f"{type(error).__name__}: {error}")


class _Signer(S3SigV4Auth):  # type: ignore[misc] # untyped base
    _collected: Any = None

    def headers_to_sign(self, request: Any) -> Any:
        if self._collected is None:
            self._collected = super().headers_to_sign(request)
        return self._collected


class _Site:
    """Store's address, region and credentials."""

    def __init__(self, fs: Any, path: str) -> None:
        config, client = _checked(fs)
        self._config = config
        self.region = self._said("region", "default_region") or Session().get_config_variable("region") or "us-east-1"
        self._endpoint = self._said("endpoint_url_s3", "endpoint", "endpoint_url")
        self._plain = _is_true(client.get("allow_http") or self._said("allow_http"))
        self._virtual = _is_true(self._said("virtual_hosted_style_request"))
        self.verify = not _is_true(client.get("allow_invalid_certificates"))
        self.proxy = client.get("proxy_url")
        named = fs.storage_options.get("client_options") or {}
        connect = named.get("connect_timeout")
        self.connect_s = connect.total_seconds() if isinstance(connect, timedelta) else None
        self._always = {"user-agent": str(named.get("user_agent") or "fsspec-cas")}
        for name, value in (named.get("default_headers") or {}).items():
            self._always[name.lower()] = value.decode() if isinstance(value, bytes) else str(value)
        if self._said("request_payer"):
            self._always["x-amz-request-payer"] = "requester"
        self._sealed = _encryption(self._said)
        self._credentials = self._found(fs.storage_options.get("credential_provider"), path)

    @property
    def endpoint(self) -> str:
        domain = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        return (self._endpoint or f"https://s3.{self.region}.{domain}").rstrip("/")

    def signed(self, request: StoreRequest, condition: dict[str, str]) -> AWSRequest:
        """Return the request with `condition` headers, signed unless `skip_signature`; may fetch credentials.

        InvalidInput for forbidden plain HTTP, AccessDenied without credentials; botocore's errors, RuntimeError or
        OSError if fetching fails.
        """
        if self.endpoint.startswith("http://") and not self._plain:
            summary = f"endpoint {self.endpoint!r} has no TLS: give client_options={{'allow_http': True}}"
            raise InvalidInput(summary, path=request.path)
        method, query, headers, body = _request(request, self._sealed)
        bucket, _, key = request.path.partition("/")
        key = "" if request.verb in (Verb.LIST, Verb.DELETE_MANY) else key
        url = f"{self._root(bucket)}/{quote(key, safe='/~')}" + (f"?{query}" if query else "")
        headers |= condition | self._always
        credentials = self._credentials()
        aws_request = AWSRequest(method=method, url=url, data=body, headers=headers)
        if credentials is None:
            return aws_request
        if not signs_bodies():
            aws_request.context["client_config"] = Config(s3={"payload_signing_enabled": False})
        _Signer(credentials, "s3", self.region).add_auth(aws_request)
        return aws_request

    def _root(self, bucket: str) -> str:
        if not self._virtual:
            return f"{self.endpoint}/{bucket}"
        # obstore's rule: a user's endpoint contains the bucket.
        scheme, _, host = self.endpoint.partition("://")
        return self.endpoint if self._endpoint else f"{scheme}://{bucket}.{host}"

    def _said(self, *names: str) -> str | None:
        """Return the first setting with a value, as text, from options, then AWS_* variables; None without."""
        for settings in (
            self._config,
            {key[4:].lower(): value for key, value in os.environ.items() if key[:4] == "AWS_"},
        ):
            for name in names:
                if settings.get(name):
                    return str(settings[name])
        return None

    def _found(self, provider: Any, path: str) -> Callable[[], Any]:
        """Return a function that returns credentials from `provider`, options or botocore.

        For unsigned requests it returns None. It may fetch credentials, and raises AccessDenied without any.
        """
        if _is_true(self._said("skip_signature")):
            return lambda: None
        if provider is not None:
            return _provided(provider, path)
        key, secret = self._config.get("access_key_id"), self._config.get("secret_access_key")
        if key and secret:
            fixed = Credentials(key, secret, self._config.get("session_token") or self._config.get("token"))
            return lambda: fixed
        session = Session()
        if metadata := self._config.get("metadata_endpoint"):
            session.set_config_variable("ec2_metadata_service_endpoint", metadata)

        def of_chain() -> Any:
            chosen = session.get_credentials()
            if chosen is None:
                summary = f"no S3 credentials for {path!r}, nothing was sent"
                raise AccessDenied(f"{summary}: give access_key_id and secret_access_key, or a role", path=path)
            return chosen.get_frozen_credentials()

        return of_chain


def _checked(fs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options and client options, parsed by obstore.

    Raises InvalidInput for an option that obstore refuses, NotSupported for an option without effect here.
    """
    options: dict[str, Any] = fs.storage_options
    own = {name: value for name, value in options.items() if name not in _NO_CONFIG}
    config: Any = {**(options.get("config") or {}), **own, "bucket": "bucket"}
    http_options: Any = options.get("client_options") or {}
    try:
        store = obstore.store.S3Store(config=config, client_options=http_options)
    except (BaseError, ValueError, TypeError) as error:
        examples = "access_key_id, secret_access_key, session_token, endpoint, region, skip_signature"
        message = str(error).partition(_DEBUG)[0]
        raise InvalidInput(f"an option for obstore is none: {message} Known options are e.g. {examples}") from error
    read, client = dict(store.config), dict(store.client_options or {})
    for name in read:
        if name not in _CONFIG:
            raise NotSupported(f"obstore's option {name!r} has no effect on conditional writes here: leave it out")
    for name in client:
        if name not in _HTTP:
            raise NotSupported(f"client_options[{name!r}] has no effect on conditional writes here: leave it out")
    return read, client


def _provided(provider: Any, path: str) -> Callable[[], Any]:
    """Function that calls `provider`, and caches its credentials until five minutes before they expire, if ever.

    AccessDenied: `provider` fails.
    """
    cached: list[Any] = []

    def ask() -> Any:
        """Return cached or new credentials; raise AccessDenied if the provider fails."""
        if cached:
            at = cached[0][1]
            if at is None or at - datetime.fromtimestamp(Machine().now_ms() / 1000, at.tzinfo) >= timedelta(minutes=5):
                return cached[0][0]
        try:
            provided = provider()
            credentials = Credentials(provided["access_key_id"], provided["secret_access_key"], provided.get("token"))
            expires_at = _expiry(provided)
        except Exception as error:
            summary = f"credential_provider returned no credentials for {path!r}, nothing was sent"
            raise AccessDenied(f"{summary}: {type(error).__name__}: {error}", path=path) from error
        cached[:] = [(credentials, expires_at)]
        return credentials

    return ask


def _expiry(provided: Any) -> datetime | None:
    expires_at = provided.get("expires_at")
    if not isinstance(expires_at, datetime | None):
        raise TypeError(f"expires_at={expires_at!r} is not a datetime")
    return expires_at


def _request(request: StoreRequest, sealed: dict[str, str]) -> tuple[str, str, dict[str, str], bytes]:
    """Return method, query, headers and body of the request, without its condition.

    `sealed`: encryption headers of whole writes and upload starts.
    """
    match request.verb:
        case Verb.CREATE | Verb.MATCH:
            return "PUT", "", {**_described(request.the_write()), **sealed}, request.data
        case Verb.HEAD:
            return "HEAD", "", {}, b""
        case Verb.GET:
            return "GET", "", {"accept-encoding": "identity"}, b""
        case Verb.DELETE | Verb.DELETE_MATCH:
            return "DELETE", "", {}, b""
        case Verb.DELETE_MANY:
            body = _batch(request)
            summed = b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
            return "POST", "delete=", {"content-md5": summed, "content-type": "application/xml"}, body
        case Verb.LIST:
            return "GET", _list_query(request), {}, b""
        case Verb.BEGIN:
            return "POST", "uploads=", {**_described(request.the_write()), **sealed}, b""
    upload = request.the_upload()
    token = quote(upload.token, safe="~")
    if request.verb is Verb.PART:
        return "PUT", f"partNumber={len(upload.tags) + 1}&uploadId={token}", {}, request.data
    if request.verb is Verb.ABORT:
        return "DELETE", f"uploadId={token}", {}, b""
    return "POST", f"uploadId={token}", {"content-type": "application/xml"}, _parts(upload.tags)


def _batch(request: StoreRequest) -> bytes:
    keys = (escape(path.partition("/")[2], {"\r": "&#13;", "\n": "&#10;"}) for path in request.paths)
    objects = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
    return f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{objects}<Quiet>true</Quiet></Delete>'.encode()


def _parts(tags: tuple[str, ...]) -> bytes:
    each = (f"<Part><PartNumber>{n}</PartNumber><ETag>{escape(tag)}</ETag></Part>" for n, tag in enumerate(tags, 1))
    space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    return f"<CompleteMultipartUpload {space}>{''.join(each)}</CompleteMultipartUpload>".encode()


def _list_query(request: StoreRequest) -> str:
    """Return the encoded, sorted query of ListObjectsV2, with the page's token, else the start."""
    parameters = {"list-type": "2", "encoding-type": "url", "prefix": request.path.partition("/")[2]}
    if request.token:
        parameters["continuation-token"] = request.token
    elif request.start_after:
        parameters["start-after"] = request.start_after.partition("/")[2]
    if request.limit is not None:
        parameters["max-keys"] = str(request.limit)
    return urlencode(sorted(parameters.items()), quote_via=quote, safe="~")


def _described(write: Write) -> dict[str, str]:
    more = write.attributes
    kind = {"content-type": more.content_type} if more.content_type else {}
    own = {_HEADERS[name]: str(value) for name, value in more.own.items()}
    metadata = {f"x-amz-meta-{name}": value for name, value in more.metadata.items()}
    return {**metadata, **kind, **own, f"x-amz-meta-{WRITE_ID_KEY}": write.write_id}


def _encryption(setting: Callable[..., str | None]) -> dict[str, str]:
    named = {
        "x-amz-server-side-encryption": setting("server_side_encryption"),
        "x-amz-server-side-encryption-aws-kms-key-id": setting("sse_kms_key_id"),
        "x-amz-server-side-encryption-bucket-key-enabled": setting("sse_bucket_key_enabled"),
    }
    return {name: value for name, value in named.items() if value}


def _is_true(text: object) -> bool:
    return str(text).lower() in ("true", "1", "yes", "on")
