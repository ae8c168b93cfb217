"""Fenced publish: the commit point is a conditional write on the lock record itself.

    stage    put_if_absent(staged, data)                         before the lock is needed; what is small goes along in
                                                                 `pending` itself
    prepare  is `path` free, are the staged bytes there?         what was decided must be possible to apply
    commit   put_if_match(lock record, {..., pending}, my tag)   the commit point (`lease`)
    apply    put_if_absent(path, data)                           "exists with the same digest" is success; what the same
                                                                 decision puts there `first` goes before it

Whoever acquires a lock whose record carries `pending` applies it first. A holder that was paused before the commit
point never commits; one that was paused after it has committed, in the order of the commit points.

Who has nothing to do under the lock but publish need not hold it (`combine`). Then several publishes may be
decided and not be there yet. Whoever applies one applies those that were decided before it first.

Applying is bounded: by the lease under which it is done, or by half of `HAND_OVER_S` from the write that decided;
nothing is written after that, and no write is waited for longer. Whoever is going to remove what was published waits
that long (`LockRecord.late_ms`). So what was removed does not come back from a roll-forward that was paused.

Not promised: that, of a write that was sent in time and is held up on its way until after the removal, or of a process
that is stopped in the very moment of sending; nor that a publish whose answer was lost can tell a removed object from
one that never was. And what takes longer to write than a lease lives is never applied: stage little next to what the
store takes in `validity_s`.

Source: the fencing requirement of Hudi RFC-91, "Considerations".
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence

from fsspec_cas import (
    AlreadyExists,
    Lost,
    ObjectNotFound,
    Store,
    Unavailable,
    Unknown,
    Won,
    check_bytes,
    check_path,
)
from lockprovider.errors import LockError, Unappliable
from lockprovider.storage_lock.commit_log import Pending, digest
from lockprovider.storage_lock.record import LARGEST_ENCLOSED, fields_of

_REQUEST_S = 60.0
_ENCLOSED = 6144  # bytes, deflated; everybody who waits for the lock reads them

Left = Callable[[], float]  # the seconds until the lease ends, by the own monotonic clock


def ample() -> float:
    """For a look that is bound to no lease."""
    return _REQUEST_S


def stage(store: Store, folder: str, write_id: str, path: str, data: bytes, *, sole: bool = False) -> Pending:
    """Put `data` where only the lock record will point to it."""
    path = check_path(path)
    data = check_bytes(path, data)
    staged = f"{folder}/staged/{write_id}" if folder else f"staged/{write_id}"
    store.put_if_absent(staged, data, create_once=True).unwrap()
    return Pending(path, staged, digest(data), sole=sole)


def enclose(path: str, data: bytes, *, sole: bool = False) -> Pending | None:
    """`data` in the record itself, which is then all that a roll-forward needs; None if there is too much of it."""
    path = check_path(path)
    data = check_bytes(path, data)
    fits = len(data) <= LARGEST_ENCLOSED and len(zlib.compress(data)) <= _ENCLOSED
    return Pending(path, "", digest(data), data, sole) if fits else None


def digest_at(store: Store, path: str, left_s: Left = ample) -> str | None:
    """The digest of the object at `path`, None if there is none."""
    try:
        return digest(store.read(path, timeout=_look_s(left_s)).data)
    except ObjectNotFound:
        return None


def prepare(store: Store, pending: Pending, data: bytes | None = None, left_s: Left = ample) -> bytes:
    """The bytes, once it is sure that they can be applied; asked under the lease, before the commit point.

    The staged copy is read, unless its maker has `data` at hand. A decided publish that cannot be applied would stop
    every later holder.

    Raises:
        AlreadyExists: another object is at the path.
        LockError: the staged copy is gone or was changed.
    """
    there = digest_at(store, pending.path, left_s)
    if there not in (None, pending.digest):
        raise AlreadyExists(
            f"{pending.path!r} already exists with other bytes (digest {there}); it was not published",
            path=pending.path,
        )
    try:
        path = pending.path if there else pending.staged
        data = store.read(path, timeout=_look_s(left_s)).data if data is None else data
    except ObjectNotFound:
        raise LockError(f"nothing is staged at {pending.staged!r} for {pending.path!r}; stage it again") from None
    must_match(pending, data)
    return data


def must_match(pending: Pending, data: bytes) -> bytes:
    """The bytes, if they are those of the publish; asked before it is decided.

    Raises:
        NotBytes, LockError: they are not.
    """
    given = check_bytes(pending.path, data)
    if digest(given) != pending.digest:
        where = f"staged at {pending.staged!r}" if pending.staged else "given"
        said = f"the bytes {where} for {pending.path!r} are not those of digest {pending.digest}"
        raise LockError(f"{said}; stage them anew")
    return given


def apply(store: Store, pending: Pending, data: bytes | None, left_s: Left) -> None:
    """Create the pending object from its staged copy (`data`, if at hand). Safe to repeat, by any holder.

    What is at the path of a `sole` publish counts as that publish, without a look at its bytes; but not for the one who
    publishes it, and has its `data`. What the same decision puts there first is put there first.

    Raises:
        Unappliable: another object is at the path, or neither it nor the staged copy is there.
        Unavailable: the lease ended first; nothing was written after that.
        OutcomeUnknown, StoreError: try again; the record still says what to do.
    """
    trusts = data is None and pending.sole
    if trusts and is_there(store, pending.path, left_s):
        return  # by the one who handed it over, most likely
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
            return  # whosever copy it is


def _bytes_of(store: Store, pending: Pending, left_s: Left) -> bytes | None:
    """What was enclosed or staged; None if that is gone."""
    data = pending.data
    if data is None:
        try:
            data = store.read(pending.staged, timeout=_timeout_s(pending.path, left_s)).data
        except ObjectNotFound:
            return None
    if digest(data) != pending.digest:
        where = f"staged at {pending.staged!r}" if pending.staged else "enclosed"
        raise Unappliable(f"the bytes {where} for {pending.path!r} are not those of digest {pending.digest}; {_CURE}")
    return data


def _look_s(left_s: Left) -> float:
    """A look harms nobody, also when it comes after the end; before it, it must not outlast the lease."""
    seconds = left_s()
    return min(_REQUEST_S, seconds) if seconds > 0 else _REQUEST_S


def _timeout_s(path: str, left_s: Left) -> float:
    seconds = left_s()
    if seconds <= 0:
        raise Unavailable(f"{path!r} was not written: the lease has ended", path=path)
    return min(_REQUEST_S, seconds)


def is_there(store: Store, path: str, left_s: Left = ample) -> bool:
    """Whether there is an object; of a `sole` publish that is to say whether it was applied."""
    try:
        store.head(path, timeout=_timeout_s(path, left_s))
    except ObjectNotFound:
        return False
    return True


def are_there(store: Store, paths: Sequence[str]) -> bool:
    """Whether there is an object at each of them, by one listing of each folder."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        folders.setdefault(f"{path.rpartition('/')[0]}/".removeprefix("/"), set()).add(path)
    return all(
        wanted <= {entry.path for entry in store.list(folder, start_after=min(wanted)[:-1], stop_at=f"{max(wanted)}~")}
        for folder, wanted in folders.items()
    )


def _must_be(pending: Pending, there: str | None) -> None:
    if there == pending.digest:
        return
    if there is None and pending.sole:
        return  # it was, and a later holder has removed it
    found = "nothing is there" if there is None else f"an object with digest {there} is there"
    raise Unappliable(
        f"the decided publish of {pending.path!r} (digest {pending.digest}) cannot be applied: {found}; "
        f"somebody wrote or removed it outside the lock; {_CURE}",
        occupied=there is not None,
    )


_CURE = "`lockprovider break URL` sets it aside"


def set_aside(store: Store, folder: str, pending: Pending, why: Unappliable) -> str:
    """Keep what is known of a publish that cannot be applied, as it stood in the record; where that is.

    The record names it until this is written, so it may be called again.
    """
    path = f"{folder}/set_aside/{digest(repr((pending.path, pending.digest)).encode())}.json".removeprefix("/")
    said = {**fields_of(pending, enclosed=True), "why": str(why)}
    store.put_if_absent(path, json.dumps(said).encode(), timeout=_REQUEST_S)
    return path


def discard(store: Store, pending: Pending) -> None:
    """Remove the staged copy, once the object is there."""
    if pending.staged:
        store.delete(pending.staged)
