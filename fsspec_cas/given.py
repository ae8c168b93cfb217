"""Checks of callers' arguments: numbers, texts, functions and the bytes of a write.

A check fails before any request, with an error that names the argument. Only Python's three bytes types are bytes:
`bytes(value)` would turn 5 into five zeros and `[1, 2]` into two bytes, and hide a caller's mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from fsspec_cas.errors import InvalidInput, NotBytes

LARGEST_NUMBER = (1 << 53) - 1
"""The largest whole number that every JSON reader keeps exactly."""
_LONGEST_S = 100 * 365.25 * 86_400


def seconds(value: object, name: str = "timeout", *, finite: bool = False, above: bool = False) -> float:
    """Return a duration in seconds that is 0 or more; with `above`, more than 0.

    Infinity means no limit. `finite`, for a stored value, refuses infinity and more than a hundred years.

    Raises:
        InvalidInput: the message names the value.
    """
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not number >= 0 or (finite and number > _LONGEST_S) or (above and not number):
        least = "above 0" if above else "0 or more"
        raise InvalidInput(f"{name}={value!r} must be a number of seconds, {least}, e.g. {name}=30")
    return float(number)


def whole(value: object, name: str, *, least: int = 0) -> int:
    """Return a whole number from `least` to `LARGEST_NUMBER`.

    Raises:
        InvalidInput: the message names the value.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > LARGEST_NUMBER:
        raise InvalidInput(f"{name} must be a whole number of at most {LARGEST_NUMBER}, which every JSON reader keeps")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name}={value!r} must be a whole number, {least} or more, e.g. {name}={max(least, 5)}")
    return value


def check_text(value: object, name: str) -> str:
    """Return a text, which may be empty.

    Raises:
        InvalidInput: the message names the value.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name}={value!r} must be text, e.g. {name}='nightly'")
    return value


def function(value: Any, name: str, what: str) -> Callable[..., Any]:
    """Return a callable.

    Raises:
        InvalidInput: the message names the value.
    """
    if not callable(value):
        raise InvalidInput(f"{name}={value!r} must be a function {what}")
    return value  # type: ignore[no-any-return] # callable() says no more


def several(value: Any, name: str, what: str) -> Iterable[Any]:
    """Return an iterable, but not a single text, whose letters would count as its items.

    Raises:
        InvalidInput: the message names the value.
    """
    if isinstance(value, (str, bytes, bytearray, dict)) or not isinstance(value, Iterable):
        raise InvalidInput(f"{name}={value!r} must be a list of {what}")
    return value


Bytes = bytes | bytearray | memoryview


def check_bytes(path: str, data: object) -> bytes:
    """Return the bytes to write to `path`; mutable data is copied.

    Raises:
        NotBytes: `data` is not bytes, bytearray or memoryview.

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
    """Return a view of bytes to write to a stream: of any object with the buffer protocol, as for Python's files.

    Raises:
        NotBytes: `data` has no buffer.
    """
    try:
        view = memoryview(data)  # type: ignore[arg-type] # this call is the check
    except TypeError:
        raise not_bytes(path, data) from None
    return view.cast("B") if view.nbytes and view.c_contiguous else memoryview(view.tobytes())


def not_bytes(path: str, data: object) -> NotBytes:
    """Return the error for a body that is not bytes; its text names the type given, and what to give instead."""
    cure = "encode the text first: data.encode()" if isinstance(data, str) else "give bytes, bytearray or memoryview"
    return NotBytes(f"{path!r} cannot be written with a {type(data).__name__}: {cure}", path=path)
