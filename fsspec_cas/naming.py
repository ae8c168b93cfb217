"""What may name a store, a folder in it and an object; the rest is refused before anything is sent or made.

fsspec takes whatever it does not understand for a local path below the current directory: "" and `s3:/bucket/x` would
be folders there, another one on every machine. (It does so too with the part behind `cas::` in a URL that fsspec opens
itself, before this package sees it.)
"""

from __future__ import annotations

import os
import re

from fsspec_cas.errors import InvalidInput, InvalidUrl

_LOCAL = ("file", "local")
_PASSWORD = re.compile(r"((?:cas::)?[\w.+-]+:/{1,2})(?!/|arn:)[^/?#@]*:[^@]*@")
_SECRET = re.compile(r"[?&]([^=&]*(?:secret|token|passw|pwd|sig|credential|key)[^=&]*)=", re.IGNORECASE)
_PROTOCOLS = {"gcs": "gs", "azure": "az", "local": "file"}  # where it is not the name of the backend


def check_url(url: object) -> str:
    """The URL of a store, or a local path, as it was given.

    A local path may be relative, but a ":" in its first step or a "?" is written `./a:b` and `file:///a?b`.

    Raises:
        InvalidUrl: it is no text, empty, neither a URL nor a path, leads out of its folder by "..", or has a password,
            a token or a signature in it: URLs are shown in messages and logs.

    >>> check_url("s3:/bucket/x")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidUrl: 's3:/bucket/x' is neither a URL nor a path: write s3://bucket/x for a URL, ...
    """
    url = _text(url, InvalidUrl)
    _check_secrets(url)
    plain = url.removeprefix("cas::")
    if not plain.strip():
        raise InvalidUrl(f"{url!r} names no place: write e.g. s3://bucket/folder, or ./folder for a local one")
    protocol, separator, rest = plain.partition("://")
    if not separator:
        _check_local(plain)
        if "?" in plain:
            raise InvalidUrl(
                f"{url!r} is a bare path, and those have no options: give them as arguments, or behind a URL "
                "(file:///folder?...); a folder with a '?' in its name is written file:///..."
            )
    elif protocol in _LOCAL and not rest.startswith("/"):
        raise InvalidUrl(f"{url!r} has no absolute path: write {protocol}:///{rest}, or ./{rest} for a relative one")
    _check_steps(url, rest if separator else plain, InvalidUrl)
    return url


def check_root(root: object) -> str:
    """A folder that paths are relative to; it may be empty.

    Raises:
        InvalidInput: it is no text, or has a step "..".
    """
    root = _text(root, InvalidInput)
    _check_steps(root, root, InvalidInput)
    return root


def check_path(path: object) -> str:
    """The path of an object below the root.

    Raises:
        InvalidInput: it is no text, names no object, or has a step "..".

    >>> check_path("folder/../a")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidInput: 'folder/../a' leaves its folder: write the path without '..'
    """
    found = check_root(path)
    if all(step in ("", ".") for step in found.split("/")):
        raise InvalidInput(f"{found!r} names no object: write the object's path below the root", path=found)
    return found


def url_of(kind: str, root: str) -> str:
    """The URL of a place in a store of this kind, for people."""
    return f"{_PROTOCOLS.get(kind, kind)}://{root}"


def _text(given: object, kind: type[InvalidInput]) -> str:
    """What was given as text or as a path object."""
    found = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(found, str):
        raise kind(f"{given!r} is no text: give a URL or a path, as str or pathlib.Path")
    return found


def _check_secrets(url: str) -> None:
    """Before anything else: no other message may show them."""
    if password := _PASSWORD.match(url):
        shown = f"{password[1]}***@{url[password.end() :]}"
        raise InvalidUrl(f"{shown!r} has a password in it: leave it out, and give credentials as storage options")
    if secret := _SECRET.search(url):
        shown = f"{url[: secret.start()]}{secret[0][0]}{secret[1]}=***"
        raise InvalidUrl(f"{shown!r} has a secret in it: leave it out, and give credentials as storage options")


def _check_local(path: str) -> None:
    """A colon in the first step may be that of a URL with a slash too few."""
    first = path.partition("/")[0]
    protocol, colon, _ = first.partition(":")
    rest = path[len(protocol) + len(colon) :]
    if not colon or (protocol in _LOCAL and rest.startswith("/")):
        return
    if len(protocol) == 1 and protocol.isalpha():
        raise InvalidUrl(f"{path!r} is a path of Windows, where local files have no conditional writes; write ./{path}")
    raise InvalidUrl(
        f"{path!r} is neither a URL nor a path: write {protocol}://{rest.lstrip('/')} for a URL, "
        f"or ./{path} for a local path with a colon in its first step"
    )


def _check_steps(given: str, path: str, kind: type[InvalidInput]) -> None:
    if ".." in path.split("/"):
        raise kind(f"{given!r} leaves its folder: write the path without '..'", path=given)
    if "\0" in path:
        raise kind(f"{given!r} has a NUL character in it: write the path without", path=given)
