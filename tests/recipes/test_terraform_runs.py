"""Terraform and OpenTofu themselves with their state behind `state run` and `state serve`.

By default with the Terraform of this machine; with `-m soak` Terraform 1.5 and OpenTofu 1.10, too, built once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import PATIENCE_S, until
from servers.install import from_go

from lockprovider import Lock
from lockprovider.commands.state_server import StateServer
from lockprovider.state import State

CONFIGURATION = """
terraform {
  backend "http" {}
}
variable "text" { default = "first" }
variable "piece" { default = "%s" }
resource "terraform_data" "one" { input = var.text }
resource "terraform_data" "large" { input = join("", [for number in range(1000) : var.piece]) }
output "text" { value = terraform_data.one.output }
""" % ("0123456789" * 30)  # fmt: skip
PASSWORD = uuid.uuid4().hex
BUILT = {
    "terraform-1.5.7": ("github.com/hashicorp/terraform", "1.5.7", "github.com/hashicorp/terraform"),
    "tofu-1.10.10": ("github.com/opentofu/opentofu", "1.10.10", "github.com/opentofu/opentofu/cmd/tofu"),
}


@pytest.fixture(params=["terraform", *(pytest.param(name, marks=pytest.mark.soak) for name in BUILT)])
def binary(request) -> str:
    if request.param in BUILT:
        return str(from_go(*BUILT[request.param]))
    if (found := shutil.which(request.param)) is None:
        pytest.skip(f"there is no {request.param}")
    return found


class Stack:
    """A folder with the configuration, and the program that works in it."""

    def __init__(self, binary: str, folder: Path, environment: dict[str, str] | None = None, url: str = "") -> None:
        self.binary = binary
        self.folder = folder
        self.environment = {**os.environ, "CHECKPOINT_DISABLE": "1", **(environment or {})}
        self._before = [sys.executable, "-m", "lockprovider.cli", "state", "run", url, "--"] if url else []
        folder.mkdir(exist_ok=True)
        (folder / "main.tf").write_text(CONFIGURATION)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [*self._before, self.binary, f"-chdir={self.folder}", *words, "-no-color"]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment
        )

    def run(self, *words: str, code: int = 0) -> str:
        running = self.start(*words)
        said, _ = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == code, said
        return said

    def apply(self, text: str, *words: str, code: int = 0) -> str:
        return self.run("apply", "-auto-approve", "-input=false", f"-var=text={text}", *words, code=code)


def contents(state: State[bytes]) -> list[dict]:
    """The states that were stored, the newest first."""
    return [json.loads(one.value) for one in state.history(100) if one.value]


def outputs(state: State[bytes]) -> list[str]:
    """What was applied, each once, the first one first."""
    texts = [one["outputs"]["text"]["value"] for one in reversed(contents(state)) if one["outputs"]]
    return [text for place, text in enumerate(texts) if place == 0 or texts[place - 1] != text]


@pytest.fixture
def state(tmp_path) -> State[bytes]:
    (tmp_path / "store").mkdir()
    return State.open(f"file://{tmp_path}/store/network.json", codec=bytes)


@pytest.fixture
def server(state) -> Iterator[StateServer]:
    server = StateServer(state, PASSWORD)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


def test_run_keeps_the_state(binary, state, tmp_path) -> None:
    stack = Stack(binary, tmp_path / "stack", url=f"file://{tmp_path}/store/network.json")
    stack.run("init", "-input=false")
    stack.apply("first")
    assert '"first"' in stack.run("output")
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with Lock(state.store, state.lock_path).acquire():
            held.set()
            assert go.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    until(held.is_set)
    assert "Error acquiring the state lock" in stack.apply("second", code=1)
    go.set()
    holder.join()
    stack.apply("second")
    assert outputs(state) == ["first", "second"]
    assert len({one["lineage"] for one in contents(state)}) == 1
    assert contents(state)[0]["serial"] > contents(state)[-1]["serial"]
    assert not list((tmp_path / "stack").glob("*errored*"))


@pytest.mark.soak
def test_concurrent_applies_run_one_after_the_other(binary, state, tmp_path) -> None:
    url = f"file://{tmp_path}/store/network.json"
    stacks = [Stack(binary, tmp_path / f"stack{number}", url=url) for number in range(4)]
    for stack in stacks:
        stack.run("init", "-input=false")
    with ThreadPoolExecutor(len(stacks)) as pool:  # who is not read from holds its lock for ever
        applies = [pool.submit(one.apply, f"of-{number}", "-lock-timeout=240s") for number, one in enumerate(stacks)]
        for apply in applies:
            apply.result()
    assert sorted(outputs(state)) == [f"of-{number}" for number in range(4)]
    serials = [one["serial"] for one in contents(state)]
    assert serials == sorted(serials, reverse=True)


class Relay:
    """A port that passes everything on, until half of an upload is through: then nothing more."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.half = threading.Event()
        self.cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            asking, _ = self._listening.accept()
            threading.Thread(target=self._pass_on, args=(asking,), daemon=True).start()

    def _pass_on(self, asking: socket.socket) -> None:
        with asking, socket.create_connection(self._to) as answering, contextlib.suppress(OSError):
            threading.Thread(target=self._back, args=(answering, asking), daemon=True).start()
            passed = 0
            while data := asking.recv(4096):
                passed += len(data)
                answering.sendall(data)
                if self.cut.is_set() and passed > 100_000:
                    self.half.set()
                    while asking.recv(65536):  # it goes nowhere, until the client is dead
                        pass
                    return

    def _back(self, answering: socket.socket, asking: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := answering.recv(65536):
                asking.sendall(data)
            asking.shutdown(socket.SHUT_WR)


def test_run_that_is_killed_while_it_uploads_changes_nothing(binary, state, server, tmp_path) -> None:
    """Half a state was stored as the newest."""
    relay = Relay(server.port)
    through = {
        name: value.replace(server.address, f"http://127.0.0.1:{relay.port}/state")
        for name, value in server.environment().items()
    }
    stack = Stack(binary, tmp_path / "stack", through)
    stack.run("init", "-input=false")
    stack.apply("first")
    before = state.read()
    relay.cut.set()
    dying = stack.start("apply", "-auto-approve", "-input=false", "-var=text=second")
    assert relay.half.wait(PATIENCE_S)
    dying.send_signal(signal.SIGKILL)
    dying.communicate()
    assert state.read().value == before.value
    relay.cut.clear()
    refused = stack.apply("third", code=1)  # the lock of the dead one
    assert "Error acquiring the state lock" in refused
    identity = next(word.removeprefix("ID=") for word in refused.split() if word.startswith("ID="))
    stack.run("force-unlock", "-force", identity)
    stack.apply("third")
    assert outputs(state) == ["first", "third"]


def test_run_with_a_wrong_password_changes_nothing(binary, state, server, tmp_path) -> None:
    stack = Stack(binary, tmp_path / "stack", server.environment())
    stack.run("init", "-input=false")
    stack.apply("first")
    before = state.read()
    stack.environment["TF_HTTP_PASSWORD"] = PASSWORD[1:]
    assert "requires auth" in stack.apply("second", code=1)
    assert "requires auth" in stack.apply("second", "-lock=false", code=1)
    assert state.read() == before


def test_silent_connections_delay_no_run(binary, state, server, tmp_path) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    for one in silent[::2]:
        with contextlib.suppress(OSError):
            one.sendall(b"POST /state HTTP/1.1\r\n")
    stack = Stack(binary, tmp_path / "stack", server.environment())
    stack.run("init", "-input=false")
    stack.apply("first")
    assert outputs(state) == ["first"]
    for one in silent:
        one.close()


def test_state_of_another_stack_is_pushed_by_force_only(binary, state, server, tmp_path) -> None:
    stack = Stack(binary, tmp_path / "stack", server.environment())
    stack.run("init", "-input=false")
    stack.apply("first")
    before = state.read()
    other = {**contents(state)[0], "lineage": str(uuid.uuid4()), "outputs": {}}
    (tmp_path / "other.tfstate").write_text(json.dumps(other))
    file = str(tmp_path / "other.tfstate")
    assert "lineage" in stack.run("state", "push", file, code=1)
    assert "409" in stack.run("state", "push", "-force", file, code=1)
    assert state.read().value == before.value
    stack.environment |= server.environment(force=True)
    stack.run("state", "push", "-force", file)
    assert contents(state)[0]["lineage"] == other["lineage"]


ENCRYPTED = """
terraform {
  encryption {
    key_provider "pbkdf2" "one" { passphrase = "a passphrase of some length" }
    method "aes_gcm" "one" { keys = key_provider.pbkdf2.one }
    state { method = method.aes_gcm.one }
  }
}
"""


@pytest.mark.soak
def test_state_that_opentofu_encrypts_is_kept(state, server, tmp_path) -> None:
    stack = Stack(str(from_go(*BUILT["tofu-1.10.10"])), tmp_path / "stack", server.environment())
    (tmp_path / "stack" / "encryption.tf").write_text(ENCRYPTED)
    stack.run("init", "-input=false")
    stack.apply("first")
    stack.apply("second")
    assert '"second"' in stack.run("output")
    now, before = contents(state)[:2]
    assert "encrypted_data" in now
    assert (now["lineage"], now["serial"] > before["serial"]) == (before["lineage"], True)


def test_plan_that_is_stale_leaves_no_lock(binary, state, tmp_path) -> None:
    """hashicorp/terraform 28693: the refused run left its lock in S3 and GCS."""
    stack = Stack(binary, tmp_path / "stack", url=f"file://{tmp_path}/store/network.json")
    stack.run("init", "-input=false")
    stack.run("plan", "-out=kept.plan", "-input=false")
    stack.run("apply", "-input=false", "kept.plan")
    assert "stale" in stack.run("apply", "-input=false", "kept.plan", code=1)
    assert state.who().state == "released"
    stack.apply("second")
    assert outputs(state) == ["first", "second"]


BREAKS = """
resource "terraform_data" "breaks" {
  input = var.text
  provisioner "local-exec" { command = "%s -m lockprovider.cli state unlock --yes %s" }
}
"""


def test_state_of_a_run_that_lost_its_lock_is_kept_and_can_be_pushed(binary, state, tmp_path) -> None:
    """hashicorp/terraform 14298: a state that could not be uploaded was lost."""
    url = f"file://{tmp_path}/store/network.json"
    stack = Stack(binary, tmp_path / "stack", url=url)
    stack.run("init", "-input=false")
    stack.apply("first")
    before = state.read()
    (tmp_path / "stack" / "breaks.tf").write_text(BREAKS % (sys.executable, url))
    said = stack.apply("second", code=1)
    assert "POST was refused (409)" in said
    assert state.read().value == before.value
    errored = next((tmp_path / "stack").glob("errored.tfstate"))
    stack.run("state", "push", str(errored))
    assert outputs(state) == ["first", "second"]
