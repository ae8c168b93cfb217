"""A server under test: a real process on loopback that never outlives the tests.

Promised: own free ports, own temp folder, 127.0.0.1 only, ready when `start` returns, what it printed is in
the error when it dies, gone after `stop`, after a failed start, at exit, and when the test process is killed.
NOT promised: that a picked port stays free until the server has it; a start that loses it picks again.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from servers.listening import listening

if TYPE_CHECKING:
    from typing_extensions import Self

    from servers.raw import Raw

START_S = 240.0
GRACE_S = 10.0
# Below the range from which Linux takes the ports of outgoing connections, with room for port + 10000.
PORTS = range(11_000, 22_000)
ATTEMPTS = 3
# Ends the whole group and its folder when the test process goes away without saying goodbye (EOF on stdin).
GUARD = 'read -r _; kill -s KILL -- "-$1" 2>/dev/null; rm -rf -- "$2"'


class ServerError(RuntimeError):
    """A server did not come up, or went away: carries what it printed."""


class Server:
    """What every server offers; a subclass says how it is started and how it is spoken to."""

    name: ClassVar[str]
    protocol: ClassVar[str]
    port_count: ClassVar[int] = 1
    port_offsets: ClassVar[tuple[int, ...]] = (0,)

    def __init__(self) -> None:
        self.bucket = f"cas-{uuid.uuid4().hex[:12]}"
        self.dir = Path()
        self.ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._owner = 0

    # What a subclass says.

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def options_for(self, endpoint: str) -> dict[str, Any]:
        """Storage options of fsspec for this server seen at `endpoint`."""
        raise NotImplementedError

    def make_bucket(self) -> Raw:
        raise NotImplementedError

    def raw_get(self, path: str) -> Raw:
        raise NotImplementedError

    def raw_head(self, path: str) -> Raw:
        raise NotImplementedError

    def raw_put(
        self,
        path: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        endpoint: str | None = None,
    ) -> Raw:
        raise NotImplementedError

    def raw_delete(self, path: str, *, if_match: str | None = None, endpoint: str | None = None) -> Raw:
        raise NotImplementedError

    def sweep(self) -> None:
        """Remove what the server leaves outside its folder."""

    # What a test uses.

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.protocol}://{self.bucket}/"

    @property
    def storage_options(self) -> dict[str, Any]:
        return self.options_for(self.endpoint)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self.name} is not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def new_prefix(self) -> str:
        """A URL below which nobody else writes, without a trailing slash."""
        return f"{self.url}{uuid.uuid4().hex}"

    def split(self, path: str) -> tuple[str, str]:
        """Bucket and key of `bucket/key` or `protocol://bucket/key`."""
        bucket, _, key = path.split("://", 1)[-1].partition("/")
        return bucket, key

    def printed(self, last: int = 4000) -> str:
        """The end of what the server wrote on stdout and stderr."""
        log = self.dir / "printed.log"
        return log.read_text(errors="replace")[-last:] if log.exists() else ""

    def start(self) -> Self:
        self._owner = os.getpid()
        self.dir = Path(tempfile.mkdtemp(prefix=f"cas-{self.name}-"))
        (self.dir / "data").mkdir()
        (self.dir / "tmp").mkdir()
        atexit.register(self.stop)
        try:
            self._start_somewhere()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the process and remove its folder; harmless when repeated, and in a forked child."""
        if os.getpid() != self._owner:
            return
        self._end(signal.SIGKILL)
        atexit.unregister(self.stop)
        if self.dir != Path():
            shutil.rmtree(self.dir, ignore_errors=True)
            self.dir = Path()

    def kill9(self) -> None:
        """End it as a power cut would; ports and data stay for `restart`."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Come up again on the same ports and data, after `kill9` or after a polite end."""
        self._end(signal.SIGTERM)
        self._start_once()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        lost = self._lost()
        self.stop()
        if lost:
            raise lost

    def check_alive(self) -> None:
        if lost := self._lost():
            raise lost

    # How it is done.

    def _lost(self) -> ServerError | None:
        if self._process is None or self._process.poll() is None:
            return None
        return ServerError(f"{self.name} ended with {self._process.returncode}; it printed:\n{self.printed()}")

    def _start_somewhere(self) -> None:
        for attempt in range(ATTEMPTS):
            self.ports = free_ports(self.port_count, self.port_offsets)
            try:
                return self._start_once()
            except ServerError:
                if self.alive or attempt == ATTEMPTS - 1 or "in use" not in self.printed().lower():
                    raise
                self._end(signal.SIGKILL)
        return None

    def _start_once(self) -> None:
        environment = os.environ | {"TMPDIR": str(self.dir / "tmp")} | self.environment()
        with (self.dir / "printed.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                env=environment,
                cwd=self.dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", str(self.pid), str(self.dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        said = "nothing"
        while time.monotonic() < deadline:
            self.check_alive()
            try:
                said = self._try_ready()
            except OSError as error:
                said = repr(error)
            if not said:
                return
            time.sleep(0.05)
        raise ServerError(f"{self.name} not ready after {START_S:g} s ({said}); it printed:\n{self.printed()}")

    def _try_ready(self) -> str:
        """Nothing when the bucket is there and an object was stored and read; else what is missing."""
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.port), timeout=1)):
            pass
        if Path("/proc/net/tcp").exists() and self.port not in {port for _, port in listening(self.pid)}:
            return f"somebody else listens on port {self.port}"
        made = self.make_bucket()
        if not made.ok and made.status != 409:
            return f"bucket: {made.status} {made.body[:200]!r}"
        path = f"{self.bucket}/ready"
        stored = self.raw_put(path, b"ready")
        if not stored.ok:
            return f"put: {stored.status} {stored.body[:200]!r}"
        if self.raw_get(path).body != b"ready":
            return "what was stored is not read back"
        self.check_alive()
        return ""

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end_group(process, how)
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.communicate()
        self.sweep()


def _end_group(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    # Also its children, also when it ended by itself and left them.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_ports(count: int, offsets: tuple[int, ...]) -> list[int]:
    """Ports free on loopback now, each with all its offsets free, too."""
    found: list[int] = []
    for port in random.sample(PORTS, 500):
        if all(_is_free(port + offset) for offset in offsets):
            found.append(port)
        if len(found) == count:
            return found
    raise ServerError(f"no {count} free ports in {PORTS}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
