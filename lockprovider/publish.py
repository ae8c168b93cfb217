"""Fenced publish: the commit point is a conditional write on the lock record itself.

    stage    put_if_absent(staged, data)                         before the lock is needed
    prepare  is `path` free, are the staged bytes there?         what was decided must be possible to apply
    commit   put_if_match(lock record, {..., pending}, my tag)   the commit point (lease.py)
    apply    put_if_absent(path, data)                           "exists with the same digest" is success

Whoever acquires a lock whose record carries `pending` applies it first. A holder that was paused before the commit
point never commits; one that was paused after it has committed, in the order of the commit points.

Not promised: a published object that is removed again may come back, once, from a roll-forward that was paused. Remove
one only when it is never looked for again, or under a later lease and long after.

Source: the fencing requirement of Hudi RFC-91, "Considerations".
"""

from __future__ import annotations

import hashlib

from fsspec_cas import AlreadyExists, Lost, ObjectNotFound, Store, Unknown, Won
from lockprovider.errors import LockError
from lockprovider.record import Pending


def digest(data: bytes) -> str:
    """The identity of a published object's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def stage(store: Store, folder: str, write_id: str, path: str, data: bytes) -> Pending:
    """Put `data` where only the lock record will point to it."""
    staged = f"{folder}/staged/{write_id}" if folder else f"staged/{write_id}"
    store.put_if_absent(staged, data, create_once=True).unwrap()
    return Pending(path, staged, digest(data))


def digest_at(store: Store, path: str) -> str | None:
    """The digest of the object at `path`, None if there is none."""
    try:
        return digest(store.read(path).data)
    except ObjectNotFound:
        return None


def prepare(store: Store, pending: Pending) -> bytes:
    """The staged bytes, once it is sure that they can be applied; asked under the lease, before the commit point.

    A decided publish that cannot be applied would stop every later holder.

    Raises:
        AlreadyExists: another object is at the path.
        LockError: the staged copy is gone or was changed.
    """
    there = digest_at(store, pending.path)
    if there not in (None, pending.digest):
        raise AlreadyExists(
            f"{pending.path!r} already exists with other bytes (digest {there}); it was not published",
            path=pending.path,
        )
    try:
        data = store.read(pending.path if there else pending.staged).data
    except ObjectNotFound:
        raise LockError(f"nothing is staged at {pending.staged!r} for {pending.path!r}; stage it again") from None
    if digest(data) != pending.digest:
        raise LockError(f"the bytes staged at {pending.staged!r} are not those of digest {pending.digest}")
    return data


def apply(store: Store, pending: Pending, data: bytes | None = None) -> None:
    """Create the pending object from its staged copy (`data`, if at hand). Safe to repeat, by anybody, at any time.

    Raises:
        LockError: another object is at the path, or neither it nor the staged copy is there.
        OutcomeUnknown, StoreError: try again; the record still says what to do.
    """
    if data is None:
        try:
            data = store.read(pending.staged).data
        except ObjectNotFound:
            _must_be(pending, digest_at(store, pending.path))
            return
    outcome = store.put_if_absent(pending.path, data, create_once=True)
    match outcome:
        case Won():
            return
        case Lost():
            _must_be(pending, digest_at(store, pending.path))
        case Unknown() if digest_at(store, pending.path) != pending.digest:
            outcome.unwrap()
        case Unknown():
            return  # whosever copy it is


def _must_be(pending: Pending, there: str | None) -> None:
    if there == pending.digest:
        return
    found = "nothing is there" if there is None else f"an object with digest {there} is there"
    raise LockError(
        f"the decided publish of {pending.path!r} (digest {pending.digest}) cannot be applied: {found}; "
        "somebody wrote or removed it outside the lock"
    )


def discard(store: Store, pending: Pending) -> None:
    """Remove the staged copy, once the object is there."""
    store.delete(pending.staged)
