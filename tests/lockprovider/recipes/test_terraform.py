"""The backend for Terraform and OpenTofu, asked what their `http` client asks."""

from __future__ import annotations

import json
import uuid
from collections import deque
from typing import Any

import fsspec
import pytest

from fsspec_cas import Store
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.testing import Faulty, LoseAnswer, LoseRequest, ManualClock, Pass
from lockprovider import Lock, LockSettings
from lockprovider.recipes.state.terraform import TerraformBackend
from lockprovider.state import State

INFO = {"ID": "7c2a", "Operation": "OperationTypeApply", "Who": "ci@vm-7", "Version": "1.11.4", "Info": "", "Path": ""}
OTHER = {**INFO, "ID": "99"}


def state(serial: int, lineage: str = "0f6e", **more: object) -> bytes:
    return json.dumps({"version": 4, "serial": serial, "lineage": lineage, "resources": [], **more}).encode()


class Run:
    def __init__(self, store: Store, **options: Any) -> None:
        self.state: State[bytes] = State(store, "network.json", codec=bytes, **options)
        self.backend = TerraformBackend(self.state)

    def ask(self, method: str, body: object = b"", query: str = "") -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = self.backend.answer(method, query, data)
        return reply.status.value, reply.body

    def refused(self, body: bytes, query: str = "", status: int = 409) -> str:
        """The reason for which a state is refused; what was stored stays."""
        before = self.ask("GET")
        answer = self.ask("POST", body, query)
        assert answer[0] == status, answer
        assert self.ask("GET") == before
        return json.loads(answer[1])["message"]


@pytest.fixture
def two() -> tuple[Run, Run]:
    """Two runs, on two machines, of one state."""
    store = Store.from_url(f"memory://{uuid.uuid4().hex}")
    return Run(store), Run(store)


def test_run_reads_locks_writes_and_unlocks(two) -> None:
    one, other = two
    assert one.ask("GET") == (204, b"")
    assert one.ask("LOCK", INFO)[0] == 200
    assert one.ask("GET") == (204, b"")
    assert one.ask("POST", state(1), "ID=7c2a") == (200, b"")
    assert one.ask("POST", state(2), "ID=7c2a") == (200, b"")  # again, while it is locked
    assert one.ask("UNLOCK", INFO) == (200, b"")
    assert other.ask("GET") == (200, state(2))
    assert [revision.value for revision in one.state.history(2)] == [state(2), state(1)]
    assert other.ask("LOCK", OTHER)[0] == 200


def test_another_run_gets_error_naming_the_lock_holder(two) -> None:
    one, other = two
    assert one.ask("LOCK", INFO)[0] == 200
    for info in (OTHER, {**OTHER, "Operation": "OperationTypePlan"}):
        status, body = other.ask("LOCK", info)
        assert (status, json.loads(body)["ID"], json.loads(body)["Who"]) == (423, "7c2a", "ci@vm-7")
    status, body = one.ask("LOCK", OTHER)
    assert (status, json.loads(body)["ID"]) == (423, "7c2a")
    assert other.ask("POST", state(1))[0] == 423  # -lock=false does not overwrite a run either
    assert other.ask("DELETE")[0] == 423


def test_backend_lock_with_lost_answer_is_recognised_as_own(two) -> None:
    """Terraform's S3 lock names itself as the one that is in its way."""
    one, _ = two
    assert one.ask("LOCK", INFO)[0] == one.ask("LOCK", INFO)[0] == 200


def test_overtaken_run_overwrites_nothing(two) -> None:
    """Terraform's stale overwrite: with its own backends the second PUT would win."""
    one, other = two
    assert one.ask("LOCK", INFO)[0] == 200
    assert one.ask("POST", state(1), "ID=7c2a")[0] == 200
    assert other.ask("UNLOCK")[0] == 200  # force-unlock: Terraform sends no LockInfo
    assert other.ask("LOCK", OTHER)[0] == 200
    assert other.ask("POST", state(2), "ID=99")[0] == 200
    one.refused(state(3), "ID=7c2a")
    one.refused(state(3), "ID=7c2a&force=true")
    assert other.ask("GET") == (200, state(2))


def test_write_needs_the_lock_that_it_names(two) -> None:
    one, _ = two
    assert "7c2a is no longer held" in one.refused(state(1), "ID=7c2a")
    assert one.ask("LOCK", INFO)[0] == 200
    assert one.ask("POST", state(1), "ID=99")[0] == 423
    assert one.ask("UNLOCK", OTHER)[0] == 409
    assert one.ask("UNLOCK", INFO)[0] == 200
    assert one.ask("POST", state(1))[0] == 200
    assert one.ask("DELETE")[0] == 200
    assert one.ask("GET") == (204, b"")
    assert one.ask("POST", state(1, "another"))[0] == 200


def test_lock_is_released_when_the_backend_is_closed(two) -> None:
    one, other = two
    assert other.ask("LOCK", INFO)[0] == 200
    other.backend.close()
    assert one.ask("LOCK", INFO)[0] == 200


def test_lock_taken_outside_of_terraform_is_reported(two) -> None:
    one, other = two
    with Lock(other.state.store, other.state.lock_path).acquire():
        status, body = one.ask("LOCK", INFO)
        assert (status, json.loads(body)["ID"] != "") == (423, True)


@pytest.mark.parametrize("method", ["LOCK", "POST", "DELETE"])
def test_failure_to_read_the_lock_holder_is_a_reply(method) -> None:
    clock = ManualClock()
    faulty = Faulty(MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True)), {}, world=clock)
    store = Store(faulty, f"/{uuid.uuid4().hex}", world=clock)
    one, run = (Run(store, timeout=5, world=clock, lock_settings=LockSettings(validity=3600)) for _ in range(2))
    assert one.ask("LOCK", INFO)[0] == 200
    faulty._plan["head"] = deque([LoseRequest()] * 10_000)
    body = state(1) if method == "POST" else json.dumps(OTHER).encode()
    status, answer = run.ask(method, body)
    assert (status, json.loads(answer)["error"]) == (503, "Unavailable")
    assert ("head", LoseRequest()) in faulty.fired


def test_repeated_unlock_whose_answer_was_lost_succeeds(two) -> None:
    """Terraform sends it again, and reported a lock that it could not release (hashicorp/terraform 29724)."""
    one, other = two
    assert one.ask("LOCK", INFO)[0] == 200
    assert [one.ask("UNLOCK", INFO)[0] for _ in range(2)] == [200, 200]
    assert other.ask("LOCK", OTHER)[0] == 200
    assert one.ask("UNLOCK", INFO)[0] == 200  # and the lock of the next run stays
    assert (one.ask("UNLOCK", OTHER)[0], one.ask("LOCK", INFO)[0]) == (409, 423)


def test_unlock_repeated_after_a_silent_store_frees_the_lock() -> None:
    clock = ManualClock()
    faulty = Faulty(MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True)), {}, world=clock)
    store = Store(faulty, f"/{uuid.uuid4().hex}", world=clock)
    one, other = (Run(store, timeout=5, world=clock, lock_settings=LockSettings(validity=3600)) for _ in range(2))
    assert one.ask("LOCK", INFO)[0] == 200
    faulty._plan |= {verb: deque([LoseRequest()] * 10_000) for verb in ("put", "head", "get")}
    assert [one.ask("UNLOCK", INFO)[0] for _ in range(2)] == [503, 503]
    faulty._plan.clear()
    assert (one.ask("UNLOCK", INFO)[0], other.ask("LOCK", OTHER)[0]) == (200, 200)
    assert (one.ask("UNLOCK", INFO)[0], one.ask("LOCK", INFO)[0]) == (200, 423)


@pytest.mark.parametrize("info", [b"", {}, {"ID": ""}, {"ID": 5}, {"ID": None, "Who": "ci"}])
def test_lock_without_an_id_is_refused(two, info) -> None:
    """No write could name it."""
    one, other = two
    status, body = one.ask("LOCK", info)
    assert (status, json.loads(body)["error"]) == (400, "InvalidInput")
    assert other.ask("LOCK", OTHER)[0] == 200


@pytest.mark.parametrize("query", ["", "ID=7c2a"])
def test_state_of_another_lineage_or_a_lower_serial_is_refused(two, query) -> None:
    """The rules of `terraform state push`; without them a stale copy replaced the state of another stack."""
    one, _ = two
    if query:
        assert one.ask("LOCK", INFO)[0] == 200
    assert one.ask("POST", state(7), query)[0] == 200
    assert "lineage is 1d2c" in one.refused(state(9, "1d2c"), query)
    assert "serial is 6" in one.refused(state(6), query)
    assert "content is another" in one.refused(state(7, resources=[1]), query)
    assert one.ask("POST", json.dumps(json.loads(state(7)), indent=2).encode(), query)[0] == 200  # the same once more
    assert one.ask("POST", state(8), query)[0] == 200
    assert one.ask("POST", state(1, "1d2c"), f"{query}&force=true")[0] == 200
    assert one.ask("GET") == (200, state(1, "1d2c"))


def test_true_in_place_of_1_is_another_content_of_the_same_serial(two) -> None:
    one, _ = two
    assert one.ask("POST", state(7, outputs={"n": 1}))[0] == 200
    assert "content is another" in one.refused(state(7, outputs={"n": True}), "")


def test_encrypted_state_of_opentofu_is_compared_too(two) -> None:
    """GitLab's backend answered 500 to it (gitlab-org/gitlab 450816)."""
    one, _ = two
    secret = {"meta": {"key_provider.pbkdf2.k": "eyJzYWx0"}, "encrypted_data": "c2VjcmV0", "encryption_version": "v0"}
    sent = json.dumps({"serial": 3, "lineage": "0f6e", **secret}).encode()
    assert one.ask("POST", state(2))[0] == 200
    assert one.ask("POST", sent)[0] == 200
    assert one.ask("GET") == (200, sent)
    one.refused(state(2))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        state(1)[:-1],
        b'{"serial": 1}',
        b'{"lineage": "x"}',
        state(1, ""),
        state(-1),
        json.dumps({"serial": True, "lineage": "x"}).encode(),
        json.dumps({"serial": "1", "lineage": "x"}).encode(),
        b'{"lineage": "x", "serial": 1e3}',
        b'{"lineage": "x", "serial": ' + b"9" * 5000 + b"}",
        b'{"lineage": "x", "serial": 1, "deep": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"lineage": "x", "serial": 1, "n": NaN}',
    ],
    ids=range(16),
)
def test_body_that_is_no_state_is_refused(two, body) -> None:
    one, _ = two
    assert one.ask("POST", state(1))[0] == 200
    assert "not a state of Terraform" in one.refused(body, status=400)
    assert "not a state of Terraform" in one.refused(body, "force=true", status=400)


def test_stored_bytes_that_are_no_state_are_replaced_only_by_force(two) -> None:
    one, _ = two
    one.state.put(b"by hand")
    assert "is not a state of Terraform" in one.refused(state(1))
    assert one.ask("POST", state(1), "force=true")[0] == 200


def test_write_is_repeated_after_its_answer_was_lost() -> None:
    """Terraform sends a request again after a 5xx, and finds its own state there."""
    memory = MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True))
    clock = ManualClock()
    faulty = Faulty(memory, {}, world=clock)
    store = Store(faulty, f"/{uuid.uuid4().hex}", world=clock)
    run = Run(store, timeout=5, world=clock, lock_settings=LockSettings(validity=3600))
    assert run.ask("LOCK", INFO)[0] == 200
    faulty._plan["put"] = deque([Pass(), LoseAnswer()])  # the history's, the state's
    faulty._plan["head"] = faulty._plan["get"] = deque([LoseRequest()] * 10_000)
    assert run.ask("POST", state(1), "ID=7c2a")[0] == 504
    faulty._plan.clear()
    assert run.ask("POST", state(1), "ID=7c2a")[0] == 200
    assert run.ask("POST", state(2), "ID=7c2a")[0] == 200
    assert run.ask("GET") == (200, state(2))


def test_request_that_is_not_of_the_protocol_is_refused(two) -> None:
    one, _ = two
    assert one.ask("PATCH")[0] == 405
    for body in (b"no JSON", b"[]", b"[" * 5000, b'{"ID": "' + b"x" * 70_000 + b'"}'):
        assert one.ask("LOCK", body)[0] == 400
    assert one.ask("LOCK", INFO)[0] == 200
