"""What the network backends make of an answer, and that each sends one request for it: no layer below sends again."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack, suppress

import fsspec
import pytest
from google.oauth2.credentials import Credentials
from servers.wire import Wire, http, said

from fsspec_cas import ABSENT, AccessDenied, BucketNotFound, StoreError, Version
from fsspec_cas.answer import Applied, ConditionFailed, Missing, NoAnswer, NotApplied, ObjectState, Unchanged
from fsspec_cas.backends import backend_for, split_url
from fsspec_cas.outcome import Write

ACCOUNT = "AccountName=a;AccountKey=a2V5;DefaultEndpointsProtocol=http;"
DATE = "Sat, 21 Nov 2026 04:00:00 GMT"


def s3(endpoint: str):
    return fsspec.filesystem("s3", key="k", secret="s", endpoint_url=endpoint, skip_instance_cache=True)  # noqa: S106


def gcs(endpoint: str):
    token = Credentials("token")
    return fsspec.filesystem("gs", token=token, project="p", endpoint_url=endpoint, skip_instance_cache=True)


def obstore(endpoint: str):
    how = {"access_key_id": "k", "secret_access_key": "s", "client_options": {"allow_http": True}}
    return split_url("s3://bucket/key", {"client": "obstore", "endpoint": endpoint, **how})[0]


def azure(endpoint: str):
    text = f"{ACCOUNT}BlobEndpoint={endpoint}/a;"
    return fsspec.filesystem("az", account_name="a", connection_string=text, skip_instance_cache=True)


def ask(make, answer: bytes, call: str, *args: object):
    """The backend's answer to one call, and the methods that arrived. A put takes its bytes and the rest of `Write`."""
    given = (Write("bucket/key", *args[1:]), args[0]) if call == "put" else ("bucket/key", *args)

    async def run(endpoint: str):
        backend = backend_for(make(endpoint))
        try:
            return await getattr(backend, call)(*given, timeout_s=5.0)
        finally:
            await backend.close()

    with Wire(answer) as wire:
        return asyncio.run(run(wire.endpoint)), wire.requests


def version(make) -> Version:
    return Version("s3" if make is obstore else make.__name__, "1")


CALLS = [
    pytest.param("put", (b"data", ABSENT, "id"), id="create"),
    pytest.param("put", (b"data", "version", "id"), id="match"),
    pytest.param("head", (), id="head"),
    pytest.param("get", (None,), id="get"),
    pytest.param("delete", (None,), id="delete"),
    pytest.param("delete", ("version",), id="delete-match"),
    pytest.param("list_page", (None, None), id="list"),
]
MAKERS = [s3, obstore, gcs, azure]
ASKED = [pytest.param(m, *c.values, id=f"{m.__name__}-{c.id}") for m in MAKERS for c in CALLS]


def filled(make, args):
    return [version(make) if arg == "version" else arg for arg in args]


@pytest.mark.parametrize(("make", "call", "args"), ASKED)
def test_request_with_broken_connection_is_sent_once_and_is_unknown(make, call, args):
    answer, requests = ask(make, b"", call, *filled(make, args))
    assert isinstance(answer, NoAnswer)
    assert len(requests) == 1


@pytest.mark.parametrize(("make", "call", "args"), ASKED)
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_request_to_failing_server_is_sent_once_and_is_unknown(make, call, args, status):
    answer, requests = ask(make, http(status), call, *filled(make, args))
    assert isinstance(answer, NoAnswer)
    assert str(status) in answer.why
    assert len(requests) == 1


@pytest.mark.parametrize(("make", "call", "args"), ASKED)
def test_too_many_requests_is_not_applied_and_carries_retry_after(make, call, args):
    answer, requests = ask(make, http(429, Retry_After=7), call, *filled(make, args))
    assert isinstance(answer, NotApplied)
    assert answer.retry_after_s == 7
    assert len(requests) == 1


@pytest.mark.parametrize(("call", "args"), CALLS)
def test_gcs_throttle_without_retry_after_gets_a_default_pause(call, args):
    answer, requests = ask(gcs, http(429), call, *filled(gcs, args))
    assert isinstance(answer, NotApplied)
    assert answer.retry_after_s == 0.5
    assert len(requests) == 1


@pytest.mark.parametrize("make", MAKERS)
def test_retry_after_is_kept_with_a_503(make):
    answer, _ = ask(make, http(503, Retry_After=3), "put", b"", ABSENT, "id")
    assert isinstance(answer, NoAnswer)
    assert answer.retry_after_s == 3


@pytest.mark.parametrize("make", MAKERS)
def test_false_condition_is_denied(make):
    for condition in (ABSENT, version(make)):
        form = "quoted" if make in (s3, obstore) and condition != ABSENT else ""
        form = "bucket/key" if make is azure and condition == ABSENT else form  # for another way to create there
        answer = ask(make, said(make.__name__, 412), "put", b"", condition, "id")
        assert answer == (ConditionFailed(form), ["POST" if make is gcs else "PUT"])
    assert ask(make, said(make.__name__, 412), "delete", version(make)) == (ConditionFailed(), ["DELETE"])


@pytest.mark.parametrize("make", MAKERS)
def test_not_modified_is_unchanged(make):
    assert ask(make, said(make.__name__, 304), "get", version(make)) == (Unchanged(), ["GET"])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("status", [401, 403])
def test_refusal_of_access_is_access_denied(make, status):
    for call, args in (("head", ()), ("put", (b"", ABSENT, "id"))):
        with pytest.raises(AccessDenied, match="bucket/key"):
            ask(make, said(make.__name__, status), call, *args)


@pytest.mark.parametrize(
    ("make", "code"), [(s3, "NoSuchBucket"), (obstore, "NoSuchBucket"), (azure, "ContainerNotFound")]
)
def test_create_names_the_bucket_that_is_missing(make, code):
    with pytest.raises(BucketNotFound, match="bucket"):
        ask(make, said(make.__name__, 404, code), "put", b"", ABSENT, "id")


@pytest.mark.parametrize("make", MAKERS)
def test_redirect_is_not_followed(make):
    answer, requests = ask(make, http(307, Location="http://127.0.0.1:1/elsewhere"), "put", b"", ABSENT, "id")
    assert isinstance(answer, NoAnswer)
    assert len(requests) == 1


@pytest.mark.parametrize("make", MAKERS)
def test_truncated_answer_is_no_answer(make):
    cut = http(200, b"half", Last_Modified=DATE, ETag='"1"', x_goog_generation=1, Content_Range="bytes 0-8/9")
    cut = cut.replace(b"Length: 4", b"Length: 9")
    answer, requests = ask(make, cut, "get", None)
    assert isinstance(answer, NoAnswer)
    assert set(requests) == {"GET"}  # a read may be asked again by the SDK; it changes nothing


@pytest.mark.parametrize("make", MAKERS)
def test_silent_server_is_no_answer_after_the_timeout(make):
    async def run(endpoint: str):
        backend = backend_for(make(endpoint))
        try:
            return await backend.put(Write("bucket/key", ABSENT, "id"), b"", timeout_s=0.3)
        finally:
            await backend.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = asyncio.run(run(f"http://127.0.0.1:{silent.getsockname()[1]}"))
    assert isinstance(answer, NoAnswer)


def test_write_is_certainly_not_done_when_gcs_takes_no_connection_in_time():
    async def run(endpoint: str) -> object:
        backend = backend_for(gcs(endpoint))
        try:
            return await backend.put(Write("bucket/key", ABSENT, "id"), b"", timeout_s=1.0)
        finally:
            await backend.close()

    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        with suppress(TimeoutError):  # once its queue is full, the system leaves a new connection without an answer
            while True:
                stack.enter_context(socket.create_connection(full.getsockname(), timeout=0.2))
        answer = asyncio.run(run(f"http://127.0.0.1:{full.getsockname()[1]}"))
    assert isinstance(answer, NotApplied)
    assert answer.why.startswith("could not connect")


# What one store says in its own way


def google(status: int, message: str, reason: str = "x") -> bytes:
    error = {"code": status, "message": message, "errors": [{"reason": reason}]}
    return http(status, json.dumps({"error": error}).encode(), Content_Type="application/json")


def test_gcs_names_a_missing_bucket_in_its_message():
    for call, args in (("get", (None,)), ("delete", (None,)), ("put", (b"", version(gcs), "id"))):
        with pytest.raises(BucketNotFound):
            ask(gcs, google(404, "The specified bucket does not exist."), call, *args)
    assert ask(gcs, google(404, "No such object: bucket/key"), "head")[0] == Missing()
    assert ask(gcs, google(404, "No such object: bucket/key"), "delete", None)[0] == Applied(None)
    assert ask(gcs, google(404, "No such object: bucket/key"), "delete", version(gcs))[0] == ConditionFailed()


def test_gcs_may_throttle_with_403():
    answer, _ = ask(gcs, google(403, "slow down", "rateLimitExceeded"), "put", b"", ABSENT, "id")
    assert isinstance(answer, NotApplied)


def test_gcs_408_is_no_answer_and_400_is_an_error():
    assert isinstance(ask(gcs, http(408), "put", b"", ABSENT, "id")[0], NoAnswer)
    with pytest.raises(StoreError, match="too long"):
        ask(gcs, google(400, "The name is too long"), "put", b"", ABSENT, "id")


def test_gcs_answer_without_generation_has_no_version():
    for call, args in (("put", (b"", ABSENT, "id")), ("head", ()), ("get", (None,))):
        assert isinstance(ask(gcs, http(200, b"<html>"), call, *args)[0], NoAnswer)


def test_gcs_reads_bytes_and_generation_from_one_response():
    answer, requests = ask(gcs, http(200, b"data", x_goog_generation=42, Last_Modified=DATE), "get", None)
    assert answer == ObjectState(Version("gcs", "42"), 4, 1795233600000, None, b"data")
    assert requests == ["GET"]


def azure_error(status: int, code: str) -> bytes:
    return http(status, x_ms_error_code=code, x_ms_request_id="1")


@pytest.mark.parametrize(
    ("status", "code", "create", "match"),
    [
        (409, "BlobAlreadyExists", ConditionFailed("bucket/key"), None),  # the path, for another way to create there
        (412, "ConditionNotMet", ConditionFailed("bucket/key"), ConditionFailed()),
        (404, "BlobNotFound", None, ConditionFailed()),
        (
            409,
            "ContainerBeingDeleted",
            NotApplied("409 ContainerBeingDeleted"),
            NotApplied("409 ContainerBeingDeleted"),
        ),
        (500, "OperationTimedOut", NoAnswer("500 OperationTimedOut"), NoAnswer("500 OperationTimedOut")),
    ],
)
def test_azure_error_codes_of_a_write_are_classified(status, code, create, match):
    for args, expected in (((b"", ABSENT, "id"), create), ((b"", version(azure), "id"), match)):
        if expected is not None:
            assert ask(azure, azure_error(status, code), "put", *args)[0] == expected


def test_azure_names_a_missing_container():
    for call, args in (("get", (None,)), ("head", ()), ("delete", (None,)), ("put", (b"", ABSENT, "id"))):
        with pytest.raises(BucketNotFound):
            ask(azure, azure_error(404, "ContainerNotFound"), call, *args)


@pytest.mark.parametrize(
    ("status", "code"), [(412, "LeaseIdMissing"), (409, "SnapshotsPresent"), (409, "InvalidBlobType")]
)
def test_azure_refusals_unrelated_to_the_condition_are_errors(status, code):
    for args in ((b"", ABSENT, "id"), (b"", version(azure), "id")):
        with pytest.raises(StoreError, match=code):
            ask(azure, azure_error(status, code), "put", *args)
