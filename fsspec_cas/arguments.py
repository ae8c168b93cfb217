"""Checks of callers' arguments, before any request.

Stores disagree on whether `a//b` is `a/b`, so a path must be normalized.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from fsspec_cas.errors import InvalidInput, InvalidUrl, NotBytes

LARGEST_NUMBER = (1 << 53) - 1
"""The largest whole number that every JSON reader keeps exactly."""
_LONGEST_S = 100 * 365.25 * 86_400
_SHOWN = 200  # characters


def check_seconds(value: object, name: str = "timeout", *, finite: bool = False, above: bool = False) -> float:
    """Return a float of 0 or more (`above`: more than 0; `finite`: at most 100 years), or raise InvalidInput.

    Infinity passes unless `finite`; bool and NaN never do.
    """
    try:
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number, finite = math.inf, True
    if not number >= 0 or (finite and number > _LONGEST_S) or (above and not number):
        limits = f"{'above 0' if above else '0 or more'}{f' and at most {_LONGEST_S:.0f}' if finite else ''}"
        raise InvalidInput(f"{name}={shown(value)} must be a number of seconds, {limits}, e.g. {name}=30")
    return number


def to_ms(seconds: float) -> int:
    """Round up to milliseconds, so that no time above 0 becomes 0."""
    return math.ceil(seconds * 1000)


def check_whole(value: object, name: str, *, least: int = 0) -> int:
    """Return an int, no bool, from `least` to `LARGEST_NUMBER` (2**53 - 1), or raise InvalidInput with `name`."""
    if isinstance(value, int) and not isinstance(value, bool) and value > LARGEST_NUMBER:
        raise InvalidInput(f"{name} must be a whole number of at most {LARGEST_NUMBER}, which every JSON reader keeps")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(
            f"{name}={shown(value)} must be a whole number, {least} or more, e.g. {name}={max(least, 5)}"
        )
    return value


def check_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{name}={shown(value)} must be text, e.g. {name}='nightly'")
    return value


def check_function(value: Any, name: str, purpose: str) -> Callable[..., Any]:
    if not callable(value):
        raise InvalidInput(f"{name}={shown(value)} must be a function {purpose}")
    return value  # type: ignore[no-any-return]


def check_items(value: Any, name: str, items: str) -> Iterator[Any]:
    """Return an iterator of the value's items; text, bytes, a dict or no iterable raise InvalidInput at once.

    The message has `name`, and `items`, a noun for them.
    """
    if not isinstance(value, (str, bytes, bytearray, dict)):
        try:
            return iter(value)
        except TypeError:  # NumPy's array of no dimension says that it can be iterated.
            pass
    example = f": give [{shown(value)}]" if isinstance(value, (str, bytes)) else ""
    raise InvalidInput(f"{name}={shown(value)} must be a list of {items}{example}")


def check_texts(value: Any, name: str, items: str) -> tuple[str, ...]:
    result = tuple(check_items(value, name, items))
    strange = [item for item in result if not isinstance(item, str)]
    if strange:
        raise InvalidInput(f"{name} must be a list of {items}, and has {shown(strange[0])}, which is no text")
    return result


def shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a repr may raise anything
        text = f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


Bytes = bytes | bytearray | memoryview


def check_bytes(path: str, data: object) -> bytes:
    """Return the bytes to write to `path`, copied if mutable; other types raise NotBytes.

    >>> check_bytes("a", bytearray(b"1"))
    b'1'
    >>> check_bytes("a", "1")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.NotBytes: 'a' cannot be written with a str: encode the text first: data.encode()
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise not_bytes(path, data)


def check_buffer(path: str, data: object) -> memoryview:
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        raise not_bytes(path, data) from None
    return view.cast("B") if view.nbytes and view.c_contiguous else memoryview(view.tobytes())


def not_bytes(path: str, data: object) -> NotBytes:
    cure = "encode the text first: data.encode()" if isinstance(data, str) else "give bytes, bytearray or memoryview"
    return NotBytes(f"{path!r} cannot be written with a {type(data).__name__}: {cure}", path=path)


_LOCAL = ("file", "local")
_PASSWORD = re.compile(r"((?:cas::)?[\w.+-]+:/{1,2})(?!/|arn:)[^/?#@]*:[^@]*@")
_ARN = re.compile(r"^(arn:aws[^/:]*:s3[^/:]*:[^/:]*:\d{12}:(?:accesspoint|outpost))/([^/]+)(?:/(accesspoint)/([^/]+))?")
_SECRET = re.compile(r"[?&]([^=&]*(?:secret|token|passw|pwd|sig|credential|key)[^=&]*)=", re.IGNORECASE)
_PROTOCOLS = {"gcs": "gs", "azure": "az", "local": "file"}


def check_url(url: object) -> str:
    """Check the URL of a store or a local path, and return it without needless slashes and `.` steps.

    Raises:
        InvalidUrl: it is empty, no URL or path, a path with a query, or has outer blanks, a step "..", or a secret.

    >>> check_url("s3://bucket//x/./y/")
    's3://bucket/x/y'
    >>> check_url("s3:/bucket/x")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidUrl: 's3:/bucket/x' is neither a URL nor a path: write s3://bucket/x for a URL, ...
    """
    url = _as_text(url, InvalidUrl)
    _check_secrets(url)
    plain = url.removeprefix("cas::")
    if not plain.strip():
        raise InvalidUrl(
            f"{url!r} must name a bucket or folder: write e.g. s3://bucket/folder, or ./folder for a local one"
        )
    protocol, separator, rest = plain.partition("://")
    if not separator:
        _check_local(plain)
        if "?" in plain:
            raise InvalidUrl(
                f"{url!r} is a bare path, which has no options: give them as arguments, or behind a URL "
                "(file:///folder?...); a folder with a '?' in its name is written file:///..."
            )
    elif protocol in _LOCAL and not rest.startswith("/"):
        raise InvalidUrl(f"{url!r} has no absolute path: write {protocol}:///{rest}, or ./{rest} for a relative one")
    _checked(url, InvalidUrl)
    path, question, query = plain.partition("?")
    prefix = "cas::" if url.startswith("cas::") else ""
    return f"{prefix}{_normalized_url(path)}{question}{query}"


def check_root(root: object) -> str:
    return _normalized(_checked(root, InvalidInput))


def check_rooted(root: str) -> None:
    if not root:
        raise InvalidInput("the store has no root, so its test objects have no bucket: open it at a bucket or folder")


def check_path(path: object, *, absolute: bool = False, marker: bool = False) -> str:
    """Check the path of an object below the root, and return it unchanged.

    `absolute` (without a root) permits a leading slash, `marker` a trailing one.

    Raises:
        InvalidInput: it is not text, names no object, has blanks at its ends, or is not normalized.

    >>> check_path("folder/../a")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidInput: 'folder/../a' leaves its folder: write the path without '..'
    >>> check_path("folder//a")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidInput: 'folder//a' would be another object in another store: write 'folder/a'
    """
    text = _checked(path, InvalidInput)
    form = _normalized(text) if absolute else _normalized(text).lstrip("/")
    if not form.strip("/"):
        raise InvalidInput(f"{text!r} must name an object: write its path below the root", path=text)
    if text == form or (marker and text == f"{form}/"):
        return text
    if text == f"{form}/":
        raise InvalidInput(f"{text!r} names a folder: write the object's path without the slash", path=text)
    raise InvalidInput(f"{text!r} would be another object in another store: write {form!r}", path=text)


def check_prefix(prefix: object, *, absolute: bool = False) -> str:
    """Return a prefix, which may be empty or end within a step; `absolute` permits one leading slash.

    A `..`, or an empty or `.` step before the last, raises InvalidInput.
    """
    text = _checked(prefix, InvalidInput, blanks=True)
    steps = text.split("/")
    whole = steps[1 if absolute and not steps[0] else 0 : -1]
    if "" in whole or "." in whole:
        form = f"{_normalized('/'.join(whole))}/{steps[-1]}".lstrip("/")
        raise InvalidInput(f"{text!r} would be other objects in another store: write {form!r}", path=text)
    return text


def check_start(text: object) -> str:
    return _checked(text, InvalidInput, blanks=True)


def with_colons(path: str) -> str:
    """Write an S3 access point's ARN, if any, with colons."""
    return _ARN.sub(lambda arn: ":".join(part for part in arn.groups() if part), path)


def url_of(kind: str, root: str) -> str:
    return f"{_PROTOCOLS.get(kind, kind)}://{root}"


def _as_text(value: object, kind: type[InvalidInput]) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise kind(f"{value!r} is not text: give a URL or a path, as str or pathlib.Path")
    return text


def _check_secrets(url: str) -> None:
    if password := _PASSWORD.match(url):
        masked = f"{password[1]}***@{url[password.end() :]}"
        raise InvalidUrl(f"{masked!r} has a password in it: leave it out, and give credentials as storage options")
    if secret := _SECRET.search(url):
        masked = f"{url[: secret.start()]}{secret[0][0]}{secret[1]}=***"
        raise InvalidUrl(f"{masked!r} has a secret in it: leave it out, and give credentials as storage options")


def _check_local(path: str) -> None:
    """Raise InvalidUrl for a path whose first step has a colon: a path of Windows, or a URL without `://`.

    `file:/x` passes.
    """
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


def _checked(value: object, kind: type[InvalidInput], *, blanks: bool = False) -> str:
    """Return the text.

    Raises `kind` for no text, `..` steps, NUL, a lone surrogate, or, unless `blanks`, blanks at its ends.
    """
    text = _as_text(value, kind)
    if ".." in text.split("/"):
        raise kind(f"{text!r} leaves its folder: write the path without '..'", path=text)
    if "\0" in text:
        raise kind(f"{text!r} has a NUL character in it: write the path without", path=text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise kind(f"{text!r} has a lone surrogate in it, which no store can name: write text", path=text) from None
    if not blanks and text != text.strip():
        raise kind(f"{text!r} has blanks at its ends, which some stores cut off: write {text.strip()!r}", path=text)
    return text


def _normalized(path: str) -> str:
    steps = "/".join(step for step in path.split("/") if step not in ("", "."))
    return f"/{steps}" if path.startswith("/") else steps


def _normalized_url(url: str) -> str:
    """Return a URL or path without empty and `.` steps; the bucket stays, and a `./` that protects a colon."""
    protocol, separator, rest = url.partition("://")
    if not separator:
        return (
            f"./{_normalized(url)}"
            if url.startswith("./") and ":" in url.partition("/")[2]
            else _normalized(url) or url
        )
    if protocol in (*_LOCAL, "memory"):
        return f"{protocol}://{_normalized(rest)}"
    bucket, slash, path = with_colons(rest).partition("/")
    folded = _normalized(path).lstrip("/")
    if not bucket:  # fsspec takes s3:///bucket/path for s3://bucket/path
        return url
    return f"{protocol}://{bucket}{slash if folded else ''}{folded}"
