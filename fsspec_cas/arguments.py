"""Checks of callers' arguments, before any request.

Stores disagree on whether `a//b` is `a/b`, so a path must be normalized.
"""

from __future__ import annotations

import contextlib
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


def check_flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name}={shown(value)} must be True or False")
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
    """Return an iterator of the items; text, bytes, a dict or no iterable raise InvalidInput at once.

    The message has `name` and `items`, a noun.
    """
    if not isinstance(value, (str, bytes, bytearray, dict)):
        try:
            return iter(value)
        except TypeError:  # NumPy's 0-d array claims to be iterable
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
    """Bytes to write to `path`, copied if mutable; other types raise NotBytes.

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


def check_root(root: object) -> str:
    return normalized(checked(root, InvalidInput))


def check_rooted(root: str) -> None:
    if not root:
        raise InvalidInput("the store has no root, so its test objects have no bucket: open it at a bucket or folder")


def check_path(path: object, *, absolute: bool = False, marker: bool = False) -> str:
    """Check an object's path below the root; return it unchanged.

    `absolute` (without a root) permits a leading slash, `marker` a trailing one.

    Raises:
        InvalidInput: it is not text, names no object, has blanks at its ends, or is not normalized.

    >>> check_path("folder/../a")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidInput: 'folder/../a' has a step '..', which no store resolves: write the path without '..'
    >>> check_path("folder//a")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidInput: 'folder//a' would be another object in another store: write 'folder/a'
    """
    text = checked(path, InvalidInput)
    form = normalized(text) if absolute else normalized(text).lstrip("/")
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
    text = checked(prefix, InvalidInput, blanks=True)
    steps = text.split("/")
    whole = steps[1 if absolute and not steps[0] else 0 : -1]
    if "" in whole or "." in whole:
        form = f"{normalized('/'.join(whole))}/{steps[-1]}".lstrip("/")
        raise InvalidInput(f"{text!r} would be other objects in another store: write {form!r}", path=text)
    return text


def check_start(text: object) -> str:
    return checked(text, InvalidInput, blanks=True)


def as_text(value: object, kind: type[InvalidInput]) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise kind(f"{shown(value)} is not text: give a URL or a path, as str or pathlib.Path")
    return text


_LOCAL = re.compile("^(file|local):(?=/)")


def checked(value: object, kind: type[InvalidInput], *, blanks: bool = False) -> str:
    """Return the text of a str or path object.

    Raises `kind` for other values, `..` steps, NUL, a lone surrogate, or, unless `blanks`, blanks at its ends.
    """
    text = as_text(value, kind)
    if "\0" in text:
        raise kind(f"{text!r} has a NUL character in it: write the path without", path=text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise kind(f"{text!r} has a lone surrogate in it, which no store can name: write text", path=text) from None
    if ".." in text.split("/"):
        form = "the path without '..'"
        if kind is InvalidUrl and "://" not in text:
            with contextlib.suppress(OSError):  # the current folder may be gone
                home = os.path.expanduser(_LOCAL.sub("", text))  # noqa: PTH111 - an unknown user is no error here
                form = repr(os.path.realpath(home))
        raise kind(f"{text!r} has a step '..', which no store resolves: write {form}", path=text)
    if not blanks and text != text.strip():
        raise kind(f"{text!r} has blanks at its ends, which some stores cut off: write {text.strip()!r}", path=text)
    return text


def normalized(path: str) -> str:
    steps = "/".join(step for step in path.split("/") if step not in ("", "."))
    return f"/{steps}" if path.startswith("/") else steps
