"""The servers of other locks, for `benchmarks.lock`: each where it is found, else left out with the word how to get it.

One process each, in an empty folder of its own, on a port of its own. ZooKeeper is started from its jars, which lie in
`ZOOKEEPER_JARS` (Debian's package puts them into /usr/share/java); etcd is asked through its own JSON gateway, so it
needs no Python package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.s3_clients import Site


@dataclass(frozen=True)
class Peer:
    """One server: how it is started, and what must be there."""

    name: str
    program: str
    package: str  # of Python; "": none
    get: str


PEERS = (
    Peer("redis", "redis-server", "redis", "apt-get install redis-server; pip install redis"),
    Peer("zookeeper", "java", "kazoo", "apt-get install zookeeper default-jre-headless; pip install kazoo"),
    Peer("etcd", "etcd", "", "apt-get install etcd-server"),
)


def missing(peer: Peer) -> str:
    """Why it cannot be measured; "" if it can."""
    if shutil.which(peer.program) is None:
        return f"{peer.program} is not there"
    if peer.name == "zookeeper" and not list(_jars().glob("zookeeper-[0-9]*.jar")):
        return f"there is no zookeeper jar in {_jars()} (ZOOKEEPER_JARS names another folder)"
    if peer.package and importlib.util.find_spec(peer.package) is None:
        return f"the Python package {peer.package} is not there"
    return ""


@contextlib.contextmanager
def serving(peer: Peer) -> Iterator[Site]:
    """Its address, while it runs."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            _command(peer, port, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
        )
        try:
            _wait_for(peer, port)
            yield Site(f"{peer.name}://127.0.0.1:{port}", "", "", "", "", "")
        finally:
            process.terminate()
            process.wait()


def there() -> Iterator[Peer]:
    """Those that can be measured; the others are told of on stderr."""
    for peer in PEERS:
        if why := missing(peer):
            print(f"{peer.name} is NOT measured: {why}; to have it: {peer.get}", file=sys.stderr)
        else:
            yield peer


def _command(peer: Peer, port: int, folder: str) -> list[str]:
    match peer.name:
        case "redis":
            return ["redis-server", "--port", str(port), "--save", ""]
        case "zookeeper":
            main = "org.apache.zookeeper.server.ZooKeeperServerMain"
            return ["java", "-cp", f"{_jars()}/*", main, str(port), folder]
        case _:
            client, other = (f"http://127.0.0.1:{n}" for n in (port, _free_port()))
            urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", other]
            return ["etcd", "--data-dir", folder, *urls]


def _jars() -> Path:
    return Path(os.environ.get("ZOOKEEPER_JARS", "/usr/share/java"))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _wait_for(peer: Peer, port: int) -> None:
    """Until it listens, for a minute at most."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise SystemExit(f"{peer.name} does not listen; what is missing, its own log says when it is started by hand")
