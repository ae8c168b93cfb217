"""Plain requests over http.client: the other road by which tests look into a store.

No SDK, no retry, no pooling, no redirect: what the server said is what comes back.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import urllib.parse
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import format_datetime

# Contended conditional writes on SeaweedFS move in steps of one second: be patient.
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Raw:
    """One answer: status, headers (names in lower case), body, and the version token where there is one."""

    status: int
    headers: dict[str, str]
    body: bytes
    version: str | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def send(endpoint: str, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> Raw:
    """Send one request once. Raises: OSError or http.client.HTTPException when there is no answer."""
    where = urllib.parse.urlsplit(endpoint)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, target, body=body, headers=headers)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    named = {name.lower(): value for name, value in answer.getheaders()}
    return Raw(answer.status, named, data, named.get("etag"))


def netloc(endpoint: str) -> str:
    return urllib.parse.urlsplit(endpoint).netloc


def encode_path(path: str) -> str:
    return urllib.parse.quote(path, safe="/-_.~")


def sign_s3(
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    *,
    query: str = "",
    key: str,
    secret: str,
    region: str = "us-east-1",
) -> dict[str, str]:
    """Headers with a Signature Version 4 over all of them (`host` must be among them).

    Source: AWS, "Signature Version 4 signing process", with the payload's SHA-256 signed.
    """
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    signed = {name.lower(): value.strip() for name, value in headers.items()}
    signed |= {"x-amz-date": stamp, "x-amz-content-sha256": digest}
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
    canonical_query = "&".join(f"{_enc(name)}={_enc(value)}" for name, value in pairs)
    canonical = f"{method}\n{path}\n{canonical_query}\n{lines}\n{names}\n{digest}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    derived = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        derived = hmac.digest(derived, part.encode(), "sha256")
    signature = hmac.digest(derived, to_sign.encode(), "sha256").hex()
    credential = f"Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return signed | {"authorization": f"AWS4-HMAC-SHA256 {credential}"}


def sign_azure(
    method: str,
    path: str,
    headers: dict[str, str],
    *,
    length: int,
    query: str = "",
    account: str,
    key: str,
) -> dict[str, str]:
    """Headers with a SharedKey authorization.

    Source: Microsoft, "Authorize with Shared Key" (Blob service, version 2009-09-19 and later).
    """
    signed = {name.lower(): value.strip() for name, value in headers.items()}
    signed |= {"x-ms-date": format_datetime(datetime.now(timezone.utc), usegmt=True), "x-ms-version": "2021-12-02"}
    plain = ["content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"]
    plain += ["if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"]
    sized = signed | {"content-length": str(length) if length else ""}
    own = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed) if name.startswith("x-ms-"))
    pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
    resource = f"/{account}{path}" + "".join(f"\n{name}:{value}" for name, value in pairs)
    to_sign = "\n".join([method, *(sized.get(name, "") for name in plain), own + resource])
    signature = b64encode(hmac.digest(b64decode(key), to_sign.encode(), "sha256")).decode()
    return signed | {"authorization": f"SharedKey {account}:{signature}"}


def _enc(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")
