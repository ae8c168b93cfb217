"""What the GCS servers have in common: the JSON API, asked without an SDK."""

from __future__ import annotations

import json
import urllib.parse
from dataclasses import replace
from typing import Any, ClassVar

from servers.base import Server
from servers.raw import Raw, send


class GcsServer(Server):
    """A GCS JSON API endpoint without authorization; the version is the generation."""

    protocol: ClassVar[str] = "gs"
    project: ClassVar[str] = "cas-tests"

    def options_for(self, endpoint: str) -> dict[str, Any]:
        return {"project": self.project, "token": "anon", "endpoint_url": endpoint}

    def raw(
        self,
        method: str,
        target: str,
        *,
        query: dict[str, str] | None = None,
        body: bytes = b"",
        kind: str = "application/json",
        endpoint: str | None = None,
    ) -> Raw:
        """One request to the API; `target` begins with a slash."""
        asked = f"{target}?{urllib.parse.urlencode(query)}" if query else target
        return send(endpoint or self.endpoint, method, asked, {"content-type": kind} if body else {}, body)

    def make_bucket(self) -> Raw:
        body = json.dumps({"name": self.bucket}).encode()
        return self.raw("POST", "/storage/v1/b", query={"project": self.project}, body=body)

    def raw_head(self, path: str) -> Raw:
        """The metadata as JSON (this API has no HEAD), its generation as the version."""
        return with_generation(self.raw("GET", self._object(path)))

    def raw_get(self, path: str) -> Raw:
        answer = self.raw("GET", self._object(path), query={"alt": "media"})
        return replace(answer, version=answer.headers.get("x-goog-generation"))

    def raw_put(
        self,
        path: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        endpoint: str | None = None,
    ) -> Raw:
        """A multipart upload: the one road on which the emulator looks at the generation."""
        bucket, key = self.split(path)
        query = {"uploadType": "multipart", "name": key, **condition_query(if_absent=if_absent, if_match=if_match)}
        kind, body = _multipart(key, data)
        return with_generation(
            self.raw("POST", f"/upload/storage/v1/b/{bucket}/o", query=query, body=body, kind=kind, endpoint=endpoint)
        )

    def raw_delete(self, path: str, *, if_match: str | None = None, endpoint: str | None = None) -> Raw:
        return self.raw("DELETE", self._object(path), query=condition_query(if_match=if_match), endpoint=endpoint)

    def _object(self, path: str) -> str:
        bucket, key = self.split(path)
        return f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(key, safe='')}"


def condition_query(*, if_absent: bool = False, if_match: str | None = None) -> dict[str, str]:
    absent = {"ifGenerationMatch": "0"} if if_absent else {}
    return absent | ({"ifGenerationMatch": if_match} if if_match is not None else {})


def with_generation(answer: Raw) -> Raw:
    generation = json.loads(answer.body).get("generation") if answer.ok and answer.body else None
    return replace(answer, version=None if generation is None else str(generation))


def _multipart(key: str, data: bytes) -> tuple[str, bytes]:
    mark = "==cas-tests=="
    metadata = json.dumps({"name": key}).encode()
    parts = [
        f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
        metadata,
        f"\r\n--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
        data,
        f"\r\n--{mark}--\r\n".encode(),
    ]
    return f'multipart/related; boundary="{mark}"', b"".join(parts)
