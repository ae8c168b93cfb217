"""`CasFileSystem`, and its exclusive files."""

from __future__ import annotations

import inspect
import io
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem, filesystem, get_filesystem_class
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.chained import ChainedFileSystem

from fsspec_cas.answer import Capabilities
from fsspec_cas.async_store import AsyncStore
from fsspec_cas.backends import backend_for, check_options, merged_options, off_thread
from fsspec_cas.bridge.threads import on_thread
from fsspec_cas.errors import InvalidInput, NotSupported, ObjectNotFound, OutcomeUnknown
from fsspec_cas.exclusive import PART_BYTES, Exclusive
from fsspec_cas.filesystem.conditional import ConditionalCalls, plain
from fsspec_cas.outcome import ABSENT, Lost, Version
from fsspec_cas.store import Store

_log = logging.getLogger(__name__)


class ExclusiveFile(io.BufferedIOBase):
    """File for writing that creates its object on a clean close, only if the path is then empty.

    An exception that leaves the `with` block, a missing close, or a close while an exception propagates leaves no
    object.
    """

    mode = "xb"

    def __init__(
        self,
        writer: Exclusive,
        settling: Callable[[], AbstractContextManager[None]],
        *,
        autocommit: bool = True,
        transaction: Any = None,
    ) -> None:
        self.version: Version | None = None
        self.path = self.name = writer.path
        self.autocommit = autocommit
        self._writer = writer
        self._settling = settling
        self._around = sys.exc_info()[1]  # an exception handled at opening is no reason to discard
        self._transaction = transaction
        if transaction is not None:
            transaction.files.append(self)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        """Do nothing: a close here would publish an incomplete object."""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._writer.written

    def write(self, data: Any) -> int:
        """Append the bytes, sending each full part. Raises ValueError if closed, else as `AsyncExclusive.write`."""
        if self.closed:
            raise ValueError("write to a closed file")
        try:
            return self._writer.write(data)
        except OutcomeUnknown:
            with self._settling():
                raise

    def close(self) -> None:
        """Create the object, once, or raise AlreadyExists, OutcomeUnknown or StoreError.

        Without `autocommit` leave that to `commit`. While an exception propagates, log a warning and abort instead.
        """
        if self.closed:
            return
        super().close()
        error = sys.exc_info()[1]
        if error is not None and error is not self._around:
            _log.warning("%r was closed by %s and is not written", self.path, type(error).__name__)
            self.discard()
        elif self.autocommit:
            self.commit()

    def commit(self) -> None:
        """Create the object and set `version`; transactions call this.

        Raises AlreadyExists, OutcomeUnknown, or StoreError.
        """
        with self._settling():
            self.version = self._writer.close().unwrap()

    def discard(self) -> None:
        """Close the file, drop data and sent parts, leave the transaction; an object already created stays."""
        super().close()
        if self._transaction is not None and self in self._transaction.files:
            self._transaction.files.remove(self)
        self._writer.abort()


class ExclusiveText(io.TextIOWrapper):
    """Exclusive file for text."""

    def __init__(self, file: ExclusiveFile, **options: Any) -> None:
        super().__init__(file, **options)
        self.file = file

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.file.discard()
        else:
            self.close()

    def __del__(self) -> None:
        """Do nothing, as `ExclusiveFile`."""


_CREATE = "create"
_MIB = 1024 * 1024
_TEXT_ARGUMENTS = ("encoding", "errors", "newline")
_PATHS = {"path", "path1", "path2", "paths", "rpath", "root", "fn"}
# Methods about the instance, or built from overridable ones.
_KEPT = {"clear_instance_cache", "current", "from_dict", "from_json", "get_mapper", "stat", "to_dict", "to_json"}
_KEPT |= {"upload", "write_bytes"}


class CasFileSystem(ConditionalCalls, AsyncFileSystem, ChainedFileSystem):  # type: ignore[misc] # untyped bases
    """Conditional writes on a target filesystem; every other operation goes to the target, with its promises.

    `mode="create"` and "xb" are exclusive, and settled as in `Store`: a lost race raises `Refused`, an unknown outcome
    `OutcomeUnknown`.

    The target is `fs`, or is created from `target_protocol` and `target_options`, which may be given by name. With
    `asynchronous`, local files and memory run in threads. `fo` is not used.

    Raises:
        NotSupported: no conditional writes for this protocol.
        InvalidInput: no target, a wrong option, or `fs` with other arguments.
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
        options = merged_options(target_options or {}, storage_options, ("target_options", "the arguments of cas"))
        target = _target(fs, target_protocol, options, loop, asynchronous=asynchronous)
        super().__init__(asynchronous=asynchronous, loop=loop)
        self.fs = (
            AsyncFileSystemWrapper(target, asynchronous=True) if asynchronous and not target.async_impl else target
        )
        self.async_impl = self.fs.async_impl
        if asynchronous != bool(getattr(self.fs, "asynchronous", False)):
            raise InvalidInput(f"asynchronous={asynchronous} does not fit the target, a {type(self.fs).__name__}")
        self.cas_backend = backend_for(target)
        self.store = Store(self.cas_backend)
        self._async_store = AsyncStore(off_thread(self.cas_backend))
        self.sep, self.root_marker = self.fs.sep, self.fs.root_marker
        self._strip_protocol = self._full_path
        self._parent = self.fs._parent

    def __getattr__(self, name: str) -> Any:
        if name == "fs" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.fs, name)

    @property
    def fsid(self) -> str:
        return f"cas_{self.fs.fsid}"

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        return self.cas_backend.capabilities

    @property
    def transaction(self) -> Any:
        """Target's transaction, which also commits exclusive files."""
        return self.fs.transaction

    @property
    def _intrans(self) -> bool:
        return bool(self.fs._intrans)

    @_intrans.setter
    def _intrans(self, value: bool) -> None:
        """Ignore the value: the target keeps it."""

    def unstrip_protocol(self, name: str) -> str:
        """Path's URL: `cas::` and the target's URL."""
        return f"cas::{self.fs.unstrip_protocol(plain(name))}"

    def open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        """Open a file as the target does; "xb" opens an `ExclusiveFile`, "x" or "xt" an `ExclusiveText`.

        Both take attributes as `put_if_absent`.

        Raises:
            AlreadyExists: the path is not empty now; a race lost later raises it on close.
            InvalidInput: a wrong mode or argument.
            NotSupported: an exclusive file or this store does not take the argument.
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
        return self.fs._open(plain(path), mode, *args, **kwargs)

    async def open_async(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Open a file as the target does; a mode with "x" raises NotSupported."""
        if "x" in mode:
            raise NotSupported("open_async has no exclusive mode; use AsyncStore.open_exclusive")
        return await self.fs.open_async(plain(path), mode, **kwargs)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> Any:
        """Write a file as the target does; `mode="create"` is `put_if_absent`, with its arguments and errors."""
        if mode == _CREATE:
            return self.put_if_absent(path, value, **kwargs)
        return self.fs.pipe_file(plain(path), value, mode=mode, **kwargs)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> Any:
        if mode == _CREATE:
            return await self._put_if_absent(path, value, **kwargs)
        return await self.fs._pipe_file(plain(path), value, mode=mode, **kwargs)

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> Any:
        """Write files as `pipe_file`; `mode="create"` is exclusive per file."""
        if kwargs.get("mode") == _CREATE:
            return AbstractFileSystem.pipe(self, path, value, **kwargs)
        return self.fs.pipe(plain(path), value, **kwargs)

    async def _pipe(self, path: Any, value: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("mode") == _CREATE:
            return await super()._pipe(path, value, **kwargs)
        return await self.fs._pipe(plain(path), value, **kwargs)

    def put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> Any:
        """Upload a file or folder as the target does; `mode="create"` creates a file, or raises AlreadyExists.

        "create" returns None, and makes of a folder only the folder.
        """
        if mode != _CREATE:
            return self.fs.put_file(lpath, plain(rpath), callback=callback, mode=mode, **kwargs)
        local = Path(lpath)
        if local.is_dir():
            return self.fs.makedirs(plain(rpath), exist_ok=True)
        callback.set_size(local.stat().st_size)
        with local.open("rb") as source, self._open_exclusive(rpath, **kwargs) as target:
            while chunk := source.read(_MIB):
                callback.relative_update(target.write(chunk))
        return None

    async def _put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> Any:
        if mode == _CREATE:  # reading a file blocks
            return await on_thread(lambda: self.put_file(lpath, rpath, callback, mode, **kwargs), runs_to_end=True)
        return await self.fs._put_file(lpath, plain(rpath), callback=callback, mode=mode, **kwargs)

    def put(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> Any:
        """Upload files as the target does; `mode="create"` is exclusive per file."""
        if kwargs.get("mode") == _CREATE:
            return AbstractFileSystem.put(self, lpath, rpath, *args, **kwargs)
        return self.fs.put(lpath, plain(rpath), *args, **kwargs)

    async def _put(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mode") == _CREATE:
            return await super()._put(lpath, rpath, *args, **kwargs)
        return await self.fs._put(lpath, plain(rpath), *args, **kwargs)

    def _open_exclusive(
        self, path: str, block_size: int | None = None, *, autocommit: bool | None = None, **attributes: Any
    ) -> ExclusiveFile:
        """Return an exclusive file with parts of at least `block_size`; AlreadyExists if a head shows an object.

        It commits on close if `autocommit` (default: outside transactions), else the running transaction or `commit`
        does.
        """
        full = self._full_path(path)
        size = max(PART_BYTES, -(-(block_size or 0) // _MIB) * _MIB)
        later = self._intrans if autocommit is None else not autocommit
        writer = self.store.open_exclusive(full, part_size=size, **attributes)
        with suppress(ObjectNotFound):
            Lost(full, ABSENT, self.store.head(full).version).unwrap()
        transaction = self.transaction if self._intrans and later else None
        return ExclusiveFile(writer, partial(self._settling, full), autocommit=not later, transaction=transaction)


def _target(fs: Any, protocol: str | None, options: dict[str, Any], loop: Any, *, asynchronous: bool) -> Any:
    """Return `fs`, or create the target of this protocol, which may look for credentials.

    Neither, `fs` with a protocol or options, or an unknown option raises InvalidInput.
    """
    if fs is not None:
        if superfluous := sorted(options) + (["target_protocol"] if protocol is not None else []):
            raise InvalidInput(
                f"{', '.join(superfluous)} given with fs=, which is set up already: give it to fs, or leave fs out"
            )
        return fs
    if protocol is None:
        raise InvalidInput("cas needs a target: fs=, target_protocol=, or a URL like cas::s3://bucket/key")
    kind = get_filesystem_class(protocol)
    check_options(kind, options)
    mode = {"asynchronous": True, "loop": loop} if asynchronous and kind.async_impl else {}
    return filesystem(protocol, **options, **mode)


def _is_binary(mode: str) -> bool:
    if sorted(mode) not in (["x"], ["b", "x"], ["t", "x"]):
        raise InvalidInput(f"mode {mode!r} is none: an exclusive file is written, as 'x', 'xt' or 'xb'")
    return "b" in mode


def _attach(kind: type) -> None:
    """Make a class forward to its target fsspec's public methods and all coroutines.

    Keeps the package's own, and `_KEPT`.
    """
    ours = [base for base in kind.__mro__ if base.__module__.startswith(__package__)]
    for name in dir(AsyncFileSystem):
        method = inspect.getattr_static(AsyncFileSystem, name)
        own = any(name in vars(base) for base in ours) or name in _KEPT or name.startswith("__")
        suspends = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if inspect.isfunction(method) and not own and (suspends or not name.startswith("_")):
            setattr(kind, name, _forwarded(name, method))


def _forwarded(name: str, method: Any) -> Callable[..., Any]:
    """Function, coroutine or generator, like `method`, that calls the target's `name` with plain paths."""
    parameters = list(inspect.signature(method).parameters)[1:]
    places = {position for position, parameter in enumerate(parameters) if parameter in _PATHS}

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        positional = [plain(arg) if position in places else arg for position, arg in enumerate(args)]
        named = {key: plain(value) if key in _PATHS else value for key, value in kwargs.items()}
        return getattr(self.fs, name)(*positional, **named)

    async def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await call(self, *args, **kwargs)

    async def iterate(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for item in call(self, *args, **kwargs):
            yield item

    is_generator, is_coroutine = inspect.isasyncgenfunction(method), inspect.iscoroutinefunction(method)
    chosen: Callable[..., Any] = iterate if is_generator else wait if is_coroutine else call
    chosen.__name__, chosen.__doc__ = name, f"See `{name}` of the target."
    return chosen


_attach(CasFileSystem)
