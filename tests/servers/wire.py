"""A server in a thread that says one thing to every request, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import socket
import threading


class Wire:
    """Gives always the same bytes back, one connection at a time; none means that it hangs up."""

    def __init__(self, answer: bytes) -> None:
        self.requests: list[str] = []  # their methods
        self.targets: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.asked_first = 0  # how often a client waited for a 100 before it sent the body
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Wire:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self._one(connection)

    def _one(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        first = stream.readline()
        if not first:
            return
        method, target, _ = first.decode().split(" ", 2)
        self.requests.append(method)
        self.targets.append(target)
        headers = dict(line.decode().lower().strip().split(": ", 1) for line in iter(stream.readline, b"\r\n"))
        self.heads.append(headers)
        if "expect" in headers:
            self.asked_first += 1
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        stream.read(int(headers.get("content-length", 0)))
        head, end, body = self._answer.partition(b"\r\n\r\n")
        connection.sendall(head + end + (b"" if method == "HEAD" else body))


CODES = {
    401: ("AccessDenied", "required", "NoAuthenticationInformation"),
    403: ("AccessDenied", "forbidden", "AuthorizationFailure"),
    404: ("NoSuchKey", "notFound", "BlobNotFound"),
    412: ("PreconditionFailed", "conditionNotMet", "ConditionNotMet"),
    304: ("", "", "ConditionNotMet"),
}


def said(store: str, status: int, code: str = "", **headers: object) -> bytes:
    """A refusal as the store itself gives it, with its proofs; `code` where it is another than the usual one."""
    s3, google, azure = CODES.get(status, ("", "", ""))
    if store in ("s3", "obstore"):
        body = f"<Error><Code>{code or s3}</Code><Message>m</Message></Error>" if status != 304 else ""
        return http(status, body.encode(), Content_Type="application/xml", x_amz_request_id="1", **headers)
    if store == "gcs":
        error = {"code": status, "message": code or "m", "errors": [{"reason": google or "x"}]}
        body = json.dumps({"error": error}) if status != 304 else ""
        return http(status, body.encode(), Content_Type="application/json", X_GUploader_UploadID="1", **headers)
    return http(status, x_ms_request_id="1", x_ms_error_code=code or azure, **headers)


def http(status: int, body: bytes = b"", **headers: object) -> bytes:
    named = {"Content-Length": len(body), "Connection": "close", **{k.replace("_", "-"): v for k, v in headers.items()}}
    lines = [f"HTTP/1.1 {status} Reason", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
