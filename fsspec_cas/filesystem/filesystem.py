"""The fsspec filesystem `cas`: any supported filesystem, with conditional writes.

    fs = fsspec.filesystem("cas", target_protocol="s3", target_options={...})     # or fs=an_instance
    fs.pipe_file("bucket/leader.json", b"me", mode="create")                      # AlreadyExists if somebody was first
    version = fs.info("bucket/leader.json")["version"]
    fs.put_if_match("bucket/leader.json", b"me again", version)                   # VersionMismatch if it changed
    df.to_parquet("cas::s3://bucket/table.parquet")                               # all the rest is the target's own

Promised: `mode="create"` and "xb" are exclusive and their outcome is settled as in `Store`; a lost race raises
`Refused`, an outcome that cannot be told `OutcomeUnknown`. Every other operation is the target's, with its own
promises: a plain write overwrites, and a bulk operation with `mode="create"` is exclusive file by file, not as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from fsspec import AbstractFileSystem, filesystem
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.chained import ChainedFileSystem

from fsspec_cas.answer import Content
from fsspec_cas.async_store import TIMEOUT_S, AsyncStore
from fsspec_cas.backends import backend_for, off_thread
from fsspec_cas.capability import Capabilities
from fsspec_cas.errors import AlreadyExists, InvalidInput, NotSupported, ObjectNotFound, OutcomeUnknown
from fsspec_cas.exclusive import PART_BYTES
from fsspec_cas.filesystem.file import ExclusiveFile, ExclusiveText
from fsspec_cas.filesystem.forward import attach, plain
from fsspec_cas.outcome import Outcome, Unknown
from fsspec_cas.store import Store
from fsspec_cas.version import Version

T = TypeVar("T")

_CREATE = "create"
_MIB = 1024 * 1024
_TEXT_ARGUMENTS = ("encoding", "errors", "newline")
# What the target calls the version; of the other kinds a look is asked for, which costs no request.
_VERSION_KEYS = {"s3": "ETag", "gcs": "generation", "azure": "etag"}


class CasFileSystem(AsyncFileSystem, ChainedFileSystem):  # type: ignore[misc] # untyped bases
    """Conditional writes on a target filesystem; everything else passes through.

    Args:
        fs: the target, as its user set it up; or
        target_protocol: what to make it from, with
        target_options: its storage options.
        fo: not used; a chained URL brings its path here.
        asynchronous: as for any fsspec filesystem; only for targets that are asynchronous themselves.
        loop: as for any fsspec filesystem.
        **storage_options: of fsspec's base class.

    Raises:
        NotSupported: no conditional writes for this protocol.
        InvalidInput: neither a target nor its protocol was given, or they contradict `asynchronous`.
    """

    protocol = "cas"
    mirror_sync_methods = False  # the target has its own pairs
    _strip_tokenize_options = ("fo",)  # one instance serves all paths

    def __init__(
        self,
        fs: Any = None,
        fo: str | None = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        *,
        asynchronous: bool = False,
        loop: Any = None,
        **storage_options: Any,
    ) -> None:
        del fo
        mode = {"asynchronous": True, "loop": loop} if asynchronous else {}
        self.fs = fs if fs is not None else _target(target_protocol, {**(target_options or {}), **mode})
        super().__init__(asynchronous=asynchronous, loop=loop, **storage_options)
        self.async_impl = self.fs.async_impl
        if asynchronous != bool(getattr(self.fs, "asynchronous", False)):
            raise InvalidInput(f"asynchronous={asynchronous} does not fit the target, a {type(self.fs).__name__}")
        self.cas_backend = backend_for(self.fs)
        self.store = Store(self.cas_backend)
        self._async_store = AsyncStore(off_thread(self.cas_backend))
        self.sep, self.root_marker = self.fs.sep, self.fs.root_marker
        self._strip_protocol = self._full
        self._parent = self.fs._parent  # noqa: SLF001

    def __getattr__(self, name: str) -> Any:
        """What only the target has."""
        if name == "fs" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.fs, name)

    @property
    def fsid(self) -> str:
        """As the target's."""
        return f"cas_{self.fs.fsid}"

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store is documented to do."""
        return self.cas_backend.capabilities

    @property
    def transaction(self) -> Any:
        """The target's: its files and exclusive ones are committed together."""
        return self.fs.transaction

    @property
    def _intrans(self) -> bool:
        return bool(self.fs._intrans)  # noqa: SLF001

    @_intrans.setter
    def _intrans(self, value: bool) -> None:
        """The target keeps it."""

    def unstrip_protocol(self, name: str) -> str:
        """A URL that leads here: `cas::` and the target's."""
        return f"cas::{self.fs.unstrip_protocol(plain(name))}"

    # Conditional calls; `_name` is the coroutine of `name`.

    def put_if_absent(
        self, path: str, value: bytes, *, create_once: bool = False, timeout: float = TIMEOUT_S
    ) -> Version:
        """Create the object.

        Raises:
            AlreadyExists: somebody else's is there; nothing was written.
            OutcomeUnknown: it may have been created.
        """
        full = self._full(path)
        return self._won(full, lambda: self.store.put_if_absent(full, value, create_once=create_once, timeout=timeout))

    def put_if_match(self, path: str, value: bytes, version: Version | str, *, timeout: float = TIMEOUT_S) -> Version:
        """Replace the object if it still is at `version`, given as such or as its text.

        Raises:
            VersionMismatch: it is not; nothing was written.
            OutcomeUnknown: it may have been replaced.
        """
        full, condition = self._full(path), Version.of(version)
        return self._won(full, lambda: self.store.put_if_match(full, value, condition, timeout=timeout))

    def delete_if_match(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> None:
        """Remove the object if it still is at `version`; raises as `put_if_match`."""
        full, condition = self._full(path), Version.of(version)
        self._won(full, lambda: self.store.delete_if_match(full, condition, timeout=timeout))

    def read_with_version(self, path: str, *, timeout: float = TIMEOUT_S) -> Content:
        """Bytes and version, out of one response."""
        return self.store.read(self._full(path), timeout=timeout)

    def read_if_changed(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Content | None:
        """The same, or None while it is at `version`."""
        return self.store.read_if_changed(self._full(path), Version.of(version), timeout=timeout)

    def update(self, path: str, fn: Callable[[bytes | None], bytes], *, timeout: float = TIMEOUT_S) -> Version:
        """Read, apply `fn`, write back; again if somebody was faster. See `AsyncStore.update`."""
        full = self._full(path)
        try:
            return self.store.update(full, fn, timeout=timeout)
        finally:
            self._changed(full)

    async def _put_if_absent(
        self, path: str, value: bytes, *, create_once: bool = False, timeout: float = TIMEOUT_S
    ) -> Version:
        full = self._full(path)
        write = self._async_store.put_if_absent(full, value, create_once=create_once, timeout=timeout)
        return (await self._then_changed(full, write)).unwrap()

    async def _put_if_match(
        self, path: str, value: bytes, version: Version | str, *, timeout: float = TIMEOUT_S
    ) -> Version:
        full = self._full(path)
        write = self._async_store.put_if_match(full, value, Version.of(version), timeout=timeout)
        return (await self._then_changed(full, write)).unwrap()

    async def _delete_if_match(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> None:
        full = self._full(path)
        write = self._async_store.delete_if_match(full, Version.of(version), timeout=timeout)
        (await self._then_changed(full, write)).unwrap()

    async def _read_with_version(self, path: str, *, timeout: float = TIMEOUT_S) -> Content:
        return await self._async_store.read(self._full(path), timeout=timeout)

    async def _read_if_changed(
        self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S
    ) -> Content | None:
        return await self._async_store.read_if_changed(self._full(path), Version.of(version), timeout=timeout)

    async def _update(self, path: str, fn: Callable[[bytes | None], bytes], *, timeout: float = TIMEOUT_S) -> Version:
        full = self._full(path)
        return await self._then_changed(full, self._async_store.update(full, fn, timeout=timeout))

    async def _resolve(self, unknown: Unknown, *, timeout: float = TIMEOUT_S) -> Version:
        """For `OutcomeUnknown.outcome`; sync callers have `OutcomeUnknown.resolve()`."""
        return (await self._async_store.resolve(unknown, timeout=timeout)).unwrap()

    # fsspec's own calls that can be exclusive.

    def open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        """As the target's; a mode with "x" gives an `ExclusiveFile`, whose object appears on a clean close.

        Raises:
            AlreadyExists: something is there now; a race that is lost later raises it on close.
            InvalidInput: "x" stands in the mode with anything else than "b" or "t".
            NotSupported: an exclusive file cannot be given this argument.
        """
        if "x" not in mode:
            return self.fs.open(plain(path), mode, *args, **kwargs)
        binary = _is_binary(mode)
        if kwargs.pop("compression", None) is not None:
            raise NotSupported("open an exclusive compressed file by fsspec.open(url, mode, compression=...)")
        text = {name: kwargs.pop(name) for name in _TEXT_ARGUMENTS if name in kwargs and not binary}
        file = self._open_exclusive(path, *args, **kwargs)
        return file if binary else ExclusiveText(file, **text)

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        if "x" in mode:
            _is_binary(mode)
            return self._open_exclusive(path, *args, **kwargs)
        return self.fs._open(plain(path), mode, *args, **kwargs)  # noqa: SLF001

    async def open_async(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """As the target's."""
        if "x" in mode:
            raise NotSupported("open_async has no exclusive mode; use AsyncStore.open_exclusive")
        return await self.fs.open_async(plain(path), mode, **kwargs)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> Any:
        """As the target's; `mode="create"` is `put_if_absent`.

        Raises:
            NotSupported: an exclusive write cannot be given the target's own arguments.
        """
        if mode == _CREATE:
            _refuse_arguments(path, kwargs)
            return self.put_if_absent(path, value)
        return self.fs.pipe_file(plain(path), value, mode=mode, **kwargs)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> Any:
        if mode == _CREATE:
            _refuse_arguments(path, kwargs)
            return await self._put_if_absent(path, value)
        return await self.fs._pipe_file(plain(path), value, mode=mode, **kwargs)  # noqa: SLF001

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> Any:
        """As the target's; `mode="create"` is exclusive, file by file."""
        if kwargs.get("mode") == _CREATE:
            return AbstractFileSystem.pipe(self, path, value, **kwargs)
        return self.fs.pipe(plain(path), value, **kwargs)

    async def _pipe(self, path: Any, value: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("mode") == _CREATE:
            return await super()._pipe(path, value, **kwargs)
        return await self.fs._pipe(plain(path), value, **kwargs)  # noqa: SLF001

    def put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> Any:
        """As the target's; `mode="create"` streams into an exclusive file."""
        if mode != _CREATE:
            return self.fs.put_file(lpath, plain(rpath), callback=callback, mode=mode, **kwargs)
        _refuse_arguments(rpath, kwargs)
        local = Path(lpath)
        if local.is_dir():
            return self.fs.makedirs(plain(rpath), exist_ok=True)
        callback.set_size(local.stat().st_size)
        with local.open("rb") as source, self._open_exclusive(rpath) as target:
            while chunk := source.read(_MIB):
                callback.relative_update(target.write(chunk))
        return None

    async def _put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> Any:
        if mode == _CREATE:  # reading the local file blocks
            return await asyncio.to_thread(self.put_file, lpath, rpath, callback, mode, **kwargs)
        return await self.fs._put_file(lpath, plain(rpath), callback=callback, mode=mode, **kwargs)  # noqa: SLF001

    def put(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> Any:
        """As the target's; `mode="create"` is exclusive, file by file."""
        if kwargs.get("mode") == _CREATE:
            return AbstractFileSystem.put(self, lpath, rpath, *args, **kwargs)
        return self.fs.put(lpath, plain(rpath), *args, **kwargs)

    async def _put(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mode") == _CREATE:
            return await super()._put(lpath, rpath, *args, **kwargs)
        return await self.fs._put(lpath, plain(rpath), *args, **kwargs)  # noqa: SLF001

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """The target's, with "version" (text) for a file; out of the same answer where the target shows it.

        The store is asked, whatever listings the target has kept.
        """
        self._changed(self._full(path))
        return self._with_version(self.fs.info(plain(path), **kwargs))

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self._changed(self._full(path))
        return self._with_version(await self.fs._info(plain(path), **kwargs))  # noqa: SLF001

    # How it is done.

    def _full(self, path: Any) -> Any:
        """The path as the target's plain paths are."""
        return self.fs._strip_protocol(plain(path))  # noqa: SLF001

    def _open_exclusive(
        self, path: str, block_size: int | None = None, *, autocommit: bool | None = None, **others: Any
    ) -> ExclusiveFile:
        _refuse_arguments(path, others)
        full = self._full(path)
        self._refuse_existing(full)
        part_size = max(PART_BYTES, -(-(block_size or 0) // _MIB) * _MIB)
        later = self._intrans if autocommit is None else not autocommit
        writer = self.store.open_exclusive(full, part_size=part_size)
        file = ExclusiveFile(writer, lambda settle: self._won(full, settle), autocommit=not later)
        if self._intrans and later:
            self.transaction.files.append(file)
        return file

    def _refuse_existing(self, full: str) -> None:
        try:
            found = self.store.head(full)
        except ObjectNotFound:
            return
        raise AlreadyExists(f"{full!r} already exists ({found.version})", path=full, current=found.version)

    def _with_version(self, info: dict[str, Any]) -> dict[str, Any]:
        if info.get("type") != "file":
            return info
        kind = self.cas_backend.name
        if kind in _VERSION_KEYS:
            token = info.get(_VERSION_KEYS[kind])
            return {**info, "version": str(Version(kind, str(token)))} if token else info
        try:
            return {**info, "version": str(self.store.head(info["name"]).version)}
        except ObjectNotFound:  # removed in between
            return info

    def _won(self, full: str, settle: Callable[[], Outcome]) -> Version:
        """The version won; what was lost or is unknown is raised."""
        try:
            return settle().unwrap()
        except OutcomeUnknown as error:
            raise self._resolvable(error) from None
        finally:
            self._changed(full)

    def _resolvable(self, error: OutcomeUnknown) -> OutcomeUnknown:
        unknown = error.outcome
        resolver = (lambda: self.store.resolve(unknown)) if unknown is not None else None
        return OutcomeUnknown(str(error), path=error.path, outcome=unknown, resolver=resolver)

    async def _then_changed(self, full: str, write: Coroutine[Any, Any, T]) -> T:
        try:
            return await write
        finally:
            self._changed(full)

    def _changed(self, full: str) -> None:
        """Listings and infos that the target has kept are old now, whoever made the change."""
        for path in (full, self._parent(full)):
            self.fs.invalidate_cache(path)


def _target(protocol: str | None, options: dict[str, Any]) -> Any:
    if protocol is None:
        raise InvalidInput("cas needs a target: fs=, target_protocol=, or a URL like cas::s3://bucket/key")
    return filesystem(protocol, **options)


def _is_binary(mode: str) -> bool:
    if sorted(mode) not in (["x"], ["b", "x"], ["t", "x"]):
        raise InvalidInput(f"mode {mode!r} is none: an exclusive file is written, as 'x', 'xt' or 'xb'")
    return "b" in mode


def _refuse_arguments(path: str, given: dict[str, Any]) -> None:
    """What the target's own write would take and ours cannot pass on is not left out without a word."""
    named = sorted(name for name, value in given.items() if value is not None)
    if named:
        raise NotSupported(
            f"an exclusive write of {path!r} takes no {', '.join(named)}: give what holds for all writes to the target "
            "itself (for S3 s3_additional_kwargs), or write without mode='create' and 'x'"
        )


attach(CasFileSystem)
