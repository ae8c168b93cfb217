"""Azurite, Microsoft's emulator of Azure Blob Storage: every condition enforced, an ETag never comes back.

Seen with 3.37.0: create on an existing blob is 409 BlobAlreadyExists, a stale If-Match 412 ConditionNotMet; a write
acknowledged less than about five seconds before a SIGKILL is lost (a fault of the emulator, not of Azure).
"""

from __future__ import annotations

import shutil
from typing import Any, ClassVar

from servers.base import Server
from servers.install import from_npm
from servers.raw import Raw, encode_path, netloc, send, sign_azure
from servers.s3 import condition_headers

VERSION = "3.37.0"
# The published account of the emulator, the same on every machine.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azurite(Server):
    name: ClassVar[str] = "azurite"
    protocol: ClassVar[str] = "az"

    def command(self) -> list[str]:
        main = from_npm("azurite", VERSION) / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        return [
            shutil.which("node") or "node",
            str(main),
            *("--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.dir / "data")),
            # The SDK speaks a newer API version than the emulator knows.
            *("--silent", "--disableTelemetry", "--skipApiVersionCheck"),
        ]

    def options_for(self, endpoint: str) -> dict[str, Any]:
        blob = f"BlobEndpoint={endpoint}/{ACCOUNT};"
        return {
            "account_name": ACCOUNT,
            "connection_string": f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{blob}",
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
    ) -> Raw:
        """One request for `container/blob`, signed with the shared key."""
        at = endpoint or self.endpoint
        container, blob = self.split(path)
        encoded = encode_path(f"/{ACCOUNT}/{container}/{blob}" if blob else f"/{ACCOUNT}/{container}")
        named = {"host": netloc(at), **(headers or {})}
        signed = sign_azure(method, encoded, named, length=len(body), query=query, account=ACCOUNT, key=KEY)
        return send(at, method, f"{encoded}?{query}" if query else encoded, signed, body)

    def make_bucket(self) -> Raw:
        return self.raw("PUT", self.bucket, query="restype=container")

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
        headers = {"x-ms-blob-type": "BlockBlob", **condition_headers(if_absent=if_absent, if_match=if_match)}
        return self.raw("PUT", path, headers=headers, body=data, endpoint=endpoint)

    def raw_delete(self, path: str, *, if_match: str | None = None, endpoint: str | None = None) -> Raw:
        return self.raw("DELETE", path, headers=condition_headers(if_match=if_match), endpoint=endpoint)
