"""What may name a store, a folder in it and an object; the rest is refused before anything is sent or made.

One rule for all stores and for the lock, so that two programs that mean one object ask for one object:

- The steps of a path are parted by one slash, and none is `.` or `..`. The text has no blanks at its ends, no NUL and
  no lone surrogate.
- A **root** (a URL, `Store(root=)`) is brought into this form: `s3://b//t/` and `s3://b/./t` are `s3://b/t`, as JVM
  Hudi's `StoragePath` has it, which names its lock by it. `..` is refused, where `StoragePath` resolves it.
- The path of an **object** must have it, else it is refused: stores disagree on whether `a//b` is `a/b`, so no other
  name is put in the place of what was asked for.

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
# An access point in the place of a bucket; S3 takes it with colons, too, and then no part of it looks like a key.
_ARN = re.compile(r"^(arn:aws[^/:]*:s3[^/:]*:[^/:]*:\d{12}:(?:accesspoint|outpost))/([^/]+)(?:/(accesspoint)/([^/]+))?")
_SECRET = re.compile(r"[?&]([^=&]*(?:secret|token|passw|pwd|sig|credential|key)[^=&]*)=", re.IGNORECASE)
_PROTOCOLS = {"gcs": "gs", "azure": "az", "local": "file"}  # where it is not the name of the backend


def check_url(url: object) -> str:
    """The URL of a store, or a local path, without needless slashes and `.`: as all who mean this place write it.

    A local path may be relative, but a ":" in its first step or a "?" is written `./a:b` and `file:///a?b`.

    Raises:
        InvalidUrl: it is no text, empty, neither a URL nor a path, has blanks at its ends, leads out of its folder by
            "..", or has a password, a token or a signature in it: URLs are shown in messages and logs.

    >>> check_url("s3://bucket//x/./y/")
    's3://bucket/x/y'
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
    _check_text(url, InvalidUrl)
    path, question, query = plain.partition("?")
    prefix = "cas::" if url.startswith("cas::") else ""
    return f"{prefix}{_without_needless(path)}{question}{query}"


def check_root(root: object) -> str:
    """A folder that paths are relative to, in the form that all write it in; it may be empty.

    Raises:
        InvalidInput: it is no text, has blanks at its ends, or a step "..".

    >>> check_root("/folder//a/")
    '/folder/a'
    """
    root = _text(root, InvalidInput)
    _check_text(root, InvalidInput)
    return _folded(root)


def check_path(path: object, *, absolute: bool = False, marker: bool = False) -> str:
    """The path of an object below the root.

    It may begin with a slash where it is `absolute`, below no root, and end with one where it may be the `marker` that
    some programs make of a folder.

    Raises:
        InvalidInput: it is no text, names no object, or is not in the form in which all stores name one.

    >>> check_path("folder/../a")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidInput: 'folder/../a' leaves its folder: write the path without '..'
    >>> check_path("folder//a")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidInput: 'folder//a' would be another object in another store: write 'folder/a'
    """
    found = _text(path, InvalidInput)
    _check_text(found, InvalidInput)
    form = _folded(found) if absolute else _folded(found).lstrip("/")
    if not form.strip("/"):
        raise InvalidInput(f"{found!r} names no object: write the object's path below the root", path=found)
    if found == form or (marker and found == f"{form}/"):
        return found
    if found == f"{form}/":
        raise InvalidInput(f"{found!r} names a folder: write the object's path without the slash", path=found)
    raise InvalidInput(f"{found!r} would be another object in another store: write {form!r}", path=found)


def check_prefix(prefix: object, *, absolute: bool = False) -> str:
    """How the paths of some objects begin; it may be empty, and end anywhere in a step.

    Raises:
        InvalidInput: it is no text, or no object's path begins so.
    """
    found = _text(prefix, InvalidInput)
    _check_steps(found, InvalidInput)
    steps = found.split("/")
    whole = steps[1 if absolute and not steps[0] else 0 : -1]
    if "" in whole or "." in whole:
        form = f"{_folded('/'.join(whole))}/{steps[-1]}".lstrip("/")
        raise InvalidInput(f"{found!r} would be other objects in another store: write {form!r}", path=found)
    return found


def check_start(text: object) -> str:
    """What a listing is to start after; it need be nobody's name.

    Raises:
        InvalidInput: it is no text, or no store could compare it.
    """
    found = _text(text, InvalidInput)
    _check_steps(found, InvalidInput)
    return found


def with_colons(path: str) -> str:
    """A path in S3 whose bucket may be an access point, in the form in which no part of that looks like a key."""
    return _ARN.sub(lambda arn: ":".join(part for part in arn.groups() if part), path)


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


def _check_text(given: str, kind: type[InvalidInput]) -> None:
    _check_steps(given, kind)
    if given != given.strip():
        raise kind(f"{given!r} has blanks at its ends, which some stores cut off: write {given.strip()!r}", path=given)


def _check_steps(given: str, kind: type[InvalidInput]) -> None:
    if ".." in given.split("/"):
        raise kind(f"{given!r} leaves its folder: write the path without '..'", path=given)
    if "\0" in given:
        raise kind(f"{given!r} has a NUL character in it: write the path without", path=given)
    try:
        given.encode()
    except UnicodeEncodeError:
        raise kind(f"{given!r} has a lone surrogate in it, which no store can name: write text", path=given) from None


def _folded(path: str) -> str:
    """The path without empty steps and `.`; a slash at the beginning stays."""
    steps = "/".join(step for step in path.split("/") if step not in ("", "."))
    return f"/{steps}" if path.startswith("/") else steps


def _without_needless(url: str) -> str:
    """The same of a URL's path; its bucket is left alone, and so is the dot of `.` and `./a:b`."""
    protocol, separator, rest = url.partition("://")
    if not separator:
        return f"./{_folded(url)}" if url.startswith("./") and ":" in url.partition("/")[2] else _folded(url) or url
    if protocol in (*_LOCAL, "memory"):
        return f"{protocol}://{_folded(rest)}"
    bucket, slash, path = with_colons(rest).partition("/")
    folded = _folded(path).lstrip("/")
    if not bucket:  # such as s3:///bucket/path, which fsspec takes for s3://bucket/path
        return url
    return f"{protocol}://{bucket}{slash if folded else ''}{folded}"
