"""What goes wrong while publishes are decided together: nobody waits for ever, nobody is told what is not so."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from deciding import AT, ELSEWHERE, RULES, begin, commit, decide, posted, started, there, told, wanted
from noting import SETTINGS, Noting, record
from patience import PATIENCE_S, until

from fsspec_cas import InvalidInput, Store, Unavailable
from fsspec_cas.answer import NoAnswer
from fsspec_cas.bridge.threads import Background
from fsspec_cas.machine import Worker
from fsspec_cas.outcome import Write
from fsspec_cas.testing import ManualClock
from lockprovider import HUDI_LOCK_PATH, Decided, Hold, Intent, Lock, LockSettings, Void
from lockprovider.storage_lock.committer import _Leading

PATIENT = LockSettings(timeout=PATIENCE_S, poll=0.05)


class LosesPosts(Noting):
    """For as long as it is told so."""

    how = ""

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        if "/intents/" in write.path and self.how:
            self.asked.append("lost")
            if self.how == "never sent":
                raise Unavailable("the store is busy")
            return NoAnswer("it never got there")
        return await super().put(write, *args, **kwargs)


@pytest.fixture
def backend() -> LosesPosts:
    return LosesPosts(blocking=False)


@pytest.fixture
def store(backend: LosesPosts, tmp_path: Path) -> Store:
    made = Store(backend, str(tmp_path))
    begin(Lock(made, settings=SETTINGS))
    return made


@pytest.fixture
def clock(store: Store) -> ManualClock:
    return ManualClock(record(store).epoch / 1000 + 1)


@pytest.fixture
def lock(store: Store, clock: ManualClock) -> Lock:
    made = Lock(store, settings=PATIENT, world=clock)
    made.look()
    return made


def test_commit_raises_when_no_thread_can_start_and_the_next_one_retries(
    store: Store, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", cannot)
        with pytest.raises(RuntimeError):
            commit(lock, "second")
    assert started(lock, wanted(store, "third")).result(PATIENCE_S) == Decided("third.1")
    assert there(store) == {"first", "third"}


@pytest.mark.parametrize("late", [False, True], ids=["started", "starts late"])
def test_ctrl_c_while_the_thread_starts_leaves_one_thread_for_the_next_commit(
    store: Store, lock: Lock, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    committer, start, workers, go = lock._client.committer, Worker.start, list[Worker](), threading.Event()
    turn, served = committer._turn, set[threading.Thread]()

    def interrupted(worker: Worker, **options: bool) -> None:
        is_first = worker.name == "group-commit" and not workers
        if not (late and is_first):
            start(worker, **options)
        if worker.name == "group-commit":
            workers.append(worker)
        if is_first:
            raise KeyboardInterrupt

    def patient_turn() -> float | None:
        served.add(threading.current_thread())
        return turn() if go.wait(PATIENCE_S) else None

    monkeypatch.setattr(committer, "_turn", patient_turn)
    monkeypatch.setattr(Worker, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        commit(lock, "second")
    publishing = Background().begin(lambda: lock.commit(wanted(store, "third"), RULES))
    until(lambda: committer._new or len(workers) > 1)
    if late:
        start(workers[0])
    go.set()
    assert publishing.result(PATIENCE_S) == Decided("third.1")
    assert served == {workers[-1]}
    assert len(workers) == 1 + late


@pytest.mark.parametrize("how", ["never sent", "no answer"])
def test_intent_of_unknown_outcome_is_posted_again(store: Store, lock: Lock, backend: LosesPosts, how: str) -> None:
    decide(store, combiner_ms=600)
    backend.how = how
    publishing = started(lock, wanted(store, "second"))
    until(lambda: backend.asked.count("lost") > 1)
    backend.how = ""
    until(lambda: posted(store) == {"second."})
    decide(store, wanted(store, "another"))
    assert publishing.result(PATIENCE_S).path == "second.2"


def test_leader_of_a_removed_record_leads_no_more(store: Store, lock: Lock) -> None:
    intent, steps = Intent("another log", 0, "second.", b"-"), lock._client.committer._steps
    steps._leading = _Leading(round_s=0.1, began_s=0.0)
    store.delete(HUDI_LOCK_PATH)
    assert lock.commit(intent, RULES) == Void()
    until(lambda: steps._leading is None)


def test_publish_without_a_body_asks_to_hold_the_lock(store: Store, lock: Lock) -> None:
    assert commit(lock, "second", b"") == Hold()
    assert there(store) == {"first"}


@pytest.mark.parametrize("name", ["a\ud800b", "a//b"])
def test_publish_at_a_path_that_no_store_can_have_is_refused_at_once(store: Store, lock: Lock, name: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(repr(name)[1:-1])):
        commit(lock, name)
    with pytest.raises(InvalidInput, match=re.escape(repr(name)[1:-1])):
        commit(lock, "second", AT + name.encode(errors="surrogatepass"))
    assert told(store) == ["first"]


def test_publish_under_another_name_than_its_intent_is_refused(store: Store, lock: Lock) -> None:
    with pytest.raises(InvalidInput, match=r"'elsewhere\.1' must begin with 'second\.'"):
        commit(lock, "second", ELSEWHERE)
    assert told(store) == ["first"]
