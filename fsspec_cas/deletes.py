"""Whether a store keeps the condition of a delete: some S3 stores drop it without a word.

MinIO and Ceph remove the object whatever its version is, and say 204. Versity Gateway keeps the condition, and says 204
also where no object is, as S3 directory buckets are documented to do: then nobody can tell which of two deletes did it.
Amazon S3, GCS, Azure, local files and memory are documented. Any other S3 store is asked, once for each bucket in a
process, on an object of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fsspec_cas.answer import Applied, Missing, NoAnswer, WriteAnswer
from fsspec_cas.backends import Backend
from fsspec_cas.backends.s3 import is_amazon
from fsspec_cas.errors import NotSupported, OutcomeUnknown, StoreError, Unavailable
from fsspec_cas.outcome import ABSENT, Version, Write
from fsspec_cas.sender import Sender

_DIRECTORY = "--x-s3"  # how the name of a directory bucket ends
_SILENCES = 3  # after which a look has to tell
_NEVER = '"00000000000000000000000000000000"'  # in the form of an ETag, and of no object


@dataclass(frozen=True, slots=True)
class Deletes:
    """What a store does with the condition of a delete.

    Attributes:
        kept: a delete at another version is refused.
        tells: so is a delete where no object is, and "done" is the store's own word. Else nobody knows who did it.
    """

    kept: bool = True
    tells: bool = True


_SEEN: dict[tuple[str, str], Deletes] = {}  # by this process: a bucket of an endpoint is the same for all of it


async def undocumented(backend: Backend, path: str, timeout: float) -> tuple[str, str] | None:
    """Endpoint and bucket of an S3 store that is not Amazon's; None for a store whose maker says what it does.

    Raises:
        Unavailable: no client of the store could be made in time.
    """
    endpoint_of = getattr(backend, "endpoint", None)
    if backend.name != "s3" or endpoint_of is None:
        return None
    bucket = path.partition("/")[0]
    if backend.blocking:
        endpoint = await endpoint_of()
    else:
        try:
            endpoint = await asyncio.wait_for(endpoint_of(), timeout)
        except asyncio.TimeoutError:
            raise Unavailable(f"no client of the store of {path!r} could be made within {timeout:g} s") from None
    return None if is_amazon(endpoint) else (endpoint, bucket)


async def deletes_of(backend: Backend, beside: str, sender: Sender, new_id: str, timeout: float) -> Deletes:
    """What the store does with the condition of a delete; `beside` is a path in the folder in which it may be tried.

    Raises:
        StoreError: the store did not answer, or refused access.
    """
    bucket = beside.partition("/")[0]
    if backend.name == "s3" and bucket.endswith(_DIRECTORY):
        return Deletes(tells=False)
    place = await undocumented(backend, beside, timeout)
    if place is None:
        return Deletes()
    if place not in _SEEN:
        path = f"{beside.rpartition('/')[0] or bucket}/cas-probe-{new_id}"
        _SEEN[place] = await try_deletes(backend, path, sender, new_id, timeout)
    return _SEEN[place]


async def try_deletes(backend: Backend, path: str, sender: Sender, new_id: str, timeout: float) -> Deletes:
    """Try it on an object at `path`, which is removed again: four requests, two where the condition is not kept.

    Raises:
        StoreError: as `deletes_of`.
    """
    try:
        made = (await sender.write(Write(path, ABSENT, new_id), new_id.encode(), timeout)).unwrap()
    except OutcomeUnknown as error:
        raise Unavailable(f"the store did not show what it does with the condition of a delete: {error}") from error

    async def remove(version: Version | None) -> bool:
        """Whether it is gone by this: some stores send nothing with a 204 that shows that it is theirs."""
        silences = 0

        async def ask(left: float) -> WriteAnswer | None:
            nonlocal silences
            answer = await backend.delete(path, version, timeout_s=left)
            silences += isinstance(answer, NoAnswer)
            return None if silences >= _SILENCES else answer

        answer = await sender.repeat(path, ask, timeout)
        gone = isinstance(answer, Applied) or (silences > 0 and await sender.head(path, timeout) == Missing())
        if answer is None and not gone:
            raise Unavailable(f"no answer to {_SILENCES} deletes of {path!r}", path=path)
        return gone

    try:
        kept = not await remove(Version(made.backend, _NEVER))
        if kept and await remove(made):
            return Deletes(tells=not await remove(made))
    except NotSupported:
        kept = True  # and so is the object
    except StoreError as error:
        raise Unavailable(f"the store did not show what it does with the condition of a delete: {error}") from error
    if kept:
        await remove(None)
    return Deletes(kept=False, tells=False)
