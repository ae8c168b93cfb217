"""The backend for Terraform and OpenTofu: their protocol as their sources have it, and the real ones where they are."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from patience import until

from fsspec_cas import Store
from lockprovider import Lock
from lockprovider.recipes.state.terraform import USER, TerraformServer
from lockprovider.state import State

INFO = {"ID": "7c2a", "Operation": "OperationTypeApply", "Who": "ci@vm-7", "Version": "1.11.4", "Info": "", "Path": ""}
PASSWORD = uuid.uuid4().hex
CONFIGURATION = """
terraform {
  backend "http" {}
}
variable "text" { default = "first" }
resource "terraform_data" "one" { input = var.text }
output "text" { value = terraform_data.one.output }
"""


class Running:
    def __init__(self, store: Store) -> None:
        self.state: State[bytes] = State(store, "network.json", codec=bytes)
        self.server = TerraformServer(self.state, PASSWORD)
        self._thread = threading.Thread(target=self.server.serve, daemon=True)
        self._thread.start()

    def ask(self, method: str, body: object = b"", query: str = "", password: str = PASSWORD) -> tuple[int, bytes]:
        connection = HTTPConnection(*self.server.server_address, timeout=240)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        token = base64.b64encode(f"{USER}:{password}".encode()).decode()
        connection.request(method, f"/state{query}", data, {"Authorization": f"Basic {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def stop(self) -> None:
        self.server.shutdown()
        self._thread.join()


@pytest.fixture
def two() -> Iterator[tuple[Running, Running]]:
    """Two runs, on two machines, of one state."""
    store = Store.from_url(f"memory://{uuid.uuid4().hex}")
    running = Running(store), Running(store)
    yield running
    for one in running:
        one.stop()


def test_a_run_reads_locks_writes_and_unlocks(two) -> None:
    one, other = two
    assert one.ask("GET") == (204, b"")
    assert one.ask("LOCK", INFO)[0] == 200
    assert one.ask("GET") == (204, b"")
    assert one.ask("POST", b'{"serial": 1}', "?ID=7c2a") == (200, b"")
    assert one.ask("POST", b'{"serial": 2}\n', "?ID=7c2a") == (200, b"")  # again, while it is locked
    assert one.ask("UNLOCK", INFO) == (200, b"")
    assert other.ask("GET") == (200, b'{"serial": 2}\n')
    assert [revision.value for revision in one.state.history(2)] == [b'{"serial": 2}\n', b'{"serial": 1}']
    assert other.ask("LOCK", {**INFO, "ID": "99"})[0] == 200


def test_another_run_is_told_who_holds_the_lock(two) -> None:
    one, other = two
    assert one.ask("LOCK", INFO)[0] == 200
    for info in ({**INFO, "ID": "99"}, {**INFO, "ID": "99", "Operation": "OperationTypePlan"}):
        status, body = other.ask("LOCK", info)
        assert (status, json.loads(body)["ID"], json.loads(body)["Who"]) == (423, "7c2a", "ci@vm-7")
    status, body = one.ask("LOCK", {**INFO, "ID": "99"})
    assert (status, json.loads(body)["ID"]) == (423, "7c2a")
    assert other.ask("POST", b"{}")[0] == 423  # -lock=false does not overwrite a run either


def test_a_lock_whose_answer_was_lost_is_ones_own(two) -> None:
    """Terraform's S3 lock names itself as the one that is in its way."""
    one, _ = two
    assert one.ask("LOCK", INFO)[0] == one.ask("LOCK", INFO)[0] == 200


def test_a_run_that_was_overtaken_overwrites_nothing(two) -> None:
    """Terraform's stale overwrite: with its own backends the second PUT would win."""
    one, other = two
    assert one.ask("LOCK", INFO)[0] == 200
    assert one.ask("POST", b"first", "?ID=7c2a")[0] == 200
    assert other.ask("UNLOCK")[0] == 200  # force-unlock: Terraform sends no LockInfo
    assert other.ask("LOCK", {**INFO, "ID": "99"})[0] == 200
    assert other.ask("POST", b"second", "?ID=99")[0] == 200
    status, why = one.ask("POST", b"stale", "?ID=7c2a")
    assert status == 409, why
    assert other.ask("GET") == (200, b"second")


def test_a_write_needs_the_lock_that_it_names(two) -> None:
    one, _ = two
    assert one.ask("POST", b"x", "?ID=7c2a")[0] == 409
    assert one.ask("LOCK", INFO)[0] == 200
    assert one.ask("POST", b"x", "?ID=99")[0] == 423
    assert one.ask("UNLOCK", {**INFO, "ID": "99"})[0] == 409
    assert one.ask("UNLOCK", INFO)[0] == 200
    assert one.ask("POST", b"without a lock")[0] == 200
    assert one.ask("DELETE")[0] == 200
    assert one.ask("GET") == (204, b"")


def test_what_is_locked_is_given_back_at_the_end(two) -> None:
    one, other = two
    store = other.state.store
    gone = Running(store)
    assert gone.ask("LOCK", INFO)[0] == 200
    gone.stop()
    assert one.ask("LOCK", INFO)[0] == 200


def test_a_lock_taken_past_terraform_is_told_too(two) -> None:
    one, other = two
    with Lock(other.state.store, other.state.lock_path).acquire():
        status, body = one.ask("LOCK", INFO)
        assert (status, json.loads(body)["ID"] != "") == (423, True)


@pytest.mark.parametrize("method", ["GET", "POST", "LOCK"])
def test_who_has_no_password_learns_and_does_nothing(two, method) -> None:
    one, other = two
    assert other.ask("POST", b"secret")[0] == 200
    assert one.ask(method, INFO, password=PASSWORD[1:]) == (401, b"set TF_HTTP_USERNAME and TF_HTTP_PASSWORD")
    assert other.ask("GET") == (200, b"secret")


def test_what_is_not_of_the_protocol_is_an_answer(two) -> None:
    one, _ = two
    assert one.ask("PATCH")[0] == 405
    assert one.ask("LOCK", b"no JSON")[0] == 400
    assert one.ask("LOCK", b"[]")[0] == 400


@pytest.mark.parametrize("binary", ["terraform", "tofu"])
def test_the_real_one_keeps_its_state_here(binary, tmp_path) -> None:
    if shutil.which(binary) is None:
        pytest.skip(f"there is no {binary}")
    url = f"file://{tmp_path}/store/network.json"
    (tmp_path / "main.tf").write_text(CONFIGURATION)
    (tmp_path / "store").mkdir()

    def terraform(*words: str, code: int = 0) -> str:
        command = ["lockprovider.cli", "state", "run", url, "--", binary, f"-chdir={tmp_path}", *words, "-no-color"]
        environment = {**os.environ, "CHECKPOINT_DISABLE": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    terraform("init", "-input=false")
    terraform("apply", "-auto-approve", "-input=false")
    assert '"first"' in terraform("output")
    state: State[bytes] = State.open(url, codec=bytes)
    held = threading.Event()
    go = threading.Event()

    def hold() -> None:
        with Lock(state.store, state.lock_path).acquire():
            held.set()
            assert go.wait(240)

    holder = threading.Thread(target=hold)
    holder.start()
    until(held.is_set)
    assert "Error acquiring the state lock" in terraform("apply", "-auto-approve", "-var=text=second", code=1)
    go.set()
    holder.join()
    terraform("apply", "-auto-approve", "-input=false", "-var=text=second")
    assert '"second"' in terraform("output")
    contents = [json.loads(one.value) for one in state.history() if one.value]
    assert len({one["lineage"] for one in contents}) == 1
    assert contents[0]["serial"] > contents[-1]["serial"]
    assert not list(Path(tmp_path).glob("*errored*"))
