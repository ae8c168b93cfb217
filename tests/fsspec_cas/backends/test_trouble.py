"""What no second send mends, and what another one does: certificates, hosts, schemes, silence, other dialects."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gzip
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.wire import Wire, http, said

from fsspec_cas import (
    ABSENT,
    AccessDenied,
    NotSupported,
    OutcomeUnknown,
    Store,
    StoreError,
    Unavailable,
    Unknown,
    Version,
)
from fsspec_cas.answer import NoAnswer, NotApplied, Unchanged
from fsspec_cas.backends import backend_for, split_url
from fsspec_cas.backends.azure.answers import AzureDialect
from fsspec_cas.backends.gcs.answers import GcsDialect
from fsspec_cas.backends.http import patience_s
from fsspec_cas.backends.meaning import meaning
from fsspec_cas.backends.reply import HttpReply, StoreRequest, StoreStatement, Unproven, Verb
from fsspec_cas.backends.s3.answers import S3Dialect
from fsspec_cas.outcome import Write
from fsspec_cas.testing import Gateway, Rule

DATE = "Sat, 21 Nov 2026 04:00:00 GMT"


def s3fs_options(endpoint: str) -> dict[str, object]:
    return {"key": "k", "secret": "s", "endpoint_url": endpoint}


def lean_options(endpoint: str) -> dict[str, object]:
    how = {"access_key_id": "k", "secret_access_key": "s", "client_options": {"allow_http": True}}
    return {"client": "obstore", "endpoint": endpoint, **how}


CLIENTS = pytest.mark.parametrize("options", [s3fs_options, lean_options])


def heard(asked: StoreRequest, status: int, code: str, more: str = "", now: str = "now", **headers: str) -> object:
    body = f"<Error><Code>{code}</Code>{more}</Error>".encode()
    spoken = S3Dialect().interpret(asked, HttpReply(status, [*headers.items()], body), gives_request_ids=None)
    assert isinstance(spoken, StoreStatement)
    return meaning(asked, spoken, "S3", now)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "ThrottlingException"),
        (400, "RequestTimeout"),
        (403, "SlowDown"),
        (403, "RequestLimitExceeded"),
        (503, "SlowDown"),
        (500, "InternalError"),
        (500, "UnknownError"),
        (307, "TemporaryRedirect"),
        (200, "InternalError"),
    ],
)
def test_throttling_codes_are_no_answer_whatever_their_status(status, code):
    assert isinstance(heard(StoreRequest(Verb.MATCH, "b/k"), status, code), NoAnswer)


@pytest.mark.parametrize("code", ["OperationAborted", "ConditionalRequestConflict", "ConcurrentModification"])
def test_conflict_was_not_applied(code):
    assert isinstance(heard(StoreRequest(Verb.CREATE, "b/k"), 409, code), NotApplied)


@pytest.mark.parametrize(
    ("now", "said"),
    [("Sat, 21 Nov 2026 04:20:07 GMT", "1207 s ahead"), ("Sat, 21 Nov 2026 03:00:00 GMT", "3600 s behind")],
)
def test_clock_skew_error_names_both_times_and_their_difference(now, said):
    """K5."""
    with pytest.raises(AccessDenied, match=f"clock says {now}, the store's {DATE} \\({said}\\): set the clock"):
        heard(StoreRequest(Verb.GET, "b/k"), 403, "RequestTimeTooSkewed", now=now, date=DATE)


@pytest.mark.parametrize("verb", [Verb.CREATE, Verb.FINISH])
def test_no_such_key_as_answer_to_a_create_does_not_say_that_it_was_not_applied(verb):
    """MinIO has answered so after it had stored the object (its issues 4727 and 7605)."""
    assert isinstance(heard(StoreRequest(verb, "b/k"), 404, "NoSuchKey"), NoAnswer)


def test_create_answered_with_no_such_key_is_won_if_it_is_stored(ministack):
    answer = http(404, b"<Error><Code>NoSuchKey</Code></Error>", x_amz_request_id=1)
    with Gateway("127.0.0.1", ministack.port) as gateway:
        options = {**ministack.storage_options, "endpoint_url": gateway.endpoint}
        store = Store.from_url(ministack.new_prefix(), options)
        gateway.rules.append(Rule(answer, "after", match=lambda method, _: method == "PUT"))
        assert store.put_if_absent("a", b"1").unwrap() == store.head("a").version
        assert gateway.rules[0].fired == 1


def test_gcs_part_that_made_the_object_is_unknown_and_not_refused(gcs_double):
    part = 256 << 10
    made = b'{"kind": "storage#object", "generation": "7"}'
    with Gateway("127.0.0.1", gcs_double.port) as gateway:
        options = {**gcs_double.storage_options, "endpoint_url": gateway.endpoint}
        store = Store.from_url(gcs_double.new_prefix(), options)
        gateway.rules.append(Rule(http(200, made), match=lambda method, _: method == "PUT"))
        writer = store.open_exclusive("a", part_size=part)
        with pytest.raises(OutcomeUnknown, match="created from the parts so far"):
            writer.write(b"x" * (2 * part))
        assert (gateway.rules[0].fired, writer.closed) == (1, True)


def test_blanks_before_a_document_are_skipped():
    """Stores send them while they complete an upload, MinIO before the XML declaration (its change 7198)."""
    body = b'  \n<?xml version="1.0"?><CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>'
    spoken = S3Dialect().interpret(StoreRequest(Verb.FINISH, "b/k"), HttpReply(200, [], body), gives_request_ids=None)
    assert isinstance(spoken, StoreStatement)
    assert spoken.version == Version("s3", '"1"')


@pytest.mark.parametrize(
    ("dialect", "verb", "body", "headers"),
    [
        (S3Dialect(), Verb.HEAD, b"", {"etag": '"1"', "x-amz-request-id": "1", "content-length": "many"}),
        (S3Dialect(), Verb.HEAD, b"", {"etag": '"1"', "x-amz-request-id": "1", "content-length": "\xb2"}),
        (S3Dialect(), Verb.HEAD, b"", {"etag": '"1"', "x-amz-request-id": "1", "content-length": "7" * 5000}),
        (AzureDialect(), Verb.HEAD, b"", {"etag": '"1"', "x-ms-request-id": "1", "content-length": "many"}),
        (AzureDialect(), Verb.LIST, b"<EnumerationResults", {"x-ms-request-id": "1"}),
        (GcsDialect(), Verb.HEAD, b'{"kind": "storage#object", "generation": "1", "size": "many"}', {}),
        (GcsDialect(), Verb.LIST, b"[" * 200_000, {}),
        (GcsDialect(), Verb.CREATE, b"[" * 200_000, {}),
    ],
)
def test_damaged_answer_of_a_store_is_unproven_and_no_other_error(dialect, verb, body, headers):
    reply = HttpReply(200, headers.items(), body)
    assert isinstance(dialect.interpret(StoreRequest(verb, "b/k"), reply, gives_request_ids=None), Unproven)


@pytest.mark.parametrize(
    "date", ["Sat, 99999999999999 Nov 2026 04:00:00 GMT", "Sat, 21 Nov 2026 04:00:00 +" + "9" * 20]
)
def test_damaged_date_of_an_answer_is_no_date(date):
    headers = {"etag": '"1"', "x-amz-request-id": "1", "content-length": "1", "date": date, "last-modified": date}
    spoken = S3Dialect().interpret(
        StoreRequest(Verb.HEAD, "b/k"), HttpReply(200, headers.items(), b""), gives_request_ids=None
    )
    assert isinstance(spoken, StoreStatement)
    assert (spoken.document.modified_ms, spoken.document.answered_ms) == (None, None)


@pytest.mark.parametrize("later", ["\xb2", "soon", "9" * 5000])
def test_damaged_retry_after_is_no_error(later):
    reply = HttpReply(503, [("retry-after", later)], b"")
    assert isinstance(S3Dialect().interpret(StoreRequest(Verb.GET, "b/k"), reply, gives_request_ids=None), Unproven)


def test_damaged_gzip_of_a_gcs_listing_is_unavailable():
    cut = gzip.compress(b'{"kind": "storage#objects"}')[:-9]
    with Wire(http(200, cut, Content_Type="application/json", Content_Encoding="gzip")) as wire:
        store = Store.from_url("gs://bucket/x", {"token": "anon", "endpoint_url": wire.endpoint})
        with pytest.raises(Unavailable, match="did not answer|not an object store"):
            store.list("", timeout=1.0)


def test_archived_object_error_says_to_restore_it():
    with pytest.raises(StoreError, match="restore it first"):
        heard(StoreRequest(Verb.GET, "b/k"), 403, "InvalidObjectState")


def test_missing_upload_or_version_is_no_missing_object():
    for code in ("NoSuchVersion", "XAdminUserNotFound"):
        with pytest.raises(StoreError, match=code):
            heard(StoreRequest(Verb.GET, "b/k"), 404, code)


def test_unimplemented_feature_is_named():
    with pytest.raises(NotSupported, match="x-amz-checksum-crc32"):
        heard(StoreRequest(Verb.CREATE, "b/k"), 501, "NotImplemented", "<Header>x-amz-checksum-crc32</Header>")


@CLIENTS
def test_keys_that_bulk_delete_could_not_remove_are_named_at_once(options):
    body = b"<DeleteResult><Error><Key>x/b</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    with Wire(http(200, body, x_amz_request_id=1)) as wire:
        with pytest.raises(AccessDenied, match="1 of 2 objects were not removed, 'x/b' first") as refused:
            Store.from_url("s3://bucket/x", options(wire.endpoint)).delete_all(["a", "b"])
        assert refused.value.path == "bucket/x/b"
        assert wire.requests == ["POST"]


@CLIENTS
@pytest.mark.parametrize(
    ("status", "code", "then"),
    [
        (403, "ExpiredToken", ["POST"]),
        (403, "RequestTimeTooSkewed", ["POST"]),
        (400, "MalformedXML", ["POST"]),
        (501, "NotImplemented", ["DELETE", "DELETE"]),
        (405, "MethodNotAllowed", ["DELETE", "DELETE"]),
    ],
)
def test_only_a_store_without_bulk_deletes_is_not_asked_for_them_again(options, status, code, then):
    done = http(200, b"<DeleteResult/>", x_amz_request_id=1)
    with Gateway("127.0.0.1", 9) as gateway:
        gateway.rules += [
            Rule(said("s3", status, code), times=2),
            Rule(done, times=None, match=lambda method, _: method == "POST"),
            Rule(http(204, x_amz_request_id=1), times=None),
        ]
        store = Store.from_url("s3://bucket/x", options(gateway.endpoint))
        with pytest.raises((StoreError, NotSupported), match=code):
            store.delete_all(["a", "b"])
        assert [method for method, _ in gateway.requests] == ["POST", "DELETE"]
        store.delete_all(["a", "b"])
    assert [method for method, _ in gateway.requests[2:]] == then


@CLIENTS
def test_weak_etag_is_refused_at_once(options):
    weak = http(200, b"data", ETag='W/"1"', Last_Modified=DATE, x_amz_request_id=1)
    with Wire(weak) as wire, pytest.raises(StoreError, match="weak"):
        Store.from_url("s3://bucket/x", options(wire.endpoint)).read("a")


@CLIENTS
def test_write_with_a_weak_etag_in_the_answer_is_unknown(options):
    weak = http(200, ETag='W/"1"', Last_Modified=DATE, x_amz_request_id=1)
    with Wire(weak) as wire:
        outcome = Store.from_url("s3://bucket/x", options(wire.endpoint)).put_if_absent("a", b"data", timeout=2)
        assert isinstance(outcome, Unknown)


@CLIENTS
def test_s3_bytes_are_returned_as_stored_whatever_their_encoding(options):
    packed = gzip.compress(b"data")
    answer = http(200, packed, ETag='"1"', Last_Modified=DATE, x_amz_request_id=1, Content_Encoding="gzip")
    with Wire(answer) as wire:
        assert Store.from_url("s3://bucket/x", options(wire.endpoint)).read("a").data == packed


def test_gcs_and_azure_bytes_are_returned_as_stored_whatever_their_encoding(gcs_double, azurite):
    packed = gzip.compress(b"data")
    for server, given in ((gcs_double, {"contentEncoding": "gzip"}), (azurite, {"content_settings": encoded()})):
        store = Store.from_url(server.new_prefix(), server.storage_options)
        store.put_if_absent("a", packed, **given).unwrap()
        assert store.read("a").data == packed


def encoded() -> object:
    from azure.storage.blob import ContentSettings

    return ContentSettings(content_encoding="gzip")


@CLIENTS
def test_redirect_is_not_followed_and_not_believed(options):
    good = http(200, b"portal", ETag='"1"', Last_Modified=DATE, x_amz_request_id=1)
    with Wire(good) as portal, Wire(http(302, Location=f"{portal.endpoint}/login")) as wire:
        with pytest.raises(Unavailable, match="not an object store"):
            Store.from_url("s3://bucket/x", options(wire.endpoint)).read("a")
        assert portal.requests == []


@CLIENTS
def test_endpoint_that_is_no_store_ends_call_after_five_answers(options):
    with Wire(http(404, b"404 page not found")) as wire:
        with pytest.raises(Unavailable, match="404 page not found"):
            Store.from_url("s3://bucket/x", options(wire.endpoint)).read("a")
        assert len(wire.requests) <= 10


@CLIENTS
def test_nonexistent_host_ends_first_call_at_once(options):
    began_s = time.monotonic()
    with pytest.raises(Unavailable, match="host was not found|could not connect"):
        Store.from_url("s3://bucket/x", options("http://no-such-host.invalid")).read("a", timeout=8)
    assert time.monotonic() - began_s < 60


def certificate(folder: Path) -> Path:
    names = ("-keyout", str(folder / "key"), "-out", str(folder / "cert"), "-addext", "subjectAltName=DNS:localhost")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", *names]
    subprocess.run(made, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def tls(tmp_path_factory) -> object:
    """A server with a certificate that nobody trusts."""
    folder = certificate(tmp_path_factory.mktemp("tls"))
    with tls_server(folder, b"") as endpoint:
        yield endpoint


@contextlib.contextmanager
def tls_server(folder: Path, plain_answer: bytes) -> Iterator[str]:
    """A server that reads a request over TLS, then answers it without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) as wrapped:
                    wrapped.recv(1 << 16)
                    os.write(wrapped.fileno(), plain_answer)
                    wrapped.recv(1 << 16)
            except OSError:
                connection.close()

    threading.Thread(target=serve, daemon=True).start()
    yield f"https://localhost:{listening.getsockname()[1]}"
    listening.close()


@CLIENTS
def test_tls_that_breaks_after_a_write_was_sent_makes_it_unknown(options, monkeypatch, tmp_path):
    """The error is the one of a server without TLS, which got nothing."""
    certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "cert"))
    with tls_server(tmp_path, http(502)) as endpoint:
        backend = backend_for(split_url("s3://bucket/x", options(endpoint))[0])
        write = Write("bucket/x", ABSENT, "id")
        answer = Store(backend)._drive.run(backend.put(write, b"data", timeout_s=5.0))
        assert isinstance(answer, NoAnswer)


@CLIENTS
def test_untrusted_certificate_ends_first_call_at_once(options, tls):
    with pytest.raises(Unavailable, match="certificate is not trusted.*AWS_CA_BUNDLE"):
        Store.from_url("s3://bucket/x", options(tls)).read("a")


@CLIENTS
def test_tls_spoken_to_a_plain_port_ends_a_first_call_at_once(options):
    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = plain.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(http(400, b"bad request"))

    with socket.create_server(("127.0.0.1", 0)) as plain:
        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(Unavailable, match="write http://"):
            Store.from_url("s3://bucket/x", options(f"https://127.0.0.1:{plain.getsockname()[1]}")).read("a")


def test_one_silent_connection_gets_a_third_of_the_time():
    assert patience_s(60, StoreRequest(Verb.GET, "b/k")) == 20
    assert patience_s(2, StoreRequest(Verb.GET, "b/k")) == 1
    assert patience_s(0.3, StoreRequest(Verb.GET, "b/k")) == 0.3
    assert patience_s(60, StoreRequest(Verb.CREATE, "b/k", bytes(2 << 20))) == 60
    assert patience_s(60, StoreRequest(Verb.FINISH, "b/k")) == 60


@CLIENTS
def test_dead_connection_leaves_time_for_another(options):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        backend = backend_for(split_url("s3://bucket/x", options(f"http://127.0.0.1:{silent.getsockname()[1]}"))[0])

        async def ask() -> object:
            try:
                return await backend.get("bucket/x", None, timeout_s=6.0)
            finally:
                await backend.close()

        began_s = time.monotonic()
        assert isinstance(asyncio.run(ask()), NoAnswer)
        assert time.monotonic() - began_s >= 2.0


@CLIENTS
def test_region_is_taken_from_the_error_of_the_store(options):
    moved = http(
        301,
        b"<Error><Code>PermanentRedirect</Code><Region>eu-west-1</Region></Error>",
        x_amz_bucket_region="eu-west-1",
        x_amz_request_id=1,
    )
    with Wire(moved) as wire:
        with pytest.raises(StoreError, match="another region"):
            Store.from_url("s3://bucket/x", options(wire.endpoint)).read("a")
        assert len(wire.requests) == 2
        assert "/eu-west-1/s3/" in wire.heads[1]["authorization"]


def test_azure_304_needs_the_error_code_of_the_store():
    asked = StoreRequest(Verb.GET, "c/b", condition=Version("azure", '"1"'))
    said_so = HttpReply(304, [("x-ms-request-id", "1"), ("x-ms-error-code", "ConditionNotMet")], b"")
    assert meaning(asked, AzureDialect().interpret(asked, said_so, gives_request_ids=True), "Azure", "") == Unchanged()


@CLIENTS
def test_access_denied_names_other_possible_causes(options):
    with Wire(said("s3", 403)) as wire, pytest.raises(AccessDenied, match="s3:ListBucket"):
        Store.from_url("s3://bucket/x", options(wire.endpoint)).read("a")


def test_file_system_without_flock_is_named_and_no_descriptor_leaks(tmp_path, monkeypatch):
    store = Store.from_url(str(tmp_path))
    version = store.put_if_absent("a", b"1").unwrap()

    def none(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(NotSupported, match="no flock"):
            store.put_if_match("a", b"2", version)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
