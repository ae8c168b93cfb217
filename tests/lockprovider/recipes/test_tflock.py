"""Terraform's own lock file: `TfLock` beside Terraform itself, and on a network that loses and repeats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from itertools import product
from pathlib import Path

import fsspec
import pytest

from fsspec_cas import InvalidInput, OutcomeUnknown, Store
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.testing import DeliverLate, DeliverTwice, Faulty, Interrupt, LoseAnswer, LoseRequest, ManualClock, Pass
from lockprovider.state import StateConflict, StateLocked, TfLock

KEY = "infra/network.tfstate"
THEIRS = {"ID": "7c2a", "Operation": "OperationTypeApply", "Who": "ci@vm-7", "Version": "1.11.4", "Info": ""}
FAULTS = (Pass(), LoseAnswer(), LoseRequest(), DeliverTwice())


@pytest.fixture
def store() -> Store:
    return Store(MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True)), f"/{uuid.uuid4().hex}")


def again(store: Store, **plan: list[object]) -> tuple[TfLock, Faulty]:
    """The same lock behind a faulty network, in a world of its own."""
    clock = ManualClock()
    faulty = Faulty(store.backend, plan, world=clock)
    return TfLock(Store(faulty, store.root, world=clock), KEY, timeout=30, world=clock), faulty


def test_tflock_excludes_others_and_its_file_equals_terraforms(store) -> None:
    one, other = TfLock(store, KEY), TfLock(store, KEY)
    held = one.acquire(operation="migration", info="12")
    said = json.loads(store.read(f"{KEY}.tflock").data)
    assert {"ID", "Operation", "Info", "Who", "Version", "Created", "Path"} == {*said}
    assert (said["ID"], said["Operation"], said["Info"]) == (held.id, "migration", "12")
    with pytest.raises(StateLocked, match=f"{held.id}.*migration 12"):
        other.acquire()
    assert other.shown() == held
    assert one.unlock(held)
    assert one.shown() is None
    assert not other.unlock(held)
    other.unlock(other.acquire())


def test_lock_held_by_terraform_is_waited_for_and_not_removed(store) -> None:
    store.put_if_absent(f"{KEY}.tflock", json.dumps(THEIRS).encode()).unwrap()
    lock, _ = again(store)
    with pytest.raises(StateLocked, match="ci@vm-7.*7c2a"):
        lock.acquire(timeout=60)
    assert lock.world.monotonic_s() >= 60
    assert json.loads(store.read(f"{KEY}.tflock").data) == THEIRS


@pytest.mark.parametrize("faults", [*product(FAULTS, repeat=2)], ids=lambda faults: "-".join(map(str, faults)))
def test_lock_with_lost_answer_is_recognised_as_own(store, faults) -> None:
    """opentofu#4405: a lock that names itself as the one that is in its way, and is never given back."""
    lock, faulty = again(store, put=[*faults], delete=[*faults])
    held = lock.acquire()
    assert lock.shown() == held
    assert lock.unlock(held)
    assert store.read_or_none(f"{KEY}.tflock") is None
    assert ("put", faults[0]) in faulty.fired or faults[0] == Pass()


def test_unlock_whose_unanswered_delete_comes_late_says_that_it_unlocked(store) -> None:
    for lost in range(30):
        held = TfLock(store, KEY).acquire()
        lock, faulty = again(store, delete=[*[LoseRequest()] * lost, DeliverLate(3)])
        assert lock.unlock(held), lost
        assert (lock.shown(), faulty.left) == (None, {})


def test_lock_of_a_newer_holder_is_not_removed(store) -> None:
    """Theirs looks at the ID, and then removes whatever is there."""
    lock = TfLock(store, KEY)
    old = lock.acquire()
    lock.unlock(old)
    newer = lock.acquire(operation="newer")
    with pytest.raises(StateConflict, match="newer"):
        lock.unlock(old)
    assert lock.shown() == newer


@pytest.mark.parametrize("data", [b"", b"no JSON", b"[]", b'{"ID": null}'])
def test_file_without_lock_info_still_locks(store, data) -> None:
    """rustfs#1610: something without content is in the way; here it is shown, and can be unlocked as it was shown."""
    store.put_if_absent(f"{KEY}.tflock", data).unwrap()
    lock = TfLock(store, KEY)
    with pytest.raises(StateLocked, match="ID not said"):
        lock.acquire()
    shown = lock.shown()
    assert shown is not None
    assert lock.unlock(shown)
    lock.acquire()


def test_acquire_on_silent_store_is_unknown_and_can_be_unlocked(store) -> None:
    lost = [LoseRequest()] * 1000
    silent, _ = again(store, put=[LoseAnswer(), *lost], get=lost, head=lost)
    with pytest.raises(OutcomeUnknown):
        silent.acquire()
    left = TfLock(store, KEY).shown()
    assert left is not None
    assert TfLock(store, KEY).unlock(left)
    with pytest.raises(InvalidInput, match="must be a Store"):
        TfLock("s3://bucket", KEY)  # type: ignore[arg-type]


def test_interrupted_wait_leaves_nothing_locked(store) -> None:
    lock, _ = again(store, put=[Interrupt()])
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert store.read_or_none(f"{KEY}.tflock") is None


CONFIGURATION = """
terraform {{
  backend "s3" {{
    bucket = "{bucket}"
    key    = "{key}"
    region = "us-east-1"
    endpoints = {{ s3 = "{endpoint}" }}
    access_key = "{access}"
    secret_key = "{secret}"
    use_lockfile = true
    use_path_style = true
    skip_credentials_validation = true
    skip_requesting_account_id = true
    skip_metadata_api_check = true
    skip_region_validation = true
    skip_s3_checksum = true
  }}
}}
variable "text" {{ default = "first" }}
variable "go" {{ default = "" }}
resource "terraform_data" "one" {{
  input = var.text
  provisioner "local-exec" {{ command = "test -z '${{var.go}}' || cat '${{var.go}}'" }}
}}
"""


@pytest.mark.parametrize("binary", ["terraform", "tofu"])
def test_terraform_and_tflock_exclude_each_other(binary, tmp_path, seaweedfs) -> None:
    if shutil.which(binary) is None:
        pytest.skip(f"there is no {binary}")
    url = f"{seaweedfs.new_prefix()}/network.tfstate"
    bucket, key = seaweedfs.split(url)
    places = {"bucket": bucket, "key": key, "endpoint": seaweedfs.endpoint}
    text = CONFIGURATION.format(**places, access=seaweedfs.key, secret=seaweedfs.secret)
    (tmp_path / "main.tf").write_text(text)
    go = tmp_path / "go"
    os.mkfifo(go)
    environment = {**os.environ, "CHECKPOINT_DISABLE": "1"}
    lock = TfLock.open(url, storage_options=seaweedfs.storage_options)

    def start(*words: str) -> subprocess.Popen[str]:
        command = [binary, f"-chdir={tmp_path}", *words, "-no-color"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(command, text=True, env=environment, **pipes)

    def terraform(*words: str, code: int = 0) -> str:
        running = start(*words)
        said = running.communicate()[0]
        assert running.returncode == code, said
        return said

    terraform("init", "-input=false")
    held = lock.acquire(operation="migration", info="12")
    said = terraform("apply", "-auto-approve", code=1)
    assert "Error acquiring the state lock" in said
    assert held.id in said, "it names who has it"
    assert "migration" in said
    assert lock.unlock(held)
    applying = start("apply", "-auto-approve", f"-var=go={go}")
    with go.open("w"):  # opened by both: it holds its lock, and goes on when this is closed
        theirs = lock.shown()
        assert theirs is not None
        assert theirs.operation == "OperationTypeApply"
        with pytest.raises(StateLocked, match=theirs.id):
            lock.acquire()
    assert "Apply complete" in applying.communicate()[0]
    assert lock.shown() is None
    assert b"terraform_data" in seaweedfs.raw_get(url).body
    command = [sys.executable, "-m", "lockprovider.cli", "state", "unlock", f"file://{tmp_path}/x", "--style", "tflock"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert Path(tmp_path, "x.tflock").exists() is False
