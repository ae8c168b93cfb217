"""Every action of the proxy, seen to fire before a real SeaweedFS, by raw HTTP; the store is read past the proxy."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from importlib import import_module

import pytest
from patience import until
from servers import raw

from faults import actions as do
from faults.actions import Ending
from faults.proxy import FaultProxy


def puts(request) -> bool:
    return request.method == "PUT"


def gets(request) -> bool:
    return request.method == "GET"


@pytest.fixture
def proxy(seaweedfs, fault_proxy) -> FaultProxy:
    return fault_proxy(seaweedfs)


@pytest.fixture
def path(seaweedfs) -> str:
    return f"{seaweedfs.new_prefix()}/key"


@pytest.fixture
def put(seaweedfs, proxy, path):
    return lambda data=b"new", **how: seaweedfs.raw_put(path, data, endpoint=proxy.endpoint, **how)


def code_of(answer) -> str:
    return re.search(rb"<Error><Code>(\w+)</Code>", answer.body)[1].decode()


# Without a rule.


def test_signed_request_passes_and_is_logged_without_a_rule(seaweedfs, proxy, put, path):
    answer = put(b"through")
    assert answer.status == 200
    assert seaweedfs.raw_get(path).body == b"through"
    key = "/" + path.split("://")[1]
    assert proxy.log == [("PUT", key, 200)]
    assert proxy.delivered == [("PUT", key, 200)]


def test_host_header_is_forwarded_as_the_client_signed_it(seaweedfs, proxy, path):
    """Its twin: a host changed on the way is refused, so what passes above was not changed."""
    seen = []
    proxy.rule(match=lambda r: bool(seen.append(r.headers["host"])), action=do.server_error())
    assert seaweedfs.raw("PUT", path, body=b"x", endpoint=proxy.endpoint).status == 200
    assert seen == [f"127.0.0.1:{proxy.port}"]
    wrong = seaweedfs.raw("PUT", path, headers={"host": "elsewhere:1"}, body=b"x")
    assert wrong.status == 200  # signed and sent alike
    key = "/" + path.split("://")[1]
    signed = raw.sign_s3("PUT", key, {"host": "elsewhere:1"}, b"x", key=seaweedfs.key, secret=seaweedfs.secret)
    moved = signed | {"host": f"127.0.0.1:{proxy.port}"}
    assert raw.send(proxy.endpoint, "PUT", key, moved, b"x").status == 403


def test_connection_is_kept_alive_on_both_sides(seaweedfs, proxy, path):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
    sockets = set()
    for data in (b"one", b"two", b""):
        key = "/" + path.split("://")[1]
        headers = raw.sign_s3(
            "PUT", key, {"host": f"127.0.0.1:{proxy.port}"}, data, key=seaweedfs.key, secret=seaweedfs.secret
        )
        connection.request("PUT", key, body=data, headers=headers)
        assert connection.getresponse().read() == b""
        sockets.add(connection.sock.getsockname())
    connection.close()
    assert len(sockets) == 1
    assert seaweedfs.raw_get(path).body == b""


def test_chunked_bodies_pass_both_ways():
    """Against a server of a few lines, as SeaweedFS answers with Content-Length."""
    got = []

    def serve(listener):
        client, _ = listener.accept()
        with client, client.makefile("rwb") as stream:
            for answer in (b"4\r\nwide\r\n3;ext=1\r\nway\r\n0\r\nTrailer: yes\r\n\r\n", b"0\r\n\r\n"):
                head = []
                while (line := stream.readline()) != b"\r\n":
                    head.append(line)
                body = b""
                while not body.endswith(b"0\r\n\r\n"):
                    body += stream.readline()
                got.append((head, body))
                stream.write(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                stream.write(answer)
                stream.flush()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with FaultProxy("127.0.0.1", listener.getsockname()[1]) as proxy:
            connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
            read = []
            for _ in range(2):
                connection.request("POST", "/x", body=iter([b"hello ", b"world"]), encode_chunked=True)
                read.append(connection.getresponse().read())
            connection.close()
        thread.join(10)
    assert read == [b"wideway", b""]
    assert [body for _, body in got] == [b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"] * 2


def test_client_that_waits_for_100_continue_gets_it(seaweedfs, proxy, path):
    key, data = "/" + path.split("://")[1], b"x" * 100_000
    headers = raw.sign_s3(
        "PUT", key, {"host": f"127.0.0.1:{proxy.port}"}, data, key=seaweedfs.key, secret=seaweedfs.secret
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client:
        expect = f"Expect: 100-continue\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(f"PUT {key} HTTP/1.1\r\n{head}{expect}".encode())
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(data)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert seaweedfs.raw_get(path).body == data


def test_missing_server_is_a_closed_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with FaultProxy("127.0.0.1", port) as proxy:
        with pytest.raises(http.client.RemoteDisconnected):
            raw.send(proxy.endpoint, "GET", "/", {})
        assert proxy.log == [("GET", "/", "close")]
        assert proxy.delivered == []


# After the server applied the request.


def test_dropped_answer_leaves_the_write_in_the_store(seaweedfs, proxy, put, path):
    rule = proxy.rule(match=puts, action=do.lose_answer())
    with pytest.raises(http.client.RemoteDisconnected):
        put()
    assert (rule.fired, rule.answers) == (1, [200])
    assert seaweedfs.raw_get(path).body == b"new"
    assert proxy.log[-1][2] == "close"


def test_reset_answer_is_a_real_rst_and_the_write_is_stored(seaweedfs, proxy, put, path):
    rule = proxy.rule(match=puts, action=do.lose_answer(Ending.RESET))
    with pytest.raises(ConnectionResetError) as caught:
        put()
    # A FIN is a RemoteDisconnected, which is a ConnectionResetError, too.
    assert not isinstance(caught.value, http.client.RemoteDisconnected)
    assert (rule.fired, rule.answers) == (1, [200])
    assert seaweedfs.raw_get(path).body == b"new"


def test_hanging_answer_ends_by_client_timeout_and_the_write_is_stored(seaweedfs, proxy, put, path, monkeypatch):
    monkeypatch.setattr(raw, "TIMEOUT_S", 0.5)
    rule = proxy.rule(match=puts, action=do.lose_answer(Ending.HANG))
    with pytest.raises(TimeoutError):
        put()
    assert (rule.fired, rule.answers) == (1, [200])
    assert seaweedfs.raw_get(path).body == b"new"


def test_proxy_closes_while_a_client_hangs(seaweedfs):
    with FaultProxy("127.0.0.1", seaweedfs.port) as proxy:
        proxy.rule(action=do.never_deliver(Ending.HANG))
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        client.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: proxy.log)
    assert client.recv(10) == b""
    client.close()


@pytest.mark.parametrize("status", [500, 502, 503])
def test_replaced_answer_hides_a_write_that_happened(seaweedfs, proxy, put, path, status):
    rule = proxy.rule(match=puts, action=do.replace_answer(status))
    answer = put()
    assert (answer.status, code_of(answer)) == (status, "InternalError")
    assert (rule.fired, rule.answers) == (1, [200])
    assert seaweedfs.raw_get(path).body == b"new"


def test_answer_of_200_can_carry_an_error(seaweedfs, proxy, put, path):
    rule = proxy.rule(match=puts, action=do.ok_with_error("SlowDown"))
    answer = put()
    assert (answer.status, code_of(answer), answer.version) == (200, "SlowDown", None)
    assert (rule.fired, rule.answers) == (1, [200])
    assert seaweedfs.raw_get(path).body == b"new"


def test_cut_answer_ends_in_the_middle_of_the_body(seaweedfs, proxy, path):
    seaweedfs.raw_put(path, b"0123456789")
    rule = proxy.rule(match=gets, action=do.cut_answer(4))
    with pytest.raises(http.client.IncompleteRead) as caught:
        seaweedfs.raw("GET", path, endpoint=proxy.endpoint)
    assert caught.value.partial == b"0123"
    assert (rule.fired, rule.answers) == (1, [200])


# Before.


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (do.conflict(), (409, "ConditionalRequestConflict")),
        (do.failed_condition(), (412, "PreconditionFailed")),
        (do.too_many(), (429, "TooManyRequests")),
        (do.slow_down(), (503, "SlowDown")),
        (do.server_error(), (500, "InternalError")),
    ],
)
def test_refused_request_never_reaches_the_server(seaweedfs, proxy, path, action, said):
    rule = proxy.rule(match=puts, action=action)
    answer = seaweedfs.raw_put(path, b"new", endpoint=proxy.endpoint)
    assert (answer.status, code_of(answer)) == said
    assert "retry-after" not in answer.headers
    assert (rule.fired, rule.answers, proxy.delivered) == (1, [], [])
    assert seaweedfs.raw_get(path).status == 404


@pytest.mark.parametrize("action", [do.too_many(7), do.slow_down(7)])
def test_refusal_can_say_when_to_come_back(proxy, put, action):
    rule = proxy.rule(match=puts, action=action)
    assert put().headers["retry-after"] == "7"
    assert rule.fired == 1


@pytest.mark.parametrize("how", [Ending.RESET, Ending.CLOSE])
def test_request_can_be_lost_before_the_server(seaweedfs, proxy, put, path, how):
    rule = proxy.rule(match=puts, action=do.never_deliver(how))
    with pytest.raises(ConnectionResetError) as caught:
        put()
    assert isinstance(caught.value, http.client.RemoteDisconnected) == (how is Ending.CLOSE)
    assert (rule.fired, proxy.delivered) == (1, [])
    assert seaweedfs.raw_get(path).status == 404


def test_refused_head_has_no_body(seaweedfs, proxy, path):
    rule = proxy.rule(action=do.server_error())
    answer = seaweedfs.raw("HEAD", path, endpoint=proxy.endpoint)
    assert (answer.status, answer.body, rule.fired) == (500, b"", 1)


@pytest.mark.parametrize(
    ("dialect", "kind", "said"),
    [
        ("gs", "application/json", b'{"error":{"code":503,"message":"SlowDown","errors":[{"reason":"SlowDown"'),
        ("az", "application/xml", b"<Error><Code>SlowDown</Code>"),
    ],
)
def test_refusal_speaks_as_the_vendor_does(dialect, kind, said):
    with FaultProxy("127.0.0.1", 1, dialect=dialect) as proxy:
        proxy.rule(action=do.slow_down())
        answer = raw.send(proxy.endpoint, "GET", "/", {})
    assert (answer.status, answer.headers["content-type"]) == (503, kind)
    assert said in answer.body
    assert answer.headers.get("x-ms-error-code") == ("SlowDown" if dialect == "az" else None)


# In another number, or at another time.


def test_create_delivered_twice_is_answered_with_the_second_refusal(seaweedfs, proxy, put, path):
    rule = proxy.rule(match=puts, action=do.deliver_twice())
    assert put(b"mine", if_absent=True).status == 412
    assert (rule.fired, rule.answers) == (1, [200, 412])
    assert [status for *_, status in proxy.delivered] == [200, 412]
    assert seaweedfs.raw_get(path).body == b"mine"


def test_late_request_lands_when_it_is_released(seaweedfs, proxy, put, path):
    rule = proxy.rule(match=puts, action=do.deliver_late())
    with pytest.raises(ConnectionResetError):
        put(b"late")
    assert (rule.fired, rule.answers) == (1, [])
    assert seaweedfs.raw_get(path).status == 404
    assert rule.release() == [200]
    assert seaweedfs.raw_get(path).body == b"late"
    assert rule.release() == []


def test_late_request_can_be_answered_with_500(seaweedfs, proxy, put, path):
    rule = proxy.rule(match=puts, action=do.deliver_late(500))
    assert put(b"late").status == 500
    assert seaweedfs.raw_get(path).status == 404
    assert rule.release() == [200]
    assert seaweedfs.raw_get(path).body == b"late"


def test_late_request_lands_right_after_an_empty_read_back(seaweedfs, proxy, put, path):
    rule = proxy.rule(match=puts, action=do.deliver_late(), until=gets)
    with pytest.raises(ConnectionResetError):
        put(b"late", if_absent=True)
    assert seaweedfs.raw("GET", path, endpoint=proxy.endpoint).status == 404
    assert (rule.fired, rule.answers) == (1, [200])
    assert seaweedfs.raw_get(path).body == b"late"


# Rewriting.


def test_stripped_conditions_let_a_second_create_win(seaweedfs, proxy, path):
    """The condition is not signed here: a signed one that is stripped is refused with 403."""
    assert seaweedfs.raw_put(path, b"first").ok
    key = "/" + path.split("://")[1]
    host = {"host": f"127.0.0.1:{proxy.port}"}
    signed = raw.sign_s3("PUT", key, host, b"second", key=seaweedfs.key, secret=seaweedfs.secret)
    asked = signed | {"If-None-Match": "*"}
    assert raw.send(proxy.endpoint, "PUT", key, asked, b"second").status == 412
    rule = proxy.rule(match=puts, action=do.strip_request_headers("if-match", "if-none-match"))
    assert raw.send(proxy.endpoint, "PUT", key, asked, b"second").status == 200
    assert rule.fired == 1
    assert seaweedfs.raw_get(path).body == b"second"


def test_signed_condition_cannot_be_stripped_unseen(proxy, put):
    rule = proxy.rule(match=puts, action=do.strip_request_headers("If-None-Match"))
    assert put(if_absent=True).status == 403
    assert (rule.fired, rule.answers) == (1, [403])


def test_stripped_query_removes_precondition_of_gcs_upload(fake_gcs, fault_proxy):
    proxy, path = fault_proxy(fake_gcs), f"{fake_gcs.new_prefix()}/key"
    assert fake_gcs.raw_put(path, b"first").ok
    assert fake_gcs.raw_put(path, b"second", if_absent=True, endpoint=proxy.endpoint).status == 412
    rule = proxy.rule(match=lambda r: "ifGenerationMatch" in r.query, action=do.strip_query("ifGenerationMatch"))
    assert fake_gcs.raw_put(path, b"second", if_absent=True, endpoint=proxy.endpoint).status == 200
    assert rule.fired == 1
    assert fake_gcs.raw_get(path).body == b"second"


def test_azure_write_passes_and_can_be_lost(azurite, fault_proxy):
    proxy, path = fault_proxy(azurite), f"{azurite.new_prefix()}/key"
    assert azurite.raw_put(path, b"first", endpoint=proxy.endpoint).status == 201
    rule = proxy.rule(match=puts, action=do.lose_answer())
    with pytest.raises(http.client.RemoteDisconnected):
        azurite.raw_put(path, b"second", endpoint=proxy.endpoint)
    assert (rule.fired, rule.answers) == (1, [201])
    assert azurite.raw_get(path).body == b"second"


def test_etag_can_be_stripped_or_unquoted(seaweedfs, proxy, put, path):
    stripped = proxy.rule(match=puts, action=do.strip_answer_headers("ETag"))
    unquoted = proxy.rule(match=puts, action=do.unquote_etag())
    assert put().version is None
    assert re.fullmatch(r"[0-9a-f]{32}", put().version)
    assert put().version == seaweedfs.raw_head(path).version
    assert (stripped.fired, unquoted.fired) == (1, 1)


# Rules.


def test_rule_fires_exactly_as_often_as_configured(proxy, put):
    rule = proxy.rule(match=puts, action=do.slow_down(), times=2)
    assert [put().status for _ in range(4)] == [503, 503, 200, 200]
    assert rule.fired == 2
    always = proxy.rule(match=puts, action=do.slow_down(), times=None)
    assert [put().status for _ in range(3)] == [503, 503, 503]
    assert always.fired == 3


def test_rule_that_does_not_match_does_not_fire(proxy, put):
    rule = proxy.rule(match=gets, action=do.slow_down())
    assert put().status == 200
    assert rule.fired == 0


def test_rule_that_is_broken_fails_its_test(seaweedfs):
    with pytest.raises(KeyError, match="nothing"), FaultProxy("127.0.0.1", seaweedfs.port) as proxy:  # noqa: PT012
        proxy.rule(match=lambda request: request.headers["nothing"], action=do.slow_down())
        with pytest.raises(http.client.RemoteDisconnected):
            raw.send(proxy.endpoint, "GET", "/", {})


# Through the SDKs: the endpoint is all they need.


def test_s3fs_writes_through_the_proxy(seaweedfs, proxy, path):
    s3fs = import_module("s3fs")
    fs = s3fs.S3FileSystem(**seaweedfs.options_for(proxy.endpoint), skip_instance_cache=True)
    big = bytes(range(256)) * 8192  # 2 MiB: aws-chunked, and Expect: 100-continue where the SDK asks for it
    fs.pipe_file(path, big)
    assert seaweedfs.raw_get(path).body == big
    assert fs.cat_file(path) == big
    assert {status for *_, status in proxy.log} <= {200, 206}


def test_gcsfs_writes_through_the_proxy(fake_gcs, fault_proxy):
    gcsfs = import_module("gcsfs")
    proxy, path = fault_proxy(fake_gcs), f"{fake_gcs.new_prefix()}/key"
    fs = gcsfs.GCSFileSystem(**fake_gcs.options_for(proxy.endpoint), skip_instance_cache=True)
    fs.pipe_file(path, b"through")
    assert fake_gcs.raw_get(path).body == b"through"
    assert fs.cat_file(path) == b"through"
    assert len(proxy.delivered) >= 2


def test_adlfs_writes_through_the_proxy(azurite, fault_proxy):
    adlfs = import_module("adlfs")
    proxy, path = fault_proxy(azurite), f"{azurite.new_prefix()}/key"
    fs = adlfs.AzureBlobFileSystem(**azurite.options_for(proxy.endpoint), skip_instance_cache=True)
    fs.pipe_file(path, b"through")
    assert azurite.raw_get(path).body == b"through"
    assert fs.cat_file(path) == b"through"
    assert len(proxy.delivered) >= 2
