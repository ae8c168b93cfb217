"""Where a recipe's object is, and who works on it."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from fsspec_cas import InvalidInput, Store, check_path, check_url
from lockprovider.errors import NotPicklable

T = TypeVar("T")


def open_at(kind: Callable[..., T], url: str, storage_options: dict[str, Any] | None, options: Mapping[str, Any]) -> T:
    """What this class makes of the object at a URL.

    Raises:
        InvalidUrl, InvalidInput, NotSupported: as `store_and_path`; or there is no such option.
    """
    known = [name for name in inspect.signature(kind).parameters if name not in ("store", "path")]
    for name in options:
        if name not in known:
            raise InvalidInput(
                f"{name}={options[name]!r} is no option here: there are {', '.join(known)}; "
                "what the store is opened with goes into storage_options="
            )
    store, path = store_and_path(url, storage_options)
    return kind(store, path, **options)


def store_and_path(url: str, storage_options: dict[str, Any] | None = None) -> tuple[Store, str]:
    """The folder that a URL's object is in, and the object's name.

    Raises:
        InvalidUrl: the URL cannot be understood.
        InvalidInput: it names no object.
        NotSupported: no backend for this protocol.
    """
    checked = check_url(url)
    folder, slash, name = checked.rpartition("/")
    if not slash:
        folder = "."
    if name in ("", ".") or folder.endswith((":/", ":")):
        raise InvalidInput(f"{url!r} names no object: write it with its name, e.g. s3://bucket/folder/name.json")
    return Store.from_url(folder, storage_options), check_path(name)


class OfThisProcess:
    """What has threads here, and knows what it has written: it works in this process alone."""

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            f"{self!r} belongs to this process, and cannot be pickled or copied: open it where it is needed"
        )


def repr_at(one: object, store: Store, path: str, more: str = "") -> str:
    """What shows something that is kept in an object: its class, and where that is."""
    return f"<{type(one).__name__} {store.url.rstrip('/') + '/' + path!r}{more}>"


def me() -> str:
    """This process, for people."""
    return f"{socket.gethostname()}, pid {os.getpid()}"
