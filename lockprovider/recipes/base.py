"""Base classes of the recipes: URLs, forks, and the check of the store."""

from __future__ import annotations

import inspect
import os
import socket
import weakref
from typing import Any, ClassVar, NoReturn, TypeVar

from fsspec_cas import InvalidInput, Machine, Store, Unknown, Won, World, check_path, check_url, require_safe_for_locks
from fsspec_cas.bridge.threads import EnteredByTasks
from lockprovider.errors import NotPicklable

Opened = TypeVar("Opened", bound="AtUrl")
OpenedForTasks = TypeVar("OpenedForTasks", bound="RecipeForTasks[Any]")
R = TypeVar("R", bound="Recipe")


class ProcessBound:
    """Base of objects that refuse pickling, and start anew in a forked child."""

    def _init_state(self) -> None:
        self._reset()
        _ALL.add(self)

    def _reset(self) -> None:
        """Become a client that has written nothing."""

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            f"{self!r} belongs to this process, and cannot be pickled or copied: open it where it is needed"
        )


_ALL: weakref.WeakSet[ProcessBound] = weakref.WeakSet()


def _in_child() -> None:
    for instance in [*_ALL]:
        instance._reset()  # noqa: SLF001 - the class is in this file


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class AtUrl:
    """Base of objects that a URL opens."""

    def __init__(self, store: Store, path: str, world: World | None) -> None:
        if not isinstance(store, Store):
            name = type(self).__name__
            raise InvalidInput(f"store={store!r} must be a Store: give Store.from_url(url), or use {name}.open(url)")
        self.path = check_path(path)
        self.world = world or Machine()
        self._store = store

    @classmethod
    def open(cls: type[Opened], url: str, *, storage_options: dict[str, Any] | None = None, **options: Any) -> Opened:
        """Open the object at a URL, without a request. `storage_options` are fsspec's, `options` those of the class.

        Raises:
            InvalidUrl, NotSupported: no store has such a URL.
            InvalidInput: the URL names no object, or an option does not fit.

        >>> lockprovider.queue.open("memory://docs/backfill.json")
        <Queue 'memory:///docs/backfill.json'>
        """
        allowed = [name for name in inspect.signature(cls).parameters if name not in ("store", "path")]
        for name, value in options.items():
            if name not in allowed:
                raise InvalidInput(
                    f"{name}={value!r} is not an option: there are {', '.join(allowed)}; "
                    "what the store is opened with goes into storage_options="
                )
        folder, slash, name = check_url(url).rpartition("/")
        if not slash:
            folder = "."
        if name in ("", ".") or folder.endswith((":/", ":")):
            raise InvalidInput(f"{url!r} must name an object, e.g. s3://bucket/folder/name.json")
        return cls(Store.from_url(folder, storage_options), name, **options)

    def __repr__(self) -> str:
        return repr_at(self, self._store, self.path)


class Recipe(AtUrl, ProcessBound):
    """Base of the recipes."""

    def close(self) -> None:
        """Stop taking operations."""

    def __enter__(self: R) -> R:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RecipeForTasks(EnteredByTasks[R]):
    """Base of the recipes for tasks."""

    _of: ClassVar[type[Any]]

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        super().__init__(self._of(store, path, **options))

    @classmethod
    def open(cls: type[OpenedForTasks], url: str, **options: Any) -> OpenedForTasks:
        """Open the object at a URL, without a request.

        >>> lockprovider.queue.AsyncQueue.open("memory://docs/backfill.json")
        <AsyncQueue 'memory:///docs/backfill.json'>
        """
        return cls._over(cls._of.open(url, **options))


class StoreCheck:
    """Checks once that a store keeps write conditions."""

    def __init__(self, store: Store, path: str) -> None:
        folder = path.rpartition("/")[0]
        self._root = store
        self.store = store.below(folder) if folder else store
        self._has_passed = False

    def require(self) -> None:
        """Raise NotSupported if the store ignores write conditions. Call it before each write."""
        if not self._has_passed:
            require_safe_for_locks(self.store)
            self._has_passed = True

    def create(self, path: str, data: bytes, timeout_s: float) -> bool:
        """Check the store, and create an object; return whether this call did."""
        self.require()
        outcome = self._root.put_if_absent(path, data, timeout=timeout_s)
        if isinstance(outcome, Unknown):
            outcome.unwrap()
        return isinstance(outcome, Won)


def repr_at(recipe: object, store: Store, path: str, more: str = "") -> str:
    """Return the `repr` of a recipe's object."""
    return f"<{type(recipe).__name__} {store.url.rstrip('/') + '/' + path!r}{more}>"


def process_name() -> str:
    """Return this process's host and pid, for people."""
    return f"{socket.gethostname()}, pid {os.getpid()}"
