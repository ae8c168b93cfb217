"""Where a recipe's object is, and who works on it."""

from __future__ import annotations

import os
import socket
from typing import Any

from fsspec_cas import InvalidInput, Store, check_path, check_url


def store_and_path(url: str, storage_options: dict[str, Any] | None = None) -> tuple[Store, str]:
    """The folder that a URL's object is in, and the object's name.

    Raises:
        InvalidUrl: the URL cannot be understood.
        InvalidInput: it names no object.
        NotSupported: no backend for this protocol.
    """
    folder, slash, name = check_url(url).rpartition("/")
    if not slash or not name or folder.endswith((":/", ":")):
        raise InvalidInput(f"{url!r} names no object: write it with its name, e.g. s3://bucket/folder/name.json")
    return Store.from_url(folder, storage_options), check_path(name)


def me() -> str:
    """This process, for people."""
    return f"{socket.gethostname()}, pid {os.getpid()}"
