"""Looking at a lock and breaking it, from outside: for operators."""

from __future__ import annotations

from dataclasses import replace

from fsspec_cas import Content, Lost, ObjectNotFound, Outcome, Store, World
from lockprovider.record import LockRecord
from lockprovider.sight import Sight

_REQUEST_S = 30.0
_TRIES = 20  # each one more who joins the line may cost one


def look(store: Store, path: str, world: World, *, timeout_s: float = _REQUEST_S) -> Sight:
    """The lock record now, judged by the store's clock where the store says it.

    Two requests: the record, and a look at the object for the store's time.

    Raises:
        MalformedRecord: the object is not a lock record.
        CasError: the store failed.
    """
    try:
        content = store.read(path, timeout=timeout_s)
        said_ms = store.head(path, timeout=timeout_s).answered_ms
    except ObjectNotFound:
        return Sight(None, None, world.now_ms(), by_store=False, own_ms=world.now_ms())
    own_ms = world.now_ms()
    now_ms = own_ms if said_ms is None else said_ms
    record = LockRecord.decode(content.data)
    return Sight(record, content.version, now_ms, by_store=said_ms is not None, own_ms=own_ms)


def break_lock(store: Store, path: str, seen: Sight, nonce: str, *, timeout_s: float = _REQUEST_S) -> Outcome:
    """Mark the record in `seen` as released, if it still is the one that is there; more may have come to wait for it.

    The holder is told at its next renewal, not before: until then it works on. What it publishes with `lease.publish`
    is refused from now on. A decided publish stays in the record, and the next holder finishes it.

    Raises:
        ValueError: there is no record in `seen`.
        CasError: the store failed; nothing was written.
    """
    if seen.record is None or seen.version is None:
        raise ValueError(f"there is no record at {path!r} to break")
    record, version = seen.record, seen.version
    outcome = store.put_if_match(path, _broken(record, nonce, seen.own_ms), version, timeout=timeout_s)
    for _ in range(_TRIES):
        if not isinstance(outcome, Lost):
            break
        now = _read(store, path, timeout_s)
        if now is None or LockRecord.decode(now.data).apart_from_line() != record.apart_from_line():
            break
        record = LockRecord.decode(now.data)
        outcome = store.put_if_match(path, _broken(record, nonce, seen.own_ms), now.version, timeout=timeout_s)
    return outcome


def _broken(record: LockRecord, nonce: str, now_ms: int) -> bytes:
    return replace(record, expired=True, nonce=nonce, freed_ms=now_ms if record.line else 0).encode()


def _read(store: Store, path: str, timeout_s: float) -> Content | None:
    try:
        return store.read(path, timeout=timeout_s)
    except ObjectNotFound:
        return None
