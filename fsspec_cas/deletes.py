"""Test of whether a store obeys the condition of a delete, once per bucket and process.

MinIO and Ceph delete any version with a 204. Versity Gateway, like S3 directory buckets, answers 204 for a missing
object. Only S3 stores are tested, except Amazon's and directory buckets; all others document the behaviour.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from fsspec_cas.answer import Applied, Missing, NoAnswer, WriteAnswer
from fsspec_cas.backends import Backend
from fsspec_cas.backends.s3 import is_amazon
from fsspec_cas.errors import NotSupported, OutcomeUnknown, Unavailable
from fsspec_cas.outcome import ABSENT, Version, Write
from fsspec_cas.sender import Sender

_DIRECTORY = "--x-s3"  # a directory bucket's suffix
_SILENCES = 3  # unanswered deletes before a head decides
_NEVER = '"00000000000000000000000000000000"'  # an ETag that no object has


@dataclass(frozen=True, slots=True)
class DeleteBehavior:
    """How a store treats the condition of a delete.

    Attributes:
        keeps_condition: a delete at another version is refused.
        success_is_proof: a delete without an object is refused too; else success does not show which delete removed it.
    """

    keeps_condition: bool = True
    success_is_proof: bool = True


_SEEN: dict[tuple[str, str], DeleteBehavior] = {}  # by endpoint and bucket


async def undocumented_endpoint(backend: Backend, path: str, timeout: float) -> tuple[str, str] | None:
    """Return endpoint and bucket of an S3 store that is not Amazon's, else None; sends the store nothing.

    May look for credentials. Raises Unavailable if no client is ready within `timeout`.
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


async def delete_behavior_of(
    backend: Backend, sibling: str, sender: Sender, new_id: str, timeout: float
) -> DeleteBehavior:
    """Return how the store treats the condition of a delete; test it once if undocumented, and cache the result.

    The test may create an object in `sibling`'s folder.
    """
    bucket = sibling.partition("/")[0]
    if backend.name == "s3" and bucket.endswith(_DIRECTORY):
        return DeleteBehavior(success_is_proof=False)
    key = await undocumented_endpoint(backend, sibling, timeout)
    if key is None:
        return DeleteBehavior()
    if key not in _SEEN:
        path = f"{sibling.rpartition('/')[0] or bucket}/cas-probe-{new_id}"
        _SEEN[key] = await try_deletes(backend, path, sender, new_id, timeout)
    return _SEEN[key]


async def try_deletes(backend: Backend, path: str, sender: Sender, new_id: str, timeout: float) -> DeleteBehavior:
    """Create an object at `path`, test conditional deletes on it, and return the behavior.

    Raises Unavailable without clear answers, or the store's refusal; the object may then remain.
    """

    async def remove(version: Version | None) -> bool:
        """Delete the object, with retries; return whether it was removed.

        After lost answers a head decides; if it still exists after three, raise Unavailable.
        """
        silences = 0

        async def ask(*, timeout_s: float) -> WriteAnswer | None:
            """Send the delete once; return None instead of the third lost answer, which ends the retries."""
            nonlocal silences
            answer = await backend.delete(path, version, timeout_s=timeout_s)
            silences += isinstance(answer, NoAnswer)
            return None if silences >= _SILENCES else answer

        answer = await sender.repeat(path, ask, timeout)
        removed = isinstance(answer, Applied) or (silences > 0 and await sender.head(path, timeout) == Missing())
        if answer is None and not removed:
            raise Unavailable(f"no answer to {_SILENCES} deletes of {path!r}", path=path)
        return removed

    try:
        version_made = (await sender.write(Write(path, ABSENT, new_id), new_id.encode(), timeout)).unwrap()
        keeps_condition = True
        with contextlib.suppress(NotSupported):  # the object is still in place then
            keeps_condition = not await remove(Version(version_made.backend, _NEVER))
            if keeps_condition and await remove(version_made):
                return DeleteBehavior(success_is_proof=not await remove(version_made))
    except (OutcomeUnknown, Unavailable) as error:
        raise Unavailable(f"the store did not show what it does with the condition of a delete: {error}") from error
    if keeps_condition:
        await remove(None)
    return DeleteBehavior(keeps_condition=False, success_is_proof=False)
