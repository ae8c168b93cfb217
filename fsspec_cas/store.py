"""`Store`, for sync callers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from fsspec_cas.answer import Capabilities
from fsspec_cas.async_store import AsyncStore, check_backend
from fsspec_cas.backends import Backend, backend_for, is_remote, service_key, split_url
from fsspec_cas.bridge.drive import drive_of, sync
from fsspec_cas.bridge.threads import BACKGROUND, run_here
from fsspec_cas.exclusive import sync_opener
from fsspec_cas.machine import Machine, World
from fsspec_cas.urls import url_of

T = TypeVar("T")


class Store:
    """Conditional writes below one root, for sync callers, with the methods of `AsyncStore`. Thread-safe.

    "Outcomes" in `fsspec_cas/README.md` has the promises and their limits.

    `s3`, `gcs` and `azure` run on fsspec's loop thread; local files, memory and `client="obstore"` in the calling
    thread.

    >>> store = Store.from_url("memory://docs/store")
    >>> version = store.put_if_absent("a", b"1").unwrap()
    >>> store.put_if_absent("a", b"mine").unwrap()
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.AlreadyExists: '/docs/store/a' already exists (...); it was not written
    """

    def __init__(
        self,
        backend: Backend,
        root: str = "",
        *,
        world: World | None = None,
        on_throttled: Callable[[], None] | None = None,
    ) -> None:
        check_backend(backend, "Store")
        self._world = world or Machine()
        self._drive = drive_of(self._world, backend)
        self._async = AsyncStore(backend, root, world=self._world, drive=self._drive, on_throttled=on_throttled)
        self._on_throttled = on_throttled
        self._is_remote = is_remote(backend)
        self._isolated: Store | None = None

    @classmethod
    def from_url(cls, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
        """Open the store at `url`, with fsspec's storage options; may look for credentials, sends the store nothing.

        Raises:
            InvalidUrl, InvalidInput: the URL cannot be parsed, or this kind of store has no such option.
            NotSupported: no backend for this protocol.
            StoreError: no credentials were found, or their service did not answer.

        >>> Store.from_url("playground", {"auto_mkdir": True}).put_if_absent("a", b"1").unwrap().backend
        'local'
        """
        fs, root = split_url(url, storage_options)
        return cls(backend_for(fs), root)

    @classmethod
    def from_filesystem(cls, fs: Any, root: str = "") -> Store:
        """Open a store on an fsspec filesystem, with its credentials and endpoint.

        >>> import fsspec
        >>> Store.from_filesystem(fsspec.filesystem("memory"), "/docs/store").read("a").data
        b'1'
        """
        return cls(backend_for(fs), root)

    def __repr__(self) -> str:
        return f"<Store {self.url!r}>"

    def below(self, folder: str) -> Store:
        """Store at `folder` below this root, on the same connections; sends nothing.

        >>> store.below("folder").put_if_absent("b", b"2").unwrap() == store.head("folder/b").version
        True
        """
        root = self._async._full_prefix(folder)  # noqa: SLF001
        return Store(self._async.backend, root, world=self._world, on_throttled=self._on_throttled)

    def isolated_connections(self) -> Store:
        """The same store with its own connections, for requests that must not wait while all others are busy.

        Later calls return it again. Without connections (local files, memory) it is this store.

        >>> renewals = store.isolated_connections()
        >>> renewals.read("a").data
        b'1'
        """
        make = getattr(type(self.backend), "isolated_connections", None)
        if make is None:
            return self
        if self._isolated is None:
            self._isolated = Store(make(self.backend), self.root, world=self._world, on_throttled=self._on_throttled)
        return self._isolated

    def on_throttled(self, call: Callable[[], None]) -> Store:
        """New store that calls `call`, not this store's callback, after each throttled answer (429, 503).

        `call` runs on the request's thread; an exception in it fails the request.

        >>> asked = []
        >>> store.on_throttled(lambda: asked.append("slow down")).read("a").data, asked
        (b'1', [])
        """
        return Store(self.backend, self.root, world=self._world, on_throttled=call)

    def in_background(self, call: Callable[[], T]) -> Future[T]:
        """Start `call`, which uses this store, on its own thread; return its future.

        Without a network the call ends before this returns. The interpreter's exit waits up to 60 s for it.

        >>> reading = store.in_background(lambda: store.read("a"))
        >>> reading.result().data
        b'1'
        """
        return BACKGROUND.begin(call) if self.is_remote else run_here(call)

    @property
    def is_remote(self) -> bool:
        """True if requests wait for a network.

        >>> store.is_remote
        False
        """
        return self._is_remote

    @property
    def time_ms(self) -> int | None:
        """See `AsyncStore.time_ms`.

        >>> store.time_ms is None
        True
        """
        return self._async.time_ms

    @property
    def backend(self) -> Backend:
        """Sender of the requests."""
        return self._async.backend

    @property
    def root(self) -> str:
        """Folder to which all paths are relative."""
        return self._async.root

    @property
    def identity(self) -> object:
        """Key: equal keys prove the same root, store and options; unequal ones prove nothing."""
        return service_key(self._async.backend), self._async.root

    @property
    def url(self) -> str:
        """Root as a URL for messages, without options, which may hold secrets."""
        return url_of(self.kind, self.root)

    @property
    def kind(self) -> str:
        """`s3`, `gcs`, `azure`, `local` or `memory`."""
        return self._async.backend.name

    @property
    def capabilities(self) -> Capabilities:
        """Documented capabilities of this kind of store."""
        return self._async.capabilities

    open_exclusive = sync_opener(AsyncStore.open_exclusive)
    read = sync(AsyncStore.read)
    read_or_none = sync(AsyncStore.read_or_none)
    read_if_changed = sync(AsyncStore.read_if_changed)
    head = sync(AsyncStore.head)
    put_if_absent = sync(AsyncStore.put_if_absent)
    put_if_match = sync(AsyncStore.put_if_match)
    resolve = sync(AsyncStore.resolve)
    delete_if_match = sync(AsyncStore.delete_if_match)
    require_conditional_delete = sync(AsyncStore.require_conditional_delete)
    delete = sync(AsyncStore.delete)
    delete_all = sync(AsyncStore.delete_all)
    list = sync(AsyncStore.list)
    update = sync(AsyncStore.update)
