"""The HTTP server of `state run` and `state serve`, asked through raw sockets what no honest client sends."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest
from patience import PATIENCE_S, until

from fsspec_cas import InvalidInput, Store
from lockprovider.commands import state_server as serving
from lockprovider.commands.state_server import USER, Limits, StateServer
from lockprovider.recipes.state.writer import StateWriter
from lockprovider.state import State

PASSWORD = uuid.uuid4().hex
AUTHORIZATION = f"Authorization: Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
INFO = b'{"ID": "7c2a", "Operation": "OperationTypeApply", "Who": "ci@vm-7"}'


def tf(serial: int, **more: object) -> bytes:
    return json.dumps({"version": 4, "serial": serial, "lineage": "0f6e", **more}).encode()


class Running:
    def __init__(self, **limits: float) -> None:
        store = Store.from_url(f"memory://{uuid.uuid4().hex}")
        self.state: State[bytes] = State(store, "network.json", codec=bytes)
        self.told: list[str] = []
        self.server = StateServer(self.state, PASSWORD, on_rejected=self.told.append, limits=Limits(**limits))
        self.port = self.server.port
        self._thread = threading.Thread(target=self.server.serve, daemon=True)
        self._thread.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def raw(self, *lines: str, body: bytes = b"", ends: bool = False) -> tuple[int, dict[str, str]]:
        """The answer to these bytes; `ends`: the client sends no more, as one that was killed."""
        with self.connect() as asking:
            asking.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode() + body)
            if ends:
                asking.shutdown(socket.SHUT_WR)
            return answer(asking)

    def post(self, body: bytes, *headers: str, said: int | None = None) -> tuple[int, dict[str, str]]:
        length = f"Content-Length: {len(body) if said is None else said}"
        return self.raw("POST /state HTTP/1.1", "Host: x", AUTHORIZATION, length, *headers, body=body)

    def ask(self, method: str, body: bytes = b"", query: str = "") -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        name, _, value = AUTHORIZATION.partition(": ")
        connection.request(method, f"/state{query}", body, {name: value})
        reply = connection.getresponse()
        return reply.status, reply.read()

    def stop(self) -> None:
        self.server.shutdown()
        self._thread.join()


def answer(asking: socket.socket) -> tuple[int, dict[str, str]]:
    """The status, and what the JSON says; 0 where the connection ends without an answer."""
    data = b""
    try:
        while piece := asking.recv(65536):
            data += piece
    except ConnectionError:
        pass
    head, _, body = data.partition(b"\r\n\r\n")
    try:
        said = json.loads(body)
    except ValueError:
        said = {"message": body.decode()}
    return (int(head.split()[1]), said) if head else (0, {})


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running()
    yield server
    server.stop()


@pytest.fixture
def strict() -> Iterator[Running]:
    """A server whose limits are soon reached."""
    server = Running(headers_s=0.2, next_s=0.2, body_s=0.5, body_bytes=1000)
    yield server
    server.stop()


def test_state_is_locked_written_read_and_unlocked(running) -> None:
    assert running.ask("GET") == (204, b"")
    assert running.ask("LOCK", INFO)[0] == 200
    assert running.ask("POST", tf(1), "?ID=7c2a") == (200, b"")
    assert running.ask("GET") == (200, tf(1))
    assert running.ask("UNLOCK", INFO) == (200, b"")
    assert running.told == []


def test_body_that_ends_early_is_not_stored(running) -> None:
    """A Terraform that died while it uploaded left half a state as the newest."""
    assert running.ask("POST", tf(1))[0] == 200
    lines = ["POST /state HTTP/1.1", "Host: x", AUTHORIZATION, f"Content-Length: {len(tf(2)) + 1}"]
    assert running.raw(*lines, body=tf(2), ends=True)[0] in {0, 400}
    assert running.ask("GET") == (200, tf(1))


@pytest.mark.parametrize("cut", [b"", b"%x\r\n%s\r\n", b"%x\r\n%s\r\n0\r\n"], ids=["nothing", "one chunk", "no end"])
def test_chunked_body_that_ends_early_is_not_stored(running, cut) -> None:
    assert running.ask("POST", tf(1))[0] == 200
    lines = ["POST /state HTTP/1.1", "Host: x", AUTHORIZATION, "Transfer-Encoding: chunked"]
    body = cut % (len(tf(2)), tf(2)) if cut else b""
    assert running.raw(*lines, body=body, ends=True)[0] in {0, 400}
    assert running.ask("GET") == (200, tf(1))


def test_chunked_body_is_stored_whole(running) -> None:
    lines = ["POST /state HTTP/1.1", "Host: x", AUTHORIZATION, "Transfer-Encoding: chunked"]
    half = len(tf(1)) // 2
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (tf(1)[:half], tf(1)[half:], b""))
    assert running.raw(*lines, body=pieces)[0] == 200
    assert running.ask("GET") == (200, tf(1))


@pytest.mark.parametrize("lines", [["Transfer-Encoding: chunked"], ["Content-Length: 5"], ["Content-Length: -1"]])
def test_body_of_two_lengths_is_refused(running, lines) -> None:
    """Request smuggling: two readers of one request see two ends."""
    assert running.post(tf(1), *lines)[0] == 400
    assert running.ask("GET") == (204, b"")


def test_content_md5_is_checked(running) -> None:
    digest = base64.b64encode(hashlib.md5(tf(1), usedforsecurity=False).digest()).decode()
    status, said = running.post(tf(2), f"Content-MD5: {digest}")
    assert (status, "Content-MD5" in said["message"]) == (400, True)
    assert running.post(tf(2), "Content-MD5: no digest")[0] == 400
    assert running.ask("GET") == (204, b"")
    assert running.post(tf(1), f"Content-MD5: {digest}")[0] == 200
    assert running.ask("GET") == (200, tf(1))


def test_compressed_body_is_refused(running) -> None:
    assert running.post(b"\x1f\x8b" + b"x" * 100, "Content-Encoding: gzip")[0] == 415
    assert running.ask("GET") == (204, b"")


def test_password_is_asked_before_the_body(running) -> None:
    """The body never comes: an answer shows that nobody waits for it."""
    for password in ["", "Authorization: Basic eDp5", AUTHORIZATION[:-2]]:
        lines = ["POST /state HTTP/1.1", "Host: x", "Content-Length: 1000000", *([password] if password else [])]
        with running.connect() as asking:
            asking.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
            first = asking.recv(65536)
        assert first.startswith(b"HTTP/1.1 401 ")
        assert b'Basic realm="state"' in first
    assert running.told == []


@pytest.mark.parametrize(("name", "status"), [("Authorization", 401), ("Content-MD5", 400)])
def test_header_that_is_not_utf_8_is_refused(running, name, status) -> None:
    lines = ["POST /state HTTP/1.1", "Host: x", "Content-Length: 2", f"{name}: \xff"]
    with running.connect() as asking:
        asking.sendall("\r\n".join([*lines, *([] if status == 401 else [AUTHORIZATION]), "", "{}"]).encode("latin-1"))
        assert answer(asking)[0] == status
    assert running.ask("GET") == (204, b"")


@pytest.mark.parametrize("method", ["GET", "POST", "LOCK", "UNLOCK", "DELETE"])
def test_client_without_the_password_learns_and_does_nothing(running, method) -> None:
    assert running.ask("POST", tf(1))[0] == 200
    status, said = running.raw(f"{method} /state HTTP/1.1", "Host: x", "Content-Length: 0")
    assert (status, said["error"]) == (401, "AccessDenied")
    assert running.ask("GET") == (200, tf(1))


def test_client_that_waits_for_100_continue_sends_its_body(running) -> None:
    with running.connect() as asking:
        lines = ["POST /state HTTP/1.1", "Host: x", AUTHORIZATION, f"Content-Length: {len(tf(1))}"]
        asking.sendall("".join(f"{line}\r\n" for line in [*lines, "Expect: 100-continue", ""]).encode())
        assert asking.recv(65536).startswith(b"HTTP/1.1 100 ")
        asking.sendall(tf(1))
        assert answer(asking)[0] == 200
    assert running.ask("GET") == (200, tf(1))


def test_silent_connections_do_not_delay_other_clients(running) -> None:
    """One silent connection stopped the server for all."""
    silent = [running.connect() for _ in range(50)]
    for number, one in enumerate(silent):
        one.sendall([b"", b"POST /state HTTP/1.1\r\nHost: x\r\n", b"GE"][number % 3])
    assert running.ask("POST", tf(1))[0] == 200
    for one in silent:
        one.close()


def test_silent_connections_above_the_limit_do_not_delay_other_clients(running, monkeypatch) -> None:
    monkeypatch.setattr(serving, "_SILENT", 4)
    silent = [running.connect() for _ in range(12)]
    assert running.ask("POST", tf(1))[0] == 200
    assert silent[0].recv(1) == b""  # the oldest was closed for the newest
    for one in silent:
        one.close()


def test_clients_with_a_wrong_password_are_counted_as_silent_ones(running, monkeypatch) -> None:
    """Their bodies never come, and the oldest of them are closed for the newest."""
    monkeypatch.setattr(serving, "_SILENT", 4)
    strangers = [running.connect() for _ in range(4)]
    for stranger in strangers:
        stranger.sendall(b"POST /state HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert stranger.recv(65536).startswith(b"HTTP/1.1 401 ")
    assert len(running.server._silent) == 4
    assert running.ask("POST", tf(1))[0] == 200
    for stranger in strangers:
        stranger.close()


def test_slow_client_is_disconnected(strict) -> None:
    with strict.connect() as silent, strict.connect() as half:
        half.sendall(b"POST /state HTTP/1.1\r\nHo")
        assert (answer(silent), answer(half)) == ((0, {}), (0, {}))
    assert strict.post(tf(1), said=len(tf(1)) + 1)[0] == 408
    assert strict.ask("GET") == (204, b"")
    assert "did not come in time" in strict.told[0]


def test_client_whose_body_never_ends_is_disconnected(strict) -> None:
    ended = threading.Event()
    with strict.connect() as dripping:
        lines = ["POST /state HTTP/1.1", "Host: x", AUTHORIZATION, "Content-Length: 900", "", ""]
        dripping.sendall("\r\n".join(lines).encode())

        def drip() -> None:
            try:
                while not ended.wait(0.02):
                    dripping.sendall(b" ")
            except OSError:
                return

        thread = threading.Thread(target=drip)
        thread.start()
        status, _ = answer(dripping)
        ended.set()
        thread.join()
    assert status in {0, 408}  # 0: the next drip met a closed connection
    assert strict.ask("GET") == (204, b"")


def test_body_that_is_too_large_is_refused_before_it_is_read(strict) -> None:
    assert strict.post(b"", said=1001)[0] == 413
    chunked = ["POST /state HTTP/1.1", "Host: x", AUTHORIZATION, "Transfer-Encoding: chunked"]
    assert strict.raw(*chunked, body=b"400\r\n" + b"x" * 1024 + b"\r\n")[0] == 413
    assert strict.ask("GET") == (204, b"")


def test_many_requests_are_answered_at_once(running, monkeypatch) -> None:
    """A write that waits for the store keeps no reader waiting."""
    assert running.ask("POST", tf(1))[0] == 200
    go = threading.Event()
    begun = threading.Event()
    finish = StateWriter.finish

    def slowly(*given: Any) -> Any:
        begun.set()
        assert go.wait(PATIENCE_S)
        return finish(*given)

    monkeypatch.setattr(StateWriter, "finish", slowly)
    with ThreadPoolExecutor(8) as pool:
        writing = pool.submit(running.ask, "POST", tf(2))
        assert begun.wait(PATIENCE_S)
        assert [one.result() for one in [pool.submit(running.ask, "GET") for _ in range(20)]] == [(200, tf(1))] * 20
        go.set()
        assert writing.result() == (200, b"")
    assert running.ask("GET") == (200, tf(2))


def test_refusal_reason_reaches_the_user(running) -> None:
    """Terraform shows the status alone: `HTTP error: 409`."""
    assert running.ask("POST", tf(2))[0] == 200
    status, said = running.post(tf(1))
    assert (status, said["error"]) == (409, "StateConflict")
    assert running.told == [f"POST was refused (409): {said['message']}"]


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\x00" * 100, b"G" * 100_000 + b"\r\n"],
    ids=["tls", "no target", "zeros", "long"],
)
def test_bytes_that_are_no_http_are_refused(running, sent) -> None:
    with running.connect() as asking:
        asking.sendall(sent)
        asking.shutdown(socket.SHUT_WR)
        assert answer(asking)[0] in {0, 400}
    assert running.ask("GET") == (204, b"")


def test_other_paths_are_not_found(running) -> None:
    assert running.raw("GET /other HTTP/1.1", "Host: x", AUTHORIZATION)[0] == 404


def test_server_ends_with_silent_and_slow_clients(running) -> None:
    silent, half = running.connect(), running.connect()
    half.sendall(
        b"\r\n".join([b"POST /state HTTP/1.1", b"Host: x", AUTHORIZATION.encode(), b"Content-Length: 9", b"", b""])
    )
    running.ask("LOCK", INFO)
    running.stop()
    assert answer(silent)[0] == 0
    half.close()
    assert running.state.who().state == "released"


def test_port_in_use_is_refused(running) -> None:
    with pytest.raises(InvalidInput, match="give another one"):
        StateServer(running.state, PASSWORD, running.port)
    until(lambda: running.ask("GET")[0] == 204)
