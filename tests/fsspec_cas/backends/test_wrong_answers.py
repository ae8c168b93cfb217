"""Each backend, each kind of request, each wrong answer: none is believed.

What answers here is no store, so whatever a call comes to besides "nobody knows" was believed by its status.
"""

from __future__ import annotations

import asyncio
from typing import Any

import fsspec
import pytest
from google.oauth2.credentials import Credentials

from fsspec_cas import ABSENT, Unavailable, Version
from fsspec_cas.answer import NoAnswer, NotApplied, Upload
from fsspec_cas.backends import backend_for, split_url
from fsspec_cas.backends.azure.answers import AzureDialect
from fsspec_cas.backends.gcs.answers import GcsDialect
from fsspec_cas.backends.reply import HttpReply, StoreRequest, StoreStatement, Verb
from fsspec_cas.backends.s3.answers import S3Dialect
from fsspec_cas.outcome import Write
from fsspec_cas.testing import WRONG_ANSWERS, Gateway, Rule

ACCOUNT = "AccountName=a;AccountKey=a2V5;DefaultEndpointsProtocol=http;"


def s3(endpoint: str) -> Any:
    return split_url("s3://bucket/key", {"key": "k", "secret": "s", "endpoint_url": endpoint})[0]


def obstore(endpoint: str) -> Any:
    how = {"access_key_id": "k", "secret_access_key": "s", "client_options": {"allow_http": True}}
    return split_url("s3://bucket/key", {"client": "obstore", "endpoint": endpoint, **how})[0]


def gcs(endpoint: str) -> Any:
    token = Credentials("token")
    return fsspec.filesystem("gs", token=token, project="p", endpoint_url=endpoint, skip_instance_cache=True)


def azure(endpoint: str) -> Any:
    text = f"{ACCOUNT}BlobEndpoint={endpoint}/a;"
    return fsspec.filesystem("az", account_name="a", connection_string=text, skip_instance_cache=True)


MAKERS = {"s3": s3, "obstore": obstore, "gcs": gcs, "azure": azure}
ONLY_S3 = ("delete many",)
KINDS = ("create", "match", "head", "get", "changed", "delete", "delete match", "delete many", "list", "begin", "part")
KINDS += ("finish",)


async def asked(backend: Any, kind: str, timeout_s: float = 5.0) -> object:  # noqa: C901, PLR0911 - a table
    """One call of a backend."""
    version, key = Version(backend.name, "17" if backend.name == "gcs" else '"v"'), "bucket/key"
    token = f"{backend._given._location}/upload?upload_id=1" if backend.name == "gcs" else "token"
    upload = Upload(Write(key, ABSENT, "id"), token, ("tag",), 0)
    match kind:
        case "create":
            return await backend.put(Write(key, ABSENT, "id"), b"mine", timeout_s=timeout_s)
        case "match":
            return await backend.put(Write(key, version, "id"), b"data", timeout_s=timeout_s)
        case "head":
            return await backend.head(key, timeout_s=timeout_s)
        case "get":
            return await backend.get(key, None, timeout_s=timeout_s)
        case "changed":
            return await backend.get(key, version, timeout_s=timeout_s)
        case "delete":
            return await backend.delete(key, None, timeout_s=timeout_s)
        case "delete match":
            return await backend.delete(key, version, timeout_s=timeout_s)
        case "delete many":
            return await backend.delete_batch([key, "bucket/other"], timeout_s=timeout_s)
        case "list":
            return await backend.list_page("bucket/", None, None, timeout_s=timeout_s)
        case "begin":
            return await backend.begin(Write(key, ABSENT, "id"), timeout_s=timeout_s)
        case "part":
            return await backend.add(upload, b"data", timeout_s=timeout_s)
    return await backend.finish(upload, b"", timeout_s=timeout_s)


def believed(name: str, answer: object) -> bool:
    """Whether a wrong answer was believed: all but "nobody knows", "not now", and a proxy that wants a password."""
    if isinstance(answer, Unavailable):
        return not name.startswith("407")
    return not isinstance(answer, (NoAnswer, NotApplied)) or (
        isinstance(answer, NotApplied) and not name.startswith("429")
    )


BARE = ("create", "get", "delete", "part")  # asked of a store that is known to give no request ids


ASKED = [
    pytest.param(make, kind, id=f"{make.__name__}-{kind}")
    for make in MAKERS.values()
    for kind in KINDS
    if (kind not in ONLY_S3 or make in (s3, obstore)) and (make, kind) != (azure, "begin")
]


@pytest.mark.parametrize(("make", "kind"), ASKED)
def test_no_backend_believes_a_wrong_answer(make, kind):
    wrong = {}

    async def run(gateway: Gateway) -> None:
        backend = backend_for(make(gateway.endpoint))
        for name, answer in WRONG_ANSWERS.items():
            backend.gives_request_ids = False if make in (s3, obstore) and kind in BARE else None
            gateway.rules[:] = [Rule(answer, times=None)]
            try:
                heard = await asked(backend, kind)
            except Exception as error:  # noqa: BLE001 - whatever is raised is looked at
                heard = error
            if believed(name, heard):
                wrong[name] = repr(heard)
        await backend.close()

    with Gateway("127.0.0.1", 9) as gateway:
        asyncio.run(run(gateway))
    assert wrong == {}


@pytest.mark.parametrize("signs", [None, True, False])
@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("dialect", [S3Dialect(), GcsDialect("127.0.0.1"), AzureDialect()], ids=lambda d: d.vendor)
def test_no_dialect_takes_a_wrong_answer_for_one_of_the_store(dialect, verb, signs):
    version = Version(dialect.vendor.lower(), "17")
    write = Write("bucket/key", version, "id")
    asked = StoreRequest(verb, "bucket/key", b"mine", version, write, upload=Upload(write, "token"))
    spoken = {
        name: heard
        for name, answer in WRONG_ANSWERS.items()
        if (reply := parsed(answer))
        and isinstance(heard := dialect.interpret(asked, reply, gives_request_ids=signs), StoreStatement)
    }
    if verb is not Verb.ABORT:  # whose answer is used for nothing
        assert spoken == {} or (dialect.vendor == "S3" and set(spoken) == {"200 error"})


def parsed(answer: bytes) -> HttpReply | None:
    """The last reply of these bytes, if they are HTTP and whole."""
    while answer.startswith(b"HTTP/"):
        head, _, answer = answer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        status = int(first.split()[1])
        if status >= 200:
            pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            return HttpReply(status, pairs, answer)
    return None
