"""Steps of a fenced publish: stage, prepare, apply, set aside, discard.

The commit point, a write of the lock record, is between prepare and apply: "Fenced publish" in
`lockprovider/SPECIFICATION.md`.

Not promised:
- that a removed object stays away, if its write was delayed or its process stopped while sending;
- that an unanswered publish can tell a removed object from one that never existed;
- that data is applied which takes longer to write than a lease lives.

Source: the fencing requirement of Hudi RFC-91, "Considerations".
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from fsspec_cas import (
    AlreadyExists,
    Lost,
    ObjectNotFound,
    Store,
    Unavailable,
    Unknown,
    Won,
    check_bytes,
)
from lockprovider.errors import LockError, Unappliable
from lockprovider.storage_lock.commit_log import Pending, digest
from lockprovider.storage_lock.record import LARGEST_ENCLOSED, fields_of

_REQUEST_S = 60.0
_ENCLOSED = 6144  # bytes, deflated; each waiting client reads them

Left = Callable[[], float]  # returns the seconds until the lease ends


def ample() -> float:
    """Return a request's timeout for reads that no lease bounds."""
    return _REQUEST_S


def stage(store: Store, folder: str, write_id: str, path: str, data: bytes, *, unshared: bool = False) -> Pending:
    """Return the publish of `data`, enclosed if that fits into the record, else written to a new object in `staged`.

    `InvalidInput` comes before the write. An error of the store, even an unknown outcome, passes.
    """
    data = check_bytes(path, data)
    enclosed = Pending(path, "", digest(data), data, unshared)
    if len(data) <= LARGEST_ENCLOSED and len(zlib.compress(data)) <= _ENCLOSED:
        return enclosed
    staged = f"{folder}/staged/{write_id}".removeprefix("/")
    store.put_if_absent(staged, data, create_once=True).unwrap()
    return replace(enclosed, staged=staged, data=None)


def digest_at(store: Store, path: str, left_s: Left = ample) -> str | None:
    """Read the digest of the object at `path`; None if absent."""
    content = store.read_or_none(path, timeout=_look_s(left_s))
    return None if content is None else digest(content.data)


def prepare(store: Store, pending: Pending, data: bytes | None = None, left_s: Left = ample) -> bytes:
    """Check before the commit point that the publish can be applied; returns its bytes.

    Otherwise it would stop all later holders. This reads the path, and the staged copy unless `data` is given.

    Raises:
        AlreadyExists: another object is at the path.
        LockError: the staged copy is gone or was changed.
    """
    stored_digest = digest_at(store, pending.path, left_s)
    if stored_digest not in (None, pending.digest):
        raise AlreadyExists(
            f"{pending.path!r} already exists with other bytes (digest {stored_digest}); nothing was published",
            path=pending.path,
        )
    try:
        path = pending.path if stored_digest else pending.staged
        data = store.read(path, timeout=_look_s(left_s)).data if data is None else data
    except ObjectNotFound:
        raise LockError(f"no object is staged at {pending.staged!r} for {pending.path!r}: stage it again") from None
    must_match(pending, data)
    return data


def must_match(pending: Pending, data: bytes) -> bytes:
    """Return the bytes if they have the publish's digest, else raise `LockError`."""
    checked = check_bytes(pending.path, data)
    if digest(checked) != pending.digest:
        where = f"staged at {pending.staged!r}" if pending.staged else "given"
        message = f"the bytes {where} for {pending.path!r} do not have the digest {pending.digest}"
        raise LockError(f"{message}: stage them again")
    return checked


def apply(store: Store, pending: Pending, data: bytes | None, left_s: Left) -> None:
    """Create the pending object, after its `first`, from `data`, enclosed bytes or the staged copy. May be repeated.

    Any object at an `unshared` path counts as applied, unless `data` is given, by the publisher.

    Raises:
        Unappliable: another object is at the path, the object and the staged copy are gone, or the bytes have another
            digest.
        Unavailable: the lease ended first; nothing was written after that.
        OutcomeUnknown, StoreError: try again; the record still names the publish.
    """
    trusts = data is None and pending.unshared
    if trusts and exists(store, pending.path, left_s):
        return  # most likely by the client that released it
    is_new = data is not None
    data = _bytes_of(store, pending, left_s) if data is None else data
    if data is None:
        _must_be(pending, digest_at(store, pending.path, left_s))
        return
    if pending.first is not None:
        apply(store, pending.first, pending.first.data if is_new else None, left_s)
    timeout_s = _timeout_s(pending.path, left_s)
    outcome = store.put_if_absent(pending.path, data, create_once=True, timeout=timeout_s)
    match outcome:
        case Won():
            return
        case Lost() if trusts:
            return
        case Lost():
            _must_be(pending, digest_at(store, pending.path, left_s))
        case Unknown() if digest_at(store, pending.path, left_s) != pending.digest:
            outcome.unwrap()
        case Unknown():
            return  # an identical copy counts


def _bytes_of(store: Store, pending: Pending, left_s: Left) -> bytes | None:
    """Return the enclosed or staged bytes, None if the copy is gone.

    Raises `Unappliable` for another digest, `Unavailable` after the lease.
    """
    data = pending.data
    if data is None:
        content = store.read_or_none(pending.staged, timeout=_timeout_s(pending.path, left_s))
        if content is None:
            return None
        data = content.data
    if digest(data) != pending.digest:
        where = f"staged at {pending.staged!r}" if pending.staged else "enclosed"
        raise Unappliable(f"the bytes {where} for {pending.path!r} do not have the digest {pending.digest}; {_CURE}")
    return data


def _look_s(left_s: Left) -> float:
    """Return a read's timeout, within the lease; after it a read does no harm."""
    seconds = left_s()
    return min(_REQUEST_S, seconds) if seconds > 0 else _REQUEST_S


def _timeout_s(path: str, left_s: Left) -> float:
    seconds = left_s()
    if seconds <= 0:
        raise Unavailable(f"{path!r} was not written: the lease has ended", path=path)
    return min(_REQUEST_S, seconds)


def exists(store: Store, path: str, left_s: Left = ample) -> bool:
    """Return whether an object is at `path`, which shows that an `unshared` publish is applied.

    Raises `Unavailable` after the lease.
    """
    try:
        store.head(path, timeout=_timeout_s(path, left_s))
    except ObjectNotFound:
        return False
    return True


def all_exist(store: Store, paths: Sequence[str]) -> bool:
    """Return whether all paths have objects, by one listing of each folder."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        folders.setdefault(f"{path.rpartition('/')[0]}/".removeprefix("/"), set()).add(path)
    return all(
        expected
        <= {entry.path for entry in store.list(folder, start_after=min(expected)[:-1], stop_at=f"{max(expected)}~")}
        for folder, expected in folders.items()
    )


def _must_be(pending: Pending, stored_digest: str | None) -> None:
    """Raise `Unappliable` unless the object has the publish's digest, or is absent and `unshared`.

    The latter was applied, and removed by a later holder.
    """
    if stored_digest == pending.digest:
        return
    if stored_digest is None and pending.unshared:
        return  # applied, and removed by a later holder
    reason = "its bytes are gone" if stored_digest is None else f"its path holds an object with digest {stored_digest}"
    raise Unappliable(
        f"the decided publish of {pending.path!r} (digest {pending.digest}) cannot be applied: {reason}; "
        f"a program changed it outside the lock; {_CURE}",
        occupied=stored_digest is not None,
    )


_CURE = "`lockprovider break` sets it aside"


def set_aside(store: Store, folder: str, pending: Pending, why: Unappliable) -> str:
    """Write an unappliable publish's details to an own object; returns its path. May be repeated."""
    path = f"{folder}/set_aside/{digest(repr((pending.path, pending.digest)).encode())}.json".removeprefix("/")
    details = {**fields_of(pending, enclosed=True), "why": str(why)}
    store.put_if_absent(path, json.dumps(details).encode(), timeout=_REQUEST_S)
    return path


def discard(store: Store, pending: Pending) -> None:
    """Remove a publish's staged copy, if any."""
    if pending.staged:
        store.delete(pending.staged)
