"""The servers themselves: what they store, which conditions they keep, where they listen, how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from patience import until

from servers import azurite as azurite_file
from servers import base, install
from servers.azurite import Azurite
from servers.base import Server, ServerError
from servers.fakegcs import FakeGcs
from servers.listening import listening, members
from servers.ministack import Ministack
from servers.negative import NegativeS3
from servers.seaweedfs import SeaweedFS

ALL = ["seaweedfs", "ministack", "fake_gcs", "azurite", "negative_s3", "negative_gcs"]
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}

# (a second create, a write with a stale version, a write with the right version, a delete with a stale version).
TRUTH = {
    "seaweedfs": (412, 412, 200, 412),
    "ministack": (412, 412, 200, 412),
    "fake_gcs": (412, 412, 200, 200),  # its DELETE looks at no generation
    "azurite": (409, 412, 201, 412),
    "negative_s3": (200, 200, 200, 204),
    "negative_gcs": (200, 200, 200, 200),
}


@pytest.fixture(params=ALL)
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


def test_server_gives_back_the_bytes_it_stored(server):
    path = f"{server.new_prefix()}/a b+ü&=%.bin"
    data = bytes(range(256)) * 40
    assert server.raw_get(path).status == 404
    assert server.raw_put(path, data).ok
    read, head = server.raw_get(path), server.raw_head(path)
    assert (read.status, read.body) == (200, data)
    assert head.status == 200
    assert head.version
    assert server.raw_delete(path).ok
    assert server.raw_get(path).status == 404


@pytest.mark.parametrize("name", ALL)
def test_server_keeps_or_ignores_conditions_as_documented(name, request):
    server = request.getfixturevalue(name)
    path = f"{server.new_prefix()}/key"
    first = server.raw_put(path, b"first", if_absent=True)
    assert first.ok
    stale = server.raw_head(path).version
    second = server.raw_put(path, b"second", if_absent=True)
    assert server.raw_put(path, b"between").ok
    late = server.raw_put(path, b"late", if_match=stale)
    right = server.raw_put(path, b"right", if_match=server.raw_head(path).version)
    assert server.raw_get(path).body == b"right"
    gone = server.raw_delete(path, if_match=stale)
    assert (second.status, late.status, right.status, gone.status) == TRUTH[name]


def race(server, contenders: int) -> tuple[str, list[bool]]:
    path, together = f"{server.new_prefix()}/raced", Barrier(contenders)

    def create(i: int) -> bool:
        together.wait(10)
        return server.raw_put(path, b"%d" % i, if_absent=True).ok

    with ThreadPoolExecutor(contenders) as pool:
        return path, list(pool.map(create, range(contenders)))


@pytest.mark.parametrize(
    ("name", "contenders"), [("seaweedfs", 4), ("ministack", 32), ("fake_gcs", 32), ("azurite", 32)]
)
def test_exactly_one_of_many_concurrent_creators_wins(name, contenders, request):
    server = request.getfixturevalue(name)
    path, won = race(server, contenders)
    assert won.count(True) == 1
    assert server.raw_get(path).body == b"%d" % won.index(True)


def test_several_creators_win_on_a_server_that_ignores_conditions(negative_s3):
    """The twin of the race above: it would see a second winner."""
    _, won = race(negative_s3, 8)
    assert won.count(True) > 1


def test_two_prefixes_of_a_server_differ(server):
    assert server.new_prefix() != server.new_prefix()
    assert server.new_prefix().startswith(server.url)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="/proc/net/tcp is Linux")
def test_server_listens_on_loopback_and_nowhere_else(server):
    found = listening(server.pid)
    assert server.port in {port for _, port in found}
    assert {address for address, _ in found} <= LOOPBACK


def test_listening_sees_a_socket_open_to_the_world():
    """The twin of the test above: a listener on every interface must be seen."""
    with subprocess.Popen(
        [sys.executable, "-c", "import socket; s = socket.create_server(('', 0)); print(s.getsockname()[1]); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        port = int(process.stdout.readline())
        assert listening(process.pid) == {("00000000", port)}
        process.communicate(b"\n")


def test_seaweedfs_and_rclone_refuse_a_wrong_secret(seaweedfs, negative_s3):
    for server in (seaweedfs, negative_s3):
        path = f"{server.new_prefix()}/key"
        assert server.raw("PUT", path, body=b"x", secret=seaweedfs.secret + "x").status == 403
        assert server.raw_get(path).status == 404


def test_azurite_refuses_a_wrong_key(azurite, monkeypatch):
    path = f"{azurite.new_prefix()}/key"
    with monkeypatch.context() as patch:
        patch.setattr(azurite_file, "KEY", "d3Jvbmc=")
        assert azurite.raw_put(path, b"x").status == 403
    assert azurite.raw_get(path).status == 404


@pytest.mark.parametrize("kind", [SeaweedFS, Ministack, FakeGcs, NegativeS3])
def test_acknowledged_objects_survive_kill_9_and_restart(kind):
    with kind() as server:
        path, before = f"{server.new_prefix()}/kept", (server.ports, server.endpoint)
        assert server.raw_put(path, b"kept").ok
        version, old_pid = server.raw_head(path).version, server.pid
        server.kill9()
        assert not server.alive
        assert members(old_pid) == []
        with pytest.raises(OSError, match="refused"):
            server.raw_get(path)
        server.restart()
        assert (server.ports, server.endpoint) == before
        assert server.pid != old_pid
        assert server.raw_get(path).body == b"kept"
        assert server.raw_head(path).version == version


def test_azurite_keeps_its_data_over_a_polite_restart():
    with Azurite() as server:
        path = f"{server.new_prefix()}/kept"
        assert server.raw_put(path, b"kept").ok
        server.restart()
        assert server.raw_get(path).body == b"kept"


def test_stopped_server_leaves_no_process_and_no_folder():
    with FakeGcs() as server:
        pid, folder = server.pid, server.dir
        assert members(pid)
    assert members(pid) == []
    assert not folder.exists()
    server.stop()


def test_server_is_stopped_when_its_test_fails():
    with pytest.raises(ZeroDivisionError), FakeGcs() as server:  # noqa: PT012
        pid = server.pid
        _ = 1 / 0
    assert members(pid) == []


def test_server_that_dies_at_start_shows_what_it_printed():
    class Broken(FakeGcs):
        def command(self):
            return [sys.executable, "-c", "import sys; sys.exit('the reason it died of')"]

    broken = Broken()
    with pytest.raises(ServerError, match="the reason it died of"):
        broken.start()
    assert not broken.alive


def test_server_that_never_gets_ready_is_an_error_and_is_stopped(monkeypatch):
    monkeypatch.setattr(base, "START_S", 0.5)
    seen = []

    class Deaf(FakeGcs):
        def command(self):
            return ["sh", "-c", "echo deaf; exec sleep 60"]

        def check_alive(self):
            seen.append(self.pid)
            super().check_alive()

    with pytest.raises(ServerError, match=r"not ready after 0.5 s .*ConnectionRefused[\s\S]*deaf"):
        Deaf().start()
    assert members(seen[0]) == []


def test_server_that_dies_under_a_test_is_reported_when_the_test_ends():
    with pytest.raises(ServerError, match="fake-gcs ended with -9"), FakeGcs() as server:  # noqa: PT012
        os.kill(server.pid, signal.SIGKILL)
        server._process.wait(10)


def test_start_that_loses_its_port_takes_another(monkeypatch):
    with FakeGcs() as first:
        offered = [[first.port], base.free_ports(1, (0,))]
        monkeypatch.setattr(base, "free_ports", lambda *_: offered.pop(0))
        with FakeGcs() as second:
            assert second.port != first.port
            assert offered == []


def test_servers_end_when_the_test_process_is_killed(tmp_path):
    """Not even an exit handler runs then: the guard ends them."""
    script = tmp_path / "killed.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal
            from servers.fakegcs import FakeGcs
            server = FakeGcs().start()
            print(server.pid, server.dir, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    ended = subprocess.run(
        [sys.executable, script], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    pid, folder = ended.stdout.decode().split()
    until(lambda: members(int(pid)) == [] and not Path(folder).exists())


def test_servers_end_at_exit_without_a_stop(tmp_path):
    script = tmp_path / "forgetful.py"
    script.write_text("from servers.fakegcs import FakeGcs\ns = FakeGcs().start()\nprint(s.pid, s.dir, flush=True)\n")
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    printed = subprocess.check_output([sys.executable, script], env=os.environ | {"PYTHONPATH": path})
    pid, folder = printed.decode().split()
    assert members(int(pid)) == []
    assert not Path(folder).exists()


def test_failed_install_shows_the_output_of_the_installer(monkeypatch, tmp_path):
    monkeypatch.setenv("FSSPEC_CAS_TESTS_CACHE", str(tmp_path))
    talk = [sys.executable, "-c", "import sys; sys.exit('E404 no such package')"]
    with pytest.raises(ServerError, match="E404 no such package"):
        install._once("nothing-1.0", lambda _: install._run(talk))
    assert [path.name for path in tmp_path.iterdir()] == ["nothing-1.0.lock"]


def test_two_concurrent_installs_of_one_package_run_once(monkeypatch, tmp_path):
    monkeypatch.setenv("FSSPEC_CAS_TESTS_CACHE", str(tmp_path))
    count = "import sys, pathlib as p; (p.Path(sys.argv[1]) / 'made').touch(); open(sys.argv[2], 'a').write('x')"

    def made(folder):
        return install._run([sys.executable, "-c", count, str(folder), str(tmp_path / "runs")])

    with ThreadPoolExecutor(2) as pool:
        folders = set(pool.map(lambda _: install._once("thing-1.0", made), range(2)))
    assert folders == {tmp_path / "thing-1.0"}
    assert (tmp_path / "thing-1.0" / "made").exists()
    assert (tmp_path / "runs").read_text() == "x"
