"""A server of S3, opened through obstore instead of aiobotocore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servers.s3 import S3Server


class OverObstore:
    """The same server, with other storage options."""

    def __init__(self, server: S3Server) -> None:
        self.server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    def options_for(self, endpoint: str) -> dict[str, Any]:
        return {
            "client": "obstore",
            "access_key_id": self.server.key,
            "secret_access_key": self.server.secret,
            "endpoint": endpoint,
            "region": self.server.region,
            "client_options": {"allow_http": True},
        }

    @property
    def storage_options(self) -> dict[str, Any]:
        return self.options_for(self.server.endpoint)
