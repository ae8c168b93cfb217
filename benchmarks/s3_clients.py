"""One client of S3 a process: the same five requests on every one of them, timed one at a time.

Run by `benchmarks.primitives` as a child, so that no client pays for another's imports, threads or garbage.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import sys
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol

BODY = b"x" * 200
OPERATIONS = ("create", "match", "lose", "read", "unchanged")
WARM_UP = 30
PART_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Site:
    """The server and a prefix of one's own."""

    endpoint: str
    key: str
    secret: str
    region: str
    bucket: str
    prefix: str

    @property
    def storage_options(self) -> dict[str, Any]:
        """Storage options of fsspec, without its cache of instances."""
        return {
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": self.region},
            "skip_instance_cache": True,
        }

    @property
    def obstore_options(self) -> dict[str, Any]:
        """Storage options of `fsspec_cas` with obstore as its client."""
        return {
            "client": "obstore",
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "endpoint": self.endpoint,
            "region": self.region,
            "client_options": {"allow_http": True},
        }

    @property
    def sdk_options(self) -> dict[str, Any]:
        """For botocore's clients."""
        return {
            "endpoint_url": self.endpoint,
            "aws_access_key_id": self.key,
            "aws_secret_access_key": self.secret,
            "region_name": self.region,
        }


def known_to_take(writes_per_s: float) -> None:
    """Of S3 nobody knows how often an object is written; of GCS, whose pace a server may have, its backend says it."""
    from fsspec_cas.backends.obstore.client import LeanS3Backend as ObstoreBackend
    from fsspec_cas.backends.s3.client import S3Backend

    for kind in (S3Backend, ObstoreBackend):
        kind.capabilities = replace(kind.capabilities, writes_per_s=writes_per_s)


class Client(Protocol):
    """Each request returns a version tag, or says that the condition did not hold with None."""

    def create(self, key: str, body: bytes) -> Any:
        """PUT with If-None-Match."""

    def match(self, key: str, body: bytes, tag: Any) -> Any:
        """PUT with If-Match."""

    def read(self, key: str) -> Any:
        """GET, whole, with its tag."""

    def unchanged(self, key: str, tag: Any) -> Any:
        """GET with If-None-Match: 304."""


class Signed:
    """http.client with a signature of our own: what the requests cost when nothing is around them."""

    def __init__(self, site: Site) -> None:
        from servers.raw import sign_s3

        self._sign = sign_s3
        self._site = site
        self._host = urllib.parse.urlsplit(site.endpoint).netloc
        self._connection = http.client.HTTPConnection(self._host)

    def create(self, key: str, body: bytes) -> Any:
        return self._send("PUT", key, {"if-none-match": "*"}, body)

    def match(self, key: str, body: bytes, tag: Any) -> Any:
        return self._send("PUT", key, {"if-match": tag}, body)

    def read(self, key: str) -> Any:
        return self._send("GET", key, {})

    def unchanged(self, key: str, tag: Any) -> Any:
        return self._send("GET", key, {"if-none-match": tag})

    def _send(self, method: str, key: str, headers: dict[str, str], body: bytes = b"") -> Any:
        """Sign a request, send it on the kept connection, read the answer.

        Return its ETag, or None for a status of 300 or more.
        """
        site = self._site
        path = f"/{site.bucket}/{site.prefix}/{key}"
        named = {"host": self._host, **headers}
        signed = self._sign(method, path, named, body, key=site.key, secret=site.secret, region=site.region)
        self._connection.request(method, path, body=body, headers=signed)
        answer = self._connection.getresponse()
        answer.read()
        return answer.headers.get("ETag") if answer.status < 300 else None


class Boto3:
    """boto3, retries off."""

    def __init__(self, site: Site) -> None:
        import boto3
        from botocore.config import Config

        config = Config(retries={"total_max_attempts": 1}, max_pool_connections=64)
        self._s3 = boto3.client("s3", config=config, **site.sdk_options)
        self._at = lambda key: {"Bucket": site.bucket, "Key": f"{site.prefix}/{key}"}

    def create(self, key: str, body: bytes) -> Any:
        return self._ask(self._s3.put_object, Body=body, IfNoneMatch="*", **self._at(key))

    def match(self, key: str, body: bytes, tag: Any) -> Any:
        return self._ask(self._s3.put_object, Body=body, IfMatch=tag, **self._at(key))

    def read(self, key: str) -> Any:
        answer = self._s3.get_object(**self._at(key))
        answer["Body"].read()
        return answer["ETag"]

    def unchanged(self, key: str, tag: Any) -> Any:
        return self._ask(self._s3.get_object, IfNoneMatch=tag, **self._at(key))

    @staticmethod
    def _ask(call: Callable[..., Any], **request: Any) -> Any:
        from botocore.exceptions import ClientError

        try:
            return call(**request)["ETag"]
        except ClientError:
            return None


class Obstore:
    """obstore, sync; its default retries."""

    def __init__(self, site: Site) -> None:
        from obstore.store import S3Store

        self._store = S3Store(
            site.bucket,
            prefix=site.prefix,
            endpoint=site.endpoint,
            access_key_id=site.key,
            secret_access_key=site.secret,
            region=site.region,
            client_options={"allow_http": True},
        )

    def create(self, key: str, body: bytes) -> Any:
        return self._put(key, body, "create")

    def match(self, key: str, body: bytes, tag: Any) -> Any:
        return self._put(key, body, {"e_tag": tag})

    def read(self, key: str) -> Any:
        answer = self._store.get(key)
        answer.bytes()
        return answer.meta["e_tag"]

    def unchanged(self, key: str, tag: Any) -> Any:
        from obstore.exceptions import NotModifiedError

        try:
            return self._store.get(key, options={"if_none_match": tag})
        except NotModifiedError:
            return None

    def _put(self, key: str, body: bytes, mode: Any) -> Any:
        from obstore.exceptions import AlreadyExistsError

        try:
            return self._store.put(key, body, mode=mode, use_multipart=False)["e_tag"]
        except AlreadyExistsError:
            return None


class S3fs:
    """s3fs as its users call it, sync."""

    def __init__(self, site: Site) -> None:
        import s3fs

        self._fs = s3fs.S3FileSystem(**site.storage_options)
        self._at = lambda key: f"{site.bucket}/{site.prefix}/{key}"

    def create(self, key: str, body: bytes) -> Any:
        try:
            self._fs.pipe_file(self._at(key), body, mode="create")
        except OSError:  # EINVAL where FileExistsError was meant
            return None
        return ""

    def match(self, key: str, body: bytes, tag: Any) -> Any:
        self._fs.pipe_file(self._at(key), body, IfMatch=tag)
        return ""  # the call tells no tag

    def read(self, key: str) -> Any:
        self._fs.cat_file(self._at(key))
        return ""

    def unchanged(self, key: str, tag: Any) -> Any:
        return None if self._fs.info(self._at(key), refresh=True)["ETag"] == tag else tag  # a HEAD: it has no 304

    def tag_of(self, key: str) -> Any:
        """Another request, untimed."""
        return self._fs.info(self._at(key), refresh=True)["ETag"]


class Cas:
    """fsspec_cas.Store."""

    def __init__(self, site: Site) -> None:
        from fsspec_cas import Store

        self._store = Store.from_url(f"s3://{site.bucket}/{site.prefix}", site.storage_options)

    def create(self, key: str, body: bytes) -> Any:
        return _version(self._store.put_if_absent(key, body))

    def match(self, key: str, body: bytes, tag: Any) -> Any:
        return _version(self._store.put_if_match(key, body, tag))

    def read(self, key: str) -> Any:
        return self._store.read(key).version

    def unchanged(self, key: str, tag: Any) -> Any:
        return self._store.read_if_changed(key, tag)


class CasOnObstore(Cas):
    """The same by way of obstore."""

    def __init__(self, site: Site) -> None:
        from fsspec_cas import Store

        self._store = Store.from_url(f"s3://{site.bucket}/{site.prefix}", site.obstore_options)


class AsyncCas:
    """fsspec_cas.AsyncStore."""

    async def __aenter__(self) -> AsyncCas:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.__aexit__(None, None, None)

    def __init__(self, site: Site) -> None:
        from fsspec_cas import AsyncStore

        self._store = AsyncStore.from_url(f"s3://{site.bucket}/{site.prefix}", site.storage_options)

    async def create(self, key: str, body: bytes) -> Any:
        return _version(await self._store.put_if_absent(key, body))

    async def match(self, key: str, body: bytes, tag: Any) -> Any:
        return _version(await self._store.put_if_match(key, body, tag))

    async def read(self, key: str) -> Any:
        return (await self._store.read(key)).version

    async def unchanged(self, key: str, tag: Any) -> Any:
        return await self._store.read_if_changed(key, tag)


class AsyncCasOnObstore(AsyncCas):
    """The same by way of obstore."""

    def __init__(self, site: Site) -> None:
        from fsspec_cas import AsyncStore

        self._store = AsyncStore.from_url(f"s3://{site.bucket}/{site.prefix}", site.obstore_options)


class Aiobotocore:
    """The raw client that s3fs and fsspec_cas stand on, retries off."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._at = lambda key: {"Bucket": site.bucket, "Key": f"{site.prefix}/{key}"}

    async def __aenter__(self) -> Aiobotocore:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session

        config = AioConfig(retries={"total_max_attempts": 1}, max_pool_connections=64)
        self._context = get_session().create_client("s3", config=config, **self._site.sdk_options)
        self._s3 = await self._context.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._context.__aexit__(None, None, None)

    async def create(self, key: str, body: bytes) -> Any:
        return await self._ask(self._s3.put_object, Body=body, IfNoneMatch="*", **self._at(key))

    async def match(self, key: str, body: bytes, tag: Any) -> Any:
        return await self._ask(self._s3.put_object, Body=body, IfMatch=tag, **self._at(key))

    async def read(self, key: str) -> Any:
        answer = await self._s3.get_object(**self._at(key))
        async with answer["Body"] as stream:
            await stream.read()
        return answer["ETag"]

    async def unchanged(self, key: str, tag: Any) -> Any:
        return await self._ask(self._s3.get_object, IfNoneMatch=tag, **self._at(key))

    @staticmethod
    async def _ask(call: Callable[..., Awaitable[Any]], **request: Any) -> Any:
        from botocore.exceptions import ClientError

        try:
            return (await call(**request))["ETag"]
        except ClientError:
            return None


SYNC: dict[str, Callable[[Site], Client]] = {
    "signed request": Signed,
    "obstore": Obstore,
    "boto3": Boto3,
    "s3fs": S3fs,
    "fsspec_cas sync": Cas,
    "fsspec_cas on obstore, sync": CasOnObstore,
}
ASYNC: dict[str, Callable[[Site], Any]] = {
    "aiobotocore": Aiobotocore,
    "fsspec_cas async": AsyncCas,
    "fsspec_cas on obstore, async": AsyncCasOnObstore,
}


def _version(outcome: Any) -> Any:
    from fsspec_cas import Won

    return outcome.version if isinstance(outcome, Won) else None


class Watch:
    """Wall and CPU time of single calls, in ms."""

    def __init__(self) -> None:
        self.wall_ms: list[float] = []
        self.cpu_ms: list[float] = []

    def __enter__(self) -> None:
        self._cpu_s = time.process_time()
        self._begun_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.wall_ms.append((time.perf_counter() - self._begun_s) * 1e3)
        self.cpu_ms.append((time.process_time() - self._cpu_s) * 1e3)

    def figures(self) -> dict[str, Any]:
        """Without the warm-up."""
        return {"wall_ms": self.wall_ms[WARM_UP:], "cpu_ms": fmean(self.cpu_ms[WARM_UP:])}


def steps(client: Any, operation: str, count: int) -> Any:
    """Yield `count` calls of one operation, as (call, whether it must be refused); a call takes the last result."""
    for number in range(count):
        key = f"{operation}/{number}" if operation == "create" else operation
        match operation:
            case "create":
                yield lambda _, key=key: client.create(key, BODY), False
            case "match":
                yield lambda tag, key=key, n=number: client.match(key, b"%d " % n + BODY, tag), False
            case "lose":
                yield lambda _, key=key: client.create(key, BODY), True
            case "read":
                yield lambda _, key=key: client.read(key), False
            case _:
                yield lambda tag, key=key: client.unchanged(key, tag), True


def run_sync(client: Any, operation: str, count: int) -> dict[str, Any]:
    """Time one operation's calls, one at a time, and check each answer; return the figures."""
    tag = client.create(operation, BODY) if operation != "create" else None
    watch = Watch()
    for call, refused in steps(client, operation, count):
        if isinstance(client, S3fs) and operation in ("match", "unchanged"):
            tag = client.tag_of(operation)
        with watch:
            answer = call(tag)
        _check(operation, answer, refused=refused)
        tag = answer if operation == "match" else tag
    return watch.figures()


async def run_async(client: Any, operation: str, count: int) -> dict[str, Any]:
    """Time one operation's calls, each awaited before the next, and check each answer; return the figures."""
    tag = await client.create(operation, BODY) if operation != "create" else None
    watch = Watch()
    for call, refused in steps(client, operation, count):
        with watch:
            answer = await call(tag)
        _check(operation, answer, refused=refused)
        tag = answer if operation == "match" else tag
    return watch.figures()


def _check(operation: str, answer: Any, *, refused: bool) -> None:
    if (answer is None) != refused:
        raise SystemExit(f"{operation} answered {answer!r}")


def throughput_sync(client: Any, writers: int, count: int) -> float:
    """Create `count` distinct objects on `writers` threads, after one each to warm up; return creates per second."""
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(lambda n: client.create(f"warm/{n}", BODY), range(writers)))
        begun = time.perf_counter()
        answers = list(pool.map(lambda n: client.create(f"many/{n}", BODY), range(count)))
        taken_s = time.perf_counter() - begun
    assert None not in answers
    return count / taken_s


async def throughput_async(client: Any, writers: int, count: int) -> float:
    """Create `count` distinct objects in `writers` tasks, after one each to warm up; return creates per second."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            assert await client.create(f"many/{number}", BODY) is not None

    await asyncio.gather(*(client.create(f"warm/{n}", BODY) for n in range(writers)))
    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(writers)))
    return count / (time.perf_counter() - begun)


def stream(site: Site, size_mib: int) -> dict[str, Any]:
    """Create one large object in parts, and delete it.

    Return its size, MiB per second, and by how much the process grew.
    """
    from fsspec_cas import Store

    store = Store.from_url(f"s3://{site.bucket}/{site.prefix}", site.storage_options)
    store.put_if_absent("small", b"")
    with store.open_exclusive("warm") as writer:
        writer.write(bytes(PART_MIB))
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    begun = time.perf_counter()
    with store.open_exclusive("big") as writer:
        for _ in range(size_mib):
            writer.write(bytes(PART_MIB))
    taken_s = time.perf_counter() - begun
    assert store.head("big").size == size_mib * PART_MIB
    grown_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mib
    store.delete("big")
    return {"size_mib": size_mib, "grown_mib": grown_mib, "mib_per_s": size_mib / taken_s}


def latencies(name: str, site: Site, count: int) -> dict[str, Any]:
    """Time all operations of one client; return the figures by operation."""
    if name in SYNC:
        client = SYNC[name](site)
        return {operation: run_sync(client, operation, count) for operation in OPERATIONS}

    async def run() -> dict[str, Any]:
        async with ASYNC[name](site) as client:
            return {operation: await run_async(client, operation, count) for operation in OPERATIONS}

    return asyncio.run(run())


def throughput(name: str, site: Site, writers: int, count: int) -> float:
    """Return creates per second of one client with `writers` threads or tasks."""
    if name in SYNC:
        return throughput_sync(SYNC[name](site), writers, count)

    async def run() -> float:
        async with ASYNC[name](site) as client:
            return await throughput_async(client, writers, count)

    return asyncio.run(run())


def main() -> None:
    """Run the task of stdin, and print its figures as JSON."""
    task = json.load(sys.stdin)
    site = Site(**task["site"])
    match task["kind"]:
        case "latencies":
            figures: Any = latencies(task["client"], site, task["count"] + WARM_UP)
        case "throughput":
            figures = throughput(task["client"], site, task["writers"], task["count"])
        case _:
            figures = stream(site, task["size_mib"])
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
