"""Conditional methods of the `cas` filesystem; `_name` is the coroutine of `name`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem

from fsspec_cas.answer import Content
from fsspec_cas.async_store import TIMEOUT_S, AsyncStore
from fsspec_cas.backends import Backend
from fsspec_cas.bridge.threads import on_thread
from fsspec_cas.errors import InvalidInput, ObjectNotFound, OutcomeUnknown, Unavailable
from fsspec_cas.exclusive import PART_BYTES
from fsspec_cas.outcome import Unknown, Version
from fsspec_cas.store import Store
from fsspec_cas.urls import with_colons

T = TypeVar("T")

_MIB = 1024 * 1024
_LOOKS = 5
# The target's keys of the version (s3fs, obstore); a head costs other kinds no request.
_VERSION_KEYS = {"s3": ("ETag", "e_tag"), "gcs": ("generation",), "azure": ("etag",)}


def plain(path: Any) -> Any:
    """Return a path as text, or several as a list, without our prefix (`cas::`, `cas://`).

    Dicts are copied, with changed keys; other types pass.
    """
    match path:
        case os.PathLike():
            return plain(os.fspath(path))
        case str():
            return path.removeprefix("cas::").removeprefix("cas://")
        case dict():
            return {plain(key): value for key, value in path.items()}
        case list() | tuple() | set():
            return [plain(item) for item in path]
    return path


class ConditionalCalls:
    """Conditional calls on the target `fs`, through its `store`; `attributes` are those of `Store.put_if_absent`.

    Writes drop the target's cached listings around the path. A listed version is as old as the listing, which a target
    may cache (s3fs: `refresh=True`).
    """

    fs: Any
    store: Store
    cas_backend: Backend
    _async_store: AsyncStore

    def put_if_absent(
        self, path: str, value: bytes, *, create_once: bool = False, timeout: float = TIMEOUT_S, **attributes: Any
    ) -> Version:
        """Create the object.

        Raises:
            AlreadyExists: the path has another writer's object; nothing was written.
            OutcomeUnknown: it may have been created.
        """
        full, how = self._full_path(path), {"create_once": create_once, "timeout": timeout, **attributes}
        with self._settling(full):
            return self.store.put_if_absent(full, value, **how).unwrap()

    def put_if_match(
        self, path: str, value: bytes, version: Version | str, *, timeout: float = TIMEOUT_S, **attributes: Any
    ) -> Version:
        """Replace the object if still at `version` (or its text).

        Raises:
            VersionMismatch: it is not; nothing was written.
            OutcomeUnknown: it may have been replaced.
        """
        full = self._full_path(path)
        with self._settling(full):
            return self.store.put_if_match(full, value, version, timeout=timeout, **attributes).unwrap()

    def delete_if_match(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> None:
        """Delete the object if still at `version`; raises as `put_if_match`."""
        full = self._full_path(path)
        with self._settling(full):
            self.store.delete_if_match(full, version, timeout=timeout).unwrap()

    def read_with_version(self, path: str, *, timeout: float = TIMEOUT_S) -> Content:
        """Read bytes and version from one response; raise ObjectNotFound if no object exists."""
        return self.store.read(self._full_path(path), timeout=timeout)

    def read_if_changed(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Content | None:
        """Read bytes and version, or return None while at `version`; raises as `read_with_version`."""
        return self.store.read_if_changed(self._full_path(path), version, timeout=timeout)

    def update(self, path: str, fn: Callable[[bytes | None], bytes], *, timeout: float = TIMEOUT_S) -> Version:
        """See `AsyncStore.update`."""
        full = self._full_path(path)
        try:
            return self.store.update(full, fn, timeout=timeout)
        finally:
            self._changed(full)

    def rm(self, path: Any, *args: Any, if_match: Version | str | None = None, **kwargs: Any) -> Any:
        """Remove files as the target does; with `if_match` one object, if still at this version.

        Raises:
            VersionMismatch: it is not; nothing was removed.
            InvalidInput: `if_match` for anything other than one object.
        """
        if if_match is None:
            return self.fs.rm(plain(path), *args, **kwargs)
        return self.delete_if_match(_one(path, args, kwargs), if_match)

    def rm_file(self, path: str, *, if_match: Version | str | None = None) -> Any:
        """See `rm`."""
        return self.fs.rm_file(plain(path)) if if_match is None else self.delete_if_match(path, if_match)

    def cp_file(self, path1: str, path2: str, *, if_absent: bool = False, **kwargs: Any) -> Any:
        """Copy a file as the target does; with `if_absent` only to an empty path, which the store decides.

        Such a copy returns None, holds the object in memory, and keeps only content type and metadata. Of a folder it
        creates only the folder.

        Raises:
            AlreadyExists: `path2` is not empty; nothing was written.
            OutcomeUnknown: it may have been created.
            Unavailable: other writers kept changing the source.
        """
        if not if_absent:
            return self.fs.cp_file(plain(path1), plain(path2), **kwargs)
        _refuse(kwargs)
        source, target = self._full_path(path1), self._full_path(path2)
        try:
            self.store.head(source)
        except ObjectNotFound:
            if not self.fs.isdir(source):
                raise
            return self.fs.makedirs(target, exist_ok=True)
        self._copy_object(source, target)
        return None

    def copy(self, path1: Any, path2: Any, *args: Any, if_absent: bool = False, **kwargs: Any) -> Any:
        """Copy files as the target does; `if_absent=True` is exclusive per file."""
        if not if_absent:
            return self.fs.copy(plain(path1), plain(path2), *args, **kwargs)
        return AbstractFileSystem.copy(self, plain(path1), plain(path2), *args, if_absent=True, **kwargs)

    def cp(self, path1: Any, path2: Any, *args: Any, **kwargs: Any) -> Any:
        return self.copy(path1, path2, *args, **kwargs)

    def expand_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("if_absent", None)
        return self.fs.expand_path(plain(path), *args, **kwargs)

    async def _expand_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("if_absent", None)
        return await self.fs._expand_path(plain(path), *args, **kwargs)

    async def _put_if_absent(self, path: str, value: bytes, **how: Any) -> Version:
        full = self._full_path(path)
        return (await self._then_changed(full, self._async_store.put_if_absent(full, value, **how))).unwrap()

    async def _put_if_match(self, path: str, value: bytes, version: Version | str, **how: Any) -> Version:
        full = self._full_path(path)
        write = self._async_store.put_if_match(full, value, version, **how)
        return (await self._then_changed(full, write)).unwrap()

    async def _delete_if_match(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> None:
        full = self._full_path(path)
        write = self._async_store.delete_if_match(full, version, timeout=timeout)
        (await self._then_changed(full, write)).unwrap()

    async def _read_with_version(self, path: str, *, timeout: float = TIMEOUT_S) -> Content:
        return await self._async_store.read(self._full_path(path), timeout=timeout)

    async def _read_if_changed(self, path: str, version: Version | str, **how: Any) -> Content | None:
        return await self._async_store.read_if_changed(self._full_path(path), version, **how)

    async def _update(self, path: str, fn: Callable[[bytes | None], bytes], *, timeout: float = TIMEOUT_S) -> Version:
        full = self._full_path(path)
        return await self._then_changed(full, self._async_store.update(full, fn, timeout=timeout))

    async def _resolve(self, unknown: Unknown, *, timeout: float = TIMEOUT_S) -> Version:
        return (await self._async_store.resolve(unknown, timeout=timeout)).unwrap()

    async def _rm(self, path: Any, *args: Any, if_match: Version | str | None = None, **kwargs: Any) -> Any:
        if if_match is None:
            return await self.fs._rm(plain(path), *args, **kwargs)
        return await self._delete_if_match(_one(path, args, kwargs), if_match)

    async def _rm_file(self, path: str, *, if_match: Version | str | None = None, **kwargs: Any) -> Any:
        if if_match is None:
            return await self.fs._rm_file(plain(path), **kwargs)
        return await self._delete_if_match(_one(path, (), kwargs), if_match)

    async def _cp_file(self, path1: str, path2: str, *, if_absent: bool = False, **kwargs: Any) -> Any:
        """Copy a file, or create a folder, with `cp_file`'s result and errors.

        With `if_absent` a thread copies the file, even after a cancellation.
        """
        if not if_absent:
            return await self.fs._cp_file(plain(path1), plain(path2), **kwargs)
        _refuse(kwargs)
        source, target = self._full_path(path1), self._full_path(path2)
        try:
            await self._async_store.head(source)
        except ObjectNotFound:
            if not await self.fs._isdir(source):
                raise
            return await self.fs._makedirs(target, exist_ok=True)
        return await on_thread(lambda: self._copy_object(source, target), runs_to_end=True)

    async def _copy(self, path1: Any, path2: Any, *args: Any, if_absent: bool = False, **kwargs: Any) -> Any:
        if not if_absent:
            return await self.fs._copy(plain(path1), plain(path2), *args, **kwargs)
        return await AsyncFileSystem._copy(self, plain(path1), plain(path2), *args, if_absent=True, **kwargs)

    def _copy_object(self, source: str, target: str) -> None:
        """Copy the object, whole in memory, with content type and metadata, to an empty path.

        Raises AlreadyExists, OutcomeUnknown, or Unavailable after five changes of `source`.
        """
        for _ in range(_LOOKS):
            info, content = self.store.head(source), self.store.read(source)
            if info.version == content.version:
                break
        else:
            raise Unavailable(f"{source!r} was changed by others at each of {_LOOKS} looks", path=source)
        keeps_attributes = self.store.backend.attribute_rules.keeps
        writer = self.store.open_exclusive(
            target,
            part_size=max(PART_BYTES, -(-len(content.data) // (1000 * _MIB)) * _MIB),  # at most 1000 parts
            content_type=info.content_type if keeps_attributes else None,
            metadata=(info.metadata or None) if keeps_attributes else None,
        )
        with self._settling(target), writer:
            writer.write(content.data)

    def _full_path(self, path: Any) -> Any:
        path_or_paths = self.fs._strip_protocol(plain(path))
        return with_colons(path_or_paths) if isinstance(path_or_paths, str) else path_or_paths

    @contextlib.contextmanager
    def _settling(self, full: str) -> Iterator[None]:
        """Drop cached listings around `full` after the block, even on error; an unknown outcome gets a resolver."""
        try:
            yield
        except OutcomeUnknown as error:
            unknown = error.outcome
            resolver = (lambda: self.store.resolve(unknown)) if unknown is not None else None
            raise OutcomeUnknown(str(error), path=error.path, outcome=unknown, resolver=resolver) from None
        finally:
            self._changed(full)

    async def _then_changed(self, full: str, write: Coroutine[Any, Any, T]) -> T:
        try:
            return await write
        finally:
            self._changed(full)

    def _changed(self, full: str) -> None:
        for path in (full, self.fs._parent(full)):
            self.fs.invalidate_cache(path)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Target's info, with "version" (text) for a file; drops cached listings first."""
        self._changed(self._full_path(path))
        return self._with_version(self.fs.info(plain(path), **kwargs))

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self._changed(self._full_path(path))
        return self._with_version(await self.fs._info(plain(path), **kwargs))

    def ls(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """List as the target does; with `detail`, each file has its listed "version" (text)."""
        return self._all_with_versions(self.fs.ls(plain(path), *args, **kwargs))

    async def _ls(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return self._all_with_versions(await self.fs._ls(plain(path), *args, **kwargs))

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Find files as the target does, with versions as `ls`."""
        return self._all_with_versions(self.fs.find(plain(path), *args, **kwargs))

    async def _find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return self._all_with_versions(await self.fs._find(plain(path), *args, **kwargs))

    def _all_with_versions(self, listing: Any) -> Any:
        if isinstance(listing, dict):
            return {name: self._with_version(info) for name, info in listing.items()}
        return [self._with_version(info) if isinstance(info, dict) else info for info in listing]

    def _with_version(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a file's info with "version" (text), if the store shows one; other infos unchanged.

        For local files and memory this reads a head.
        """
        if info.get("type") != "file":
            return info
        kind = self.cas_backend.name
        if kind in _VERSION_KEYS:
            if not (token := next(filter(None, map(info.get, _VERSION_KEYS[kind])), None)):
                return info
            bare = kind != "gcs" and not str(token).startswith(('"', "W/"))  # Azure lists ETags without quotes
            return {**info, "version": str(Version(kind, f'"{token}"' if bare else str(token)))}
        try:
            return {**info, "version": str(self.store.head(info["name"]).version)}
        except (ObjectNotFound, InvalidInput):
            return info


def _one(path: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if not isinstance(path, (str, os.PathLike)) or any(args) or any(kwargs.values()):
        raise InvalidInput(f"if_match is the version of one object: remove {path!r} one by one, without recursive")
    return str(plain(path))


def _refuse(kwargs: dict[str, Any]) -> None:
    named = sorted(name for name, value in kwargs.items() if value is not None)
    if named:
        raise InvalidInput(f"cp_file with if_absent=True takes no {', '.join(named)}: leave it out")
