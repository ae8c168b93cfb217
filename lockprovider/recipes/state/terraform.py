"""A state as a backend of Terraform and OpenTofu: what their `http` backend asks, answered on loopback.

GET, POST and DELETE of the state, LOCK and UNLOCK with their LockInfo. So any store of fsspec becomes a backend whose
lock lapses when its holder dies, and whose writes are fenced: a run that was paused, and overtaken, is refused (409),
and its state is left in `errored.tfstate`, as Terraform does where any backend fails.

The bytes are kept as they are. Requests must carry the password that the server was given (HTTP basic authentication):
other users of the machine reach loopback, too, and states hold secrets. No TLS.

Source: internal/backend/remote-state/http/client.go of Terraform 1.11 and OpenTofu 1.9.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fsspec_cas import CasError, OutcomeUnknown, Unavailable
from lockprovider.client.lease import Lease
from lockprovider.errors import LockError, NotAcquired
from lockprovider.recipes.errors import CoordinationError, Overloaded, StateLocked
from lockprovider.recipes.state.changes import Update
from lockprovider.recipes.state.revision import Edit
from lockprovider.recipes.state.state import State

USER = "lockprovider"
_BODY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: HTTPStatus
    body: bytes = b""


@dataclass(slots=True)
class TerraformBackend:
    """What a request of the `http` backend comes to. One thread calls it, and lives as long as it is locked."""

    state: State[bytes]
    _held: _Held | None = field(default=None)

    def answer(self, method: str, query: str, body: bytes) -> Reply:
        """The response; what goes wrong is a status and a sentence, which Terraform shows."""
        asked: dict[str, Callable[[], Reply]] = {
            "GET": self._read,
            "POST": lambda: self._write(parse_qs(query).get("ID", [""])[0], body),
            "DELETE": self._delete,
            "LOCK": lambda: self._lock(_info(body)),
            "UNLOCK": lambda: self._unlock(_info(body).get("ID")),
        }
        try:
            return asked[method]()
        except KeyError:
            return Reply(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not of this protocol".encode())
        except StateLocked as error:
            return self._locked_by_another(str(error))
        except (CasError, CoordinationError, LockError, ValueError) as error:
            return Reply(_status(error), str(error).encode())

    def close(self) -> None:
        """Give back what is still locked: whoever locked it is gone."""
        held, self._held = self._held, None
        if held is not None:
            held.lease.release()

    def _read(self) -> Reply:
        stored, _ = self.state._file.read()  # noqa: SLF001 - it is of the state
        if stored is None or stored.value is None:
            return Reply(HTTPStatus.NO_CONTENT)
        return Reply(HTTPStatus.OK, self.state.codec.decode(stored.value))

    def _write(self, identity: str, body: bytes) -> Reply:
        held = self._held
        if held is None:
            if identity:
                return Reply(HTTPStatus.CONFLICT, f"the lock {identity} is not held any more".encode())
            self.state.put(body, reason="without a lock")
            return Reply(HTTPStatus.OK)
        if identity != held.info.get("ID"):
            return Reply(HTTPStatus.LOCKED, json.dumps(held.info).encode())
        held.lease.check()
        held.write(self.state, body)
        return Reply(HTTPStatus.OK)

    def _delete(self) -> Reply:
        self.state._batcher.do(Update(lambda _: None, reason="deleted"))  # noqa: SLF001 - it is of the state
        return Reply(HTTPStatus.OK)

    def _lock(self, info: dict[str, Any]) -> Reply:
        if self._held is not None:
            same = self._held.info.get("ID") == info.get("ID")  # its answer was lost, and it was sent again
            return Reply(HTTPStatus.OK if same else HTTPStatus.LOCKED, json.dumps(self._held.info).encode())
        try:
            lease = self.state._writer.new_lock().acquire(0.0)  # noqa: SLF001 - it is of the state
        except NotAcquired as refusal:
            return self._locked_by_another(str(refusal))
        try:
            self._held = _Held.begin(self.state, lease, info)
        except BaseException:
            lease.release()
            raise
        return Reply(HTTPStatus.OK, json.dumps(info).encode())

    def _unlock(self, identity: str | None) -> Reply:
        held = self._held
        if held is None and not identity:  # force-unlock sends no more than that
            self.state.unlock(self.state.who())
        elif held is None or identity not in (None, held.info.get("ID")):
            return Reply(HTTPStatus.CONFLICT, f"the lock {identity} is not held here".encode())
        else:
            self.close()
        return Reply(HTTPStatus.OK)

    def _locked_by_another(self, why: str) -> Reply:
        who = self.state.who()
        try:
            info = json.loads(who.reason)
        except ValueError:
            info = {"ID": who.status.record.owner if who.status.record else "", "Who": who.by, "Operation": who.reason}
        return Reply(HTTPStatus.LOCKED, json.dumps({**info, "Info": info.get("Info") or why}).encode())


@dataclass(slots=True)
class _Held:
    """A lock that Terraform holds by us: a held edit, that is written as often as it likes."""

    lease: Lease
    info: dict[str, Any]
    edit: Edit[bytes]

    @classmethod
    def begin(cls, state: State[bytes], lease: Lease, info: dict[str, Any]) -> _Held:
        begun = state._batcher.do(state._beginning(lease.epoch, json.dumps(info)))  # noqa: SLF001 - it is of the state
        return cls(lease, info, Edit(lease, state._revision(begun)))  # noqa: SLF001

    def write(self, state: State[bytes], body: bytes) -> None:
        self.edit.value = body
        reason = str(self.info.get("Operation") or "")
        done = state._batcher.do(state._ending(self.edit, reason, goes_on=True))  # noqa: SLF001 - it is of the state
        self.edit = Edit(self.lease, state._revision(done))  # noqa: SLF001


def _status(error: Exception) -> HTTPStatus:
    match error:
        case OutcomeUnknown():
            return HTTPStatus.GATEWAY_TIMEOUT
        case Unavailable() | Overloaded():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case CoordinationError() | LockError():
            return HTTPStatus.CONFLICT
        case _:
            return HTTPStatus.BAD_REQUEST


def _info(body: bytes) -> dict[str, Any]:
    found = json.loads(body) if body.strip() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{found!r} is no LockInfo")  # noqa: TRY004 - it becomes a status
    return found


class TerraformServer(HTTPServer):
    """The backend on a port of loopback; one request at a time, on the thread that serves."""

    def __init__(self, state: State[bytes], password: str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.backend = TerraformBackend(state)
        self.token = "Basic " + base64.b64encode(f"{USER}:{password}".encode()).decode()
        self._password = password

    @property
    def address(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.server_address[1]}/state"

    @property
    def environment(self) -> dict[str, str]:
        """What Terraform and OpenTofu take it from, beside `backend "http" {}`."""
        return {
            "TF_HTTP_ADDRESS": self.address,
            "TF_HTTP_LOCK_ADDRESS": self.address,
            "TF_HTTP_UNLOCK_ADDRESS": self.address,
            "TF_HTTP_USERNAME": USER,
            "TF_HTTP_PASSWORD": self._password,
        }

    def serve(self) -> None:
        """Until `shutdown` is called, by another thread; then what is still locked is given back."""
        try:
            self.serve_forever(poll_interval=0.1)
        finally:
            self.backend.close()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: TerraformServer
    timeout = 30.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # GET, POST, DELETE, LOCK, UNLOCK; the backend says no to the rest
            return self._any
        raise AttributeError(name)

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.server.token.encode()):
            reply = Reply(HTTPStatus.UNAUTHORIZED, b"set TF_HTTP_USERNAME and TF_HTTP_PASSWORD")
        elif length > _BODY_BYTES:
            reply = Reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            body = self.rfile.read(length)
            reply = self.server.backend.answer(self.command, urlsplit(self.path).query, body)
        self.send_response(reply.status)
        if reply.status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="state"')
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - so it is called
        """Nothing: the address and what is asked are no news, and stderr is the command's."""
        del format, args
