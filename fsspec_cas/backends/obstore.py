"""S3 and its kin through obstore: its requests are made in Rust, at a fifth of botocore's CPU time.

No layer sends again by itself: object_store's retries are off, and below it only what never left is sent again.

Its calls block, and are made in the caller's thread: its own coroutines cost twice as much, and some processes that
used them abort at exit. A call cannot be told how long it may take, only a client can; so there is one for each step of
a ladder of timeouts, and a request gets up to a fifth less than its caller has left.

What obstore cannot do, and `capabilities` or an error says: delete at a version, finish an upload in parts under a
condition, tell the store's clock or `Retry-After`. What went wrong it tells in words alone, which are read here.

Sources: obstore 0.9 to 0.12, object_store `client/retry.rs` (the words), "AmazonS3Builder".
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, NoReturn, TypeVar

import obstore.store
from obstore.exceptions import BaseError
from obstore.fsspec import FsspecStore

from fsspec_cas.answer import (
    Applied,
    Entry,
    FinishAnswer,
    ListAnswer,
    NoAnswer,
    NotNow,
    Page,
    ReadAnswer,
    Seen,
    Upload,
    UploadAnswer,
    WriteAnswer,
)
from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.attributes import AttributeRules
from fsspec_cas.backends.base import WRITE_ID_KEY, PartRules
from fsspec_cas.backends.s3_answers import answer_of, create_refusal, read_refusal, version_of, write_refusal
from fsspec_cas.backends.wire import epoch_ms, no_refusal
from fsspec_cas.capability import Capabilities
from fsspec_cas.errors import AccessDenied, InvalidInput, NotSupported, StoreError
from fsspec_cas.version import Absent, Condition, Version

A = TypeVar("A")

_CAPABILITIES = Capabilities(
    create=True,
    match=True,
    delete_match=False,
    read_changed=True,
    unique_versions=False,  # the ETag is a hash of the content
    keeps_write_id=True,
    own_clock=False,
)
# S3's names -> HTTP's, which obstore takes, and takes for nobody's metadata.
_HEADERS = {
    "CacheControl": "cache-control",
    "ContentDisposition": "content-disposition",
    "ContentEncoding": "content-encoding",
    "ContentLanguage": "content-language",
    "StorageClass": "storage-class",
}
_TYPE = "content-type"
_RULES = AttributeRules(own=frozenset(_HEADERS), same={"ContentType": "content_type", "Metadata": "metadata"})
_NO_CONFIG = frozenset(
    {"config", "client_options", "retry_config", "credential_provider", "max_cache_size", "asynchronous", "loop"}
    | {"batch_size", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"}
)
_PAGE = 1000  # as S3 answers; more of a chunk would be more requests
_LADDER = 1.25
_LAST = "\U0010ffff"  # comes after every other character

# Such as: Error performing PUT http://host/bucket/key in 1.2ms - Server returned non-2xx status code: 412 ...: <body>
_ASKED = re.compile(r"Error performing [A-Z]+ (\S+) in ")
_STATUS = re.compile(r" in [\d.]+\S*s - Server returned non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+)")
_DEBUG = "\n\nDebug source:"


class S3OverObstore(FsspecStore):
    """What `client="obstore"` opens: obstore's own filesystem, which knows `s3://` without being told."""

    protocol = "s3"


class ObstoreBackend:
    """Conditional writes over the S3 API, by way of the settings of an obstore filesystem."""

    name = "s3"  # the versions are the same
    capabilities = _CAPABILITIES
    attribute_rules: AttributeRules = _RULES
    blocking = True
    remote = True

    _pid: ClassVar[int | None] = None  # of the process whose threads send

    def __init__(self, fs: Any) -> None:
        if fs.protocol not in ("s3", "s3a"):
            raise NotSupported(f"obstore serves s3:// here, and not {fs.protocol}://: open it with fsspec's own client")
        self._given = fs
        self._clients: dict[tuple[str, int, bool], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (ObstoreBackend, (self._given,))

    def isolated_connections(self) -> ObstoreBackend:
        """The same store over connections of its own."""
        return ObstoreBackend(self._given)

    @property
    def uploads(self) -> WholeUploads:
        """None."""
        return WholeUploads()

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
        creating = isinstance(condition, Absent)
        mode: Any = "create" if isinstance(condition, Absent) else {"e_tag": condition.token}
        beside = _beside(path, write_id, attributes)

        def send(client: Any, key: str) -> WriteAnswer:
            made = client.put(key, data, mode=mode, attributes=beside, use_multipart=False)
            return Applied(version_of(made["e_tag"]))

        return self._ask(path, send, create_refusal if creating else write_refusal, timeout_s)

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        """HeadObject."""

        def send(client: Any, key: str) -> ReadAnswer:
            return _seen(path, client.get(key, options={"head": True}), None)

        return self._ask(path, send, read_refusal, timeout_s)

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        """GetObject, with If-None-Match for a reader that has a version already."""
        options: Any = None if unless is None else {"if_none_match": unless.token}

        def send(client: Any, key: str) -> ReadAnswer:
            answer = client.get(key, options=options)
            return _seen(path, answer, answer.bytes().to_bytes())

        return self._ask(path, send, read_refusal, timeout_s)

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """DeleteObject."""
        if condition is not None:
            raise NotSupported(f"obstore has no conditional delete for {path!r}; write a tombstone, or use s3fs")

        def send(client: Any, key: str) -> WriteAnswer:
            client.delete(key)
            return Applied(None)

        return self._ask(path, send, write_refusal, timeout_s)

    async def delete_batch(self, paths: Sequence[str], *, timeout_s: float) -> WriteAnswer:
        """DeleteObjects; all of one bucket.

        Raises:
            NotSupported: this store has no such request, or wants it in another form; nothing was deleted.
        """
        keys = [path.partition("/")[2] for path in paths]

        def send(client: Any, _: str) -> WriteAnswer:
            client.delete(keys)
            return Applied(None)

        try:
            return self._ask(paths[0], send, no_refusal, timeout_s, in_bulk=True)
        except (StoreError, NotSupported) as error:
            raise NotSupported(f"the store at {paths[0]!r} takes no DeleteObjects: {error}") from error

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        """ListObjectsV2 of the folder that the prefix is in, from the prefix on: obstore's prefixes are folders."""
        bucket, _, beginning = prefix.partition("/")
        after = max((start_after or "").partition("/")[2], token or "")

        def send(client: Any, _: str) -> ListAnswer:
            for found in _listing(client, beginning, after):
                new = [one for one in found if one["path"] > after]
                page = [_entry(bucket, one) for one in new if one["path"].startswith(beginning)]
                last = new[-1]["path"] if new else ""
                over = len(found) < _PAGE or (bool(new) and last[: len(beginning)] > beginning)
                if new or over:
                    return Page(tuple(page), None if over else last)
            return Page(())

        return self._ask(prefix, send, no_refusal, timeout_s)

    async def endpoint(self) -> str:
        """The URL that requests go to, as settings and environment have it; nothing is sent."""
        said = {**os.environ, **self._settings("")}
        named = [said[name] for name in sorted(said) if "endpoint" in name.lower() and "s3" in name.lower()]
        named += [said[name] for name in ("endpoint", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") if name in said]
        return str(named[0]) if named else "https://s3.amazonaws.com"

    def adapt(self, refused: str = "") -> bool:
        """There is one dialect."""
        del refused
        return False

    async def close(self) -> None:
        """Let go of all connections; they belong to no loop."""
        self._clients.clear()

    def _settings(self, bucket: str) -> dict[str, Any]:
        """The user's, by obstore's names, whatever way they were given."""
        options: dict[str, Any] = self._given.storage_options
        own = {name: value for name, value in options.items() if name not in _NO_CONFIG}
        return {**(options.get("config") or {}), **own, "bucket": bucket}

    def _client(self, bucket: str, timeout_s: float, *, in_bulk: bool) -> Any:
        rung = math.floor(math.log(timeout_s, _LADDER))
        place = (bucket, rung, in_bulk)
        if place not in self._clients:
            self._clients[place] = self._made(bucket, timedelta(seconds=_LADDER**rung), in_bulk=in_bulk)
        return self._clients[place]

    def _made(self, bucket: str, timeout: timedelta, *, in_bulk: bool) -> Any:
        options: dict[str, Any] = self._given.storage_options
        config: Any = {**self._settings(bucket), "disable_bulk_delete": not in_bulk}
        http: Any = {"connect_timeout": timeout, **(options.get("client_options") or {}), "timeout": timeout}
        try:
            return obstore.store.S3Store(
                config=config,
                client_options=http,
                retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
                credential_provider=options.get("credential_provider"),
            )
        except (BaseError, ValueError, TypeError) as error:
            known = "access_key_id, secret_access_key, session_token, endpoint, region, skip_signature"
            what = str(error).partition(_DEBUG)[0]
            raise InvalidInput(f"an option for obstore is none: {what} There are e.g. {known}") from error

    def _ask(
        self,
        path: str,
        send: Callable[[Any, str], A],
        refusal: Callable[[int, str], A | None],
        timeout_s: float,
        *,
        in_bulk: bool = False,
    ) -> A | NotNow | NoAnswer:
        """Send once; translate whatever comes back."""
        self._refuse_forks(path)
        bucket, _, key = path.partition("/")
        client = self._client(bucket, timeout_s, in_bulk=in_bulk)
        try:
            return send(client, key)
        except ValueError as error:
            raise InvalidInput(f"obstore does not accept {path!r}: {error}", path=path) from error
        except (BaseError, FileNotFoundError) as error:
            return _translate(str(error), path, refusal)

    @classmethod
    def _refuse_forks(cls, path: str) -> None:
        """The threads that send are not there in a forked child, where a call would wait for ever."""
        if cls._pid is None:
            ObstoreBackend._pid = os.getpid()
        elif cls._pid != os.getpid():
            what = f"obstore cannot send for {path!r} in a process that was forked off one that used it"
            raise NotSupported(f"{what}: start it by spawn or forkserver, or leave client='obstore' out", path=path)


class WholeUploads:
    """Objects in parts, which obstore could not finish under a condition: an object is sent whole, or not at all."""

    rules = PartRules()

    async def begin(
        self, path: str, write_id: str, *, timeout_s: float, attributes: Attributes | None = None
    ) -> UploadAnswer:
        """Refuse."""
        del write_id, timeout_s, attributes
        _refuse_parts(path)

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        """There is none to add to."""
        del data, timeout_s
        _refuse_parts(upload.path)

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """There is none to finish."""
        del tail, timeout_s
        _refuse_parts(upload.path)

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Nothing was begun."""


def _refuse_parts(path: str) -> NoReturn:
    raise NotSupported(
        f"obstore cannot create {path!r} in parts under a condition: choose a part_size of at least the object's size, "
        "which is then kept in memory, or leave client='obstore' out",
        path=path,
    )


def _beside(path: str, write_id: str, given: Attributes | None) -> dict[str, str]:
    """What is kept beside the bytes, as headers."""
    if given is None:
        return {WRITE_ID_KEY: write_id}
    taken = {_TYPE, *_HEADERS.values()} & given.metadata.keys()
    if taken:
        raise InvalidInput(f"metadata of {path!r} has the name {taken.pop()!r}, which is a header's: use another")
    kind = {_TYPE: given.content_type} if given.content_type else {}
    own = {_HEADERS[name]: str(value) for name, value in given.own.items()}
    return {**given.metadata, **kind, **own, WRITE_ID_KEY: write_id}


def _seen(path: str, answer: Any, data: bytes | None) -> Seen:
    meta, beside = answer.meta, {name.lower(): value for name, value in answer.attributes.items()}
    version = version_of(meta["e_tag"])
    if version is None:
        raise StoreError(f"the answer for {path!r} has no ETag; what was read has no version", path=path)
    kept = {name: value for name, value in beside.items() if name not in (WRITE_ID_KEY, _TYPE, *_HEADERS.values())}
    size = meta["size"] if data is None else len(data)
    # No Last-Modified: 1970.
    written_ms = epoch_ms(meta["last_modified"]) or None
    return Seen(version, size, written_ms, beside.get(WRITE_ID_KEY), data, None, beside.get(_TYPE), kept)


def _entry(bucket: str, one: Any) -> Entry:
    return Entry(f"{bucket}/{one['path']}", one["size"], epoch_ms(one["last_modified"]), version_of(one["e_tag"]))


def _listing(client: Any, beginning: str, after: str) -> Any:
    """From there on; from the folder's beginning where that is a name that obstore does not take."""
    folder, slash, name = beginning.rpartition("/")
    least = f"{folder}{slash}{name[:-1]}{chr(ord(name[-1]) - 1)}{_LAST}" if name else ""
    try:
        return client.list(folder or None, offset=max(after, least) or None, chunk_size=_PAGE)
    except ValueError:
        return client.list(folder or None, chunk_size=_PAGE)


def _translate(text: str, path: str, refusal: Callable[[int, str], A | None]) -> A | NotNow | NoAnswer:
    said, _, debug = text.partition(_DEBUG)
    asked, status, code, failed = _ASKED.search(said), _STATUS.search(said), _CODE.search(said), _KIND.search(debug)
    if asked and path.partition("/")[0] not in asked[1]:
        return _without_credentials(path, said, int(status[1]) if status else 0)
    if status:
        return answer_of(int(status[1]), code[1] if code else "", path, refusal)
    if failed and failed[1] == "Connect":
        return NotNow(f"could not connect: {said}")
    if "builder error" in said:
        hint = "for http:// say client_options={'allow_http': True}"
        raise InvalidInput(f"obstore cannot ask for {path!r}: {said}; {hint}", path=path)
    return NoAnswer(f"{failed[1]}: {said}" if failed else said)


def _without_credentials(path: str, said: str, status: int) -> NotNow:
    """It was another service that was asked, one that gives credentials."""
    if status in (0, 429) or status >= 500:
        return NotNow(f"no credentials, and nothing was sent: {said}")
    raise AccessDenied(
        f"no usable S3 credentials for {path!r}, nothing was sent: {said}; check role and key", path=path
    )
