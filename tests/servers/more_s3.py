"""More S3 servers of a registry, each with manners of its own: asked by `benchmarks.stores`, not by every test run."""

from __future__ import annotations

import sys
from typing import ClassVar

from servers.install import from_pypi
from servers.s3 import S3Server


class Moto(S3Server):
    """moto_server: checks no signatures, keeps all in memory, ignores If-Match when an upload in parts completes."""

    name: ClassVar[str] = "moto"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(from_pypi("moto[server]", "5.2.5"))}


class LocalBucket(S3Server):
    """localbucket: knows If-None-Match on PUT and no other condition, checks no signatures, stores no metadata."""

    name: ClassVar[str] = "localbucket"

    def command(self) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        return [sys.executable, "-m", "localbucket", *where, str(self.dir / "data")]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(from_pypi("localbucket", "1.2.1"))}


class Nanio(S3Server):
    """nanio: verifies signatures, ignores all conditions."""

    name: ClassVar[str] = "nanio"

    def command(self) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--data-dir", str(self.dir / "data")]
        return [sys.executable, "-m", "nanio", "serve", *where, "--no-access-log"]

    def environment(self) -> dict[str, str]:
        keys = {"NANIO_ACCESS_KEY": self.key, "NANIO_SECRET_KEY": self.secret}
        return {"PYTHONPATH": str(from_pypi("nanio", "0.1.7")), **keys}
