"""`AsyncStore`: conditional writes whose outcome is true, for async callers.

`fsspec_cas.store` says what is promised, and what is not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fsspec_cas.answer import (
    Capabilities,
    Content,
    Entry,
    Info,
    ListAnswer,
    Missing,
    Seen,
    Unchanged,
    WriteAnswer,
)
from fsspec_cas.backends import Backend, attributes_of, backend_for, off_thread, split_url
from fsspec_cas.bridge.drive import Drive, OnLoop
from fsspec_cas.clock import Machine, World
from fsspec_cas.deletes import Deletes, deletes_of
from fsspec_cas.errors import InvalidInput, InvalidVersion, NotSupported, ObjectNotFound, Unavailable
from fsspec_cas.exclusive import PART_BYTES, AsyncExclusive
from fsspec_cas.given import Bytes, check_bytes, seconds, several
from fsspec_cas.naming import check_path, check_prefix, check_root, check_start, url_of
from fsspec_cas.outcome import ABSENT, Attributes, Condition, Lost, Outcome, Unknown, Version, Write
from fsspec_cas.sender import Sender, delay_s

TIMEOUT_S = 60.0
Entries = list[Entry]  # named here: in the class `list` is a verb
_BATCH = 1000  # S3's most


class AsyncStore:
    """Conditional writes below one root, for async callers.

    Bound to the event loop it is first used on; close it there (`async with`). Paths are relative to the root.

    >>> store = AsyncStore.from_url("memory://docs/store")
    >>> outcome = await store.put_if_absent("a", b"1")
    >>> version = outcome.unwrap()
    """

    def __init__(
        self,
        backend: Backend,
        root: str = "",
        *,
        world: World | None = None,
        drive: Drive | None = None,
        on_throttled: Callable[[], None] | None = None,
    ) -> None:
        check_backend(backend, "AsyncStore")
        self.backend = backend
        self.root = check_root(root)
        self._world = world or Machine()
        self._drive = drive or OnLoop()  # of which only its pauses are used here
        self._on_throttled = on_throttled
        self._sender = Sender(backend, self._world, self._drive, on_throttled)

    @classmethod
    def from_url(cls, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> AsyncStore:
        """Open the store that `url` names, with the storage options that fsspec takes for it.

        Raises:
            InvalidUrl: the URL cannot be understood.
            InvalidInput: an option that this kind of store does not have.
            NotSupported: no backend for this protocol.

        >>> AsyncStore.from_url("playground", {"auto_mkdir": True})
        <AsyncStore 'file:///.../playground'>
        """
        fs, root = split_url(url, storage_options)
        return cls(off_thread(backend_for(fs)), root)

    @classmethod
    def from_filesystem(cls, fs: Any, root: str = "") -> AsyncStore:
        """Open a store on an fsspec filesystem as its user set it up; its credentials and endpoint are used.

        >>> import fsspec
        >>> AsyncStore.from_filesystem(fsspec.filesystem("memory"), "/docs/store")
        <AsyncStore 'memory:///docs/store'>
        """
        return cls(off_thread(backend_for(fs)), root)

    def __repr__(self) -> str:
        return f"<AsyncStore {url_of(self.backend.name, self.root)!r}>"

    def below(self, folder: str) -> AsyncStore:
        """The same store, rooted one folder deeper.

        >>> outcome = await store.below("folder").put_if_absent("b", b"2")
        >>> info = await store.head("folder/b")
        >>> info.version == outcome.unwrap()
        True
        """
        root, drive = self._below(folder), self._drive
        return AsyncStore(self.backend, root, world=self._world, drive=drive, on_throttled=self._on_throttled)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.backend.close()

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store is documented to do."""
        return self.backend.capabilities

    @property
    def time_ms(self) -> int | None:
        """The store's clock now, in epoch ms, as its last answer to a look or a read told it; None if none did.

        Over HTTP that answer was cut down to a whole second. What went by since is counted by this machine, whose own
        wall clock does not matter.

        >>> store.time_ms is None
        True
        """
        return self._sender.time_ms

    async def read(self, path: str, *, timeout: float = TIMEOUT_S) -> Content:
        """The object's bytes and version, from one request.

        Raises:
            ObjectNotFound: there is none.
            StoreError: the store did not answer, or refused access.

        >>> content = await store.read("a")
        >>> content.data, content.version == version
        (b'1', True)
        """
        full = self._full(path)
        answer = await self._sender.get(full, None, timeout)
        return _content(answer, full)

    async def read_or_none(
        self, path: str, known: Content | None = None, *, timeout: float = TIMEOUT_S
    ) -> Content | None:
        """The object as `read` gives it; None if there is none.

        `known` is what was read before: while it still is the object, it is given back, and no body is moved, where the
        store can.

        >>> await store.read_or_none("nothing") is None
        True
        """
        try:
            if known is None:
                return await self.read(path, timeout=timeout)
            return await self.read_if_changed(path, known.version, timeout=timeout) or known
        except ObjectNotFound:
            return None

    async def read_if_changed(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Content | None:
        """The object if it is not at `version` any more, else None; then no body was moved, where the store can.

        >>> await store.read_if_changed("a", version) is None
        True
        """
        full, version = self._full(path), self._own(version)
        answer = await self._sender.get(full, version, timeout)
        if isinstance(answer, Unchanged) or (isinstance(answer, Seen) and answer.version == version):
            return None  # the second: a server that ignores the condition sends the body all the same
        return _content(answer, full)

    async def head(self, path: str, *, timeout: float = TIMEOUT_S) -> Info:
        """Version, size and time of an object.

        Raises:
            ObjectNotFound: there is none.

        >>> info = await store.head("a")
        >>> info.size, info.version == version
        (1, True)
        """
        full = self._full(path)
        answer = await self._sender.head(full, timeout)
        if not isinstance(answer, Seen):
            raise ObjectNotFound(f"there is no object at {full!r}", path=full)
        return Info(
            full,
            answer.version,
            answer.size,
            answer.modified_ms,
            answer.write_id,
            answer.answered_ms,
            answer.content_type,
            answer.metadata,
        )

    async def put_if_absent(
        self,
        /,
        path: str,
        data: Bytes,
        *,
        create_once: bool = False,
        timeout: float = TIMEOUT_S,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        **own: Any,
    ) -> Outcome:
        """Create the object, or lose to whoever did.

        `create_once=True` promises that nobody ever overwrites or deletes this path; then a lost answer can always
        be settled.

        `content_type` and `metadata` (lower-case names, ASCII texts) are kept with the object, and `head` shows them;
        `own` is what the store's API takes besides, by its own names: `CacheControl`, `ACL`, `Tagging`, `StorageClass`
        of S3, `cacheControl` of GCS, `tags` of Azure. They are this write's alone: the next one replaces them all.

        Raises:
            NotBytes: `data` is not bytes; nothing was sent.
            InvalidInput: an argument that this kind of store does not take; nothing was sent.
            NotSupported: local files keep bytes alone, and memory no more than content type and metadata.
            StoreError: the store did not do it, and no copy of this write can still arrive.

        >>> outcome = await store.put_if_absent("a", b"mine")
        >>> outcome.current == version
        True
        """
        write = self._new_write(path, ABSENT, content_type, metadata, own, create_once=create_once)
        return await self._sender.write(write, check_bytes(path, data), timeout)

    async def put_if_match(
        self,
        /,
        path: str,
        data: Bytes,
        version: Version | str,
        *,
        timeout: float = TIMEOUT_S,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        **own: Any,
    ) -> Outcome:
        """Replace the object if it still is at `version`, given as such or as its text.

        Where versions are not unique (S3), an object that went A-B-A is "still at A"; write bytes that never repeat.
        The other arguments are those of `put_if_absent`; of what is replaced none is kept.

        >>> outcome = await store.put_if_match("a", b"2", version)
        >>> outcome.unwrap() == version
        False
        """
        write = self._new_write(path, self._own(version), content_type, metadata, own)
        return await self._sender.write(write, check_bytes(path, data), timeout)

    def open_exclusive(
        self,
        /,
        path: str,
        *,
        part_size: int = PART_BYTES,
        create_once: bool = False,
        timeout: float = TIMEOUT_S,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        **own: Any,
    ) -> AsyncExclusive:
        """A writer whose object appears when it is closed, as a whole, and only if nothing is there then.

        Memory is bounded by a few times `part_size` bytes, whatever is written. What fits into one part is a
        `put_if_absent`; more goes in parts, and the completion carries the condition. An exception in its block, or no
        `close`, leaves nothing. `timeout` is for each part and for the end, in seconds. The other arguments are
        those of `put_if_absent`.

        Not promised: more than the store's own conditional completion. SeaweedFS 4.48 lets several of many completions
        at the same moment succeed, fake-gcs-server ignores their conditions; `fsspec-cas probe` shows it.

        Raises:
            InvalidInput: the store does not take parts of this size, or one of the other arguments.

        >>> async with store.open_exclusive("large") as out:
        ...     taken = await out.write(b"many ") + await out.write(b"rows")
        >>> info = await store.head("large")
        >>> info.size
        9
        """
        write = self._new_write(path, ABSENT, content_type, metadata, own, create_once=create_once)
        timeout = seconds(timeout)
        return AsyncExclusive(self.backend, write, self._sender, part_size=part_size, timeout=timeout)

    async def resolve(self, unknown: Unknown, *, timeout: float = TIMEOUT_S) -> Outcome:
        """Take up a write whose outcome was unknown: look again, and re-send it under its own condition.

        What cannot be sent again (a stream) is only looked for. A delete whose object is gone stays unknown.

        Raises:
            InvalidInput: it is another outcome, or none.

        >>> from fsspec_cas.testing import Faulty, LoseAnswer, LoseRequest
        >>> lossy = Faulty(store.backend, {"put": [LoseAnswer()], "head": [LoseRequest()] * 99})
        >>> unknown = await type(store)(lossy, store.root).put_if_absent("b", b"1", timeout=0.5)
        >>> outcome = await store.resolve(unknown)
        >>> isinstance(outcome, Won)
        True
        """
        if not isinstance(unknown, Unknown):
            raise InvalidInput(f"{unknown!r} is no outcome that is unknown: give the `Unknown` that a write returned")
        return await self._sender.resume(unknown, timeout)

    async def delete_if_match(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Outcome:
        """Remove the object if it still is at `version`; `Won` carries the version removed.

        It looks first: what is gone or replaced by then is `Lost`. Refused after that look, with the object gone or
        replaced, it is `Unknown`: a delete leaves nothing behind by which one could tell mine from another's. It is
        `Unknown`, too, on a store that says "done" where no object is.

        An S3 store that is not Amazon's shows first, once for each bucket in a process, that it keeps the condition:
        four requests on an object of its own beside this one.

        Raises:
            NotSupported: this client or store has no conditional delete; nothing was deleted.

        >>> outcome = await store.delete_if_match("a", version)
        >>> outcome.unwrap() == version
        True
        """
        full, version = self._full(path), self._own(version)
        deadline = self._world.monotonic_s() + seconds(timeout)
        deletes = await self._deletes(full, timeout)
        write = Write(full, version, self._world.new_id(), removes=True, certain=deletes.tells)
        return await self._sender.write(write, None, max(0.0, deadline - self._world.monotonic_s()))

    async def require_conditional_delete(self, *, timeout: float = TIMEOUT_S) -> None:
        """Ask the store to show that it keeps the condition of `delete_if_match`, where that is not documented.

        Raises:
            NotSupported: it does not; `StoreError`: it did not answer.

        >>> await store.require_conditional_delete()
        """
        await self._deletes(self._joined("cas-probe"), seconds(timeout))

    async def _deletes(self, full: str, timeout: float) -> Deletes:
        if not self.capabilities.delete_match:
            raise NotSupported(f"no conditional delete by this client of {self.backend.name}; write a tombstone")
        deletes = await deletes_of(self.backend, full, self._sender, self._world.new_id(), timeout)
        if not deletes.kept:
            raise NotSupported(
                f"{full!r} cannot be deleted at a version: this store deletes whatever is there; "
                "write a tombstone by put_if_match"
            )
        return deletes

    async def delete(self, path: str, *, timeout: float = TIMEOUT_S) -> None:
        """Remove the object, whatever it is; one that is not there is fine.

        >>> await store.delete("a")
        """
        await self._delete(self._full(path), timeout)

    async def _delete(self, full: str, timeout: float) -> None:
        await self._sender.repeat(full, lambda left: self.backend.delete(full, None, timeout_s=left), timeout)

    async def delete_all(self, paths: Iterable[str], *, timeout: float = TIMEOUT_S) -> None:
        """Remove these objects, as `delete` does; many in one request, where the store can. `timeout` is for each.

        Raises:
            InvalidInput: it is one path, or none; nothing was removed.
            StoreError: some may be gone, and some not; may be repeated.

        >>> await store.delete_all(["a", "never there"])
        """
        rest = [self._full(path) for path in several(paths, "paths", "paths of objects")]
        if hasattr(type(self.backend), "delete_batch"):
            with contextlib.suppress(NotSupported):
                while len(rest) > 1:
                    await self._sender.repeat(rest[0], partial(self._delete_batch, rest[:_BATCH]), timeout)
                    del rest[:_BATCH]
        for full in rest:
            await self._delete(full, timeout)

    def _delete_batch(self, full: Sequence[str], left: float) -> Coroutine[Any, Any, WriteAnswer]:
        backend: Any = self.backend
        return backend.delete_batch(full, timeout_s=left)  # type: ignore[no-any-return] # not all have it

    async def list(
        self, prefix: str, *, start_after: str | None = None, stop_at: str | None = None, timeout: float = TIMEOUT_S
    ) -> Entries:
        """All objects whose path starts with `prefix`, ordered by path; paths relative to the root.

        Only those after `start_after` and before `stop_at`; no page beyond `stop_at` is asked for. A listing of several
        pages is not one moment of the store.

        >>> [entry.path for entry in await store.list("")]
        ['a']
        """
        full = self._below(prefix)
        after = None if start_after is None else self._joined(check_start(start_after))
        found: list[Entry] = []
        token: str | None = None
        while True:
            page = await self._sender.repeat(full, partial(self._page, full, after, token), timeout)
            found += [replace(one, path=self._relative(one.path)) for one in page.entries]
            token = page.token
            if token is None or (stop_at is not None and found and found[-1].path >= stop_at):
                kept = (entry for entry in found if stop_at is None or entry.path < stop_at)
                return sorted(kept, key=lambda entry: entry.path)  # a hierarchical Azure account has another order

    def _page(self, full: str, after: str | None, token: str | None, left: float) -> Coroutine[Any, Any, ListAnswer]:
        return self.backend.list_page(full, after, token, timeout_s=left)

    async def update(self, path: str, fn: Callable[[bytes | None], bytes], *, timeout: float = TIMEOUT_S) -> Version:
        """Read, apply `fn`, write back under the version read; again from the start if somebody was faster.

        `fn` gets None where there is no object. It may be called several times and must have no side effects.

        Raises:
            NotBytes: `fn` returned something else than bytes; nothing was written.
            OutcomeUnknown: the answer to the write was lost and could not be settled.
            Unavailable: still losing races at the timeout.

        >>> newer = await store.update("a", lambda old: b"%d" % (int(old or 0) + 1))
        """
        deadline = self._world.monotonic_s() + seconds(timeout)
        if not callable(fn):
            raise InvalidInput(f"fn={fn!r} must be a function of the old bytes (or None) that returns the new ones")
        failures = 0
        while (left := deadline - self._world.monotonic_s()) > 0:
            outcome = await self._update_once(path, fn, left)
            if not isinstance(outcome, Lost):
                return outcome.unwrap()
            failures += 1
            await self._drive.sleep(min(delay_s(failures, self._world.random()), max(left, 0)))
        raise Unavailable(f"{path!r} was changed by others at each of {failures} tries", path=path)

    async def _update_once(self, path: str, fn: Callable[[bytes | None], bytes], timeout: float) -> Outcome:
        content = await self.read_or_none(path, timeout=timeout)
        if content is None:
            return await self.put_if_absent(path, fn(None), timeout=timeout)
        return await self.put_if_match(path, fn(content.data), content.version, timeout=timeout)

    def _new_write(
        self,
        path: str,
        condition: Condition,
        content_type: str | None,
        metadata: Mapping[str, str] | None,
        own: dict[str, Any],
        *,
        create_once: bool = False,
    ) -> Write:
        attributes = Attributes()
        if content_type is not None or metadata is not None or own:
            rules = self.backend.attribute_rules
            attributes = attributes_of(self.backend.name, rules, content_type, metadata, own)
        full = self._joined(check_path(path, absolute=not self.root))
        return Write(full, condition, self._world.new_id(), create_once, attributes=attributes)

    def _full(self, path: str) -> str:
        """The whole path of an object that is looked at or removed."""
        return self._joined(check_path(path, absolute=not self.root, marker=True))

    def _below(self, prefix: str) -> str:
        return self._joined(check_prefix(prefix, absolute=not self.root))

    def _joined(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if self.root else path

    def _relative(self, full: str) -> str:
        plain = full if self.root.startswith("/") else full.lstrip("/")
        return plain[len(self.root.rstrip("/")) + 1 :] if self.root else plain

    def _own(self, given: Version | str) -> Version:
        """The version, which may be given as its text."""
        version = Version.of(given)
        if version.backend != self.backend.name:
            raise InvalidVersion(f"version {version} is not one of {self.backend.name}")
        if version.token.strip('"') == "*" or (version.backend == "gcs" and version.token.strip("0") == ""):
            raise InvalidVersion(f"{version} is a wildcard of the store's and no version of an object")
        return version


def check_backend(backend: object, kind: str) -> None:
    """Refuse what a store cannot be made of.

    Raises:
        InvalidInput: naming it.
    """
    if not hasattr(backend, "capabilities"):
        raise InvalidInput(f"{kind}({backend!r}) is made of no backend: open it by {kind}.from_url(url)")


def _content(answer: Seen | Missing | Unchanged, full: str) -> Content:
    if not isinstance(answer, Seen) or answer.data is None:
        raise ObjectNotFound(f"there is no object at {full!r}", path=full)
    return Content(answer.data, answer.version)
