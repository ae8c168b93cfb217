"""What the S3 servers have in common: how they are asked, with a signature of our own."""

from __future__ import annotations

from typing import Any, ClassVar

from servers.base import Server
from servers.raw import Raw, encode_path, netloc, send, sign_s3


class S3Server(Server):
    """An S3 endpoint with path-style buckets and one pair of keys."""

    protocol: ClassVar[str] = "s3"
    region: ClassVar[str] = "us-east-1"

    def __init__(self) -> None:
        super().__init__()
        # Not the same for two servers, so that a request to the wrong one is refused where signatures count.
        self.key = f"key{self.bucket[-12:]}"
        self.secret = f"secret{self.bucket[-12:]}"

    def options_for(self, endpoint: str) -> dict[str, Any]:
        return {
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": endpoint,
            "client_kwargs": {"region_name": self.region},
        }

    def raw(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        query: str = "",
        endpoint: str | None = None,
        secret: str | None = None,
    ) -> Raw:
        """One signed request for `bucket/key`; `secret` to sign with a wrong one."""
        at = endpoint or self.endpoint
        bucket, key = self.split(path)
        encoded = encode_path(f"/{bucket}/{key}" if key else f"/{bucket}")
        named = {"host": netloc(at), **(headers or {})}
        signed = sign_s3(
            method, encoded, named, body, query=query, key=self.key, secret=secret or self.secret, region=self.region
        )
        return send(at, method, f"{encoded}?{query}" if query else encoded, signed, body)

    def make_bucket(self) -> Raw:
        return self.raw("PUT", self.bucket)

    def raw_get(self, path: str) -> Raw:
        return self.raw("GET", path)

    def raw_head(self, path: str) -> Raw:
        return self.raw("HEAD", path)

    def raw_put(
        self,
        path: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        endpoint: str | None = None,
    ) -> Raw:
        headers = condition_headers(if_absent=if_absent, if_match=if_match)
        return self.raw("PUT", path, headers=headers, body=data, endpoint=endpoint)

    def raw_delete(self, path: str, *, if_match: str | None = None, endpoint: str | None = None) -> Raw:
        return self.raw("DELETE", path, headers=condition_headers(if_match=if_match), endpoint=endpoint)


def condition_headers(*, if_absent: bool = False, if_match: str | None = None) -> dict[str, str]:
    absent = {"if-none-match": "*"} if if_absent else {}
    return absent | ({"if-match": if_match} if if_match is not None else {})
