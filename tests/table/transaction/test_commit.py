"""What came between what a commit goes by and its decision is met by it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import until
from table.tables import SETTINGS, SPEC, content, rows, upsert

from fsspec_cas import Machine, Store, Unavailable
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from fsspec_cas.testing import ManualClock
from lockprovider import (
    HUDI_LOCK_PATH,
    Intent,
    Lease,
    LeaseLost,
    Lock,
    Log,
    NotAcquired,
    PublishUnknown,
    Unappliable,
)
from lockprovider.storage_lock.commit_rules import choose, is_over
from lockprovider.storage_lock.commit_writes import Intents
from lockprovider.table import Aborted, Table, TableSettings, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.layout import PROPERTIES, TIMELINE
from lockprovider.table.services import rollback
from lockprovider.table.state.heartbeat import WriterHeartbeat
from lockprovider.table.transaction import decision
from lockprovider.table.transaction.decision import TableDecider
from lockprovider.table.transaction.lifecycle import Committing, _Undecided
from lockprovider.table.transaction.transaction import Transaction

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # one dies in it


class Held(LocalBackend):
    """Lets another act right before the first request that takes the lock after `armed` is set."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act, self.armed, self.acted = act, False, 0

    async def put(self, write: Write, data: bytes, *args: Any, **kwargs: Any) -> Any:
        if self.armed and write.path.endswith("table_lock.json"):
            self.armed, self.acted = False, self.acted + 1
            self.act()
        return await super().put(write, data, *args, **kwargs)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(made, (1, "a", 1))
    return made


def overtaken(table: Table, other: Callable[[], object]) -> Any:
    """A transaction that updates key 1, and is overtaken between its reads and the lock."""
    backend = Held(other)
    txn = Transaction(Table(Store(backend, table.url), table.url, settings=SETTINGS))
    engine.write(txn, upserts=rows((1, "a", 100)))
    backend.armed = True
    try:
        return txn.commit()
    finally:
        assert backend.acted == 1


def test_writer_overtaken_before_the_lock_reads_again(table: Table) -> None:
    with pytest.raises(WriteConflict):
        overtaken(table, lambda: upsert(table, (1, "a", 10)))
    assert content(table) == {(1, "a", 10)}


def test_completion_time_exceeds_that_of_the_overtaking_commit(table: Table) -> None:
    other: list[Any] = []
    mine = overtaken(table, lambda: other.append(upsert(table, (2, "b", 2))))
    assert mine.completion > other[0].completion
    assert content(table) == {(1, "a", 100), (2, "b", 2)}


def test_mutant_that_does_not_check_again_loses_an_update(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong twin."""
    monkeypatch.setattr(TableDecider, "refuse", lambda *_: None)
    assert overtaken(table, lambda: upsert(table, (1, "a", 10))).updated == 1
    assert content(table) == {(1, "a", 10)}, "100 was reported as written, and is not there"


def test_publish_rolled_forward_first_is_seen(table: Table) -> None:
    """What was decided by one that died before it was there: it counts, and the next commit puts it there first."""
    dead: list[Any] = []

    def decided_but_not_applied() -> None:
        backend = Stops()
        txn = Transaction(Table(Store(backend, table.url), table.url, settings=SETTINGS))
        engine.write(txn, upserts=rows((1, "a", 10)))
        backend.armed = True
        with pytest.raises((Stopped, PublishUnknown)):  # of this thread, or of the one that decides
            txn.commit()
        dead.append(txn)

    with pytest.raises(WriteConflict):
        overtaken(table, decided_but_not_applied)
    upsert(table, (2, "b", 2))
    assert content(table) == {(1, "a", 10), (2, "b", 2)}
    dead[0].heartbeat.leave()


def test_completion_time_exceeds_all_seen_times_across_threads(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another's clock is ahead; a listing of another thread began before its commit and ends after mine was judged."""
    before, real, txn = table.timeline(), Lock.commit, Transaction(table)
    engine.write(txn, upserts=rows((4, "d", 4)))
    ahead = ManualClock(Machine().now_ms() / 1000 + 3600)
    its = upsert(Table(Store(LocalBackend(), table.url), table.url, settings=SETTINGS, world=ahead), (2, "b", 2))
    table.lock.acquire().release()  # as a JVM writer ends the log
    table.lock.acquire(keeps_log=True).release()  # and the next begins another

    def commit(self: Lock, *args: Any) -> Any:
        table.knowledge.latest = before
        return real(self, *args)

    monkeypatch.setattr(Lock, "commit", commit)
    assert txn.commit().completion > its.completion


def lost(table: Table, monkeypatch: pytest.MonkeyPatch, *, alive: bool = True) -> Transaction:
    """One whose commit is posted when nobody can say any more what became of it, nor withdraw it."""
    txn = Transaction(table)
    engine.write(txn, upserts=rows((3, "c", 3)))

    def commit(_: Lock, intent: Intent, *__: Any) -> Any:
        intents(table).post(intent)
        monkeypatch.setattr(WriterHeartbeat, "alive", alive)
        raise PublishUnknown("the store is out of reach")

    monkeypatch.setattr(Lock, "commit", commit)
    return txn


def tried(monkeypatch: pytest.MonkeyPatch, grouped: _Undecided) -> list[str]:
    """The tries from now on, none of which decides a commit; `grouped`: what a try in a group comes to."""
    tries: list[str] = []

    def try_group(_: Committing) -> _Undecided:
        tries.append("group")
        return grouped

    def try_held(_: Committing, unknown: PublishUnknown | None) -> _Undecided:
        tries.append("hold" if unknown is None else "hold, in doubt")
        return _Undecided()

    monkeypatch.setattr(Committing, "_try_group", try_group)
    monkeypatch.setattr(Committing, "_try_held", try_held)
    return tries


def test_commit_is_grouped_until_its_writer_has_to_hold_the_lock(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = tried(monkeypatch, _Undecided())
    with pytest.raises(Aborted, match="lost its lease 8 times"):
        upsert(table, (1, "a", 2))
    assert tries == ["group"] * 4 + ["hold"] * 4


def test_commit_that_cannot_be_grouped_is_held_at_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = tried(monkeypatch, _Undecided(hold=True))
    with pytest.raises(Aborted, match="lost its lease 8 times"):
        upsert(table, (1, "a", 2))
    assert tries == ["group"] + ["hold"] * 7


def test_commit_of_unknown_outcome_is_held_in_doubt_and_stays_unknown(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = tried(monkeypatch, _Undecided(hold=True, unknown=PublishUnknown("no answer")))
    with pytest.raises(PublishUnknown, match="no answer"):
        upsert(table, (1, "a", 2))
    assert tries == ["group"] + ["hold, in doubt"] * 7


@pytest.mark.parametrize("refused", [None, NotAcquired("another holds it")], ids=["it lives", "no lock"])
def test_commit_of_unknown_outcome_stays_unknown_when_a_restore_begins(
    table: Table, monkeypatch: pytest.MonkeyPatch, refused: Exception | None
) -> None:
    def finish(*_: object) -> bool:
        if refused is not None:
            raise refused
        return False

    unknown = PublishUnknown("no answer")
    tried(monkeypatch, _Undecided(hold=True, unknown=unknown, restoring=table.timeline()))
    monkeypatch.setattr(rollback, "finish_dead_restores", finish)
    with pytest.raises(PublishUnknown, match="no answer"):
        upsert(table, (1, "a", 2))


def intents(table: Table) -> Intents:
    return Intents(table.store, HUDI_LOCK_PATH.rpartition("/")[0])


def test_intent_still_posted_when_its_writer_gives_up_is_void(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    txn = lost(table, monkeypatch, alive=False)
    with pytest.raises(Aborted, match="heartbeat"):
        txn.commit()
    (posted,) = intents(table).left()
    seen = table.lock.look()
    assert is_over(posted, seen and seen.log), "else the next on duty decides it"
    txn.leave()


@pytest.mark.parametrize(
    "refused",
    [NotAcquired("another holds it"), Unappliable("it cannot be applied"), RuntimeError("of a watcher")],
    ids=lambda error: type(error).__name__,
)
def test_possibly_decided_commit_is_not_reported_failed_after_lease_loss(
    table: Table, monkeypatch: pytest.MonkeyPatch, refused: Exception
) -> None:
    txn, real, asked = lost(table, monkeypatch), Lock.acquire, []

    def acquire(self: Lock, **promises: bool) -> Any:
        asked.append("")
        if len(asked) > 1:
            raise refused
        return real(self, **promises)

    def publish(*_: Any) -> str:
        raise LeaseLost("another has taken it over")

    with monkeypatch.context() as patched:
        patched.setattr(Lock, "acquire", acquire)
        patched.setattr(Committing, "_publish", publish)
        with pytest.raises(PublishUnknown, match="out of reach"):
            txn.commit()
    assert len(asked) == 2
    txn.leave()


def test_conflict_is_raised_though_the_rollback_lost_its_lease(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    upsert(table, (1, "a", 1))

    def roll_back(*_: Any, **__: Any) -> None:
        raise LeaseLost("another has taken it over")

    def overtaken(txn: Any) -> None:
        txn.upsert(rows((1, "a", 2)))
        upsert(table, (1, "a", 3))

    monkeypatch.setattr(rollback, "roll_back_own", lambda *_: False)
    monkeypatch.setattr(rollback, "roll_back", roll_back)
    with pytest.raises(WriteConflict):
        table.transact(overtaken, retries=0)


class Stopped(BaseException):
    """The process is gone."""


class Stops(LocalBackend):
    """Dies when it is about to put the completed file there, and says nothing to the lock but that it is free."""

    armed = False

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        if self.armed and write.path.endswith(".commit"):
            raise Stopped
        return await super().put(write, *args, **kwargs)


# -- what another has posted -------------------------------------------------------------------------------------------


def wanted(table: Table, monkeypatch: pytest.MonkeyPatch) -> tuple[Intent, TableDecider]:
    """What a commit asks for."""
    asked: list[Any] = []
    real = Lock.commit

    def commit(self: Lock, *args: Any) -> Any:
        asked.append(args)
        return real(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Lock, "commit", commit)
        upsert(table, (3, "c", 3))
    (found,) = asked
    return found


TIMES = [7, None, "", "x", "../../evil", "99991231235959999", "99999999999999999"]


@pytest.mark.parametrize("begin", TIMES)
@pytest.mark.parametrize("what", ["begin", "stem", "data"])
def test_foreign_intent_blocks_no_other_intent(
    table: Table, monkeypatch: pytest.MonkeyPatch, begin: object, what: str
) -> None:
    intent, decider = wanted(table, monkeypatch)
    head, _, data = intent.body.partition(b"\n")
    head = json.dumps(json.loads(head) | {"begin": begin}).encode()
    stem = intent.stem if what == "stem" else f"{TIMELINE}/{begin}_"
    body = head + b"\n" + (b"garbage" if what == "data" else data)
    log = Log("another", 0)
    fine = replace(intent, log=log.name, position=0)
    batch = choose(log, (), [Intent(log.name, 0, stem, body), fine], decider, 0)
    assert [pending.path.partition("_")[0] + "_" for pending in batch] == [fine.stem]


def test_intent_checked_under_other_properties_is_not_decided(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    intent, decider = wanted(table, monkeypatch)
    log = Log("another", 0)
    fine = replace(intent, log=log.name, position=0)
    assert len(choose(log, (), [fine], decider, 0)) == 1
    found = table.store.read(PROPERTIES)
    table.store.put_if_match(PROPERTIES, found.data + b"hoodie.not.known.here=1\n", found.version).unwrap()
    decider.refresh(math.inf)
    assert choose(log, (), [fine], decider, 0) == ()


def test_undecided_writer_posts_again_under_another_name(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The intent that was withdrawn has used up the first."""
    asked: list[str] = []
    commit = Lock.commit

    def late_at_first(lock: Lock, intent: Intent, *args: Any) -> Any:
        asked.append(intent.name)
        if len(asked) == 1:
            raise NotAcquired("it took too long", owner="another")
        return commit(lock, intent, *args)

    monkeypatch.setattr(Lock, "commit", late_at_first)
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", 100)))
    with pytest.raises(NotAcquired):
        txn.commit()
    upsert(table, (2, "b", 2))
    txn.commit()
    assert content(table) == {(1, "a", 100), (2, "b", 2)}
    assert asked[0] != asked[-1]
    assert asked[0].partition(".")[2] == asked[-1].partition(".")[2], "of the same commit"


def test_keys_of_the_last_commit_are_carried_on(table: Table) -> None:
    """A HudiStreamer looks for its checkpoint in the last commit, and began again where that was ours."""
    key = "deltastreamer.checkpoint.key"
    table.append(rows((7, "a", 7)), extra={key: "topic,0:100", "other": "x"})
    settings = TableSettings.from_hudi({"hoodie.write.meta.key.prefixes": "deltastreamer.,streamer."})
    assert TableSettings.from_hudi({"hoodie.write.rolling.metadata.keys": "a, b"}).carried_keys == ("a", "b")
    carrying = Table.open(table.url, settings=replace(SETTINGS, carried_keys=settings.carried_keys))

    def last() -> dict[str, str]:
        now = table.timeline()
        return dict(table.metadata_of(now.writes[-1]).extra)

    carrying.append(rows((8, "a", 8)))
    assert (last().get(key), last().get("other")) == ("topic,0:100", None)
    carrying.upsert(rows((8, "a", 80)), extra={key: "topic,0:200"})
    assert last()[key] == "topic,0:200"
    carrying.delete(rows((8, "a", 80)))
    assert last()[key] == "topic,0:200"
    table.append(rows((9, "a", 9)))
    carrying.append(rows((10, "a", 10)))
    assert last()[key] == "topic,0:200", "also past a commit that has not carried it"
    assert content(table) == {(1, "a", 1), (7, "a", 7), (9, "a", 9), (10, "a", 10)}


@pytest.mark.parametrize("failure", [LeaseLost("it has ended"), Unavailable("out of reach")])
def test_failed_commit_leaves_no_staged_copies(
    table: Table, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Large metadata is staged as proposed, and under the lock again with the keys carried from the last commit."""
    key = "streamer.checkpoint"
    table.append(rows((7, "a", 7)), extra={key: "topic,0:100"})
    carrying = Table.open(table.url, settings=replace(SETTINGS, carried_keys=("streamer.",)))

    def fail(*_: Any, **__: Any) -> None:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(Lease, "publish", fail)
        with pytest.raises((Aborted, Unavailable)):
            carrying.upsert(rows((1, "a", 100)), extra={"note": random.Random(1).randbytes(9000).hex()}, retries=0)
    assert not any(Path(table.url).rglob("staged/*"))
    carrying.upsert(rows((1, "a", 100)), extra={"note": random.Random(1).randbytes(9000).hex()})
    until(lambda: not any(Path(table.url).rglob("staged/*")))
    assert content(table) == {(1, "a", 100), (7, "a", 7)}


@pytest.mark.parametrize("keys", [(), ("streamer.",)])  # with keys to carry the lock is held, without it is decided
def test_write_that_a_writer_without_the_lock_rolls_back_is_aborted(
    table: Table, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    """As hudi-rs 0.6 does, see `test_beside_hudi_rs`: it removes data file, inflight and requested."""
    monkeypatch.setattr(decision, "LOOKED_AT_MS", 0)
    txn = Transaction(Table.open(table.url, settings=replace(SETTINGS, carried_keys=keys)))
    engine.write(txn, upserts=rows((1, "a", 100)))
    for path in Path(table.url).rglob(f"*{txn.begin}*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(Aborted, match=f"{txn.begin} was rolled back by another writer"):
        txn.commit()
    assert content(table) == {(1, "a", 1)}
