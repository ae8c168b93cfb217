"""`AsyncStore`, for async callers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fsspec_cas.answer import Capabilities, Content, Entry, Info, Missing, ObjectState, Unchanged
from fsspec_cas.arguments import (
    Bytes,
    check_bytes,
    check_flag,
    check_function,
    check_items,
    check_path,
    check_prefix,
    check_root,
    check_seconds,
    check_start,
    shown,
)
from fsspec_cas.backends import Backend, attributes_of, backend_for, off_thread, split_url
from fsspec_cas.backends.s3 import is_in_directory_bucket
from fsspec_cas.bridge.drive import Drive, OnLoop
from fsspec_cas.errors import InvalidInput, InvalidVersion, NotSupported, ObjectNotFound, Unavailable
from fsspec_cas.exclusive import PART_BYTES, AsyncExclusive
from fsspec_cas.machine import Machine, World
from fsspec_cas.outcome import ABSENT, Attributes, Condition, Lost, Outcome, Unknown, Version, Write
from fsspec_cas.sender import Sender, delay_s
from fsspec_cas.urls import url_of

TIMEOUT_S = 60.0
Entries = list[Entry]  # `list` is a method in the class
_BATCH = 1000  # S3's maximum


class AsyncStore:
    """Conditional writes below one root, for async callers, with the promises of `Store`.

    Use and close it on one event loop (`async with`).

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
        self._drive = drive or OnLoop()
        self._on_throttled = on_throttled
        self._sender = Sender(backend, self._world, self._drive, on_throttled)

    @classmethod
    def from_url(cls, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> AsyncStore:
        """See `Store.from_url`.

        >>> AsyncStore.from_url("playground", {"auto_mkdir": True})
        <AsyncStore 'file:///.../playground'>
        """
        fs, root = split_url(url, storage_options)
        return cls(off_thread(backend_for(fs)), root)

    @classmethod
    def from_filesystem(cls, fs: Any, root: str = "") -> AsyncStore:
        """See `Store.from_filesystem`.

        >>> import fsspec
        >>> AsyncStore.from_filesystem(fsspec.filesystem("memory"), "/docs/store")
        <AsyncStore 'memory:///docs/store'>
        """
        return cls(off_thread(backend_for(fs)), root)

    def __repr__(self) -> str:
        return f"<AsyncStore {url_of(self.backend.name, self.root)!r}>"

    def below(self, folder: str) -> AsyncStore:
        """See `Store.below`.

        >>> outcome = await store.below("folder").put_if_absent("b", b"2")
        >>> info = await store.head("folder/b")
        >>> info.version == outcome.unwrap()
        True
        """
        root, drive = self._full_prefix(folder), self._drive
        return AsyncStore(self.backend, root, world=self._world, drive=drive, on_throttled=self._on_throttled)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the running loop's connections; of `client="obstore"` all."""
        await self.backend.close()

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        return self.backend.capabilities

    @property
    def time_ms(self) -> int | None:
        """Store's clock now, in epoch ms (over HTTP whole seconds); None before the first `head` or read.

        >>> store.time_ms is None
        True
        """
        return self._sender.time_ms

    async def read(self, path: str, *, timeout: float = TIMEOUT_S) -> Content:
        """Read the object's bytes and version from one response; repeats failed requests until `timeout` (seconds).

        Raises:
            ObjectNotFound: no object is at `path`.
            StoreError: the store did not answer, or refused access.

        >>> content = await store.read("a")
        >>> content.data, content.version == version
        (b'1', True)
        """
        full = self._full_path(path)
        return _present(await self._sender.get(full, None, timeout), full)

    async def read_or_none(
        self, path: str, known: Content | None = None, *, timeout: float = TIMEOUT_S
    ) -> Content | None:
        """Read the object as `read` does; return None if none exists, and `known` while unchanged.

        >>> await store.read_or_none("nothing") is None
        True
        """
        if not isinstance(known, (Content, type(None))):
            raise InvalidInput(f"known={shown(known)} must be a Content: what an earlier read returned")
        full, version = self._full_path(path), None if known is None else self._checked_version(known.version)
        answer = await self._sender.get(full, version, timeout)
        if isinstance(answer, Unchanged):
            return known
        return _content(answer)

    async def read_if_changed(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Content | None:
        """Object, or None while it is at `version`. A store with conditional reads then sends no body.

        Raises:
            ObjectNotFound: no object is at `path`.
            InvalidVersion: `version` is of another kind of store.

        >>> await store.read_if_changed("a", version) is None
        True
        """
        full, version = self._full_path(path), self._checked_version(version)
        answer = await self._sender.get(full, version, timeout)
        if isinstance(answer, Unchanged):
            return None
        return _present(answer, full)

    async def head(self, path: str, *, timeout: float = TIMEOUT_S) -> Info:
        """Return an object's version, size, times, identity and attributes without its body.

        Raises:
            ObjectNotFound: no object is at `path`.
            StoreError: no answer, or access refused.

        >>> info = await store.head("a")
        >>> info.size, info.version == version
        (1, True)
        """
        full = self._full_path(path)
        answer = await self._sender.head(full, timeout)
        if not isinstance(answer, ObjectState):
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
        """Create the object; return `Won`, `Lost` if it exists, or `Unknown`. Repeats requests until `timeout` (s).

        `create_once=True` promises that no writer ever overwrites or deletes this path; a lost answer can always be
        settled.

        The object keeps `content_type` and `metadata` (lower-case names, ASCII texts) until the next write. `own`:
        other parameters by the store's API names, e.g. S3's `CacheControl`.

        Raises:
            NotBytes, InvalidInput: an argument is invalid, or not of this kind of store; nothing was sent.
            NotSupported: local files keep only bytes; memory also keeps content type and metadata.
            StoreError: no copy of the write was or will be applied.

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
        """Replace the object if still at `version` (or its text).

        Other arguments and errors: see `put_if_absent`. A version of another kind of store raises InvalidVersion.

        >>> outcome = await store.put_if_match("a", b"2", version)
        >>> outcome.unwrap() == version
        False
        """
        write = self._new_write(path, self._checked_version(version), content_type, metadata, own)
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
        """Writer that creates the whole object on close, only if the path is then empty; sends nothing yet.

        Up to one part is written by `put_if_absent`; more goes in parts, completed under the condition. Some stores
        accept several completions at once; `fsspec-cas probe` detects that. An exception in the `with` block, or no
        `close`, leaves no object. Memory: a few times `part_size` bytes. `timeout` (seconds) is for each part and the
        completion.

        Raises:
            InvalidInput: the store does not take parts of this size, or another argument.

        >>> async with store.open_exclusive("large") as out:
        ...     taken = await out.write(b"many ") + await out.write(b"rows")
        >>> info = await store.head("large")
        >>> info.size
        9
        """
        write = self._new_write(path, ABSENT, content_type, metadata, own, create_once=create_once)
        timeout = check_seconds(timeout)
        return AsyncExclusive(self.backend, write, self._sender, part_size=part_size, timeout=timeout)

    async def resolve(self, unknown: Unknown, *, timeout: float = TIMEOUT_S) -> Outcome:
        """Settle a write with an unknown outcome: read, re-send it while its condition holds; may return `Unknown`.

        A stream is only read. A delete whose object is gone stays unknown.

        Raises:
            InvalidInput: `unknown` is not an `Unknown`.

        >>> from fsspec_cas.testing import Faulty, LoseAnswer, LoseRequest
        >>> lossy = Faulty(store.backend, {"put": [LoseAnswer()], "head": [LoseRequest()] * 99})
        >>> unknown = await type(store)(lossy, store.root).put_if_absent("b", b"1", timeout=0.5)
        >>> outcome = await store.resolve(unknown)
        >>> isinstance(outcome, Won)
        True
        """
        if not isinstance(unknown, Unknown):
            raise InvalidInput(f"{unknown!r} is not an unknown outcome: give the `Unknown` that a write returned")
        return await self._sender.resume(unknown, timeout)

    async def delete_if_match(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Outcome:
        """Delete the object if still at `version`. `Won` carries the version removed.

        `Lost`: a first head shows the object gone or replaced. After a later refusal that is `Unknown`, as is success
        on a store that reports it for a missing object.

        Raises:
            NotSupported: this store (see `require_conditional_delete`) or file has no conditional delete; nothing was
                deleted.

        >>> outcome = await store.delete_if_match("a", version)
        >>> outcome.unwrap() == version
        True
        """
        full, version = self._full_path(path), self._checked_version(version)
        deadline = self._world.monotonic_s() + check_seconds(timeout)
        is_proof = await self._sender.check_delete(full, timeout)
        write = Write(full, version, self._world.new_id(), removes=True, success_is_proof=is_proof)
        return await self._sender.write(write, None, max(0.0, deadline - self._world.monotonic_s()))

    async def require_conditional_delete(self, *, timeout: float = TIMEOUT_S) -> None:
        """Test that the store keeps the condition of `delete_if_match`, unless its maker documents it.

        It runs once per bucket and process: some four requests, on an object below the root.

        Raises:
            NotSupported: the store ignores the condition.
            StoreError: the store did not answer.
            InvalidInput: the test is needed, and the store has no root, so no bucket.

        >>> await store.require_conditional_delete()
        """
        await self._sender.check_delete(f"{self.root.rstrip('/')}/cas-probe", check_seconds(timeout))

    async def delete(self, path: str, *, timeout: float = TIMEOUT_S) -> None:
        """Delete the object at any version; a missing object is no error.

        A delete re-sent after a lost answer may remove an object created since.

        >>> await store.delete("a")
        """
        full = self._full_path(path)
        await self._sender.repeat(full, partial(self.backend.delete, full, None), timeout)

    async def delete_all(self, paths: Iterable[str], *, timeout: float = TIMEOUT_S) -> None:
        """Delete these objects at any version, several per request if the store can; `timeout` is for each request.

        Raises:
            InvalidInput: `paths` is not a list of paths; nothing was removed.
            StoreError: some objects may be gone; the call may be repeated.

        >>> await store.delete_all(["a", "never there"])
        """
        by_bucket: dict[str, list[str]] = {}
        for full in [self._full_path(path) for path in check_items(paths, "paths", "paths of objects")]:
            by_bucket.setdefault(full.partition("/")[0], []).append(full)
        for in_bucket in by_bucket.values():
            await self._delete_in_bucket(in_bucket, timeout)

    async def _delete_in_bucket(self, rest: list[str], timeout: float) -> None:
        """Delete objects of one bucket by their full paths, 1,000 per request if the store can, else singly.

        `rest` loses deleted batches, not single objects.
        """
        delete_batch = getattr(self.backend, "delete_batch", None)
        if delete_batch is not None:
            with contextlib.suppress(NotSupported):
                while len(rest) > 1:
                    await self._sender.repeat(rest[0], partial(delete_batch, rest[:_BATCH]), timeout)
                    del rest[:_BATCH]
        for full in rest:
            await self._sender.repeat(full, partial(self.backend.delete, full, None), timeout)

    async def list(
        self, prefix: str, *, start_after: str | None = None, stop_at: str | None = None, timeout: float = TIMEOUT_S
    ) -> Entries:
        """Return a list of all objects whose path starts with `prefix`, ordered by path.

        Lists only paths after `start_after` and before `stop_at`, all relative to the root. Pages are no snapshot;
        `timeout` (seconds) is for each.

        >>> [entry.path for entry in await store.list("")]
        ['a']
        """
        prefix = check_prefix(prefix, absolute=not self.root)
        start = "" if start_after is None else check_start(start_after)
        full, after = self._join(prefix), self._join(start) if start else None
        stop_at = None if stop_at is None else check_start(stop_at)
        keeps_slash = full.startswith("/") or self.backend.name == "local"
        is_ordered = not is_in_directory_bucket(self.backend.name, full)
        if not is_ordered:  # such a bucket takes neither a start nor a prefix without a final slash
            full, after = f"{full.rpartition('/')[0] or full}/", None
        entries: list[Entry] = []
        token: str | None = None
        while True:
            page = await self._sender.repeat(full, partial(self.backend.list_page, full, after, token), timeout)
            for listed in page.entries:
                path = listed.path if keeps_slash else listed.path.lstrip("/")
                entries.append(replace(listed, path=path[len(self.root.rstrip("/")) + 1 :] if self.root else path))
            token = page.token
            last = entries[-1].path if entries and is_ordered else None
            if token is None or (stop_at is not None and last is not None and self._is_past(last, prefix, stop_at)):
                if not is_ordered:
                    entries = [e for e in entries if start < e.path and e.path.startswith(prefix)]
                return sorted((e for e in entries if stop_at is None or e.path < stop_at), key=lambda e: e.path)

    def _is_past(self, path: str, prefix: str, stop_at: str) -> bool:
        """Whether no page after one that ends with `path` has paths before `stop_at`.

        Hierarchical Azure accounts list `a/b` before `a-b`.
        """
        if self.backend.name != "azure" or not stop_at.startswith(prefix):
            return path >= stop_at
        step, slash, _ = stop_at[len(prefix) :].partition("/")
        return path[len(prefix) :].replace("/", "\0") >= (f"{step}0" if slash else step)

    async def update(self, path: str, fn: Callable[[bytes | None], bytes], *, timeout: float = TIMEOUT_S) -> Version:
        """Read the object, write `fn` of it under the version read, repeat after a lost race; return the new version.

        `fn` gets None if no object exists, and may run several times, until `timeout` (seconds).

        Raises:
            NotBytes: `fn` did not return bytes; nothing was written.
            OutcomeUnknown: the write's answer was lost and could not be settled.
            Unavailable: other writers won every race until the timeout, or it was 0.

        >>> newer = await store.update("a", lambda old: b"%d" % (int(old or 0) + 1))
        """
        deadline = self._world.monotonic_s() + check_seconds(timeout)
        check_function(fn, "fn", "of the old bytes (or None) that returns the new ones")
        failures = 0
        while (left_s := deadline - self._world.monotonic_s()) > 0:
            content = await self.read_or_none(path, timeout=left_s)
            data = fn(None if content is None else content.data)
            left_s = max(0.0, deadline - self._world.monotonic_s())
            if content is None:
                outcome = await self.put_if_absent(path, data, timeout=left_s)
            else:
                outcome = await self.put_if_match(path, data, content.version, timeout=left_s)
            if not isinstance(outcome, Lost):
                return outcome.unwrap()
            failures += 1
            await self._drive.sleep(min(delay_s(failures, self._world.random()), left_s))
        why = f"was changed by other writers during each of {failures} tries" if failures else "was not read in time"
        raise Unavailable(f"{path!r} {why}: give it a longer timeout than {timeout:g} s", path=path)

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
        full, once = self._join(check_path(path, absolute=not self.root)), check_flag(create_once, "create_once")
        return Write(full, condition, self._world.new_id(), once, attributes=attributes)

    def _full_path(self, path: str) -> str:
        return self._join(check_path(path, absolute=not self.root, marker=True))

    def _full_prefix(self, prefix: str) -> str:
        return self._join(check_prefix(prefix, absolute=not self.root))

    def _join(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if self.root else path

    def _checked_version(self, version_or_text: Version | str) -> Version:
        version = version_or_text if isinstance(version_or_text, Version) else Version.of(version_or_text)
        if version.backend != self.backend.name:
            raise InvalidVersion(f"version {version} is not one of {self.backend.name}")
        if version.token.strip('"') == "*" or (version.backend == "gcs" and version.token.strip("0") == ""):
            raise InvalidVersion(f"{version} is a wildcard of the store, not the version of an object")
        return version


def check_backend(backend: object, kind: str) -> None:
    """Raise InvalidInput unless this is a backend."""
    if not hasattr(backend, "capabilities"):
        raise InvalidInput(f"{kind}({backend!r}) needs a Backend: open it by {kind}.from_url(url)")


def _content(answer: ObjectState | Missing | Unchanged) -> Content | None:
    return Content(answer.data, answer.version) if isinstance(answer, ObjectState) and answer.data is not None else None


def _present(answer: ObjectState | Missing | Unchanged, full: str) -> Content:
    content = _content(answer)
    if content is None:
        raise ObjectNotFound(f"there is no object at {full!r}", path=full)
    return content
