"""A small S3 server in threads, right but for what it is told to do wrongly, as real servers were seen to."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

CHECKSUMS = "A header you provided implies functionality that is not implemented: x-amz-checksum-crc32"


class SmallS3:
    """One bucket of any name, without signatures.

    Attributes:
        looks_first: it looks at the condition before it has read the body, and writes whatever has happened since.
        quoted, unquoted: in which form it takes a version in If-Match; it says 412 to any other.
        checksums: it takes a checksum in the headers; else 501, as S3Proxy.
        any_body: it takes a body that is not signed; else 403.
    """

    def __init__(self, **settings: bool) -> None:
        self.looks_first = self.unquoted = False
        self.quoted = self.checksums = self.any_body = True
        for name, value in settings.items():
            setattr(self, name, value)
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        outer = self

        class Handler(_Handler):
            store = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> SmallS3:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def options(self, client: str) -> dict[str, Any]:
        """Storage options for `s3://bucket/...`, by s3fs or by the lean client."""
        if client == "s3fs":
            return {"key": "k", "secret": "s", "endpoint_url": self.endpoint, "skip_instance_cache": True}
        options = {"client": "obstore", "access_key_id": "k", "secret_access_key": "s", "endpoint": self.endpoint}
        return {**options, "client_options": {"allow_http": True}}

    def refused(self, key: str, headers: Any) -> tuple[int, str] | None:
        """What the condition of a write comes to now."""
        now = self.objects.get(key)
        if headers.get("If-None-Match") == "*" and now is not None:
            return 412, "PreconditionFailed"
        wanted = headers.get("If-Match")
        if wanted is None:
            return None
        if now is None:
            return 404, "NoSuchKey"
        forms = [etag(now)] * self.quoted + [etag(now).strip('"')] * self.unquoted
        return None if wanted in forms else (412, "PreconditionFailed")


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    store: SmallS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _key(self) -> str:
        path = urlsplit(self.path).path
        self.store.requests.append((self.command, path))
        return path

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("x-amz-request-id", "1")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str, text: str = "m") -> None:
        self._say(status, f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode())

    def do_PUT(self) -> None:
        key, store = self._key(), self.store
        refused = store.refused(key, self.headers) if store.looks_first else None
        body = self._body()
        if not store.checksums and any(name.lower().startswith("x-amz-checksum") for name in self.headers):
            self._error(501, "NotImplemented", CHECKSUMS)
            return
        if not store.any_body and self.headers.get("x-amz-content-sha256") == "UNSIGNED-PAYLOAD":
            self._error(403, "AccessDenied")
            return
        with store.lock:
            refused = refused if store.looks_first else store.refused(key, self.headers)
            if refused is None:
                store.objects[key] = body
        if refused:
            self._error(*refused)
        else:
            self._say(200, ETag=etag(body))

    def do_GET(self) -> None:
        key = self._key()
        with self.store.lock:
            data = self.store.objects.get(key)
        if data is None:
            self._error(404, "NoSuchKey")
            return
        known = {"ETag": etag(data), "Last_Modified": "Sat, 21 Nov 2026 04:00:00 GMT"}
        self._say(200, data, **known, Content_Length=str(len(data)))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        key = self._key()
        with self.store.lock:
            refused = self.store.refused(key, self.headers)
            if refused is None:
                self.store.objects.pop(key, None)
        if refused:
            self._error(*refused)
        else:
            self._say(204)

    def do_POST(self) -> None:
        self._key()
        self._body()
        self._error(501, "NotImplemented")
