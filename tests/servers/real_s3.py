"""S3 servers that others run in earnest: built or fetched once, which takes minutes.

Seen with these releases: MinIO ignores the condition of a DELETE. Versity Gateway keeps it, and says 204 where no
object is. S3Proxy, on local files, looks first and writes then: two writers win.

Not here: Adobe S3Mock 5.2.0, which listens on all interfaces, whatever it is told.
"""

from __future__ import annotations

import shutil
from typing import Any, ClassVar

from servers.base import ServerError
from servers.install import from_go, from_maven
from servers.s3 import S3Server

MINIO = "0.0.0-20260212201848-7aac2a2c5b7c"
VERSITY = "1.8.0"
S3PROXY = "4.1.0"


class Minio(S3Server):
    """MinIO, one drive."""

    name: ClassVar[str] = "minio"
    port_count: ClassVar[int] = 2

    def command(self) -> list[str]:
        at, console = (f"127.0.0.1:{port}" for port in self.ports)
        where = ["--address", at, "--console-address", console, str(self.dir / "data")]
        return [str(from_go("github.com/minio/minio", MINIO, "github.com/minio/minio")), "server", "--quiet", *where]

    def environment(self) -> dict[str, str]:
        keys = {"MINIO_ROOT_USER": self.key, "MINIO_ROOT_PASSWORD": self.secret}
        return {**keys, "MINIO_BROWSER": "off", "MINIO_UPDATE": "off", "HOME": str(self.dir)}


class Versity(S3Server):
    """Versity Gateway over local files."""

    name: ClassVar[str] = "versity"

    def command(self) -> list[str]:
        data = self.dir / "data"
        data.mkdir(exist_ok=True)
        module = "github.com/versity/versitygw"
        program = str(from_go(module, VERSITY, f"{module}/cmd/versitygw"))
        keys = ["--access", self.key, "--secret", self.secret]
        return [program, *keys, "--port", f"127.0.0.1:{self.port}", "--quiet", "posix", str(data)]


class S3Proxy(S3Server):
    """S3Proxy over local files."""

    name: ClassVar[str] = "s3proxy"

    def command(self) -> list[str]:
        data, settings = self.dir / "data", self.dir / "s3proxy.conf"
        data.mkdir(exist_ok=True)
        said = {
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": self.key,
            "s3proxy.credential": self.secret,
            "s3proxy.endpoint": f"http://127.0.0.1:{self.port}",
            "jclouds.provider": "filesystem-nio2",
            "jclouds.identity": "none",
            "jclouds.credential": "none",
            "jclouds.filesystem.basedir": str(data),
        }
        settings.write_text("".join(f"{name}={value}\n" for name, value in said.items()))
        # What it asks for itself is an older one than another of its dependencies needs.
        jars = from_maven(f"org.gaul:s3proxy:{S3PROXY}", "com.fasterxml.jackson.core:jackson-annotations:2.22")
        return [*java(), "-cp", f"{jars}/*", "org.gaul.s3proxy.Main", "--properties", str(settings)]


def java() -> list[str]:
    found = shutil.which("java")
    if found is None:
        raise ServerError("no java on the PATH: install a JDK 17")
    return [found, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


REAL: dict[str, Any] = {one.name: one for one in (Minio, Versity, S3Proxy)}
