"""ministack, an S3 emulator that is quick and atomic: for races with many contenders.

Seen with 1.5.33: all conditions enforced, also on DELETE and on multipart completion; a wrong secret in the
Authorization header is accepted, so it says nothing about signatures.
"""

from __future__ import annotations

import sys
from typing import ClassVar

from servers.install import from_pypi
from servers.s3 import S3Server

VERSION = "1.5.33"


class Ministack(S3Server):
    name: ClassVar[str] = "ministack"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "ministack"]

    def environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(from_pypi("ministack", VERSION)),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "SERVICES": "s3",
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(self.dir / "data"),
            "PERSIST_STATE": "1",
            "STATE_DIR": str(self.dir / "state"),
            "AUTH": "true",
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }
