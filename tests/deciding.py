"""Publishes that are decided together, by a rule for tests: the body of an intent says what it must not meet."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from noting import SETTINGS, record
from patience import until

from fsspec_cas import Machine, Store, World
from lockprovider import HUDI_LOCK_PATH, Intent, JudgeAnew, Lock, LockRecord, Log, LogEntry, Pending
from lockprovider.storage_lock import commit_rules
from lockprovider.storage_lock.commit_writes import Intents
from lockprovider.storage_lock.record import Me, Moment

ANEW = b"judge anew"
NOT_HERE = b"not here"
ELSEWHERE = b"elsewhere"
FAILS = b"fails"
AT = b"at "
DEAD = Me("dead", SETTINGS, "host", 1)


class Met(Exception):
    """Something was decided since that it must not meet."""


class Rules:
    """The path is the stem with the place behind it; the body names whom it must not meet."""

    unordered = False
    sample = b""

    def __init__(self) -> None:
        self.refreshed = 0

    def refresh(self, seen_s: float) -> None:
        """There is nothing to read."""
        del seen_s
        self.refreshed += 1

    def refuse(self, intent: Intent, since: Sequence[LogEntry]) -> None:
        """One that it must not meet is in its way, and `ANEW` meets any."""
        if intent.body == ANEW and since:
            raise JudgeAnew
        for entry in since:
            if entry.path.partition(".")[0].encode() in intent.body.split():
                raise Met(entry.path)

    def pending(self, intent: Intent, log: Log, now_ms: int) -> Pending | None:
        """Its body."""
        del now_ms
        if intent.body == FAILS:
            raise OverflowError(intent.stem)
        if intent.body.startswith(AT):
            return Pending.of_bytes(intent.stem + intent.body[len(AT) :].decode(errors="surrogatepass"), b"-")
        stem = "elsewhere." if intent.body == ELSEWHERE else intent.stem
        return None if intent.body == NOT_HERE else Pending.of_bytes(f"{stem}{log.next}", intent.body)


RULES = Rules()


def begin(lock: Lock, path: str = "first") -> None:
    """Let the lock have a log, with one publish in it."""
    with lock.acquire(keeps_log=True) as lease:
        lease.publish(lock.stage(path, b"", unshared=True), b"", new=True)


def wanted(store: Store, name: str, body: bytes = b"-") -> Intent:
    """As one judges itself now."""
    log = record(store).log
    assert log is not None
    return Intent(log.name, log.next, f"{name}.", body)


def commit(lock: Lock, name: str, body: bytes = b"-", timeout_s: float | None = None) -> Any:
    """What came of it."""
    seen = lock.look()
    assert seen is not None
    assert seen.log is not None
    return lock.commit(Intent(seen.log.name, seen.log.next, f"{name}.", body), RULES, timeout_s)


def started(lock: Lock, intent: Intent, timeout_s: float | None = None) -> Future[Any]:
    """The same, in a thread of its own; it waits by now, or has come to its end."""
    lock.look()
    pool = ThreadPoolExecutor(1, "commit")
    answer = pool.submit(lock.commit, intent, RULES, timeout_s)
    pool.shutdown(wait=False)
    committer = lock._client.committer
    until(lambda: answer.done() or any(request.intent == intent for request in [*committer._requests]))
    return answer


def posted(store: Store) -> set[str]:
    """The stems of what waits to be decided."""
    log = record(store).log
    assert log is not None
    return {intent.stem for intent in Intents(store, HUDI_LOCK_PATH.rpartition("/")[0]).listed(log)}


def decide(store: Store, *intents: Intent, combiner_ms: int = 0, world: World | None = None) -> LockRecord:
    """As one that dies when it has written the record: what is decided is not put there."""
    world, seen = world or Machine(), store.read(HUDI_LOCK_PATH)
    then = LockRecord.decode(seen.data)
    assert then.log is not None
    at = Moment(world.now_ms(), world.monotonic_s(), str(uuid.uuid4()))
    batch = commit_rules.choose(then.log, then.all_pending, intents, RULES, at.now_ms)
    now = commit_rules.combine(DEAD, then, batch, at, last_applied=None, combiner_ms=combiner_ms)
    store.put_if_match(HUDI_LOCK_PATH, now.encode(), seen.version).unwrap()
    return now


def put_there(store: Store, *, combiner_ms: int = 0) -> None:
    """All that is decided, and note it in the record."""
    seen = store.read(HUDI_LOCK_PATH)
    then = LockRecord.decode(seen.data)
    for pending in then.all_pending:
        store.put_if_absent(pending.path, pending.data or b"")
    at = Moment(0, 0.0, str(uuid.uuid4()))
    now = commit_rules.combine(DEAD, then, (), at, last_applied=then.pending, combiner_ms=combiner_ms)
    store.put_if_match(HUDI_LOCK_PATH, now.encode(), seen.version).unwrap()


def there(store: Store) -> set[str]:
    """The names of what is published and can be seen."""
    return {entry.path.partition(".")[0] for entry in store.list("") if not entry.path.startswith(".")}


def told(store: Store) -> list[str]:
    """The names in the log, in their order."""
    log = record(store).log
    assert log is not None
    return [entry.path.partition(".")[0] for entry in log.entries]
