"""Status and break of a lock from outside, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fsspec_cas import ABSENT, Lost, ObjectNotFound, Outcome, Store, Version, Won, World
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.client import Client
from lockprovider.storage_lock.record import LockRecord
from lockprovider.storage_lock.status import LockStatus

_REQUEST_S = 30.0
_SETTINGS = LockSettings(validity=60.0, renew=6.0)  # of a break that applies publishes
_TRIES = 20  # each new waiter may cost one


def look(store: Store, path: str, world: World, *, timeout_s: float = _REQUEST_S) -> LockStatus:
    """Read the record and, by a second request, the store's time (else this machine's).

    An absent record gives a status without one. May raise `MalformedRecord`.
    """
    try:
        content = store.read(path, timeout=timeout_s)
        store_ms = store.head(path, timeout=timeout_s).answered_ms
    except ObjectNotFound:
        return LockStatus(None, None, world.now_ms(), by_store=False, own_ms=world.now_ms())
    own_ms = world.now_ms()
    now_ms = own_ms if store_ms is None else store_ms
    record = LockRecord.decode(content.data, path)
    return LockStatus(record, content.version, now_ms, by_store=store_ms is not None, own_ms=own_ms)


@dataclass(frozen=True, slots=True)
class Broken:
    """Result of a break.

    Attributes:
        outcome: Won: the lock is free. Lost: the record had changed, and nothing was written. Unknown: read it again.
        finished: paths of publishes that are applied now.
        set_aside: paths of unappliable publishes, and the objects with their details.
    """

    outcome: Outcome
    finished: tuple[str, ...] = ()
    set_aside: Mapping[str, str] = field(default_factory=dict)


def break_lock(store: Store, path: str, status: LockStatus, world: World, *, timeout_s: float = _REQUEST_S) -> Broken:
    """Release the lock in `status`, if its record is unchanged except for its waiters.

    The holder works on until its next renewal, but its publishes are refused from now on. If the lock was released with
    pending publishes since `status`, they are applied all the same. Decided publishes are applied first, under the
    lock, for at most a minute. One whose path has other bytes, or whose own are gone, is set aside; not promised then:
    that it never appears, as a live publisher may have its bytes.

    Raises:
        ValueError: `status` has no record.
        CasError: the store failed; decided publishes are still pending.
    """
    if status.record is None or status.version is None:
        raise ValueError(f"no lock record exists at {path!r}, so there is no lock to break")
    record, version, nonce = status.record, status.version, world.new_id()
    for _ in range(_TRIES):
        if record.all_pending:
            result = _finished(store, path, record, version, world)
        else:
            data = _broken(record, nonce, status.own_ms)
            result = Broken(store.put_if_match(path, data, version, timeout=timeout_s))
        content = store.read_or_none(path, timeout=timeout_s) if isinstance(result.outcome, Lost) else None
        if content is None:
            break
        current = LockRecord.decode(content.data, path)
        if current.nonce == nonce:  # a proxy sent it twice, and answered for the refused copy
            return Broken(Won(content.version))
        # Released since `status`: apply pending publishes all the same.
        handed_over = current.is_free and current.all_pending
        if current.without_waiters() != record.without_waiters() and not handed_over:
            break
        record, version = current, content.version
    return result


def _finished(store: Store, path: str, record: LockRecord, version: Version, world: World) -> Broken:
    """Take the lock from its holder, apply or set aside what is pending, and release it.

    The outcome is `Lost` if the record had changed.
    """
    client = Client(store, path, _SETTINGS, world, on_metric=None, audit=None)
    if not client.take_from(record, version) or client.known is None:
        return Broken(Lost(path, version, ABSENT))
    set_aside = client.publisher.set_aside
    finished = tuple(pending.path for pending in record.all_pending if pending.path not in set_aside)
    return Broken(Won(client.known.version), finished, set_aside)


def _broken(record: LockRecord, nonce: str, now_ms: int) -> bytes:
    return replace(record, expired=True, nonce=nonce, freed_ms=now_ms if record.waiters else 0).encode()
